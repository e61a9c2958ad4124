"""Convert the published video features of VATEX to a store of region features.

    python tools/dataset_converters/vatex_features.py trainval public_test --out-dir data/vatex/regions --float16

Each folder has a NumPy array per video, ``<videoID>.npy``, float ``(1, T, D)`` or ``(T, D)``: T time steps of an I3D
with 1024 channels. A time step becomes a region. Its box is its cell in a strip of T cells, one pixel each.

An interrupted run continues with the same command. All faults of the input are reported together, on stderr, with exit
code 1.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

from common.conversion import converter, files_below
from common.regions import StoreOptions, write_store
from mmattn.language.regions.image_regions import Regions, grid_boxes
from mmattn.utils.command import run
from mmattn.utils.faults import FaultsError, reading
from mmattn.utils.progress import track


def read_video(path: Path) -> Regions:
    with reading(path, 'not a NumPy array, or damaged'):
        array = np.asarray(np.load(path, allow_pickle=False))  # an archive would be an array of objects
    features = array[0] if array.ndim == 3 and len(array) == 1 else array
    if features.ndim != 2 or features.dtype.kind != 'f' or not features.size:
        raise FaultsError(f'must be float (1, T, D) or (T, D), not empty; got {array.dtype} {array.shape}')
    steps = len(features)
    return Regions(torch.from_numpy(features.astype(np.float32)), grid_boxes((steps, 1), 1, steps), (steps, 1))


@converter
def main(folder: list[Path], store: StoreOptions) -> None:
    paths: list[Path] = []
    for place in folder:
        arrays = [path for path in files_below(place) if path.suffix == '.npy']
        if not arrays:
            raise FaultsError(place, 'no file .npy in it' if place.is_dir() else 'no such folder')
        paths += arrays

    def videos() -> Iterator:
        for path in track(paths, 'Converting', len(paths)):
            yield str(path), path.stem, partial(read_video, path)

    write_store(store, ', '.join(['vatex_features.py', *(place.name for place in folder)]), videos(), paths)


if __name__ == '__main__':
    run(main)
