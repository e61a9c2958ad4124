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
from PIL import Image, ImageOps, UnidentifiedImageError

from mmattn.utils.channels import read_channels
from mmattn.utils.files import read_end, write_text
from mmattn.utils.images import (
    CLASS_INDICES,
    ENDS,
    ORIENTATION,
    deep_picture_fault,
    lossy_mask_fault,
    open_header,
    open_whole,
    pillow_limit_fault,
    raw_mode,
    tiff_bands,
    unreadable,
)
from mmattn.utils.mask_edges import altered_labels

MISSING = 'no such file'
CHANNELS = 'channels'  # in place of a decoder: read_channels, with their number as flag
LFS = b'version https://git-lfs'
CONVERTER = 'tools/dataset_converters/color_labels.py'
DARK = 1 << 12  # maximum below this: data of at most 12 bits stored in 16
HALF = 1 << 15  # maximum below this: the picture is at most half as bright as it could be
DEEP = '16 bits per channel, of which loading keeps the upper 8'
TURNED = (
    'an EXIF orientation, which viewers apply, but loading does not, so that labels must be of the picture as stored',
    'an EXIF orientation, which viewers and loading apply, so that labels must be of the turned picture',
)
HIDDEN = 'transparent pixels, of which the network sees the hidden colours'
PREDICTED = 'the class indices that a model has predicted'
ALTERED = 'labels that were probably scaled, blurred, compressed or dithered after painting'
SUFFIXES = {f'.{name}' for name in ('avif', 'bmp', 'gif', 'heic', 'heif', 'jfif', 'jp2', 'jpe', 'jpeg', 'jpg')}
SUFFIXES |= {f'.{name}' for name in ('npy', 'pbm', 'pgm', 'png', 'pnm', 'ppm', 'tif', 'tiff', 'webp')}
SIMILAR = 8  # mean difference of grey values, as colours are weighted otherwise
THREADS = 4  # more threads would wait for the GIL


class ImageFile(NamedTuple):
    """An image or a mask, with the mmcv decoder and ``color_type`` that a pipeline reads it with, or CHANNELS."""

    path: str
    backend: str
    flag: str
    is_mask: bool = False


class Facts(NamedTuple):
    """Width and height, and the labels of a mask (at most 257, more than a data set can have), or only the fault.

    A doubt is a kind and, after ': ', details. ``end`` is the result of ``read_end``, () for masks. ``counts`` are the
    pixels of each of the ``labels``.
    """

    size: tuple[int, ...] = ()
    labels: tuple[float, ...] = ()
    fault: str = ''
    doubts: tuple[str, ...] = ()
    end: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()


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
        case [[int(), int()], [[*size], [*labels], str(), [*doubts], [*end], [*counts]]]:
            return (
                all(isinstance(x, int) for x in size + end + counts)
                and all(isinstance(x, int | float) for x in labels)
                and all(isinstance(x, str) for x in doubts)
            )
    return False


def look(file: ImageFile) -> Facts:
    """Decode a mask. Read the size of an image, and check that the image is complete."""
    try:
        if os.path.getsize(file.path) == 0:
            raise ValueError('the file is empty')
        with open(file.path, 'rb') as stream:
            if stream.read(len(LFS)) == LFS:
                raise ValueError('a pointer of Git LFS, not the image: run git lfs pull')
        return _look_at_mask(file) if file.is_mask else _look_at_image(file)._replace(end=read_end(file.path))
    except Exception as error:  # decoders raise many types
        return Facts(fault=unreadable(error))


def _look_at_image(file: ImageFile) -> Facts:
    if file.backend == CHANNELS:
        return Facts(read_channels(file.path, int(file.flag)).shape[1::-1])
    with open(file.path, 'rb') as stream, suppress(UnidentifiedImageError):
        if fault := _bands_fault(stream):
            return Facts(fault=fault)
        image = open_whole(stream)
        if file.backend == 'pillow' and (fault := pillow_limit_fault(image)):
            return Facts(fault=fault)
        if fault := _tiff_fault(image) or (deep_picture_fault(image) if file.backend == 'pillow' else ''):
            return Facts(fault=fault)
        brightest = _brightest(file, image)
        if 0 < brightest < DARK:
            return Facts(fault=f'{DEEP}: {_darkened(brightest)}; save it with 8 bits, or scale its values to 65535')
        orientation = Image.Image.getexif(image).get(ORIENTATION, 1)
        turns = file.backend in ('cv2', 'pillow') and file.flag in ('color', 'grayscale')
        size = image.size[::-1] if turns and orientation > 4 else image.size
        if image.format not in ENDS:
            pixels = _decode(file)
            size = pixels.shape[1::-1]
            turns = orientation > 1 and _is_upright(pixels, image)
        doubts = [TURNED[turns]] if orientation in range(2, 9) else []
        doubts += [f'{DEEP}: {_darkened(brightest)}'] if 0 < brightest < HALF else []
        doubts += [HIDDEN] if _is_transparent(image) else []
        if image.format != 'MPO' and (frames := getattr(image, 'n_frames', 1)) > 1:
            doubts.append(f'several frames, of which loading keeps one: {frames} frames')
        return Facts(size, doubts=tuple(doubts))
    return Facts(_decode(file).shape[1::-1])


def _is_upright(pixels: np.ndarray, image: Image.Image) -> bool:
    """Tell whether decoded pixels are those of the image as viewers show it, turned by its EXIF orientation."""
    seen = np.asarray(ImageOps.exif_transpose(image).convert('L'), np.float32)
    grey = pixels[..., :3].mean(-1) if pixels.ndim == 3 else pixels
    return grey.shape == seen.shape and bool(abs(grey - seen).mean() < SIMILAR)


def _bands_fault(stream: BinaryIO) -> str:
    bands = tiff_bands(stream)
    if bands is None:
        return ''
    return (
        f'a TIFF of {bands[0]} bands, of which loading keeps {bands[1]}; save the bands that count as grey or RGB, or '
        'read all: docs/custom_data.md#images-with-other-channels'
    )


def _tiff_fault(image: Image.Image) -> str:
    if image.format != 'TIFF':
        return ''
    if image.mode in ('F', 'LAB'):
        name = {'F': '32-bit floating point', 'LAB': 'CIE L*a*b*'}[image.mode]
        return f'a TIFF of {name}, which loading does not convert correctly; save it as RGB with 8 bits'
    if (pages := image.n_frames) > 1:  # type: ignore[attr-defined]
        return f'a TIFF of {pages} pages, of which only the first one is loaded; save one page per file'
    return ''


def _brightest(file: ImageFile, image: Image.Image) -> int:
    """Return the largest value of an image of which loading keeps the upper 8 of 16 bits. 0 for other images."""
    if file.flag == 'unchanged' or '16' not in raw_mode(image):
        return 0
    pixels = _decode(ImageFile(file.path, 'cv2', 'unchanged'))
    return int(pixels.max()) if pixels.dtype == np.uint16 else 0  # a BMP may have 16 bits for three channels


def _darkened(brightest: int) -> str:
    return f'values up to {brightest} become at most {brightest // 256} of 255'


def _is_transparent(image: Image.Image) -> bool:
    if not image.has_transparency_data:
        return False
    return bool(np.asarray(image.convert('RGBA'))[..., 3].min() < 255)


def _look_at_mask(file: ImageFile) -> Facts:
    is_predicted = False
    with suppress(UnidentifiedImageError), open(file.path, 'rb') as stream:
        image = open_header(stream)
        is_predicted = CLASS_INDICES.items() <= image.info.items()
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
    doubts = [f'{ALTERED}: {reason}'] if (reason := altered_labels(mask)) else []
    doubts += [PREDICTED] if is_predicted else []
    if mask.dtype == np.uint8:
        pixels = cv2.calcHist([mask], [0], None, [256], [0, 256]).ravel().astype(int)  # faster than np.unique
        labels = np.flatnonzero(pixels)
        pixels = pixels[labels]
    else:
        labels, pixels = np.unique(mask, return_counts=True)
    counts = tuple(pixels[:257].tolist())
    return Facts(mask.shape[::-1], tuple(labels[:257].tolist()), doubts=tuple(doubts), counts=counts)


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
