"""Find the frames and masks of a clip, order them, and check them before any work begins."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import mmcv
import numpy as np
from PIL import Image

from mmattn.utils.images import deep_picture_fault, open_whole, unreadable

from .masks import mask_fault

SUFFIXES = frozenset(('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff'))


def read_frame(path: str | Path) -> np.ndarray:
    """Decode the pixels of a frame as they are stored.

    An EXIF orientation is ignored; otherwise, the frame would not match its mask.

    Args:
        path (str or Path): an image file.

    Returns:
        np.ndarray: uint8 ``(H, W, 3)``, BGR.

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


class ClipFrames:
    """The frames of a clip as a sequence. Each access reads the file again; no frame is kept in memory.

    Args:
        paths (sequence of str): the files.
        size (tuple[int, int]): required height and width of the frames, those of the clip's masks.

    Raises:
        FileNotFoundError, ValueError: on access, the frame cannot be read (see :func:`read_frame`) or has another size.
            The message names the file.
    """

    def __init__(self, paths: Sequence[str], size: tuple[int, int]) -> None:
        self.paths = paths
        self.size = size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, position: int) -> np.ndarray:
        """Return the frame at ``position``, uint8 ``(H, W, 3)``, BGR."""
        path = self.paths[position]
        image = read_frame(path)
        if image.shape[:2] != tuple(self.size):
            raise ValueError(
                f'{path}: {image.shape[1]}×{image.shape[0]}, but the masks of {Path(path).parent.name} are '
                f'{self.size[1]}×{self.size[0]} (width×height)'
            )
        return image


def orientation(path: Path) -> int:
    """Return the EXIF orientation of an image; 1 is upright. :func:`read_frame` ignores it."""
    with Image.open(path) as image:
        return image.getexif().get(0x0112, 1)


def find_files(frames: Path, masks: Path) -> tuple[list[Path], list[int], list[Path | None], list[str]]:
    """Find the frames of a clip in order, and the masks that have the same names.

    Frames whose names all end in numbers are ordered by number, others by name.

    Args:
        frames (Path): folder of images.
        masks (Path): folder of masks; it need not exist.

    Returns:
        tuple: four values:

        * the frames;
        * their numbers relative to the first frame, or their positions if their names do not end in numbers;
        * the mask of each frame, or None;
        * faults: a folder without frames, frames with the same number, several masks of one frame, masks without a
          frame. Frames or masks whose names differ only in the suffix are also faults.
    """
    found = sorted(find_images(frames))
    if not found:
        kinds = ', '.join(sorted(SUFFIXES))
        reason = f'no frames in this folder, that is, no files {kinds}' if frames.is_dir() else 'no such folder'
        return [], [], [], [f'{frames}: {reason}']
    numbers = list(range(len(found)))
    endings = [re.search(r'\d+$', path.stem) for path in found]
    if all(endings):
        numbered = sorted((int(ending[0]), path) for ending, path in zip(endings, found))  # type: ignore[index]
        numbers = [number - numbered[0][0] for number, path in numbered]
        found = [path for number, path in numbered]
    faults = [
        f'{found[i]}: has the same number as {found[i - 1].name}'
        for i in range(1, len(found))
        if numbers[i] == numbers[i - 1]
    ]
    by_name: dict[str, Path] = {}
    for path in sorted(find_images(masks)):
        if path.stem in by_name:
            faults.append(f'{path}: has the same name as {by_name[path.stem].name}, except for the suffix')
        by_name[path.stem] = path
    names = {path.stem for path in found}
    if not all(endings) and len(names) < len(found):
        faults.append(f'{frames}: frames must differ in name, not only in suffix')
    faults += [f'{path}: no frame {name}.* in {frames}' for name, path in by_name.items() if name not in names]
    return found, numbers, [by_name.get(path.stem) for path in found], faults


def find_gaps(frames: list[Path], numbers: list[int]) -> list[str]:
    """Return a fault for each gap in the frame numbers; the smallest step between two numbers is the regular one."""
    steps = np.diff(numbers)
    if not len(steps) or steps.min() == 0:
        return []
    step, faults = steps.min(), []
    for i in np.flatnonzero(steps > step):
        missing = range(numbers[i] + step, numbers[i + 1], step)
        ending = re.search(r'\d+$', frames[0].stem)[0]  # type: ignore[index]
        first, last = (
            frames[0].with_name(
                f'{frames[0].stem[: -len(ending)]}{int(ending) + number:0{len(ending)}}{frames[0].suffix}'
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
    """Check that all files of a clip are readable, complete, of one size and a suitable mode; decode few of them."""
    first = None
    for path, is_mask in (*((path, False) for path in frames), *((path, True) for path in masks)):
        try:
            size, fault = _look(path, is_mask)
        except Exception as error:  # decoders raise exceptions of many types
            yield f'{path}: {unreadable(error)}'
            continue
        first = first or (path, size)
        if size != first[1]:
            yield f'{path}: {size[0]}×{size[1]}; {first[0].name} is {first[1][0]}×{first[1][1]} (width×height)'
        if fault:
            yield f'{path}: {fault}'


def find_images(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder that have an image suffix and are not hidden, including folders and dangling links.

    Reading such folders and links fails with an error. Skipping them would drop frames and masks silently.
    """
    if folder.is_dir():
        yield from (p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith('.'))


def _look(path: Path, is_mask: bool) -> tuple[tuple[int, int], str]:
    """Return width and height, and the fault of the format or mode, or ''. Decode the file only if its end is missing.

    Raises:
        OSError: the file cannot be read, or is truncated.
    """
    with open(path, 'rb') as stream:
        image = open_whole(stream)
        return image.size, mask_fault(image) if is_mask else deep_picture_fault(image)


def raise_for(faults: list[str], where: str) -> None:
    """Raise a ValueError that lists faults, if there are any."""
    if faults:
        raise ValueError(
            f'{len(faults)} {"fault" if len(faults) == 1 else "faults"} in {where}:'
            + ''.join(f'\n  {fault}' for fault in faults)
        )
