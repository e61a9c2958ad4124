"""Schedules and hooks that do not fit the length of the training, found before the first iteration."""

from collections.abc import Iterator
from logging import WARNING
from typing import Any

from mmengine.optim.scheduler.param_scheduler import INF, _ParamScheduler
from mmengine.runner import IterBasedTrainLoop

from mmattn.utils.faults import raise_faults

from .data_sets import Fault, log

DURATIONS = ('T_max', 'warmup', 'total_steps')  # of schedulers, counted from `begin`
STEPS = ('milestones', 'step_size')
STARTS = ('begin_iter', 'begin_epoch', 'switch_epoch')  # of hooks


def check_schedules(runner: Any) -> None:
    """Check the built schedulers and hooks of a Runner, also after it has resumed from a checkpoint.

    A learning rate that is never changed, or that is 0 before the training ends, is a ValueError. What the training is
    too short for is logged as a warning, since short trials are common.
    """
    loop = runner.train_loop
    schedulers = dict(_schedulers(getattr(runner, 'param_schedulers', None) or [], 'param_scheduler'))
    raise_faults('the schedule', (': '.join(fault) for fault in _faults(loop, schedulers)))
    for where, reason in (*_late_schedules(loop, schedulers), *_late_hooks(runner)):
        log(f'{where}: {reason}', WARNING)


def _schedulers(parts: Any, where: str) -> Iterator[tuple[str, _ParamScheduler]]:
    if isinstance(parts, _ParamScheduler):
        yield where, parts
        return
    for key, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
        yield from _schedulers(part, f'{where}.{key}')


def _faults(loop: Any, schedulers: dict[str, _ParamScheduler]) -> Iterator[Fault]:
    for where, scheduler in schedulers.items():
        if getattr(scheduler, 'need_val_args', False):  # acts after each validation
            continue
        if scheduler.by_epoch and isinstance(loop, IterBasedTrainLoop):
            yield (
                f'{where}.by_epoch',
                f'it is True (the default), but train_cfg counts iterations: {type(scheduler).__name__} would never '
                f'change {scheduler.param_name}. Set by_epoch=False, and begin, end and milestones in iterations',
            )
            continue
        length, unit, setting = _length(loop, scheduler)
        steps, needed = getattr(scheduler, 'total_steps', INF), min(scheduler.end, length) - scheduler.begin
        if steps < needed:
            yield (
                f'{where}.total_steps',
                f'{steps}, but {type(scheduler).__name__} acts for {needed} {unit}, and fails after its last step. Set '
                f'total_steps to {needed}, or end to {scheduler.begin + steps}',
            )
        end = _in_iterations(loop, scheduler, scheduler.end)
        is_last = all(
            other.param_name != scheduler.param_name or _in_iterations(loop, other, other.begin) < end
            for other in schedulers.values()
        )
        ends_at_zero = getattr(scheduler, 'eta_min', None) == 0 or getattr(scheduler, 'end_factor', None) == 0
        if scheduler.end < length and ends_at_zero and is_last and scheduler.param_name == 'lr':
            yield (
                f'{where}.end',
                f'{type(scheduler).__name__} reaches a learning rate of 0 at {scheduler.end} {unit}, but {setting} is '
                f'{length}: the rest would train nothing. Set end to {length}, or {setting} to {scheduler.end}; a '
                'resumed run continues with the end in its checkpoint',
            )


def _late_schedules(loop: Any, schedulers: dict[str, _ParamScheduler]) -> Iterator[Fault]:
    for where, scheduler in schedulers.items():
        if getattr(scheduler, 'need_val_args', False):
            continue
        length, unit, setting = _length(loop, scheduler)
        ends = f'training ends at {length} {unit} ({setting})'
        begin = scheduler.begin
        if begin >= length:
            yield f'{where}.begin', f'{begin}, but {ends}: {type(scheduler).__name__} never acts'
            continue
        if length < scheduler.end < INF:
            yield f'{where}.end', f'{scheduler.end}, but {ends}: {type(scheduler).__name__} is cut off'
        for name in DURATIONS:
            duration = getattr(scheduler, name, 0)
            if begin + duration > length and begin + duration != scheduler.end:  # the end has been told
                yield f'{where}.{name}', f'{duration}, but {ends}: it is cut off'
        if begin + getattr(scheduler, 'T_max', INF) < min(scheduler.end, length):
            yield (
                f'{where}.T_max',
                f'{scheduler.T_max}, but {type(scheduler).__name__} acts until {min(scheduler.end, length)} {unit}: '
                f'{scheduler.param_name} rises again after {begin + scheduler.T_max}',
            )
        for name in STEPS:
            steps = getattr(scheduler, name, ())
            late = [step for step in ([steps] if isinstance(steps, int) else steps) if begin + step >= length]
            if late:
                yield f'{where}.{name}', f'{", ".join(map(str, late))} not reached: {ends}'


def _late_hooks(runner: Any) -> Iterator[Fault]:
    loop = runner.train_loop
    by_iteration = isinstance(loop, IterBasedTrainLoop)
    length, setting = (loop.max_iters, 'max_iters') if by_iteration else (loop.max_epochs, 'max_epochs')
    ends = f'training ends at {length} (train_cfg.{setting})'
    if runner.val_loop is not None:
        if loop.val_begin > length:
            yield 'train_cfg.val_begin', f'{loop.val_begin}, but {ends}: there is no validation'
        if late := [start for start in getattr(loop, 'dynamic_milestones', None) or () if start > length]:
            yield 'train_cfg.dynamic_intervals', f'{", ".join(map(str, late))} not reached: {ends}'
    for hook in runner.hooks:
        name = type(hook).__name__
        if by_iteration and getattr(hook, 'by_epoch', False) and getattr(hook, 'interval', -1) > 0:
            yield (
                f'{name}.by_epoch',
                f'it is True (the default), but train_cfg counts iterations: interval={hook.interval} would be in '
                'epochs, and there is one. Set by_epoch=False',
            )
        for start in STARTS:
            value = getattr(hook, start, None)
            limit = loop.max_iters if start.endswith('iter') else loop.max_epochs
            if isinstance(value, int) and value >= limit:
                yield f'{name}.{start}', f'{value} is not reached: training ends at {limit}'


def _length(loop: Any, scheduler: _ParamScheduler) -> tuple[int, str, str]:
    """Get the length of the training in the unit of a scheduler, the unit, and the setting."""
    if scheduler.by_epoch:
        return loop.max_epochs, 'epochs', 'train_cfg.max_epochs'
    if isinstance(loop, IterBasedTrainLoop):
        return loop.max_iters, 'iterations', 'train_cfg.max_iters'
    return loop.max_iters, 'iterations', f'train_cfg.max_epochs={loop.max_epochs} in iterations'


def _in_iterations(loop: Any, scheduler: _ParamScheduler, count: int) -> float:
    return count * loop.max_iters / loop.max_epochs if scheduler.by_epoch else count
