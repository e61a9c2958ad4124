"""Files and folders that are written together or not at all."""

from contextlib import nullcontext

import pytest

from common.conversion import replace_folder
from mmattn.utils.files import write_text


@pytest.mark.parametrize('there', [False, True])
@pytest.mark.parametrize('fault', [None, ValueError, FileNotFoundError])
def test_a_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path, there, fault):
    """Not if the block fails, nor if it makes nothing."""
    path = tmp_path / 'new' / 'out' / 'pictures'
    if there:
        path.mkdir(parents=True)
        write_text(path / 'old.txt', 'old')
    with nullcontext() if fault is None else pytest.raises(fault), replace_folder(path) as scratch:
        if fault is not FileNotFoundError:
            write_text(scratch / 'new' / 'new.txt', 'new')
        if fault is ValueError:
            raise ValueError
    expected = ['new.txt'] if fault is None else ['old.txt'] if there else []
    assert [file.relative_to(path).name for file in path.parent.rglob('*.*')] == expected
