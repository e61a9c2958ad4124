"""Pictures of images by their ids."""

import errno
import re
from pathlib import Path

from PIL import Image, ImageOps

from mmattn.utils.images import open_whole


def picture_paths(folder: str | Path) -> dict[str, Path]:
    """Return the pictures in a folder by the ids of their images.

    An id is the name of the file without suffix, or the number at its end, as in ``COCO_val2014_000000000042.jpg``.

    Raises:
        OSError: there is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, 'no such folder of pictures', str(folder))
    suffixes = Image.registered_extensions()
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes)
    found = {path.stem: path for path in paths}
    for path in paths:
        if number := re.search(r'\d+$', path.stem):
            found.setdefault(str(int(number[0])), path)
    return found


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
