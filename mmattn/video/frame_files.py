"""The image files of a clip: find frames and masks, order them, check them before any work begins, read a frame."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import mmcv
import numpy as np
from mmengine.logging import print_log
from PIL import Image

from mmattn.utils.files import unmeant_files
from mmattn.utils.images import deep_picture_fault, open_whole, unreadable

from .masks import mask_fault

SUFFIXES = frozenset(('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff'))


def read_frame(path: str | Path) -> np.ndarray:
    """Decode the pixels of a frame as they are stored: uint8 ``(H, W, 3)``, BGR.

    An EXIF orientation is ignored. Otherwise, the frame would not match its mask.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be decoded, is truncated, or has more than 8 bits per channel. The message begins
            with the path.
    """
    try:  # PIL: OpenCV fills the missing part of a truncated file with grey
        with Image.open(path) as image:
            fault = deep_picture_fault(image)
        if fault:
            raise ValueError(fault)
        return np.ascontiguousarray(mmcv.imread(path, 'color_ignore_orientation', backend='pillow'))
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f'{path}: {unreadable(error)}') from error


def orientation(path: Path) -> int:
    """Read the EXIF orientation of an image, which :func:`read_frame` ignores. 1 is upright."""
    with Image.open(path) as image:
        return image.getexif().get(0x0112, 1)


def find_files(frames: Path, masks: Path) -> tuple[list[Path], list[int], list[Path | None], list[str]]:
    """Find the frames of a clip in order, and the masks that have the same names. The folder of masks need not exist.

    Frames are in natural order: digits in their names count as numbers, so that frame 2 comes before frame 10. The
    results are the frames, their numbers counted from the first frame, the mask of each frame or None, and the faults.
    If the names differ in more than one number, as dates do, or have none, the numbers are positions. Faults are a
    folder without frames, frames of one number, masks without a frame, and names that differ only in the suffix.
    """
    paths = sorted(find_images(frames), key=natural_order)
    if not paths:
        kinds = ', '.join(sorted(SUFFIXES))
        reason = f'no frames in this folder, that is, no files {kinds}' if frames.is_dir() else 'no such folder'
        return [], [], [], [f'{frames}: {reason}']
    in_names = numbers_in_names(paths)
    numbers = list(range(len(paths))) if in_names is None else [number - in_names[0] for number in in_names]
    if in_names is None and len(paths) > 1 and all(re.search(r'\d', path.stem) for path in paths):
        _say_order(frames.parent, f'{paths[0].name}, {paths[1].name}, …, {paths[-1].name}')
    faults = [
        f'{paths[i]}: has the same number as {paths[i - 1].name}'
        for i in range(1, len(paths))
        if numbers[i] == numbers[i - 1]
    ]
    faults += [f'{path}: {reason}' for path, reason in unmeant_files(paths, frames)]
    by_name: dict[str, Path] = {}
    for path in sorted(find_images(masks)):
        if path.stem in by_name:
            faults.append(f'{path}: has the same name as {by_name[path.stem].name}, except for the suffix')
        by_name[path.stem] = path
    names = {path.stem for path in paths}
    if in_names is None and len(names) < len(paths):
        faults.append(f'{frames}: frames must differ in name, not only in suffix')
    faults += [f'{path}: no frame {name}.* in {frames}' for name, path in by_name.items() if name not in names]
    return paths, numbers, [by_name.get(path.stem) for path in paths], faults


def natural_order(path: Path) -> tuple[tuple, str]:
    """Key that sorts files by their names, with digits as numbers, and equal ones by text."""
    parts = re.split(r'(\d+)', path.stem)
    return tuple(int(part) if i % 2 else part for i, part in enumerate(parts)), path.name


def numbers_in_names(paths: Sequence[Path]) -> list[int] | None:
    """Read the numbers of frames from their names, or return None if their names have none, or more than one varies.

    Example:
        >>> numbers_in_names([Path('cam1_8_left.png'), Path('cam1_10_left.png')])
        [8, 10]
    """
    group = _varying_number(paths)
    return None if group is None else [int(re.split(r'(\d+)', path.stem)[group]) for path in paths]


def _varying_number(paths: Sequence[Path]) -> int | None:
    """Find the part of the names, split at numbers, that is the only one that varies. The last, if none varies."""
    names = [re.split(r'(\d+)', path.stem) for path in paths]
    if len({tuple(name[::2]) for name in names}) > 1 or len(names[0]) == 1:
        return None
    groups = range(1, len(names[0]), 2)
    varying = [group for group in groups if len({int(name[group]) for name in names}) > 1] or [groups[-1]]
    return varying[0] if len(varying) == 1 else None


@cache
def _say_order(folder: Path, order: str) -> None:
    print_log(f'{folder}: the names of frames differ in more than one number; their order is {order}', 'current')


def find_gaps(frames: list[Path], numbers: list[int]) -> list[str]:
    """List the gaps in the frame numbers as faults. The regular step is the smallest step between two numbers."""
    steps = np.diff(numbers)
    if not len(steps) or steps.min() == 0:
        return []
    group = _varying_number(frames)
    if group is None:  # positions have no gaps
        return []
    step, faults = steps.min(), []
    for i in np.flatnonzero(steps > step):
        missing = range(numbers[i] + step, numbers[i + 1], step)
        parts = re.split(r'(\d+)', frames[0].stem)
        first, last = (
            frames[0].with_name(
                ''.join([*parts[:group], f'{int(parts[group]) + number:0{len(parts[group])}}', *parts[group + 1 :]])
                + frames[0].suffix
            )
            for number in (missing[0], missing[-1])
        )
        faults.append(
            f'{first}: no such frame, between {frames[i].name} and {frames[i + 1].name}'
            if first == last
            else f'{first} … {last.name}: {len(missing)} frames are missing'
        )
    return faults


def find_faults(frames: list[Path], masks: list[Path]) -> Iterator[str]:
    """Check that the files of a clip are readable, complete, of one size and of a suitable mode. Few are decoded."""
    first = None
    for path, is_mask in (*((path, False) for path in frames), *((path, True) for path in masks)):
        try:
            size, fault = _read_header(path, is_mask)
        except Exception as error:  # decoders raise exceptions of many types
            yield f'{path}: {unreadable(error)}'
            continue
        first = first or (path, size)
        if size != first[1]:
            yield f'{path}: {size[0]}×{size[1]}; {first[0].name} is {first[1][0]}×{first[1][1]} (width×height)'
        if fault:
            yield f'{path}: {fault}'


def find_images(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder that have an image suffix and are not hidden."""
    if folder.is_dir():  # with folders and dangling links, so that no frame is dropped silently
        yield from (p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith('.'))


def _read_header(path: Path, is_mask: bool) -> tuple[tuple[int, int], str]:
    with open(path, 'rb') as stream:
        image = open_whole(stream)  # decodes the file only if its end is missing
        return image.size, mask_fault(image) if is_mask else deep_picture_fault(image)
