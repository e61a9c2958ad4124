"""Size and labels of image and mask files, with a cache, and files that a data set does not read."""

import json
import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import cv2
import mmcv
import numpy as np
from mmengine.utils import ProgressBar
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import (
    EXTRASAMPLES,
    PHOTOMETRIC_INTERPRETATION,
    SAMPLESPERPIXEL,
    ImageFileDirectory_v2,
)

from mmattn.utils.files import write_text
from mmattn.utils.images import ENDS, lossy_mask_fault, open_header, open_whole, pillow_limit_fault, unreadable

ORIENTATION = 0x0112  # EXIF tag; with values of 5 and more, loading swaps width and height
MISSING = 'no such file'
LFS = b'version https://git-lfs'
CONVERTER = 'tools/dataset_converters/color_labels.py'
DARK = 1 << 12  # maximum below this: data of at most 12 bits stored in 16
ALPHA = {1, 2}  # values of ExtraSamples in a TIFF: transparency
SUFFIXES = {f'.{name}' for name in ('avif', 'bmp', 'gif', 'heic', 'heif', 'jfif', 'jp2', 'jpe', 'jpeg', 'jpg')}
SUFFIXES |= {f'.{name}' for name in ('pbm', 'pgm', 'png', 'pnm', 'ppm', 'tif', 'tiff', 'webp')}
THREADS = 4  # more threads would wait for the GIL


class ImageFile(NamedTuple):
    """An image or a mask, with the mmcv decoder and ``color_type`` that a pipeline reads it with."""

    path: str
    backend: str
    flag: str
    is_mask: bool = False


class Facts(NamedTuple):
    """Width and height, and the labels of a mask (at most 257, more than a data set can have), or only the fault."""

    size: tuple[int, ...] = ()
    labels: tuple[float, ...] = ()
    fault: str = ''


def inspect_files(files: Collection[ImageFile], cache: Path) -> tuple[dict[ImageFile, Facts], int]:
    """Inspect files, except those whose size and modification time are as in the cache.

    Args:
        files (collection of ImageFile): without duplicates.
        cache (Path): JSON file, read if it exists, and replaced. Entries of other files are kept. Faults are not
            stored.

    Returns:
        tuple: facts by file, and the number of files that were inspected.
    """
    cached = {}
    with suppress(OSError, ValueError, RecursionError, AttributeError):  # another content is dropped
        content = json.loads(cache.read_text(encoding='utf-8'))
        cached = {key: entry for key, entry in content.items() if _is_entry(entry)}

    def inspect(file: ImageFile) -> list:
        try:
            status = os.stat(file.path)
        except FileNotFoundError:
            return [None, Facts(fault=MISSING)]
        except OSError as error:
            return [None, Facts(fault=f'unreadable: {error}')]
        stamp = [status.st_size, status.st_mtime_ns]
        entry = cached.get(_key(file))
        return entry if entry and entry[0] == stamp else [stamp, look(file)]

    entries = {}
    bar, shown, due = None, 0, time.monotonic() + 2
    with ThreadPool(THREADS) as pool:
        for file, entry in zip(files, pool.imap(inspect, files, chunksize=16)):
            entries[file] = entry
            if time.monotonic() > due:
                bar = bar or ProgressBar(len(files))
                bar.update(len(entries) - shown)
                shown, due = len(entries), time.monotonic() + 1
    if bar:
        print()
    kept = {**cached, **{_key(file): entry for file, entry in entries.items()}}
    kept = {key: entry for key, entry in kept.items() if not Facts(*entry[1]).fault}
    if kept != cached:
        write_text(cache, json.dumps(kept))
    facts = {file: Facts(*entry[1]) for file, entry in entries.items()}
    return facts, sum(cached.get(_key(file)) is not entry for file, entry in entries.items())


def _is_entry(entry: Any) -> bool:
    match entry:
        case [[int(), int()], [[*size], [*labels], str()]]:
            return all(isinstance(x, int) for x in size) and all(isinstance(x, int | float) for x in labels)
    return False


def look(file: ImageFile) -> Facts:
    """Decode a mask. Read the size of an image, and check that the image is complete."""
    try:
        if os.path.getsize(file.path) == 0:
            raise ValueError('the file is empty')
        with open(file.path, 'rb') as stream:
            if stream.read(len(LFS)) == LFS:
                raise ValueError('a pointer of Git LFS, not the image: run git lfs pull')
        return _look_at_mask(file) if file.is_mask else _look_at_image(file)
    except Exception as error:  # decoders raise many types
        return Facts(fault=unreadable(error))


def _look_at_image(file: ImageFile) -> Facts:
    with open(file.path, 'rb') as stream, suppress(UnidentifiedImageError):
        if fault := _bands_fault(stream):
            return Facts(fault=fault)
        image = open_whole(stream)
        if file.backend == 'pillow' and (fault := pillow_limit_fault(image)):
            return Facts(fault=fault)
        if fault := _tiff_fault(image) or _too_dark(file.path, image):
            return Facts(fault=fault)
        if image.format in ENDS:
            turns = file.backend in ('cv2', 'pillow') and file.flag in ('color', 'grayscale')
            turned = turns and Image.Image.getexif(image).get(ORIENTATION, 1) > 4
            return Facts(image.size[::-1] if turned else image.size)
    return Facts(_decode(file).shape[1::-1])


def _bands_fault(stream: BinaryIO) -> str:
    # Grey or RGB TIFFs with further bands. PIL does not open all such files, so the header is read here.
    header = stream.read(8)
    if header[:4] not in (b'II*\0', b'MM\0*'):
        return ''
    tags = ImageFileDirectory_v2(header)
    stream.seek(tags.next)
    tags.load(stream)
    bands, colours = tags.get(SAMPLESPERPIXEL, 1), {0: 1, 1: 1, 2: 3}.get(tags.get(PHOTOMETRIC_INTERPRETATION, -1))
    has_alpha = bool(ALPHA.intersection(tags.get(EXTRASAMPLES, ())))
    if colours is None or bands == colours + has_alpha:
        return ''
    return f'a TIFF of {bands} bands, of which loading keeps {colours}; save the bands that count as grey or RGB'


def _tiff_fault(image: Image.Image) -> str:
    if image.format != 'TIFF':
        return ''
    if image.mode in ('F', 'LAB'):
        name = {'F': '32-bit floating point', 'LAB': 'CIE L*a*b*'}[image.mode]
        return f'a TIFF of {name}, which loading does not convert correctly; save it as RGB with 8 bits'
    if getattr(image, 'n_frames', 1) > 1:
        return f'a TIFF of {image.n_frames} pages, of which only the first one is loaded; save one page per file'  # type: ignore[attr-defined]
    return ''


def _too_dark(path: str, image: Image.Image) -> str:
    # loading keeps the upper 8 of 16 bits
    tiles = getattr(image, 'tile', None)  # PIL's decoder arguments, such as 'RGB;16B'
    if not tiles or '16' not in str(tiles[0][3]):
        return ''
    brightest = int(_decode(ImageFile(path, 'cv2', 'unchanged')).max())
    if not 0 < brightest < DARK:
        return ''
    return (
        f'16 bits per channel with values up to {brightest}, which loading reduces to at most '
        f'{brightest // 256} of 255; save it with 8 bits, or scale its values to 65535'
    )


def _look_at_mask(file: ImageFile) -> Facts:
    with suppress(UnidentifiedImageError), open(file.path, 'rb') as stream:
        image = open_header(stream)
        if file.backend == 'pillow' and (fault := pillow_limit_fault(image)):
            return Facts(fault=fault)
        if fault := lossy_mask_fault(image):
            return Facts(fault=fault)
    # as in mmseg's LoadAnnotations, but with values above 255, which it truncates to 8 bits
    mask = _decode(file).squeeze()
    if mask.ndim == 1:
        return Facts(fault=f"one row or column of {mask.size} pixels, which mmseg's LoadAnnotations does not accept")
    if mask.ndim != 2:
        return Facts(fault=f'a mask of shape {mask.shape}, not one label per pixel; {CONVERTER} converts it')
    if mask.dtype == np.uint8:
        labels = np.flatnonzero(cv2.calcHist([mask], [0], None, [256], [0, 256]))  # faster than np.unique
    else:
        labels = np.unique(mask)
    return Facts(mask.shape[::-1], tuple(labels[:257].tolist()))


def _decode(file: ImageFile) -> np.ndarray:
    pixels = mmcv.imread(file.path, flag=file.flag, backend=file.backend)
    if pixels is None:
        raise ValueError(f'{file.backend} cannot decode it')
    return pixels


def _key(file: ImageFile) -> str:
    return f'{"mask" if file.is_mask else "image"} {file.backend} {file.flag} {file.path}'


def unread_files(folder: str, suffix: str, read: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield files that look like images of a data set but are not read, and the reason.

    A name is compared with ``suffix`` without case and without the image format: for ``_leftImg8bit.png``,
    ``b_leftImg8bit.JPG`` is reported, ``b.png`` is not. Hidden files are not reported, nor is a file that differs only
    in its format from a file that is read.

    Args:
        folder (str): folder to search, including subfolders, as ``BaseSegDataset`` does.
        suffix (str): ``img_suffix`` or ``seg_map_suffix``, such as '.png' or '_leftImg8bit.png'.
        read (collection of str): paths of the files that are read.
    """
    tag = _stem(f'_{suffix}')[1:]
    read_stems = {_stem(path) for path in read}
    for parent, folders, files in os.walk(folder, followlinks=True):
        for name in sorted(folders + files):
            path = os.path.join(parent, name)
            looks_read = os.path.splitext(name)[1].lower() in SUFFIXES and _stem(path).endswith(tag)
            if name.startswith('.') or not looks_read or _stem(path) in read_stems:
                continue
            if name in folders:
                yield path, 'a folder that is named like an image'
            elif not os.path.exists(path):
                yield path, 'a broken link'
            elif not name.endswith(suffix):
                yield path, f'not read: its name does not end in {suffix}'
            else:
                yield path, 'not read'


def _stem(path: str) -> str:
    return os.path.splitext(os.path.normpath(path))[0].lower()
