"""Shared by the converters: faults that are reported together, and output folders that are written atomically."""

import argparse
import gzip
import io
import lzma
import os
import shlex
import shutil
import signal
import stat
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps

from mmattn.utils.files import replace_folder
from mmattn.utils.progress import track

MARK = 'converted.txt'  # marks an output of a converter, unlike other data sets
WRITTEN = {'img_dir', 'ann_dir', 'alignment.json', 'config.py', MARK}
THREADS = min(8, os.cpu_count() or 1)  # each thread holds an image with all its labels
T = TypeVar('T')


class Fault(Exception):
    """Faults of the input. Each argument is one line for the user, usually ``path: reason``."""


def run(
    convert: Callable[[argparse.Namespace], None],
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    overwrites: bool = True,
) -> int:
    """Run a converter's command and return its exit code. All faults and their count are printed on stderr.

    ``overwrites`` is whether it has the option ``--overwrite``.
    """
    if overwrites:
        parser.add_argument('--overwrite', action='store_true', help='replace an existing output folder')
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')  # print messages with any encoding of the locale
    args = parser.parse_args(argv)
    code = 1
    earlier = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a terminated run cleans up
    try:
        convert(args)
    except Fault as fault:
        lines = fault.args
    except OSError as error:
        path = error.filename2 or error.filename or args.out_dir  # a failed copy names both files
        lines = (f'{path}: {error.strerror or error}',)
    except KeyboardInterrupt:
        lines, code = ('interrupted',), 130
    else:
        return 0
    finally:
        signal.signal(signal.SIGTERM, earlier)
    if len(lines) == 1:
        print(f'error: {lines[0]}', file=sys.stderr)
    else:
        print('\n  '.join([f'error: {len(lines)} faults', *lines]), file=sys.stderr)
    return code


@contextmanager
def output_folder(
    out: Path, overwrite: bool, sources: Iterable[Path], written: Collection[str] = WRITTEN
) -> Iterator[Path]:
    """Yield a temporary folder next to ``out``. Its subfolder ``new`` becomes ``out`` when the block ends.

    ``written`` contains the names of files and folders that ``overwrite`` may delete.

    Raises:
        Fault: ``out`` exists without ``overwrite``, contains files that no converter has written, or contains
            one of the ``sources``. If it has come to exist since the start, the result is kept next to it.
    """
    out = out.resolve()
    if any(out in (source.resolve(), *source.resolve().parents) for source in sources):
        raise Fault(f'{out}: contains the input; choose another --out-dir')
    check_replaceable(out, overwrite, written)
    with replace_folder(out) as scratch:
        yield scratch
        Path(scratch, 'new', MARK).write_bytes(os.fsencode(f'{shlex.join(sys.argv)}\n'))  # file names may be any bytes
        try:
            check_replaceable(out, overwrite, written)
        except Fault as fault:
            kept = Path(tempfile.mkdtemp(prefix=f'{out.name}.converted-', dir=out.parent))
            Path(scratch, 'new').rename(kept / out.name)
            raise Fault(*fault.args, f'{kept / out.name}: the result of this conversion') from fault
    if (out / 'img_dir').is_dir():
        print(f'{out}: {sum(path.is_file() for path in (out / "img_dir").rglob("*"))} images')


def check_replaceable(out: Path, overwrite: bool, written: Collection[str]) -> None:
    """Raise a fault if ``out`` exists, and may not be replaced; see :func:`output_folder`."""
    if not out.exists():
        return
    if not overwrite:
        raise Fault(f'{out}: already exists; --overwrite replaces it')
    if not (out / MARK).is_file():
        raise Fault(f'{out}: not written by a converter (it has no {MARK}); --overwrite would delete it')
    if others := {path.name for path in out.iterdir()} - {*written, MARK}:
        raise Fault(f'{out}: also contains {min(others)}, which --overwrite would delete')


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders, in the order of their paths; links to folders are followed."""
    found = (Path(root, name) for root, _, names in os.walk(folder, followlinks=True) for name in names)
    yield from sorted(found)


def unpack(source: Path, scratch: Path, names: Iterable[str] = ()) -> Path:
    """Return ``source`` if it is a folder, else a folder in ``scratch`` with the content of the zip or tar archive.

    Raises:
        Fault: the archive is damaged, has entries outside of its folder, links or devices, or lacks a file of
            ``names``, which may be ``.gz``; nothing is extracted.
    """
    if source.is_dir():
        return source
    if not source.is_file():
        raise Fault(f'{source}: no such folder or archive')
    print(f'unpacking {source}', flush=True)
    target = tempfile.mkdtemp(prefix='unpacked-', dir=scratch)
    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive:
                modes = ((each.filename, stat.S_IFMT(each.external_attr >> 16)) for each in archive.infolist())
                # writers on other systems set no type
                check_entries(source, ((name, mode in (0, stat.S_IFREG, stat.S_IFDIR)) for name, mode in modes), names)
                archive.extractall(target)
        else:
            with tarfile.open(source) as archive:
                check_entries(source, ((each.name, each.isfile() or each.isdir()) for each in archive), names)
                archive.extractall(target, filter='data')
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise Fault(f'{source}: not a zip or tar archive, or damaged') from error
    except (NotImplementedError, RuntimeError) as error:  # another compression, or a password
        raise Fault(f'{source}: cannot be unpacked here: {error}; unpack it, and give the folder') from error
    return Path(target)


def warn_of_test_set(splits: Collection[str]) -> None:
    """Warn if a data set has no training data."""
    if 'train' not in splits:
        print('warning: no split train: a test set for a trained model, see docs/datasets.md', file=sys.stderr)


def check_entries(archive: Path, entries: Iterable[tuple[str, bool]], names: Iterable[str] = ()) -> None:
    """Check the entries of an archive: their names, whether they are plain files or folders, and whether the files
    ``names`` are there.

    Python renames some of these entries silently, and follows others.

    Raises:
        Fault: some entries are unsafe; one line for each.
    """
    faults, there = [], set()
    for name, plain in entries:
        path = PurePosixPath(name)
        there.add(path.name)
        if path.is_absolute() or '..' in path.parts:
            faults.append(f'{archive}: the entry {name!r} is outside of the folder of the archive')
        elif not plain:
            faults.append(f'{archive}: the entry {name!r} is a link or a device')
    faults += [f'{archive}: no {name} or {name}.gz in it' for name in names if not {name, f'{name}.gz'} & there]
    if faults:
        raise Fault(*faults)


def find(folder: Path, pattern: str) -> Path:
    """Return the first match in ``folder``, or up to two levels below, as in archives."""
    found = next((path for above in ('', '*/', '*/*/') for path in sorted(folder.glob(above + pattern))), None)
    if found is None:
        raise Fault(f'{folder}: no {pattern} in it')
    return found


def convert_all(samples: Sequence[T], convert: Callable[[T], None]) -> list[str]:
    """Call ``convert`` on every sample, in threads, with a progress bar. Return the lines of all faults."""

    def faults_of(sample: T) -> tuple[str, ...]:
        try:
            convert(sample)
        except Fault as fault:
            return fault.args
        return ()

    with ThreadPoolExecutor(THREADS) as pool:
        try:
            found = track(pool.map(faults_of, samples), 'Converting', len(samples))
            return [line for lines in found for line in lines]
        except BaseException:  # a full disk, or Ctrl-C: do not convert the others first
            pool.shutdown(cancel_futures=True)
            raise


def read_image(path: Path, mode: str | None = None) -> np.ndarray:
    """Decode an image, rotated by its EXIF orientation, as in mmcv, and converted to PIL's ``mode``.

    Returns:
        np.ndarray: shape (H, W) or (H, W, C).

    Raises:
        Fault: the file is missing, truncated, or not an image.
    """
    try:
        with Image.open(path) as image:
            turned = ImageOps.exif_transpose(image)
            return np.array(turned.convert(mode) if mode else turned)
    except FileNotFoundError as error:
        raise Fault(f'{path}: no such file') from error
    except Exception as error:  # decoders raise many types
        raise Fault(f'{path}: unreadable: {error}') from error


def size_text(image: np.ndarray) -> str:
    """Format an image's size as width×height."""
    return f'{image.shape[1]}×{image.shape[0]}'


def read_together(
    image: Path, labels: Iterable[Path], read_label: Callable[[Path], np.ndarray]
) -> tuple[np.ndarray | None, list[np.ndarray], list[str]]:
    """Read an image and all files of its labels. Continue after a fault.

    Args:
        image (Path): read as RGB.
        labels (iterable of Path): read by ``read_label``, which raises ``Fault`` or returns shape (H, W) or (H, W, C).

    Returns:
        tuple: the image, uint8 of shape (H, W, 3), or None; the labels; and the faults, the image's first.
    """
    read, faults = {}, []
    for path, reader in ((image, partial(read_image, mode='RGB')), *((path, read_label) for path in labels)):
        try:
            read[path] = reader(path)
        except Fault as fault:
            faults.extend(fault.args)
    pixels = read.pop(image, None)
    if pixels is not None:
        faults += [
            f'{path}: {size_text(label)}, but its image {image} {size_text(pixels)}'
            for path, label in read.items()
            if label.shape[:2] != pixels.shape[:2]
        ]
    return pixels, list(read.values()), faults


def copy_image(source: Path, target: Path) -> None:
    """Copy an image without changes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def save_labels(path: Path, labels: np.ndarray, palette: Iterable[Sequence[int]]) -> None:
    """Save labels, uint8 of shape (H, W), as a PNG with the colours of ``palette``, and white for 255.

    All 256 colours are embedded: with fewer, PIL would use fewer bits per pixel, and change the label 255.
    """
    colours = bytes(value for colour in palette for value in colour)
    image = Image.fromarray(labels)
    image.putpalette(colours.ljust(3 * 255, b'\0') + b'\xff' * 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
