"""Input images of a command, the names of what it writes, and the progress that it shows."""

import io
import sys
from pathlib import Path

import pytest

from mmattn.utils import image_files, progress
from mmattn.utils.image_files import check_names, lines, list_images, reason
from mmattn.utils.progress import SlowLines, progress_stream, track


@pytest.fixture
def said(monkeypatch):
    texts = []
    monkeypatch.setattr(image_files, 'print_log', lambda text, _: texts.append(text))
    return texts


def test_images_of_a_folder(tmp_path, said):
    """Sorted, whatever the case of their suffix; hidden files and subfolders are not read, others are named."""
    for name in ('b.png', 'a.JPG', '.c.png', 'notes.txt', 'data.npy'):
        (tmp_path / name).touch()
    (tmp_path / 'sub').mkdir()
    (tmp_path / 'sub' / 'd.png').touch()
    assert list_images(tmp_path) == [str(tmp_path / name) for name in ('a.JPG', 'b.png')]
    (text,) = said
    assert {'.png', '.jpg', '.tif', '.webp'} < image_files.SUFFIXES
    assert not {'.pdf', '.txt', '.npy'} & image_files.SUFFIXES  # PIL writes the first, and does not read it
    assert text.endswith(': data.npy, notes.txt, sub')
    assert list_images(str(tmp_path), ['.npy']) == [str(tmp_path / 'data.npy')]
    with pytest.raises(ValueError, match=f'inputs .* no image; got {tmp_path}$'):
        list_images(tmp_path, ['.gif'])


def test_images_that_are_named(tmp_path, said):
    assert list_images('a.txt') == ['a.txt']
    assert list_images(['b.png', Path('a.png')]) == ['b.png', 'a.png']
    for wrong in ([], ()):
        with pytest.raises(ValueError, match='no image'):
            list_images(wrong)
    for wrong in (None, b'a.png', ['a.png', b'b.png'], [3]):
        with pytest.raises(TypeError, match=r'inputs .*(NoneType|bytes|int)$'):
            list_images(wrong)
    assert said == []


def test_outputs_have_different_names_and_replace_no_input(tmp_path):
    paths = ['a/1.jpg', 'b/1.jpg', 'b/2.jpg', 'c/3.jpg']
    with pytest.raises(ValueError, match=r':\n  1\.png from a/1\.jpg and b/1\.jpg$'):
        check_names(paths, ['1.png', '1.png', '2.png', '3.png'])
    inputs = [str(tmp_path / name) for name in ('1.png', '2.png')]
    check_names(inputs, ['1.png', '2.png'], tmp_path / 'pred', tmp_path / 'vis')
    (tmp_path / 'link').symlink_to('.')
    with pytest.raises(ValueError, match='out_dir') as caught:
        check_names(inputs, ['1.png', '3.png'], tmp_path / 'pred', tmp_path / 'link')
    assert str(caught.value).endswith(f':\n  {inputs[0]}')
    assert lines(['a', 'b']) == '\n  a\n  b'


def test_the_reason_of_an_error_is_one_line():
    assert reason(ValueError('two\n  lines')) == 'two lines'
    assert reason(ValueError()) == 'ValueError()'


@pytest.fixture
def clock(monkeypatch):
    """``clock[0]`` is the time."""
    time = [100.0]
    monkeypatch.setattr(progress, 'monotonic', lambda: time[0])
    return time


def test_a_log_has_a_line_every_ten_seconds(clock, capsys):
    stream = progress_stream('Reading: ')
    assert isinstance(stream, SlowLines)
    for seconds, text in ((109.9, 'a'), (110, ' \n'), (110, ' b \n'), (119.9, 'c'), (120, 'd')):
        clock[0] = seconds
        assert stream.write(text) == len(text)
    assert capsys.readouterr().err == 'Reading: b\nReading: d\n'


@pytest.mark.parametrize(
    ('items', 'total', 'shown'),
    [
        (range(1500), None, '1,200 of 1,500'),
        (iter(range(1500)), None, '1,200'),
        (iter(range(1500)), 2000, '1,200 of 2,000'),
        (range(1500), 2000, '1,200 of 2,000'),
    ],
)
def test_progress_is_what_is_done(clock, capsys, items, total, shown):
    done = []
    for item in track(items, 'Reading', total):
        done.append(item)
        clock[0] += 15 if item == 1199 else 0
    assert done == [*range(1500)]
    assert capsys.readouterr().err == f'Reading: {shown}\n'


def test_a_terminal_has_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, 'stderr', Terminal())
    assert progress_stream() is sys.stderr
    assert [*track(iter('ab'), 'Reading', 2)] == ['a', 'b']
    assert 'Reading' in sys.stderr.getvalue()
    assert '100%' in sys.stderr.getvalue()
