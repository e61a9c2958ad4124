"""Runs the rules, and tells what they find: errors together in one error, and each kind of warning in one line."""

import logging
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed
from mmengine.dist import broadcast_object_list, is_distributed, is_main_process
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmattn._compat import built_data_loaders, checkpoint_path, process_store
from mmattn.engine.hooks.checkpoint import get_rng_state, set_rng_state
from mmattn.utils.faults import Faults, shorten
from mmattn.utils.files import write_text
from mmattn.utils.model_wrappers import unwrapped

from .data_sets import Run, data_sets
from .rules import ERRORS, WARNINGS, Rule, without_length

_checks = count()  # of this process; every process has the same


class Fault(NamedTuple):
    """What a rule has found."""

    rule: str
    is_error: bool
    place: str  # a path, or a place in the config
    text: str


def check_data(runner: Runner, loaders: Sequence[str]) -> None:
    """Check the data of data loaders, such as 'train_dataloader', in the main process. All processes raise."""
    kinds = [(where.partition('.')[0], kind) for where, kind, _ in data_sets(runner.cfg, loaders)]
    own = dict.fromkeys(loader for loader, kind in kinds if hasattr(kind, 'check_for_model'))
    checkable = [inner for loader in own for inner in _inner(getattr(runner, loader).dataset)]
    found = [find_faults(runner, loaders, checkable) if is_main_process() else []]
    if is_distributed():  # a collective function would fail after 10 minutes, and a first check may take longer
        store, key = process_store(torch.distributed), f'mmattn/check/{next(_checks)}'
        _ = store.set(key, '') if is_main_process() else store.wait([key], timedelta(days=30))
    broadcast_object_list(found)
    tell(runner, found[0], 'check.txt')


def find_faults(runner: Any, loaders: Sequence[str], checkable: Sequence[Any] = ()) -> list[Fault]:
    """Run the rules of data and settings."""
    states = get_rng_state()  # data sets may draw when they are built
    try:
        run = Run(runner.cfg, loaders, unwrapped(getattr(runner, 'model', None)), checkable)
    except Exception:
        return [_failed('data_sets')]
    finally:
        set_rng_state(states)
    return [*run_rules(WARNINGS, run), *run_rules(ERRORS, run, _allowed(runner))]


def run_rules(rules: Iterable[Callable[[Any], Rule]], run: Any, allowed: Sequence[str] = ()) -> Iterator[Fault]:
    """Run rules. One that fails itself is a warning with its traceback."""
    for rule in rules:
        name = rule.__name__
        try:
            is_error = rule in ERRORS and name not in allowed
            yield from [Fault(name, is_error, str(place), text) for place, text in rule(run)]
        except Exception:
            yield _failed(name)


def compare_checkpoint(runner: Runner, checkpoint: dict) -> None:
    """Compare the symbols of a checkpoint with the data sets, and its classes with those of a test."""
    meta = checkpoint.get('meta')
    meta = (meta if isinstance(meta, dict) else {}).get('dataset_meta') or {}  # it may be a weight
    where, faults, loaders = f'the checkpoint {checkpoint_path(runner)}', Faults(), built_data_loaders(runner)
    for dataset in (inner for loader in loaders.values() for inner in _inner(loader.dataset)):
        classes = getattr(dataset, 'metainfo', {}).get('classes')
        if hasattr(dataset, 'compare') and 'symbols' in meta:
            dataset.compare(meta, where, faults)
            meta = without_length(meta)  # of the first data set, that of the training if there is one
        elif 'train_dataloader' not in loaders and meta.get('classes') and [*meta['classes']] != [*(classes or ())]:
            tell(runner, [Fault('classes', False, where, f'{meta["classes"]}, but the data have {classes}')])
    tell(runner, [Fault('vocabulary', True, place, text) for place, x in faults.by_path.items() for text in x])


def tell(runner: Runner, faults: Sequence[Fault], report: str = '') -> None:
    """Log the warnings, each kind in one line, write all faults to a file of the work dir, and raise the errors."""
    path, kinds = Path(runner.work_dir, report), defaultdict(list)
    for fault in faults:
        kinds[fault.rule, '' if fault.is_error else fault.text].append(f'{fault.rule}: {fault.place}: {fault.text}')
    if report and is_main_process():
        path.unlink(missing_ok=True)  # of an earlier run
        if lines := [line for listed in kinds.values() for line in listed]:
            write_text(path, '\n'.join([*lines, '']).encode(errors='backslashreplace').decode())  # names of any bytes
    for (_, text), lines in kinds.items():
        if text:
            others = f' (and {len(lines) - 1:,} more in {path})' if len(lines) > 1 else ''
            print_log(f'Check: {lines[0]}{others}', 'current', logging.WARNING)
    if errors := [line for (_, text), lines in kinds.items() if not text for line in lines]:
        names = [*_allowed(runner), *dict.fromkeys(fault.rule for fault in faults if fault.is_error)]
        where = f', listed in {path}' if report else ''
        title = f'{len(errors):,} error{"s" * (len(errors) > 1)} in data and settings{where}:'
        raise ValueError(
            '\n  '.join([title, *shorten(errors)])
            + f'\nIf they are meant, write into the config:\ncheck = dict(allow={names})\nor add to the command:\n'
            f"--cfg-options 'check.allow=[{','.join(names)}]'"
        )


def _failed(rule: str) -> Fault:
    return Fault(rule, False, 'mmattn.check', f'a rule that failed is passed over:\n{traceback.format_exc()}')


def _allowed(runner: Any) -> list[str]:
    names = (runner.cfg.get('check') or {}).get('allow', ())
    return [names] if isinstance(names, str) else [*names]


def _inner(dataset: Any) -> list[Any]:
    """List the data sets in wrappers such as ``ConcatDataset``, or the data set itself."""
    parts = getattr(dataset, 'datasets', None) or filter(None, [getattr(dataset, 'dataset', None)])
    return [inner for part in parts for inner in _inner(part)] or [dataset]
