"""Input images of a command, and the names of what it writes."""

import pytest

from mmattn.utils import image_files
from mmattn.utils.image_files import check_names, lines, list_images, reason


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
