"""The file of finished predictions: a run continues after any stop, and no other run, process or file is mistaken."""

import fcntl
import os

import pytest

from mmattn.utils.resumable import OtherRunError, Resumable, progress_path

SETTINGS = dict(beam=3, input='a')
PREDICTIONS = {index: dict(text='ä' * index) for index in range(4)}


@pytest.fixture
def path(tmp_path):
    """The file after two predictions."""
    with Resumable(tmp_path / 'new/out.part', SETTINGS) as run:
        assert run.done == {}
        run.add({0: PREDICTIONS[0]})
        run.add({1: PREDICTIONS[1]})
    return tmp_path / 'new/out.part'


def reopened(path, settings=SETTINGS, resume=True):
    with Resumable(path, settings, resume) as run:
        return run.done


@pytest.mark.parametrize('torn', [b'', b'{"index": 2, "text": "a', b'\xc3'])
def test_an_incomplete_last_line_is_removed(path, torn):
    path.write_bytes(path.read_bytes() + torn)
    with Resumable(path, SETTINGS) as run:
        assert run.done == {0: PREDICTIONS[0], 1: PREDICTIONS[1]}
        run.add({2: PREDICTIONS[2], 3: PREDICTIONS[3]})
    assert reopened(path) == PREDICTIONS
    assert reopened(path, resume=False) == {}


INDICES = '', '"index": "1"', '"index": null', '"index": true'


@pytest.mark.parametrize(
    ('content', 'names'),
    [
        (None, r'out.part .*beam, more\b'),
        ('{"beam": 2, "input": "a", "more": 1}\n[1]\nno line break', 'out.part, line 2'),
        ('[{"image_id": 1}]', 'out.part, line 1'),
        ('[{"image_id": 1}]\n', 'out.part, line 1'),
        *((f'{{"beam": 2, "input": "a", "more": 1}}\n{{{index}}}\n', 'out.part, line 2') for index in INDICES),
    ],
)
def test_another_file_is_refused_and_kept(path, content, names):
    if content is not None:
        path.write_text(content, encoding='utf-8')
    before = path.read_bytes()
    with pytest.raises(ValueError, match=names):
        reopened(path, dict(SETTINGS, beam=2, more=1))
    assert path.read_bytes() == before


def test_the_settings_that_differ_are_told(path):
    other = Resumable(path, dict(SETTINGS, beam=2, more=1))
    with pytest.raises(OtherRunError) as caught:
        other.__enter__()
    assert caught.value.differing == ['beam', 'more']
    assert len(reopened(path)) == 2  # it is not held


def test_the_file_is_cut_at_the_first_result_that_is_not_there(path):
    with Resumable(path, SETTINGS) as run:
        run.add({2: PREDICTIONS[2]})
    seen = []
    with Resumable(path, SETTINGS, is_intact=lambda key, values: seen.append((key, values)) or key != 1) as run:
        assert run.done == {0: PREDICTIONS[0]}
    assert seen == [(0, PREDICTIONS[0]), (1, PREDICTIONS[1])]
    assert reopened(path) == {0: PREDICTIONS[0]}


def test_a_file_in_use_is_refused_and_kept(path):
    before = path.read_bytes()
    with open(path, 'rb') as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(BlockingIOError, match='in use'):
            reopened(path, resume=False)
    assert path.read_bytes() == before


def test_outputs_that_exist(tmp_path):
    out, part = tmp_path / 'out', tmp_path / 'out.part'
    assert progress_path(out, False, False) == part
    for file, resume, overwrite in ((out, False, True), (part, False, True), (part, True, False)):
        file.touch()
        assert progress_path(out, resume, overwrite) == part
        with pytest.raises(FileExistsError, match='--overwrite'):
            progress_path(out, resume=file is out, overwrite=False)
        file.unlink()
    (tmp_path / 'folder').mkdir()
    os.mkfifo(tmp_path / 'pipe')  # as /dev/null, it would be replaced
    (tmp_path / 'link').symlink_to(tmp_path / 'nowhere')
    for name in ('folder', 'pipe', 'link/out'):
        with pytest.raises(OSError, match=name.removesuffix('/out')):
            progress_path(tmp_path / name, False, True)
