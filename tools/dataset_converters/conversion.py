"""What the converters share: faults that are told all at once, and output that appears whole or not at all."""

import argparse
import gzip
import io
import lzma
import os
import shlex
import shutil
import signal
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps
from rich.progress import track

from mmattn.utils.files import replace_folder

MARK = 'converted.txt'  # tells an output of ours from a data set that somebody made
WRITTEN = {'img_dir', 'ann_dir', 'alignment.json', 'config.py', MARK}
THREADS = min(8, os.cpu_count() or 1)  # each holds an image with all its labels
T = TypeVar('T')


class Fault(Exception):
    """What is wrong with the input. Every argument is one line for the user, mostly ``path: reason``."""


def run(
    convert: Callable[[argparse.Namespace], None], parser: argparse.ArgumentParser, argv: Sequence[str] | None
) -> int:
    """Run a converter's command and return its exit code; all faults and their count go to stderr."""
    parser.add_argument('--overwrite', action='store_true', help='replace an existing output folder')
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')  # a message is shown whatever the locale's encoding
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a terminated run cleans up, too
    try:
        convert(args)
    except Fault as fault:
        lines = fault.args
    except OSError as error:
        lines = (f'{error.filename or args.out_dir}: {error.strerror or error}',)
    except KeyboardInterrupt:
        lines = ('interrupted',)
    else:
        return 0
    if len(lines) == 1:
        print(f'error: {lines[0]}', file=sys.stderr)
    else:
        print('\n  '.join([f'error: {len(lines)} faults', *lines]), file=sys.stderr)
    return 1


@contextmanager
def output_folder(out: Path, overwrite: bool, sources: Iterable[Path]) -> Iterator[Path]:
    """Yield a scratch folder beside ``out``; what is in its subfolder ``new`` when the block ends becomes ``out``.

    Raises:
        Fault: ``out`` exists and may not be overwritten, is not all an output of these converters, or holds
            one of the ``sources``.
    """
    out = out.resolve()
    if any(out in (source.resolve(), *source.resolve().parents) for source in sources):
        raise Fault(f'{out}: the input is in it')
    if out.exists():
        if not overwrite:
            raise Fault(f'{out}: exists already; --overwrite replaces it')
        if not (out / MARK).is_file():
            raise Fault(f'{out}: not written by a converter (it has no {MARK}); --overwrite would delete it')
        if others := {path.name for path in out.iterdir()} - WRITTEN:
            raise Fault(f'{out}: also holds {min(others)}, which --overwrite would delete')
    with replace_folder(out) as scratch:
        yield scratch
        Path(scratch, 'new', MARK).write_bytes(os.fsencode(f'{shlex.join(sys.argv)}\n'))  # any bytes are a file's name
    print(f'{out}: {sum(path.is_file() for path in (out / "img_dir").rglob("*"))} images')


def unpack(source: Path, scratch: Path) -> Path:
    """Return ``source`` if it is a folder, else a folder in ``scratch`` with what the zip or tar archive holds."""
    if source.is_dir():
        return source
    if not source.is_file():
        raise Fault(f'{source}: no such folder or archive')
    print(f'unpacking {source}', flush=True)
    target = tempfile.mkdtemp(prefix='unpacked-', dir=scratch)
    try:
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive:
                archive.extractall(target)
        else:
            with tarfile.open(source) as archive:
                archive.extractall(target, filter='data')
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise Fault(f'{source}: not a zip or tar archive, or a damaged one') from error
    return Path(target)


def find(folder: Path, pattern: str) -> Path:
    """Return the first path that matches in ``folder`` or up to two levels below, as archives have it."""
    found = next((path for above in ('', '*/', '*/*/') for path in sorted(folder.glob(above + pattern))), None)
    if found is None:
        raise Fault(f'{folder}: no {pattern} in it')
    return found


def convert_all(samples: Sequence[T], convert: Callable[[T], None]) -> list[str]:
    """Call ``convert`` on every sample, in threads and with a progress bar; return the lines of all faults."""

    def faults_of(sample: T) -> tuple[str, ...]:
        try:
            convert(sample)
        except Fault as fault:
            return fault.args
        return ()

    with ThreadPoolExecutor(THREADS) as pool:
        try:
            told = track(pool.map(faults_of, samples), 'Converting', len(samples))
            return [line for lines in told for line in lines]
        except BaseException:  # a full disk, or Ctrl-C: do not first convert all the others
            pool.shutdown(cancel_futures=True)
            raise


def read_image(path: Path, mode: str | None = None) -> np.ndarray:
    """Decode an image, turned as its EXIF data say (mmcv does so, too) and converted to PIL's ``mode``.

    Returns:
        np.ndarray: shape (H, W) or (H, W, C).

    Raises:
        Fault: it is missing, truncated, or no image.
    """
    try:
        with Image.open(path) as image:
            turned = ImageOps.exif_transpose(image)
            return np.array(turned.convert(mode) if mode else turned)
    except FileNotFoundError as error:
        raise Fault(f'{path}: no such file') from error
    except Exception as error:  # decoders raise all kinds
        raise Fault(f'{path}: unreadable: {error}') from error


def size_text(image: np.ndarray) -> str:
    """Write an image's size as width×height."""
    return f'{image.shape[1]}×{image.shape[0]}'


def read_together(
    image: Path, labels: Iterable[Path], read_label: Callable[[Path], np.ndarray]
) -> tuple[np.ndarray | None, list[np.ndarray], list[str]]:
    """Read an image and all files of its labels, and do not stop at the first fault.

    Args:
        image (Path): read as RGB.
        labels (iterable of Path): read by ``read_label``, which raises ``Fault`` or returns shape (H, W) or (H, W, C).

    Returns:
        tuple: the image, uint8 of shape (H, W, 3), or None; the labels; and the faults, that of the image first.
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
    """Copy an image as it is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def save_labels(path: Path, labels: np.ndarray, palette: Iterable[Sequence[int]]) -> None:
    """Save labels, uint8 of shape (H, W), as a PNG that a viewer shows in the colours of ``palette``, 255 in white.

    All 256 colours are embedded: with fewer PIL would save fewer bits a pixel, and spoil the label 255.
    """
    colours = bytes(value for colour in palette for value in colour)
    image = Image.fromarray(labels)
    image.putpalette(colours.ljust(3 * 255, b'\0') + b'\xff' * 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
