"""NumPy archives with the regions of images, which ``tools/dataset_converters/region_npz.py`` describes."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmattn.language.regions.image_regions import Regions
from mmattn.utils.faults import Faults, FaultsError, reading, shorten
from mmattn.utils.progress import track

NAMES = {
    'features': 'feat',
    'boxes': 'boxes',
    'image_ids': 'image_id',
    'sizes': 'size',
    'step': 'step',
    'num_regions': 'num_regions',
    'classes': 'cls',
    'scores': 'score',
}
KINDS = dict(num_regions='iu', classes='iu', image_ids='iuU')  # as in NumPy; the others are numbers
WORDS = dict(iu='integers', iuU='integers or strings', iuf='numbers')
REQUIRED = ('features', 'boxes', 'image_ids', 'sizes')


def read_archive(path: Path) -> dict[str, Any]:
    """Read the arrays of an archive by their long names. A FaultsError lists all that is missing or does not fit."""
    arrays: dict[str, Any] = {}
    with reading(path, 'not a NumPy archive (.npz), or damaged'), np.load(path, allow_pickle=False) as archive:
        for name, short in NAMES.items():
            if name != short and {name, short} <= {*archive.files}:
                raise FaultsError(path, f'has both {name} and {short}, which are names of one array')
            key = name if name in archive.files else short
            if key in archive.files:
                arrays[name] = archive[key]
                if not isinstance(arrays[name], np.ndarray):  # NumPy returns the bytes of other files
                    raise ValueError(f'{key} is not an array')
    Faults(path, [f'no {name} or {NAMES[name]} in it' for name in REQUIRED if name not in arrays]).check()
    if arrays['features'].ndim != 3:
        raise FaultsError(path, f'features must be (N, n, D); got {arrays["features"].shape}')
    images, regions, width = arrays['features'].shape
    shapes = dict(
        boxes=(images, regions, 4),
        image_ids=(images,),
        sizes=(images, 2),
        step=(width,),
        num_regions=(images,),
        classes=(images, regions),
        scores=(images, regions),
    )
    reasons = [
        f'{name} must be {shape} for features {(images, regions, width)}; got {arrays[name].shape}'
        for name, shape in shapes.items()
        if name in arrays and arrays[name].shape != shape and not (name == 'step' and arrays[name].size == 1)
    ]
    faults = Faults(path, reasons)
    if 'step' not in arrays and arrays['features'].dtype.kind != 'f':
        faults.add(path, 'features of integers require step, by which they are multiplied')
    counts = arrays.get('num_regions', np.zeros(1, int))
    if counts.dtype.kind in 'iu' and counts.size and not 0 <= counts.min() <= counts.max() <= regions:
        faults.add(path, f'num_regions must be from 0 to {regions}; got {counts.min()} to {counts.max()}')
    if arrays['sizes'].dtype.kind in 'iuf' and len(
        rows := np.flatnonzero((arrays['sizes'].round() != arrays['sizes']).any(-1))
    ):
        faults.add(path, f'sizes must be whole numbers; images {", ".join(shorten(rows, 5))} have other ones')
    kinds = {name: KINDS.get(name, 'iuf') for name in arrays}
    for name, kind in kinds.items():
        if arrays[name].dtype.kind not in kind:
            faults.add(path, f'{name} must be {WORDS[kind]}; got {arrays[name].dtype}')
    faults.check()
    return arrays


def read_image(arrays: dict[str, Any], row: int) -> Regions:
    """Convert one row of an archive to the regions of an image."""
    width, height = (int(side) for side in arrays['sizes'][row])
    count = int(arrays['num_regions'][row]) if 'num_regions' in arrays else None
    features, boxes = (arrays[name][row][:count].astype(np.float32) for name in ('features', 'boxes'))
    classes, scores = (arrays[name][row][:count] if name in arrays else None for name in ('classes', 'scores'))
    features = features * np.asarray(arrays.get('step', 1), np.float32)
    if classes is not None:
        none = classes.dtype.kind == 'u' and classes == np.iinfo(classes.dtype).max
        classes = torch.from_numpy(np.where(none, -1, classes.astype(np.int64)))
    if scores is not None:
        most = 1 if scores.dtype.kind == 'f' else np.iinfo(scores.dtype).max
        scores = torch.from_numpy((scores / most).astype(np.float32))
    return Regions(torch.from_numpy(features), torch.from_numpy(boxes), (width, height), classes, scores)


def read_images(paths: Sequence[Path], id_format: str) -> Iterator[tuple[str, str, Callable[[], Regions]]]:
    """Yield place, id and reader of every image. One archive at a time is in memory."""
    for path in paths:
        arrays = read_archive(path)
        for row in track(range(len(arrays['image_ids'])), path.name):
            image_id = id_format.format(arrays['image_ids'][row].item())
            yield f'{path}, image {row}', image_id, partial(read_image, arrays, row)


def find_archives(folder: Path) -> list[Path]:
    """List the archives of region features in a folder."""
    return sorted(folder.glob('features_*.npz'))


def image_sizes(archives: Sequence[Path], faults: Faults, id_format: str = '{}') -> dict[str, tuple[int, int]]:
    """Read width and height of all images by id. Faults of the archives are added to ``faults``."""
    sizes: dict[str, tuple[int, int]] = {}
    for path in archives:
        with faults.catch(path):
            arrays = read_archive(path)
            image_ids = map(id_format.format, arrays['image_ids'].tolist())
            sizes.update(zip(image_ids, map(tuple, arrays['sizes'].tolist())))
    return sizes


def missing_regions(image_ids: Iterable[str], stored: Container[str]) -> list[str]:
    """Describe the fault if images have no regions, with the first five ids."""
    missing = list(dict.fromkeys(image_id for image_id in image_ids if image_id not in stored))
    names = ', '.join(shorten(missing, 5))
    return [f'{len(missing):,} images without regions: {names}'] if missing else []
