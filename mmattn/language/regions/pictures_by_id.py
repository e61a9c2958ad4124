"""Pictures of images by their ids."""

import errno
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from mmattn.language.text.annotation_files import raise_faults
from mmattn.utils.images import open_whole, unreadable


def picture_paths(folder: str | Path) -> dict[str, Path]:
    """Return the pictures in a folder by the ids of their images.

    An id is the name of the file without suffix, or the number at its end, as in ``COCO_val2014_000000000042.jpg``, if
    only one file has it. Hidden files are no pictures.

    Raises:
        OSError: there is no such folder.
        ValueError: files differ in their suffix only; the message lists them.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, 'no such folder of pictures', str(folder))
    suffixes = Image.registered_extensions()
    names, numbers = defaultdict(list), defaultdict(list)
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in suffixes or path.name.startswith('.'):
            continue
        names[path.stem].append(path)
        if number := re.search(r'\d+$', path.stem):
            numbers[str(int(number[0]))].append(path)
    faults = [' and '.join(path.name for path in paths) for paths in names.values() if len(paths) > 1]
    raise_faults(folder, [f'several pictures of one image: {each}' for each in faults])
    return {key: paths[0] for key, paths in (*numbers.items(), *names.items()) if len(paths) == 1}


def read_picture(path: str | Path) -> Image.Image:
    """Return a picture, turned as its EXIF orientation requires."""
    with open(path, 'rb') as stream:
        return ImageOps.exif_transpose(open_whole(stream)).convert('RGB')


def same_shape(size: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether a picture of one size may be a reduced one of the other; rounded sides are allowed for.

    Example:
        >>> same_shape((33, 50), (426, 640)), same_shape((50, 33), (426, 640))
        (True, False)
    """
    return abs(size[0] * other[1] - size[1] * other[0]) <= max(other)


def given_picture(path: str | Path | None) -> np.ndarray | None:
    """Return a picture that the user gives, uint8 ``(H, W, 3)``; None for no path.

    Raises:
        OSError: there is no such file.
        ValueError: it cannot be read; the message names it.
    """
    if path is None:
        return None
    try:
        return np.asarray(read_picture(path))
    except FileNotFoundError:
        raise
    except Exception as error:  # decoders raise many types
        raise ValueError(f'{path}: {unreadable(error)}') from error


def check_shape(path: str | Path, picture: np.ndarray, image_id: str, expected: tuple[int, int]) -> None:
    """Check that a given picture may be that of an image in a region store, whose width and height are ``expected``.

    Raises:
        ValueError: it has another shape.
    """
    size = picture.shape[1], picture.shape[0]
    if not same_shape(size, expected):
        sizes = ['×'.join(map(str, each)) for each in (size, expected)]
        raise ValueError(f'{path}: {sizes[0]} pixels; image {image_id} of the store, {sizes[1]}, has another shape')
