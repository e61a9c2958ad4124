"""Convert published bottom-up-attention features (Anderson et al., 2018) to a store of region features.

    python tools/dataset_converters/bottom_up_features.py FILE [FILE …] --out-dir data/coco/regions [--float16]

Each FILE is a TSV of the release, with 36 or 10 to 100 regions per image. It has no header, and the columns::

    image_id  image_w  image_h  num_boxes  boxes  features

``boxes`` and ``features`` are base64 of float32, num_boxes × 4 and num_boxes × 2048. FILE may also be the HDF5 file
into which the public code of models for visual questions converts such a TSV, ``NAME.hdf5``, beside which is
``NAME_imgid2idx.pkl``, the rows by image_id. Its arrays, here of N images with n regions::

    image_features      (N, n, 2048)
    image_bb            (N, n, 4)
    spatial_features    (N, n, 6): the corners of the boxes, divided by width and height of the image, and their sizes
    pos_boxes           for different numbers of regions: (N, 2), first and end of an image in arrays (R, …)

Several files become one store. Output, see ``mmattn.language.regions.region_store``; the features of COCO's 123,287
images with 36 regions need 36 GB, with ``--float16`` 18 GB.

An interrupted run continues with the same command. All faults of the input are reported together, with their line
numbers, on stderr, with exit code 1. The released test set has three damaged rows: ``--skip-damaged`` leaves out such
rows and goes on with the images that are converted already.
"""

import base64
import binascii
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import rich.progress
import torch

from common.conversion import converter
from common.regions import RepairOptions, describe_source, write_store
from mmattn.language.regions.image_regions import Regions
from mmattn.language.regions.region_store import open_hdf5
from mmattn.utils.command import run
from mmattn.utils.faults import FaultsError, reading
from mmattn.utils.progress import track

COLUMNS = ('image_id', 'image_w', 'image_h', 'num_boxes', 'boxes', 'features')


def read_line(line: bytes) -> Regions:
    fields = dict(zip(COLUMNS, line.rstrip(b'\r\n').split(b'\t')))
    if len(fields) < len(COLUMNS) or line.count(b'\t') >= len(COLUMNS):
        raise FaultsError(f'{line.count(b"	") + 1} columns; a line has {", ".join(COLUMNS)}, separated by tabs')
    numbers = [fields[name].decode('utf-8', 'backslashreplace') for name in COLUMNS[1:4]]
    try:
        width, height, count = map(int, numbers)
    except ValueError:
        raise FaultsError(f'{", ".join(COLUMNS[1:4])} must be integers; got {", ".join(numbers)}') from None
    if count < 1:
        raise FaultsError('no regions')
    arrays = []
    for name in COLUMNS[4:]:
        try:
            data = base64.b64decode(fields[name], validate=True)
        except binascii.Error as error:
            raise FaultsError(f'{name} is not base64, or truncated: {error}') from None
        columns = 4 if name == 'boxes' else max(1, len(data) // (4 * count))
        if len(data) != 4 * count * columns:
            raise FaultsError(f'{name} has {len(data):,} bytes, which are not float32 of {count} regions')
        arrays.append(torch.from_numpy(np.frombuffer(data, '<f4').astype(np.float32).reshape(count, -1)))
    boxes, features = arrays
    return Regions(features, boxes, (width, height))


def read_images(paths: Sequence[Path]) -> Iterator[tuple[str, str, Callable[[], Regions]]]:
    """Yield place, id and reader of each image."""
    for path in paths:
        if path.suffix in ('.hdf5', '.h5'):
            yield from read_hdf5(path)
            continue
        with rich.progress.open(path, 'rb', description=path.name) as file:
            for number, line in enumerate(file, 1):
                image_id = line.partition(b'\t')[0].decode('utf-8', 'backslashreplace').strip()
                yield f'{path}, line {number}', image_id, partial(read_line, line)


class PlainUnpickler(pickle.Unpickler):
    """Unpickle numbers, texts and containers of Python alone."""

    def find_class(self, module: str, name: str) -> None:  # else a file could run any code
        raise pickle.UnpicklingError(f'it has {module}.{name}, and not only numbers')


def read_hdf5(path: Path) -> Iterator[tuple[str, str, Callable[[], Regions]]]:
    ids = path.with_name(f'{path.stem}_imgid2idx.pkl')
    with reading(ids, 'not the rows of the images by their ids'), ids.open('rb') as stream:
        rows = sorted((int(row), str(image_id)) for image_id, row in PlainUnpickler(stream).load().items())
    names = 'image_features', 'image_bb', 'spatial_features'
    with open_hdf5(path, names, ['pos_boxes']) as file, reading(path, 'not bottom-up-attention features'):
        features, boxes, spatial = (file[name] for name in names)
        places = file['pos_boxes'][()] if 'pos_boxes' in file else None
        count, last = len(features if places is None else places), len(boxes)
        if {row for row, _ in rows} - {*range(count)}:
            raise FaultsError(ids, f'it has rows beyond the {count:,} images of {path}')
        if places is not None and ((places < 0) | (places > last)).any():
            raise FaultsError(path, f'pos_boxes must be from 0 to {last}, the number of regions')

        def read(row: int) -> Regions:
            where = row if places is None else slice(*places[row])
            corners, relative = boxes[where].astype(np.float32), spatial[where]
            sides = [corners[:, side].max() / relative[:, side].max() for side in (2, 3)]  # 0 / 0 is of no image
            width, height = (int(np.rint(side)) if np.isfinite(side) else 0 for side in sides)
            return Regions(torch.from_numpy(features[where]), torch.from_numpy(corners), (width, height))

        for row, image_id in track(rows, path.name):
            yield f'{path}, row {row}', image_id, partial(read, row)


@converter
def main(file: list[Path], store: RepairOptions) -> None:
    write_store(store, describe_source(file), read_images(file), file)


if __name__ == '__main__':
    run(main)
