"""Files from elsewhere run no code and write nothing outside of their folder: archives and arrays."""

import gzip
import io
import pickle
import re
import stat
import tarfile
import zipfile

import numpy as np
import pytest

from common.archives import unpack
from common.region_archives import REQUIRED, read_archive
from mmattn.language.vqa.encoders import GRU_WEIGHTS, read_skip_thought
from mmattn.language.vqa.word_vectors import read_word_vectors
from mmattn.utils.faults import FaultsError

from .full_disk import full_disk
from .hostile_pickle import Code

PLAIN = {'data/a.txt': b'a', './b.txt': b'b', 'data/..c/d..txt': b'c'}
OUTSIDE = ('../x', 'data/../../x', '/tmp/x', '..')


def write_tar(path, entries, mode='w:gz'):
    """Entries are a name with content, or a type of tarfile with a target."""
    with tarfile.open(path, mode) as archive:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
            else:
                entry.type, entry.linkname = content
                archive.addfile(entry)
    return path


def write_zip(path, entries):
    """Entries are a name with content, or a file type of stat with a target."""
    with zipfile.ZipFile(path, 'w') as archive:
        for name, content in entries.items():
            entry = zipfile.ZipInfo(name)
            if not isinstance(content, bytes):
                entry.create_system, entry.external_attr = 3, (content[0] | 0o777) << 16
                content = content[1].encode()
            archive.writestr(entry, content)
    return path


LINKS = {
    'tar': {'link': (tarfile.SYMTYPE, '/etc'), 'hard': (tarfile.LNKTYPE, 'data/a.txt'), 'pipe': (tarfile.FIFOTYPE, ''),
            'device': (tarfile.CHRTYPE, '')},
    'zip': {'link': (stat.S_IFLNK, '/etc/passwd'), 'device': (stat.S_IFCHR, '')},
}  # fmt: skip
WRITE = {'tar': write_tar, 'zip': write_zip}


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


@pytest.fixture
def scratch(tmp_path):
    (tmp_path / 'inner' / 'scratch').mkdir(parents=True)
    return tmp_path / 'inner' / 'scratch'


@pytest.mark.parametrize('kind', WRITE)
def test_plain_entries_are_extracted(kind, tmp_path, scratch):
    archive = WRITE[kind](tmp_path / f'x.{kind}', PLAIN)
    expected = {name.removeprefix('./'): content for name, content in PLAIN.items()}
    assert files(unpack(archive, scratch)) == expected


@pytest.mark.parametrize('kind', WRITE)
def test_unsafe_entries_are_all_reported_before_anything_is_extracted(kind, tmp_path, scratch):
    """An entry below a symbolic link would be written to its target."""
    unsafe = {**dict.fromkeys(OUTSIDE, b'x'), **LINKS[kind]}
    archive = WRITE[kind](tmp_path / f'x.{kind}', {**PLAIN, **unsafe, 'link/x': b'x'})
    with pytest.raises(FaultsError) as raised:
        unpack(archive, scratch)
    named = [re.search(r"entry '(.*?)' ", text)[1] for text in raised.value.lines()]
    assert named == [*OUTSIDE, *LINKS[kind]]
    assert all(str(archive) in text for text in raised.value.lines())
    assert files(tmp_path).keys() == {archive.name}


def test_a_changed_byte_of_a_compressed_archive_is_noticed(tmp_path, scratch):
    archive = write_tar(tmp_path / 'x.tar', {'data/a.txt': b'a' * 2000}, 'w')
    damaged = gzip.compress(archive.read_bytes(), 0).replace(b'a' * 1000, b'b' * 1000, 1)
    (tmp_path / 'x.tgz').write_bytes(damaged)
    with pytest.raises(FaultsError, match=r'x\.tgz: not a zip or tar archive, or damaged'):
        unpack(tmp_path / 'x.tgz', scratch)
    assert not files(scratch)


def test_a_zip_file_whose_directory_names_a_place_before_its_start(tmp_path, scratch):
    """Its last 6 bytes are the offset of the directory and the length of a comment."""
    archive = write_zip(tmp_path / 'x.zip', PLAIN)
    content = archive.read_bytes()
    offset = int.from_bytes(content[-6:-2], 'little') + 7
    archive.write_bytes(content[:-6] + offset.to_bytes(4, 'little') + content[-2:])
    with pytest.raises(FaultsError, match=r'x\.zip: .*damaged'):
        unpack(archive, scratch)


@pytest.mark.parametrize('kind', WRITE)
def test_a_full_disk_is_no_fault_of_an_archive(kind, tmp_path, scratch):
    archive = WRITE[kind](tmp_path / f'x.{kind}', {'a.txt': b'a' * 2000})
    with full_disk(1000), pytest.raises(OSError, match='File too large'):
        unpack(archive, scratch)


def test_what_is_no_archive_is_named(tmp_path, scratch):
    (tmp_path / 'x.zip').write_bytes(b'no archive')
    with pytest.raises(FaultsError, match=r'x\.zip: .*damaged'):
        unpack(tmp_path / 'x.zip', scratch)
    with pytest.raises(FaultsError, match=r'y\.zip: no such'):
        unpack(tmp_path / 'y.zip', scratch)
    assert unpack(tmp_path, scratch) == tmp_path
    assert not files(scratch)


# --- objects in arrays


@pytest.fixture
def ran(tmp_path):
    """The file that the pickles create."""
    return tmp_path / 'ran'


def objects(ran):
    return np.array([Code(ran)] * 3, object)


def test_objects_in_arrays_are_not_unpickled(ran, tmp_path):
    np.save(tmp_path / 'vectors.npy', objects(ran), allow_pickle=True)
    (tmp_path / 'words.txt').write_text('a\nb\nc\n', encoding='utf-8')
    np.savez(tmp_path / 'gru.npz', **dict.fromkeys(GRU_WEIGHTS, objects(ran)))
    np.savez(tmp_path / 'regions.npz', **dict.fromkeys(REQUIRED, objects(ran)))
    calls = (
        (lambda: read_word_vectors(tmp_path / 'vectors.npy', ['a'], 1, tmp_path / 'words.txt'), r'vectors\.npy'),
        (lambda: read_skip_thought(tmp_path / 'gru.npz'), r'gru\.npz'),
        (lambda: read_archive(tmp_path / 'regions.npz'), r'regions\.npz'),
    )

    def refused():
        for call, names in calls:
            with pytest.raises((ValueError, FaultsError), match=names):
                call()
        assert not ran.exists()

    refused()
    for name in ('vectors.npy', 'gru.npz', 'regions.npz'):  # a file that is a pickle alone, which NumPy reads, too
        (tmp_path / name).write_bytes(pickle.dumps(Code(ran)))
    refused()
    np.load(tmp_path / 'vectors.npy', allow_pickle=True)
    assert ran.exists()


# --- files that claim too much


@pytest.mark.parametrize('kind', WRITE)
def test_archives_that_unpack_to_far_more_are_refused(kind, tmp_path, scratch):
    archive = tmp_path / f'x.{kind}'
    if kind == 'tar':
        write_tar(archive, {'zeros': bytes(20_000_000)})
    else:
        with zipfile.ZipFile(archive, 'w', zipfile.ZIP_DEFLATED) as file:
            file.writestr('zeros', bytes(20_000_000))
    with pytest.raises(FaultsError, match=r'would unpack to 20 MB'):
        unpack(archive, scratch)
    assert not files(scratch)
