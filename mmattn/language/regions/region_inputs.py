"""Region features as the inputs of a model, and what does not fit it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor

from mmattn.language.text.annotation_files import SHOWN, noting

from .region_store import RegionStore

Stores = str | Path | Sequence[str | Path] | RegionStore


def open_store(regions: Any) -> Any:
    """Return the region store at a path, or the given one."""
    if isinstance(regions, str | Path):
        return RegionStore(regions)
    return regions


def region_store(inputs: Stores) -> RegionStore:
    """Return the region store at one or several paths, or the given one.

    Raises:
        OSError, ValueError: as :class:`RegionStore`.
        TypeError: ``inputs`` is something else.
    """
    if isinstance(inputs, RegionStore):
        return inputs
    paths = [inputs] if isinstance(inputs, str | Path) else inputs
    if not isinstance(paths, Sequence) or not all(isinstance(path, str | Path) for path in paths):
        raise TypeError(
            f'inputs must be a RegionStore, or the folder of one or of several; got {type(inputs).__name__}'
        )
    return RegionStore(paths)


def image_inputs(regions: Any, attributes: Tensor | None = None) -> dict[str, Tensor]:
    """Return what a captioning model reads of an image, see :meth:`CaptionDataset.__getitem__`."""
    inputs = dict(features=regions.features)
    if regions.boxes is not None:
        inputs['boxes'] = regions.boxes
        inputs['sizes'] = torch.tensor(regions.size)
    if attributes is not None:
        inputs['attributes'] = attributes
    return inputs


def with_region_faults(
    faults: dict[str, list[str]], images: dict[str, list[str]], num_features: int | None, allow_empty: bool = False
) -> dict[str, list[str]]:
    """Return faults by path, each once, with the first ones of region stores, and the number of others.

    Args:
        faults (dict): those of other files; those of the stores are added.
        images (dict): the images that are used, by store.
        num_features (int, optional): width of the regions that the model accepts; None for any.
        allow_empty (bool): an image may be without regions. Defaults to False.
    """
    for path, ids in images.items():
        with noting(faults, path):
            store = RegionStore(path)
            found = store.find_faults(ids, num_features, features=False, allow_empty=allow_empty)
            if num_features not in (None, store.num_features):
                found[0] += f' (--cfg-options model.num_features={store.num_features})'
            more = [f'… and {len(found) - SHOWN:,} more'] * (len(found) > SHOWN)
            faults.setdefault(path, []).extend(found[:SHOWN] + more)
    return {path: list(dict.fromkeys(reasons)) for path, reasons in faults.items() if reasons}


def warn_of_shared_images(training: Iterable[str], validation: Iterable[str]) -> None:
    """Log a warning if images validate that also train."""
    evaluated = set(validation)
    if shared := evaluated & set(training):
        message = f'{len(shared):,} of {len(evaluated):,} validation images are training images, such as {min(shared)}'
        print_log(
            f'{message}: the best checkpoint is then chosen by what was learned by heart', 'current', logging.WARNING
        )


def store_files(store: RegionStore) -> list[list[int]]:
    """Return what identifies a store in the settings of a run: size and time of the files of its features.

    Stores are never overwritten, so that these suffice; to read the features would take long.
    """
    files = [(path / 'features.npy').stat() for path in store.paths]
    return [[file.st_size, file.st_mtime_ns] for file in files]
