"""Unpack the archives of a release, or refuse them."""

import errno
import gzip
import lzma
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from stat import S_IFDIR, S_IFMT, S_IFREG

from mmattn.utils.faults import Faults, FaultsError


def unpack(source: Path, scratch: Path, names: Sequence[str] = ()) -> Path:
    """Unpack a zip or tar archive to a new folder in ``scratch``, and return the folder. Return a folder as it is.

    Nothing is extracted from an archive that is damaged, unpacks to far more than its size, has links, devices or
    entries outside of its folder, or lacks a file of ``names``, which may be ``.gz``. This is a fault.
    """
    if source.is_dir():
        return source
    if not source.is_file():
        raise FaultsError(source, 'no such folder or archive')
    print(f'unpacking {source}', flush=True)
    target = Path(tempfile.mkdtemp(prefix='unpacked-', dir=scratch))
    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive:
                check_unpacked_size(source, sum(entry.file_size for entry in archive.infolist()))
                modes = ((entry.filename, S_IFMT(entry.external_attr >> 16)) for entry in archive.infolist())
                # writers on other systems set no type
                check_entries(source, ((name, mode in (0, S_IFREG, S_IFDIR)) for name, mode in modes), names)
                archive.extractall(target)
        else:
            with tarfile.open(source) as archive:
                check_unpacked_size(source, sum(entry.size for entry in archive))
                while archive.fileobj.read(2**20):  # type: ignore[union-attr]
                    pass  # up to the checksum, which tarfile does not reach
                check_entries(source, ((entry.name, entry.isfile() or entry.isdir()) for entry in archive), names)
                archive.extraction_filter = getattr(tarfile, 'data_filter', None)  # not in Python before 3.11.4
                archive.extractall(target)
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise FaultsError(source, 'not a zip or tar archive, or damaged') from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # a damaged directory of a zip file names a place before its start
            raise
        raise FaultsError(source, 'not a zip or tar archive, or damaged') from error
    except (NotImplementedError, RuntimeError) as error:  # another compression, or a password
        raise FaultsError(source, f'cannot be unpacked here: {error}; unpack it, and give the folder') from error
    return target


def check_unpacked_size(archive: Path, size: int) -> None:
    """Raise a fault if an archive unpacks to more than 100 times its size, which data does not, plus 10 MB."""
    packed = archive.stat().st_size
    if size > 100 * (packed + 10**5):
        raise FaultsError(
            archive,
            f'{packed / 1e6:.1f} MB would unpack to {size / 1e6:.0f} MB, more than 100 times its size; if '
            'you trust it, unpack it yourself, and give the folder',
        )


def check_entries(archive: Path, entries: Iterable[tuple[str, bool]], names: Iterable[str]) -> None:
    """Raise a fault that lists the unsafe entries of an archive, and the files of ``names`` that it lacks.

    ``entries`` are names, and whether they are plain files or folders. Python would rename some unsafe entries
    silently, and follow others.
    """
    faults, there = Faults(), set()
    for name, is_plain in entries:
        path = PurePosixPath(name)
        there.add(path.name)
        if path.is_absolute() or '..' in path.parts:
            faults.add(archive, f'the entry {name!r} is outside of the folder of the archive')
        elif not is_plain:
            faults.add(archive, f'the entry {name!r} is a link or a device')
    faults.add(archive, *(f'no {name} or {name}.gz in it' for name in names if not {name, f'{name}.gz'} & there))
    faults.check()
