"""The data sets of a config, and what the checks of masks and boxes share."""

import logging
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
        """Return the faults of the data sets with these configs, and what does not fit the model, by path.

        Args:
            cfgs (sequence of dict): the configs of all data sets of this class.
            model (nn.Module): the model, without the wrapper of distributed training.
        """


class Part(NamedTuple):
    """A data set of a config.

    Attributes:
        where (str): its place in the config, such as ``train_dataloader.dataset``.
        dataset (BaseDataset): the data set.
        samples (sequence): the samples to check. Empty if its files cannot be checked.
    """

    where: str
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
    """Return the data loader at the start of a place in the config."""
    return where.partition('.')[0]


def data_sets(cfg: Mapping, loaders: Sequence[str], base: type) -> Iterator[tuple[str, dict]]:
    """Yield the place and the config of each data set that derives from ``base`` in some data loaders of a config.

    Data sets inside wrappers, such as ``ConcatDataset``, are included.
    """
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
    """Return the dictionaries in a list, or a single dictionary as a list."""
    return [part for part in (cfg if isinstance(cfg, list | tuple) else [cfg]) if isinstance(part, dict)]


def is_local(reader: Any, *paths: str) -> bool:
    """Return whether a data set or a transform, and further paths of it, are on a local disk. True for None."""
    arguments = getattr(reader, 'backend_args', None) or getattr(reader, 'file_client_args', None) or {}
    paths = (*paths, *getattr(reader, 'data_prefix', {}).values())
    return arguments.get('backend', 'local') in ('local', 'disk') and not any('://' in path for path in paths if path)


def absent_classes(
    parts: Sequence[Part], present: Mapping[str, Collection[str]], allow_absent: Collection[str]
) -> dict[str, list[str]]:
    """Return the classes that no data set of a data loader contains.

    Args:
        parts (sequence of Part): the data sets, those of a data loader next to each other.
        present (mapping): the names of the classes that occur in each data set, by its place in the config.
        allow_absent (collection of str): classes that may be absent.

    Returns:
        dict: data loader → names, in the order of the classes. Data loaders without an absent class are left out.
    """
    absent = {}
    for loader, group in groupby(parts, lambda part: part.loader):
        of_loader = [*group]
        occurring = {name for part in of_loader for name in present[part.where]}.union(allow_absent)
        names = dict.fromkeys(name for part in of_loader for name in part.classes)
        absent[loader] = [name for name in names if name not in occurring]
    return {loader: names for loader, names in absent.items() if names}


def allow_absent_hint(names: Sequence[str]) -> str:
    """Return the sentence that tells how to train without some classes."""
    return (
        'if the subset lacks these classes on purpose, run with --cfg-options '
        f"default_hooks.data_check.allow_absent='[{','.join(names)}]'"
    )


def log(text: str, level: int = logging.INFO) -> None:
    """Log a message of the data check."""
    print_log(f'Data check: {text}', 'current', level)
