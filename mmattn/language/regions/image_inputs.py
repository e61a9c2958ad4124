"""Region features and pictures of images by their ids, as inputs of a model."""

from __future__ import annotations

import errno
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from mmattn.utils.faults import Faults, FaultsError
from mmattn.utils.images import decoding, open_whole

from .region_store import RegionStore

Stores = str | Path | Sequence[str | Path] | RegionStore


def region_store(inputs: Stores) -> RegionStore:
    """Open the region store in one or several folders. Return a ``RegionStore`` as it is."""
    if isinstance(inputs, RegionStore):
        return inputs
    paths = [inputs] if isinstance(inputs, str | Path) else inputs
    if not isinstance(paths, Sequence) or not all(isinstance(path, str | Path) for path in paths):
        raise TypeError(f'inputs must be a RegionStore, or its folder or folders; got {type(inputs).__name__}')
    return RegionStore(paths)


def image_inputs(regions: Any, attributes: Tensor | None = None) -> dict[str, Tensor]:
    """Collect what a model reads from the regions of an image, see :class:`mmattn.LoadRegions`."""
    inputs = dict(features=regions.features)
    if regions.boxes is not None:
        inputs['boxes'] = regions.boxes
        inputs['sizes'] = torch.tensor(regions.size)
    if attributes is not None:
        inputs['attributes'] = attributes
    return inputs


def store_files(store: RegionStore) -> list[list[int]]:
    """Identify a store by the sizes and times of its files. A store is never overwritten."""
    files = [path.stat() for path in store.files]
    return [[file.st_size, file.st_mtime_ns] for file in files]


def picture_paths(folder: str | Path) -> dict[str, Path]:
    """Find the pictures in a folder: id of the image → path.

    An id is the name of the file without suffix, in any of Unicode's forms. It is also the number at its end, as in
    ``COCO_val2014_000000000042.jpg``, if no other file has the number. Hidden files are skipped. Files that differ only
    in their suffix raise a ValueError that lists them.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, 'no such folder of pictures', str(folder))
    suffixes = Image.registered_extensions()
    names, numbers = defaultdict(list), defaultdict(list)
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() not in suffixes or path.name.startswith('.'):
            continue
        for name in {path.stem, *(unicodedata.normalize(form, path.stem) for form in ('NFC', 'NFD'))}:
            names[name].append(path)
        if number := re.search(r'\d+$', path.stem):
            numbers[str(int(number[0]))].append(path)
    copies = [' and '.join(path.name for path in paths) for paths in names.values() if len(paths) > 1]
    Faults(folder, [f'several pictures of one image: {names}' for names in copies]).check()
    return {key: paths[0] for key, paths in (*numbers.items(), *names.items()) if len(paths) == 1}


def read_picture(path: str | Path) -> Image.Image:
    """Read a picture as RGB, turned as its EXIF orientation requires."""
    with open(path, 'rb') as stream:
        return ImageOps.exif_transpose(open_whole(stream)).convert('RGB')


def same_shape(size: tuple[int, int], other: tuple[int, int]) -> bool:
    """Check whether two sizes have the same aspect ratio, up to rounding of the sides."""
    return abs(size[0] * other[1] - size[1] * other[0]) <= max(other)


def given_picture(path: str | Path | None) -> np.ndarray | None:
    """Read a user's picture, uint8 ``(H, W, 3)``, if there is a path. An unreadable picture raises a ValueError."""
    if path is None:
        return None
    with decoding(path):
        return np.asarray(read_picture(path))


def check_shape(path: str | Path, picture: np.ndarray, image_id: str, expected: tuple[int, int]) -> None:
    """Check that a picture has the aspect ratio of the stored image, whose width and height are ``expected``."""
    size = picture.shape[1], picture.shape[0]
    if not same_shape(size, expected):
        sizes = ['×'.join(map(str, sides)) for sides in (size, expected)]
        raise FaultsError(path, f'{sizes[0]} pixels; image {image_id} of the store, {sizes[1]}, has another shape')
