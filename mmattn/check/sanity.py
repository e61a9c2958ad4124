"""One batch of the validation before training, so that its errors do not wait for the first validation."""

import copy
import logging
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from types import SimpleNamespace
from typing import Any

from mmengine.dist import all_gather_object
from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop, Runner, ValLoop
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from mmattn._compat import is_resumed
from mmattn.engine.hooks.checkpoint import get_rng_state, set_rng_state
from mmattn.utils.faults import one_line, shorten

from .driver import Fault, tell


def sanity_validation(runner: Runner) -> None:
    """Validate one batch of each process as ``ValLoop`` does, without hooks and without computing metrics.

    The model, the generators of random numbers and the evaluator stay as they are, and nothing is written: a training
    ends with the same weights, to the bit, as without it. Metrics that write files of predictions are left out. It is
    passed over, with a line in the log, on resumption, or if there is no validation, or its loop or data loader is not
    mmengine's own.

    Raises:
        ValueError: loading, predicting or processing the batch fails in one of the processes.
    """
    if reason := _reason_to_pass(runner):
        print_log(f'The sanity validation is passed over: {reason}', 'current')
        return
    fault: Exception | None = None
    loop: Any = None
    indices: list[Any] = []
    batches: Iterable = ()
    with _unchanged(runner.model):
        try:
            loop, indices, batches = _first_batch(runner)
        except Exception:  # such as an evaluator that cannot be copied; other processes wait for this one below
            text = f'The sanity validation is passed over, since it cannot be prepared:\n{traceback.format_exc()}'
            print_log(text, 'current', logging.WARNING)
        try:
            start = time.perf_counter()
            runner.model.eval()
            for batch in batches:
                loop.run_iter(0, batch)
                print_log(f'Sanity validation of one batch: {time.perf_counter() - start:.1f} s', 'current')
        except Exception as error:
            fault = error
    said = f'{type(fault).__name__}: {one_line(fault)[-300:]}' if fault else ''  # that of a worker has a traceback
    faults = [text for text in all_gather_object(said and f'{_names(runner, indices)}: {said}') if text]
    if faults:
        try:
            tell(runner, [Fault('sanity', True, 'val_dataloader', f'the sanity validation fails on {faults[0]}')])
        except ValueError as error:
            raise error from fault


def _reason_to_pass(runner: Runner) -> str:
    loop, training = runner.val_loop, runner.train_loop
    begin = getattr(training, 'val_begin', 0)
    end = getattr(training, 'max_epochs' if isinstance(training, EpochBasedTrainLoop) else 'max_iters', begin)
    if 'sanity' in ((runner.cfg.get('check') or {}).get('allow') or ()):
        return "the config has check.allow=['sanity']"
    if loop is None:
        return 'the config has no val_cfg'
    if begin > end:
        return 'no validation follows'
    if is_resumed(runner):
        return 'the run is resumed'
    if type(loop) is not ValLoop:
        return f"{type(loop).__name__} is not mmengine's ValLoop"
    loader = loop.dataloader
    if type(loader) is not DataLoader or loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
        return 'val_dataloader is not a DataLoader of batches of indices'
    return ''


def _first_batch(runner: Runner) -> tuple[ValLoop, list[Any], DataLoader]:
    """Build a loop that keeps the runner's own as it is, and a loader of its first batch, with the indices of this.

    Samplers may have a state, so one iterates over a copy. If the run reads in workers, one does, since what a data set
    opens at its first sample, such as an HDF5 file, must not be shared with workers that start later.
    """
    loop: Any = runner.val_loop
    loader, dataset = loop.dataloader, loop.dataloader.dataset
    indices = [*islice(copy.deepcopy(loader.batch_sampler, {id(dataset): dataset}), 1)]
    batches: DataLoader = DataLoader(
        dataset,
        batch_sampler=indices,
        num_workers=min(1, loader.num_workers),
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )
    evaluator = copy.copy(loop.evaluator)
    evaluator.metrics = [copy.deepcopy(metric) for metric in evaluator.metrics if not _writes(metric)]
    quiet: Any = SimpleNamespace(model=runner.model, visualizer=SimpleNamespace(), call_hook=lambda *_, **__: None)
    return ValLoop(quiet, batches, evaluator, loop.fp16), [*indices[0]] if indices else [], batches


def _writes(metric: Any) -> bool:
    """Tell whether a metric writes files of predictions, or removes those that a copy of it shares."""
    return hasattr(metric, '__del__') or bool(getattr(metric, 'output_dir', None))


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Give generators of random numbers and modules their state and mode back."""
    states, modes = get_rng_state(), [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        set_rng_state(states)
        for module, mode in modes:
            module.training = mode


def _names(runner: Runner, indices: list[Any]) -> str:
    """Name the images of a batch, or the indices of other samples."""
    names = [f'sample {index}' for index in indices]
    with suppress(Exception):
        names = [runner.val_loop.dataloader.dataset.get_data_info(index)['img_path'] for index in indices]
    return ', '.join(shorten(names, 3))
