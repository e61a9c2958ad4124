"""Base class of the hooks that check data before the first iteration."""

import logging
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from typing import Any

import torch.distributed
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmattn._compat import process_store
from mmattn.utils.faults import Faults, shorten
from mmattn.utils.files import write_text
from mmattn.utils.model_wrappers import unwrapped

from .data_sets import CheckableDataset, Fault, data_sets, loader_name
from .metrics import metric_faults, monitor_faults
from .schedules import check_schedules

META_KEYS = ('classes', 'palette')
_checks = count()  # of this process; every process has the same


class DataCheckHook(Hook):
    """Check the data sets of a run before its first iteration, and list all faults in one error.

    A subclass checks the data sets of one library. A data set can also bring a check of its own, see
    :class:`~mmattn.data_check.data_sets.CheckableDataset`. The ValueError lists up to 20 faults. All faults are written
    to ``data_check.txt`` in the work dir. The main process checks. All processes raise.

    mmengine builds data sets before it calls any hook, and raises an error that does not name the data set if one is
    empty. Therefore, ``tools/train.py`` first calls ``before_loops``, and ``tools/test.py`` first calls
    ``before_test_loop``. In other tools, the check runs in ``before_train``, ``before_val`` or ``before_test``.

    ``before_train`` also checks that the schedules fit the length of the training, see
    :func:`~mmattn.data_check.schedules.check_schedules`.

    Before a test, the log warns if the checkpoint was trained on other classes.

    Args:
        enabled (bool): False disables the check. Defaults to True.
    """

    priority = 'VERY_HIGH'

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._checked: set[str] = set()
        self._classes: list[str] = []  # from the checkpoint

    @abstractmethod
    def check_data(self, runner: Runner, loaders: tuple[str, ...], faults: Faults) -> None:
        """Add to ``faults`` what is wrong with the data of data loaders, by file or place in the config."""

    def faults_by_path(self, runner: Runner, loaders: tuple[str, ...]) -> dict[str, list[str]]:
        """Collect the faults of files, data sets and config: path, or place in the config → reasons.

        ``loaders`` are keys of the config, such as 'train_dataloader'.
        """
        faults = Faults()
        faults.extend(classes_as_text(runner.cfg, loaders))
        sound = not faults  # libraries would read such classes letter by letter
        check_data_sets(runner, loaders, faults)
        if sound:
            self.check_data(runner, loaders, faults)
        faults.extend(metric_faults(runner.cfg))
        if 'train_dataloader' in loaders:
            faults.extend(monitor_faults(runner.cfg))
        faults.extend(meta_faults(runner.cfg, loaders))
        return faults.by_path

    def before_loops(self, runner: Runner) -> None:
        """Check the data of training and validation."""
        self._check(runner, 'train_dataloader', 'val_dataloader')

    def before_train(self, runner: Runner) -> None:
        """Check the data, unless that has been done, and whether schedules and hooks fit the length of the training."""
        self.before_loops(runner)
        if self.enabled:
            check_schedules(runner)

    def before_val(self, runner: Runner) -> None:
        """Check the data of validation, unless training has checked them."""
        self._check(runner, 'val_dataloader')

    def before_test(self, runner: Runner) -> None:
        """Check the data of testing."""
        self._check(runner, 'test_dataloader')
        if self._classes:
            classes = list(getattr(runner.test_dataloader.dataset, 'metainfo', {}).get('classes') or ())
            if classes != self._classes:
                print_log(
                    f'test_dataloader has the classes {classes}; the checkpoint was trained on {self._classes}',
                    'current',
                    logging.WARNING,
                )

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Keep the checkpoint's classes for the test."""
        if self.enabled:
            meta = checkpoint.get('meta')
            meta = meta if isinstance(meta, dict) else {}  # it may be a weight
            self._classes = list((meta.get('dataset_meta') or {}).get('classes') or ())

    before_test_loop = before_test

    def _check(self, runner: Runner, *loaders: str) -> None:
        loaders = tuple(loader for loader in loaders if loader not in self._checked)
        if not self.enabled or not loaders:
            return
        self._checked.update(loaders)
        report = Path(runner.work_dir) / 'data_check.txt'
        lines: list[str] = []
        if is_main_process():
            faults = self.faults_by_path(runner, loaders)
            lines = [f'{path}: {"; ".join(reasons)}' for path, reasons in faults.items()]
            lines = [line.encode(errors='backslashreplace').decode() for line in lines]  # file names may not be UTF-8
            report.unlink(missing_ok=True)  # the report of an earlier run
            if lines:
                write_text(report, ''.join(f'{line}\n' for line in lines))
        else:  # as the main process does in its check, since a sampler may exchange its seed
            for loader in checkable_loaders(runner, loaders):
                with suppress(OSError, ValueError):
                    getattr(runner, loader)
        wait_for_main_process(f'mmattn/data_check/{next(_checks)}')
        shared = [lines]
        broadcast_object_list(shared)
        (lines,) = shared
        if lines:
            raise ValueError(
                '\n  '.join(
                    [
                        f'The data check found {len(lines)} fault{"s" * (len(lines) > 1)} (listed in {report}; '
                        'default_hooks.data_check.enabled=False disables the check):',
                        *shorten(lines),
                    ]
                )
            )


def wait_for_main_process(key: str) -> None:
    """Wait until the main process calls this function with the same key, which must be new.

    Collective functions fail after the timeout of the process group, 10 minutes with NCCL, and the first check of a
    large data set takes longer.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        store = process_store(torch.distributed)
        if is_main_process():
            store.set(key, '')
        else:
            store.wait([key], timedelta(days=30))


def check_data_sets(runner: Runner, loaders: Sequence[str], faults: Faults) -> None:
    """Build the data loaders with a :class:`CheckableDataset`, as the run would, and check their data sets."""
    for loader in checkable_loaders(runner, loaders):
        built = None
        with faults.catch(loader):
            built = getattr(runner, loader).dataset
        for dataset in checkable_data_sets(built):
            dataset.check_for_model(unwrapped(runner.model), faults)


def checkable_loaders(runner: Runner, loaders: Sequence[str]) -> list[str]:
    """List the data loaders with a :class:`CheckableDataset`."""
    return [*dict.fromkeys(loader_name(where) for where, _ in data_sets(runner.cfg, loaders, CheckableDataset))]


def checkable_data_sets(dataset: Any) -> Iterator[CheckableDataset]:
    """Yield the data sets with a check of their own, also in wrappers such as ``ConcatDataset``."""
    if isinstance(dataset, CheckableDataset):
        yield dataset
    else:
        for part in getattr(dataset, 'datasets', None) or filter(None, [getattr(dataset, 'dataset', None)]):
            yield from checkable_data_sets(part)


def classes_as_text(cfg: Config, loaders: Sequence[str]) -> Iterator[Fault]:
    """Yield data sets whose ``classes`` are one text, as by ``('tube')``. A file of names is read by mmengine."""
    for where, dataset in data_sets(cfg, loaders, BaseDataset):
        classes = (dataset.get('metainfo') or {}).get('classes')
        if isinstance(classes, str) and not os.path.isfile(classes):
            yield where, f'classes must be a list of names; got {classes!r}: write [{classes!r}], or ({classes!r},)'


def meta_faults(cfg: Config, loaders: Sequence[str]) -> Iterator[Fault]:
    """Yield keys of ``metainfo`` that are probably meant as ``classes`` or ``palette``, but have another spelling."""
    for where, dataset in data_sets(cfg, loaders, BaseDataset):
        for key in dataset.get('metainfo') or ():
            name = next(iter(get_close_matches(str(key).lower(), META_KEYS, 1, 0.8)), key)
            if name != key:
                yield f'{where}.metainfo', f'{key!r} is not read: write {name!r}'
