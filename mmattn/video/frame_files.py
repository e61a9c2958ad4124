"""The image files of a clip: find frames and masks, check them before any work begins, read a frame."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import mmcv
import numpy as np
from PIL import Image

from mmattn.utils.faults import Faults
from mmattn.utils.files import find_copies
from mmattn.utils.images import ORIENTATION, decoding, deep_picture_fault, open_whole, unreadable

from .frame_names import sort_frames
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
    with decoding(path):  # PIL: OpenCV fills the missing part of a truncated file with grey
        with Image.open(path) as image:
            fault = deep_picture_fault(image)
        if fault:
            raise ValueError(fault)
        return np.ascontiguousarray(mmcv.imread(path, 'color_ignore_orientation', backend='pillow'))


def orientation(path: Path) -> int:
    """Read the EXIF orientation of an image, which :func:`read_frame` ignores. 1 is upright."""
    with Image.open(path) as image:
        return image.getexif().get(ORIENTATION, 1)


def find_files(
    frames: Path, masks: Path, frame_order: str | None, faults: Faults
) -> tuple[list[Path], list[int], list[Path | None]]:
    """Find the frames of a clip in order, and the masks that have the same names. The folder of masks need not exist.

    Frames are in the order of :func:`~mmattn.video.frame_names.sort_frames`, whose ``reading`` is ``frame_order``. The
    results are the frames, their numbers counted from the first frame, and the mask of each frame or None. Faults are a
    folder without frames, frames of one number, copies of a frame under a name of another form, masks without a frame,
    and names that differ only in the suffix.
    """
    unsorted = list(find_images(frames))
    if not unsorted:
        kinds = ', '.join(sorted(SUFFIXES))
        missing = f'no frames in this folder, that is, no files {kinds}' if frames.is_dir() else 'no such folder'
        faults.add(frames, missing)
        return [], [], []
    paths, in_names, _ = sort_frames(unsorted, frame_order)
    numbers = [number - in_names[0] for number in in_names]
    for i in range(1, len(paths)):
        if numbers[i] == numbers[i - 1]:
            faults.add(paths[i], f'has the same number as {paths[i - 1].name}')
    _check_copies(paths, faults)
    by_name: dict[str, Path] = {}
    for path in sorted(find_images(masks)):
        if path.stem in by_name:
            faults.add(path, f'has the same name as {by_name[path.stem].name}, except for the suffix')
        by_name[path.stem] = path
    names = {path.stem for path in paths}
    if len(names) < len(paths):
        faults.add(frames, 'frames must differ in name, not only in suffix')
    for name, path in by_name.items():
        if name not in names:
            faults.add(path, f'no frame {name}.* in {frames}')
    return paths, numbers, [by_name.get(path.stem) for path in paths]


def _check_copies(paths: list[Path], faults: Faults) -> None:
    """Find copies of frames. Frames of a still scene may be equal, so that a copy also has a name of another form."""
    forms = {path: re.sub(r'\d+', '0', path.stem) for path in paths}
    usual, count = Counter(forms.values()).most_common(1)[0]
    if not len(paths) / 2 <= count < len(paths):
        return
    for original, *copies in find_copies(paths):
        for copy in copies:
            if forms[copy] != usual and original.stem in copy.stem:
                faults.add(copy, f'a copy of {original.name}; remove it')


def regular_step(numbers: Sequence[int]) -> int | None:
    """Return the regular step of the frame numbers of a clip, the smallest one. None of fewer than two frames."""
    return min((b - a for a, b in pairwise(numbers)), default=None)


def check_gaps(frames: list[Path], numbers: list[int], faults: Faults) -> None:
    """Find gaps in the frame numbers, larger steps than the regular one."""
    steps = np.diff(numbers)
    if step := regular_step(numbers):
        for i in np.flatnonzero(steps > step):
            missing = (steps[i] - 1) // step
            faults.add(
                frames[i + 1],
                f'follows {frames[i].name}; frames missing between them: {missing}; allow_gaps=True (--allow-gaps) '
                'allows gaps',
            )


def check_frames(frames: list[Path], masks: list[Path], faults: Faults) -> None:
    """Check that the files of a clip are readable, complete, of one size and of a suitable mode. Few are decoded."""
    first = None
    for path, is_mask in (*((path, False) for path in frames), *((path, True) for path in masks)):
        try:
            size, fault = _read_header(path, is_mask)
        except Exception as error:  # decoders raise exceptions of many types
            faults.add(path, unreadable(error))
            continue
        first = first or (path, size)
        if size != first[1]:
            faults.add(path, f'{size[0]}×{size[1]}; {first[0].name} is {first[1][0]}×{first[1][1]} (width×height)')
        if fault:
            faults.add(path, fault)


def find_images(folder: Path) -> Iterator[Path]:
    """Yield the entries of a folder that have an image suffix and are not hidden."""
    if folder.is_dir():  # with folders and dangling links, so that no frame is dropped silently
        yield from (p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith('.'))


def _read_header(path: Path, is_mask: bool) -> tuple[tuple[int, int], str]:
    with open(path, 'rb') as stream:
        image = open_whole(stream, checksums=is_mask)  # frames are large, and read whole later, if at all
        return image.size, mask_fault(image) if is_mask else deep_picture_fault(image)
