"""The data sets of a config, and functions that the checks of masks and boxes share."""

import logging
import os
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, NamedTuple, Protocol, runtime_checkable

import cv2
from mmengine.logging import print_log
from mmengine.registry import DATASETS

from mmattn.utils.component_type import component_class
from mmattn.utils.faults import Faults, shorten
from mmattn.utils.files import find_copies

from .images import Facts, ImageFile

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
ALLOW_COPIES = 'allow copies: --cfg-options default_hooks.data_check.allow_copies=True'
CACHE = 'data_check.json'  # in the work dir
Fault = tuple[str, str]  # a path, or a place in the config, and what is wrong there


@runtime_checkable
class CheckableDataset(Protocol):
    """A data set with a check of its own: the constructor raises what is wrong with its files, all at once."""

    def check_for_model(self, model: Any, faults: Faults) -> None:
        """Add to ``faults`` what does not fit the model, and what takes too long to check in every process.

        ``model`` has no wrapper of distributed training.
        """


class Part(NamedTuple):
    """A data set of a config, and its samples. Without samples, its files cannot be checked."""

    where: str  # place in the config, such as 'train_dataloader.dataset'
    dataset: Any
    samples: Sequence[Any]

    @property
    def loader(self) -> str:
        """The data loader, such as 'train_dataloader'."""
        return loader_name(self.where)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes. Empty if the data set does not define them."""
        return tuple(self.dataset.metainfo.get('classes') or ())


def loader_name(where: str) -> str:
    """Get the data loader at the start of a place in the config."""
    return where.partition('.')[0]


def data_sets(cfg: Mapping, loaders: Sequence[str], base: type) -> Iterator[tuple[str, dict]]:
    """Yield place and config of data sets that derive from ``base``, also inside wrappers such as ``ConcatDataset``."""
    for loader in loaders:
        yield from _nested_data_sets(cfg.get(loader), loader, base)


def _nested_data_sets(cfg: object, where: str, base: type) -> Iterator[tuple[str, dict]]:
    if isinstance(cfg, list | tuple):
        for i, part in enumerate(cfg):
            yield from _nested_data_sets(part, f'{where}.{i}', base)
    elif isinstance(cfg, dict):
        kind = component_class(cfg, DATASETS, cfg.get('_scope_'))
        if isinstance(kind, type) and issubclass(kind, base):
            yield where, cfg
            return
        for key in ('dataset', 'datasets'):
            yield from _nested_data_sets(cfg.get(key), f'{where}.{key}', base)


def dicts(cfg: Any) -> list[dict]:
    """List the dictionaries in a list, or a single dictionary."""
    return [part for part in (cfg if isinstance(cfg, list | tuple) else [cfg]) if isinstance(part, dict)]


def is_local(reader: Any, *paths: str) -> bool:
    """Tell whether a data set or a transform reads local files, and whether ``paths`` are local. True for None."""
    arguments = getattr(reader, 'backend_args', None) or getattr(reader, 'file_client_args', None) or {}
    paths = (*paths, *getattr(reader, 'data_prefix', {}).values())
    return arguments.get('backend', 'local') in ('local', 'disk') and not any('://' in path for path in paths if path)


def absent_classes(
    parts: Sequence[Part], present: Mapping[str, Collection[str]], allow_absent: Collection[str]
) -> dict[str, list[str]]:
    """List the classes that no data set of a data loader contains, in their order, by data loader.

    Args:
        parts (sequence of Part): the data sets, sorted by data loader.
        present (mapping): place of a data set in the config → names of the classes that occur in the data set.
        allow_absent (collection of str): classes that may be absent.
    """
    absent = {}
    for loader, group in groupby(parts, lambda part: part.loader):
        loader_parts = [*group]
        occurring = {name for part in loader_parts for name in present[part.where]}.union(allow_absent)
        names = dict.fromkeys(name for part in loader_parts for name in part.classes)
        absent[loader] = [name for name in names if name not in occurring]
    return {loader: names for loader, names in absent.items() if names}


def allow_absent_hint(names: Sequence[str]) -> str:
    """Tell how to train without some classes."""
    return (
        'if the subset lacks these classes on purpose, run with --cfg-options '
        f"default_hooks.data_check.allow_absent='[{','.join(names)}]'"
    )


def image_paths(cfg: Mapping, loaders: Sequence[str], base: type) -> dict[str, list[str]]:
    """List the images of data sets on a local disk, as far as they can be listed: place in the config → paths."""
    paths = {}
    for where, dataset in data_sets(cfg, loaders, base):
        with suppress(Exception):  # the check of this data loader tells what is wrong
            built = DATASETS.build({**dataset, 'lazy_init': True, 'pipeline': []})
            if is_local(built, built.ann_file):
                paths[where] = [info['img_path'] for info in built.load_data_list()]
    return paths


def repeated_images(
    images: Mapping[str, Sequence[ImageFile]], facts: Mapping[ImageFile, Facts], allow_copies: bool
) -> Iterator[Fault]:
    """Yield images of validation and test that are copies of training images. Warn of other repetitions.

    Others are images that a data set lists twice, copies within a data loader, and images that training and validation
    share. ``images`` maps the places of the data sets in the config to their images.
    """
    training: set[str] = set()
    origins: dict[str, str] = {}
    ends: dict[str, Hashable] = {}
    for where, files in images.items():
        counts = Counter(file.path for file in files)
        if repeated := [path for path, count in counts.items() if count > 1]:
            log(f'{where} lists {len(repeated)} images more than once, such as {repeated[0]}', logging.WARNING)
        if loader_name(where) == 'train_dataloader':
            training.update(counts)
        elif shared := training.intersection(counts):
            count = f'{len(shared)} of the {len(counts)} images of {where}'
            log(f'{count} are training images, such as {min(shared)}', logging.WARNING)
        for file in files:
            if facts[file].end:
                origins.setdefault(file.path, loader_name(where))
                ends[file.path] = tuple(facts[file].end)  # a list from the cache
    copies: dict[str, list[str]] = {}
    for group in find_copies(ends, ends):
        trained = [path for path in group if origins[path] == 'train_dataloader']
        for loader in {origins[path] for path in group}:
            first, *others = (path for path in group if origins[path] == loader)
            copies.setdefault(loader, []).extend(f'{path} of {os.path.basename(first)}' for path in others)
            if trained and loader != 'train_dataloader' and not allow_copies and not _is_blank(first):
                for path in (first, *others):
                    yield (
                        path,
                        f'has the bytes of the training image {trained[0]}; remove one of them, or {ALLOW_COPIES}',
                    )
    for loader, names in copies.items():
        if names:
            log(f'{len(names)} images of {loader} are copies: {", ".join(shorten(names, 10))}', logging.WARNING)


def _is_blank(path: str) -> bool:
    """Tell whether all pixels of an image are equal, as in tiles without data of a survey."""
    pixels = cv2.imread(path, cv2.IMREAD_UNCHANGED)
    return pixels is not None and bool((pixels == pixels[0, 0]).all())


def log_doubts(where: str, files: Sequence[ImageFile], facts: Mapping[ImageFile, Facts], kind: str) -> None:
    """Warn of what may not be meant in the files of a data set: once per kind, with a count and the first file."""
    examples: dict[str, list[str]] = {}
    for file in dict.fromkeys(files):
        for doubt in facts[file].doubts:
            reason, _, details = doubt.partition(': ')
            examples.setdefault(reason, []).append(f'{file.path}: {details}' if details else file.path)
    for reason, listed in examples.items():
        log(f'{where}: {len(listed)} of {len(files)} {kind} have {reason}, such as {listed[0]}', logging.WARNING)


def log(text: str, level: int = logging.INFO) -> None:
    """Log a message of the data check."""
    print_log(f'Data check: {text}', 'current', level)
