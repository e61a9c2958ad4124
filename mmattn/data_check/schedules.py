"""Schedules and hooks that do not fit the training, found before the first iteration: the schedules are stepped."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from itertools import groupby
from logging import WARNING
from types import SimpleNamespace
from typing import Any

from mmengine.optim import OptimWrapperDict
from mmengine.optim.scheduler.param_scheduler import INF, _ParamScheduler
from mmengine.runner import IterBasedTrainLoop

from mmattn.utils.faults import Faults

from .data_sets import Fault, log

POINTS = 1000  # at which the learning rate is looked at
NOTHING = 1e-6  # of its peak: a learning rate that trains nothing
SHARE = 0.05  # of the training that may have such a rate
DURATIONS = ('T_max', 'warmup', 'total_steps')  # of schedulers, counted from `begin`
STEPS = ('milestones', 'step_size')
STARTS = ('begin_iter', 'begin_epoch', 'switch_epoch')  # of hooks


def check_schedules(runner: Any) -> None:
    """Check the built schedulers and hooks of a Runner, also after it has resumed from a checkpoint.

    The schedulers are stepped through the rest of the training with copies of the optimizers' parameter groups. It is a
    ValueError if a group with a learning rate trains nothing for the rest of the run, or for more than 5 % of it, if no
    group has a learning rate, if a scheduler never acts, or fails. It is a warning if two schedulers lower a rate at
    once, if a rate ends above its start, and what the training is too short for, since short trials are common.
    """
    loop = runner.train_loop
    schedulers = dict(_schedulers(getattr(runner, 'param_schedulers', None) or [], 'param_scheduler'))
    never = [key for key, part in schedulers.items() if part.by_epoch and isinstance(loop, IterBasedTrainLoop)]
    faults = []
    for where in never:
        part = schedulers.pop(where)
        faults.append(
            f'{where}.by_epoch: it is True (the default), but train_cfg counts iterations: {type(part).__name__} would '
            f'never change {part.param_name}. Set by_epoch=False, and begin, end and milestones in iterations'
        )
    warnings = [*_late_schedules(loop, schedulers), *_late_hooks(runner)]
    wrapper = runner.optim_wrapper
    wrappers = [*wrapper.values()] if isinstance(wrapper, OptimWrapperDict) else [wrapper]
    groups = [group for part in wrappers for group in part.param_groups]
    have_rates = all(group.get('lr') is not None for group in groups)  # Adafactor finds its own
    peaks = [*map(_start, groups)] if have_rates else []
    optimizers = {id(scheduler.optimizer): scheduler.optimizer for scheduler in schedulers.values()}
    for key in optimizers:
        own = {where: part for where, part in schedulers.items() if id(part.optimizer) == key}
        course = _Course(loop, own)
        peaks += course.peaks
        faults += course.faults()
        warnings += course.warnings()
    if have_rates and not any(peaks):
        faults.append(
            'optim_wrapper.optimizer.lr: the learning rate of all parameters is always 0, which would train nothing: '
            'set a larger one'
        )
    Faults('the schedule', faults).check()
    for where, reason in warnings:
        log(f'{where}: {reason}', WARNING)


def _schedulers(parts: Any, where: str) -> Iterator[tuple[str, _ParamScheduler]]:
    if isinstance(parts, _ParamScheduler):
        if not getattr(parts, 'need_val_args', False):  # acts after each validation
            yield where, parts
        return
    for key, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
        yield from _schedulers(part, f'{where}.{key}')


def _start(group: dict) -> float:
    return max(group['lr'], group.get('initial_lr', 0))


class _Course:
    """The course of the learning rates of an optimizer, from the state of its schedulers to the end of the training."""

    def __init__(self, loop: Any, schedulers: dict[str, _ParamScheduler]) -> None:
        groups = next(iter(schedulers.values())).optimizer.param_groups
        numbers = {str({**group, 'params': None, 'param_names': None}): i for i, group in enumerate(groups)}
        kept = sorted(numbers.values())  # one of the groups with equal options
        self.groups = [{**groups[i], 'params': []} for i in kept]
        copy = SimpleNamespace(param_groups=self.groups, step=SimpleNamespace(_with_counter=True), _global_step=0)
        self.schedulers = {where: deepcopy(part, {id(part.optimizer): copy}) for where, part in schedulers.items()}
        for part in self.schedulers.values():
            part.verbose = False
            part.base_values = [part.base_values[i] for i in kept]
        self.start = [*map(_start, self.groups)]
        self.setter = [next(iter(schedulers))] * len(kept)  # the scheduler that changed the rate last
        self.rates = [group['lr'] for group in self.groups]
        self.at_once: dict[str, int] = {}  # two schedulers that lower a rate, and the iteration
        self.failed: list[str] = []
        self.points: list[tuple[int, list[float], list[str]]] = []
        by_iteration = isinstance(loop, IterBasedTrainLoop)
        self.length = loop.max_iters
        self.setting = 'train_cfg.max_iters' if by_iteration else f'train_cfg.max_epochs={loop.max_epochs}'
        self.epoch = self.length if by_iteration else max(1, self.length // loop.max_epochs)
        self._run(loop.iter, by_iteration)
        self.peaks = [max(rates) for rates in zip(self.start, *(rates for _, rates, _ in self.points))]

    def _run(self, iteration: int, by_iteration: bool) -> None:
        stride = max(1, (self.length - iteration) // POINTS)
        due = iteration
        while iteration < self.length and not self.failed:
            if iteration >= due or iteration == self.length - 1:
                self.points.append((iteration, [*self.rates], [*self.setter]))
                due = iteration + stride
            parts = {
                key: x for key, x in self.schedulers.items() if not x.by_epoch and x.last_step + x.begin < x.end - 1
            }
            if not parts:  # nothing changes before the end of the epoch
                iteration = max(iteration, min(due, self.length, iteration // self.epoch * self.epoch + self.epoch) - 1)
            if (iteration + 1) % self.epoch == 0 and not by_iteration:
                parts |= {key: part for key, part in self.schedulers.items() if part.by_epoch}
            self._step(parts, iteration)
            iteration += 1

    def _step(self, parts: dict[str, _ParamScheduler], iteration: int) -> None:
        lowered = []
        for where, part in parts.items():
            before = [group['lr'] for group in self.groups]
            try:
                part.step()
            except Exception as error:  # such as of OneCycleLR, after its last step
                self.failed.append(f'{where}: {type(part).__name__} fails after iteration {iteration + 1}: {error}')
                return
            changes = [group['lr'] - rate for group, rate in zip(self.groups, before)]
            goals = self._goals(part)
            for i in [i for i, change in enumerate(changes) if change]:
                self.setter[i], self.rates[i] = where, goals[i]
            lowered += [where] * (min(changes) < 0)
        if len(lowered) > 1:
            self.at_once.setdefault(' and '.join(lowered), iteration + 1)

    @staticmethod
    def _goals(part: _ParamScheduler) -> list[float]:
        """List the rates, or those that the scheduler aims at when it ends: CosineAnnealingLR ends a step before 0."""
        with suppress(Exception):  # of schedulers that have no further step
            if part.last_step + part.begin == part.end - 1:
                part = deepcopy(part)
                part.end += 1
                part.step()
        return [group['lr'] for group in part.optimizer.param_groups]

    def faults(self) -> list[str]:
        """List the stretches of the training in which a group trains nothing, and schedulers that fail."""
        ends = [iteration for iteration, _, _ in self.points[1:]] + [self.length]
        texts = dict.fromkeys(self.failed)
        for i, peak in enumerate(self.peaks):
            rates = [point[1][i] for point in self.points]
            dead = [not rate > NOTHING * peak for rate in rates]
            for is_dead, group in groupby(range(len(rates)), dead.__getitem__):
                first, *_, last = [*group] * 2
                begin, end = self.points[first][0], ends[last]
                by_epoch = self.schedulers[self.points[first][2][i]].by_epoch
                if end == self.length:  # the last iteration may have a rate of 0
                    wrong = end - begin > 1 and (rates[first] == rates[last] or end - begin > SHARE * self.length)
                else:  # a cycle may pass 0
                    wrong = end - begin > max(SHARE * self.length, self.epoch if by_epoch else 1)
                if is_dead and wrong and peak > 0:
                    where = self.points[first][2][i]
                    name = type(self.schedulers[where]).__name__
                    texts[
                        f'{where}: with {name}, the learning rate is at most a millionth of its peak, {peak:g}, from '
                        f'iteration {begin} to {end} of {self.length} ({self.setting}), which would train nothing. '
                        f'Change where {name} ends, or {self.setting.partition("=")[0]}; a resumed run continues with '
                        'the schedule in its checkpoint'
                    ] = None
        return [*texts]

    def warnings(self) -> Iterator[Fault]:
        """Yield schedulers that lower a rate at once, and rates that end above their start."""
        for where, iteration in self.at_once.items():
            yield where, f'both lower the learning rate after iteration {iteration}, so that it is the product of both'
        if self.points:
            _, rates, setters = self.points[-1]
            for start, rate, where in dict.fromkeys(zip(self.start, rates, setters)):
                if rate > start * 1.01:  # a warm-up of LinearLR may end a step beyond
                    yield where, f'the learning rate ends at {rate:g}, above its start, {start:g}'


def _late_schedules(loop: Any, schedulers: dict[str, _ParamScheduler]) -> Iterator[Fault]:
    for where, part in schedulers.items():
        length, unit, setting = _length(loop, part)
        begin, end = part.begin, min(part.end, length)
        for name in ('begin', 'end', *DURATIONS, *STEPS):
            value: Any = getattr(part, name, ())
            start = 0 if name in ('begin', 'end') else begin
            last = length - (name in ('begin', *STEPS))  # at which it may act, or end
            late = [time for time in (value if isinstance(value, Iterable) else [value]) if last < start + time < INF]
            if late and not (name in DURATIONS and start + value == part.end):  # the end has been told
                yield (
                    f'{where}.{name}',
                    f'{", ".join(map(str, late))}, but training ends at {length} {unit} ({setting})',
                )
            if late and name == 'begin':
                break
        if begin + getattr(part, 'T_max', INF) < end:
            yield (
                f'{where}.T_max',
                f'{part.T_max}, but {type(part).__name__} acts until {end} {unit}: {part.param_name} rises again after '
                f'{begin + part.T_max}',
            )


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
