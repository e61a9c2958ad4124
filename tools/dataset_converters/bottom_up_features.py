"""Convert published bottom-up-attention features (Anderson et al., 2018) to a store of region features.

    python tools/dataset_converters/bottom_up_features.py TSV [TSV …] --out-dir data/coco/regions [--float16]

Each TSV is a file of the release, with 36 or 10 to 100 regions per image. It has no header, and the columns::

    image_id  image_w  image_h  num_boxes  boxes  features

``boxes`` and ``features`` are base64 of float32, num_boxes × 4 and num_boxes × 2048. Several files become one store.
Output, see ``mmattn.language.regions.region_store``; the features of COCO's 123,287 images with 36 regions need 36 GB,
with ``--float16`` 18 GB.

An interrupted run continues with the same command. All faults of the input are reported together, with their line
numbers, on stderr, with exit code 1. The released test set has three damaged rows: ``--skip-damaged`` leaves out such
rows and goes on with the images that are converted already.
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import rich.progress
import torch

from common.conversion import converter
from common.regions import RepairOptions, describe_source, write_store
from mmattn.language.regions.region_store import Regions
from mmattn.utils.command import run
from mmattn.utils.faults import FaultsError

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
        with rich.progress.open(path, 'rb', description=path.name) as file:
            for number, line in enumerate(file, 1):
                image_id = line.partition(b'\t')[0].decode('utf-8', 'backslashreplace').strip()
                yield f'{path}, line {number}', image_id, partial(read_line, line)


@converter
def main(tsv: list[Path], store: RepairOptions) -> None:
    write_store(store, describe_source(tsv), read_images(tsv), tsv)


if __name__ == '__main__':
    run(main)
