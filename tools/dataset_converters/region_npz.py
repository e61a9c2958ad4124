"""Convert region features in NumPy archives to a store of region features.

    python tools/dataset_converters/region_npz.py features_train.npz [NPZ …] --out-dir data/flickr8k/regions
    python tools/dataset_converters/region_npz.py features_val.npz --id-format 'image{}' --out-dir data/daquar/regions

Each archive has the regions of N images, padded to the largest number n, under these names::

    features or feat            (N, n, D), floating-point, or integers that are multiplied by ``step``
    boxes                       (N, n, 4): left, top, right, bottom, in pixels of ``size``
    image_id or image_ids       (N,), integers or strings
    size or sizes               (N, 2): width and height of the images
    step                        optional: a number, or (D,)
    num_regions                 optional: (N,), numbers of regions that are not padding
    classes or cls              optional: (N, n); the largest number of an unsigned type is none, and becomes -1
    scores or score             optional: (N, n); those of an integer type are divided by its largest number

Several archives become one store; see ``region_store.py``. An interrupted run continues with the same command.
All faults of the input are reported together, on stderr, with exit code 1.
"""

import argparse
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mmattn.utils.command

import numpy as np
import torch
from conversion import Fault, run
from region_store import add_arguments, add_clip_boxes, source_of, write_store

from mmattn.language.regions.region_store import Regions
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
REQUIRED = ('features', 'boxes', 'image_ids', 'sizes')


def read_archive(path: Path) -> dict[str, Any]:
    """Return the arrays of an archive by the first of their names.

    Raises:
        Fault: the file is damaged, or arrays are missing or do not fit each other.
    """
    found: dict[str, Any] = {}
    try:
        with np.load(path, allow_pickle=False) as archive:
            for name, short in NAMES.items():
                keys = [key for key in dict.fromkeys((name, short)) if key in archive.files]
                if len(keys) > 1:
                    raise Fault(f'{path}: has both {name} and {short}, which are names of one array')
                if keys:
                    found[name] = archive[keys[0]]
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, AttributeError, TypeError) as error:
        raise Fault(f'{path}: not a NumPy archive (.npz), or damaged: {error}') from error
    if missing := [f'{path}: no {name} or {NAMES[name]} in it' for name in REQUIRED if name not in found]:
        raise Fault(*missing)
    if found['features'].ndim != 3:
        raise Fault(f'{path}: features must be (N, n, D); got {found["features"].shape}')
    images, regions, width = found['features'].shape
    shapes = dict(
        boxes=(images, regions, 4),
        image_ids=(images,),
        sizes=(images, 2),
        step=(width,),
        num_regions=(images,),
        classes=(images, regions),
        scores=(images, regions),
    )
    faults = [
        f'{path}: {name} must be {shape} for features {(images, regions, width)}; got {found[name].shape}'
        for name, shape in shapes.items()
        if name in found and found[name].shape != shape and not (name == 'step' and found[name].size == 1)
    ]
    if 'step' not in found and found['features'].dtype.kind != 'f':
        faults.append(f'{path}: features of integers require step, by which they are multiplied')
    if not faults and 'num_regions' in found:
        counts = found['num_regions']
        if counts.dtype.kind not in 'iu':
            faults.append(f'{path}: num_regions must be integers; got {counts.dtype}')
        elif counts.size and not 0 <= counts.min() <= counts.max() <= regions:
            faults.append(f'{path}: num_regions must be from 0 to {regions}; got {counts.min()} to {counts.max()}')
    if len(rows := np.flatnonzero((found['sizes'].round() != found['sizes']).any(-1))):
        faults.append(f'{path}: sizes must be whole numbers; images {", ".join(map(str, rows[:5]))} have other ones')
    if 'classes' in found and found['classes'].dtype.kind not in 'iu':
        faults.append(f'{path}: classes must be integers; got {found["classes"].dtype}')
    if found['image_ids'].dtype.kind not in 'iuU':
        faults.append(f'{path}: image_ids must be integers or strings; got {found["image_ids"].dtype}')
    if faults:
        raise Fault(*faults)
    return found


def read_image(arrays: dict[str, Any], row: int) -> Regions:
    """Return the regions of an image of an archive."""
    width, height = (int(side) for side in arrays['sizes'][row])
    count = int(arrays['num_regions'][row]) if 'num_regions' in arrays else None
    features, boxes, classes, scores = (
        arrays[name][row][:count] if name in arrays else None for name in ('features', 'boxes', 'classes', 'scores')
    )
    features = features.astype(np.float32) * np.asarray(arrays.get('step', 1), np.float32)
    if classes is not None:
        none = classes.dtype.kind == 'u' and classes == np.iinfo(classes.dtype).max
        classes = torch.from_numpy(np.where(none, -1, classes.astype(np.int64)))
    if scores is not None:
        most = 1 if scores.dtype.kind == 'f' else np.iinfo(scores.dtype).max
        scores = torch.from_numpy((scores / most).astype(np.float32))
    boxes = torch.from_numpy(boxes.astype(np.float32))
    return Regions(torch.from_numpy(features), boxes, (width, height), classes, scores)


def read_images(paths: Sequence[Path], id_format: str) -> Iterator[tuple[str, str, Callable[[], Regions]]]:
    """Yield place, id and reader of each image. One archive at a time is in memory."""
    for path in paths:
        arrays = read_archive(path)
        for row in track(range(len(arrays['image_ids'])), path.name):
            image_id = id_format.format(arrays['image_ids'][row].item())
            yield f'{path}, image {row}', image_id, partial(read_image, arrays, row)


def check_format(text: str) -> str:
    """Parse a format of ids."""
    try:
        different = text.format(1) != text.format(2)
    except (LookupError, AttributeError) as error:
        raise ValueError from error
    if not different:
        raise ValueError
    return text


check_format.__name__ = 'format'  # in the message of argparse


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description='Convert region features in NumPy archives to a store.')
    parser.add_argument('npz', type=Path, nargs='+', help='archive with the regions of images')
    parser.add_argument(
        '--id-format',
        type=check_format,
        default='{}',
        metavar='TEXT',
        help="id of an image in the store, with {} for its image_id, such as 'image{}' (default: %(default)s)",
    )
    add_arguments(parser)
    add_clip_boxes(parser)

    def convert(args: argparse.Namespace) -> None:
        source = source_of(parser, args.npz, f'--id-format {args.id_format}')
        faults: list[str] = []
        for path in args.npz:
            try:
                read_archive(path)
            except Fault as fault:
                faults += fault.args
        if faults:
            raise Fault(*faults)
        write_store(args, source, read_images(args.npz, args.id_format), args.npz)

    return run(convert, parser, argv, overwrites=False)


if __name__ == '__main__':
    mmattn.utils.command.run(main)
