"""Facts of files are kept, so that a file is read once, and are those of the file as it is now."""

import os
import sys

import numpy as np
import pytest

from .conftest import write
from .test_images import mask

OPENED = []


@pytest.fixture(scope='module', autouse=True)
def _listen():
    sys.addaudithook(lambda event, arguments: event == 'open' and OPENED.append(str(arguments[0])))


@pytest.fixture
def opens(root):
    """``opens()``: how often each file of the data was opened since the last call."""

    def count():
        names = [name for name in OPENED if name.startswith(str(root))]
        OPENED.clear()
        return {name.removeprefix(f'{root}/'): names.count(name) for name in names}

    return count


def test_a_file_is_opened_at_most_twice_and_then_never(check, opens):
    opens()
    first = check()
    assert len(counts := opens()) == 8
    assert max(counts.values()) == 2
    assert check() == first
    assert opens() == {}


def test_what_has_changed_is_read_again(check, root, opens):
    check()
    opens()
    path = write(root / 'ann/train/train_1.png', mask(0, 1, 9))
    write(root / 'img/train/new.png', np.ones((40, 48, 3), np.uint8))
    write(root / 'ann/train/new.png', mask(0, 1))
    for _ in range(2):
        assert {*check()[0]} == {('labels', 'ann/train/train_1.png')}
    assert {*opens()} == {'ann/train/train_1.png', 'img/train/new.png', 'ann/train/new.png'}
    before = path.stat()
    os.replace(write(root / 'other.png', mask(0, 1, 8)), path)  # of the same size and time
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert '8' in check()[0]['labels', 'ann/train/train_1.png']


def test_how_a_mask_is_loaded_matters(check):
    assert check() == ({}, {})
    assert check(dict(reduce_zero_label=True), dict(reduce_zero_label=True))[1].keys() == {
        ('absent', 'train_dataloader'),
        ('absent', 'val_dataloader'),
    }


def test_faults_are_not_kept(check, root):
    path = root / 'ann/train/train_0.png'
    content = path.read_bytes()
    path.unlink()
    assert check()[0]
    path.write_bytes(content)
    assert check() == ({}, {})


@pytest.mark.parametrize('content', ['', '[]', '0\n{"a": [1]}', 'text\n\n'])
def test_a_damaged_cache_is_dropped(check, cache, opens, content):
    check()
    caches = [*cache.rglob('*.facts')]
    assert len(caches) == 4
    for path in caches:
        path.write_text(content)
    opens()
    assert check() == ({}, {})
    assert len(opens()) == 8


def test_a_cache_that_cannot_be_written_is_passed_over(check, cache):
    cache.write_text('a file in place of the folder')
    assert check() == check() == ({}, {})
