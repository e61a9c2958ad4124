"""The data sets of a config, and functions that the checks of masks and boxes share."""

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol, runtime_checkable

from mmengine.logging import print_log
from mmengine.registry import DATASETS

from mmattn.utils.component_type import component_class

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
CACHE = 'data_check.json'  # in the work dir
Fault = tuple[str, str]  # a path, or a place in the config, and what is wrong there


@runtime_checkable
class CheckableDataset(Protocol):
    """A class of data sets with a check of its own.

    The check sees configs, because ``tools/train.py`` runs it before it builds the data sets.
    """

    @classmethod
    def find_faults(cls, cfgs: Sequence[dict], model: Any) -> dict[str, list[str]]:
        """Check the data sets of this class, and whether they fit the model. Return path → faults.

        ``cfgs`` are the configs of all data sets of this class. ``model`` has no wrapper of distributed training.
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


def warn_of_repetitions(parts: Sequence[Part], images: Mapping[str, Sequence[str]]) -> None:
    """Warn of images that a data set lists twice, or that training and validation share.

    ``images`` maps the places of the data sets in the config to paths.
    """
    training: set[str] = set()
    for part in parts:
        counts = Counter(images[part.where])
        if repeated := [path for path, count in counts.items() if count > 1]:
            log(f'{part.where} lists {len(repeated)} images more than once, such as {repeated[0]}', logging.WARNING)
        if part.loader == 'train_dataloader':
            training.update(counts)
        elif shared := training.intersection(counts):
            count = f'{len(shared)} of the {len(counts)} images of {part.where}'
            log(f'{count} are training images, such as {min(shared)}', logging.WARNING)


def log(text: str, level: int = logging.INFO) -> None:
    """Log a message of the data check."""
    print_log(f'Data check: {text}', 'current', level)
