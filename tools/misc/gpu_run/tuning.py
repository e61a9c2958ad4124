"""The part tune: configurations of the Triton kernels of global attention, in bfloat16."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from correctness import bi_nl
from findings import DEVICE, GPU, SMALL, WORKERS, guarded, milliseconds, record, run_groups

from mmattn.ops import dispatch, operator_calls, testing

DTYPE = torch.bfloat16 if GPU else torch.float32  # the interpreter's products of bfloat16 are wrong
CHANNELS = (16,) if SMALL else (256, 128, 64)
WINDOW = 3 if SMALL else 31
COMPARED_SIDE, TIMED_SIDE = (5, 5) if SMALL else (41, 97)  # of the maps
# Rows that a program owns, rows per iteration, in the strip, warps, stages.
CONFIGS = (
    (128, 64, 16, 8, 2),
    (128, 32, 16, 8, 2),
    (64, 32, 32, 4, 2),
    (32, 32, 16, 4, 2),
    (64, 32, 16, 4, 2),
    (64, 64, 64, 4, 2),
)
LAUNCHES = 10  # in one graph: the host takes longer for a launch than many a kernel runs

Group = tuple[int, tuple[int, ...]]
GROUPS: list[Group] = [(channels, config) for channels in CHANNELS for config in CONFIGS[: 1 if SMALL else None]]


def run_tune(seconds: float) -> None:
    """Compile and compare all configurations at once, then time what was right, one after the other."""
    end = time.monotonic() + seconds
    compiled = run_groups('tune', _compare, GROUPS, 0.7 * seconds, WORKERS)
    compiled.sort(key=GROUPS.index)
    run_groups('tune', _time, compiled, end - time.monotonic())


@contextmanager
def configured(config: tuple[int, ...]) -> Iterator[None]:
    from mmattn.ops.triton import launch

    chosen = mock.patch.object(launch, 'select_config', return_value=launch.Config(*config))
    failures = mock.patch.dict('mmattn.ops.dispatch._failures', clear=True)  # of another configuration
    with chosen, failures, dispatch.backend('global_attention=triton'):
        yield


def _wrong(group: Group) -> str:
    """Say what is wrong with the kernels in a configuration, or return ''."""
    channels, config = group
    size, options = (COMPARED_SIDE,) * 2, dict(channels=channels, value_channels=channels, window_size=WINDOW)
    call = operator_calls.make('global_attention', size, *operator_calls.WINDOW, **options)
    call.tensors = operator_calls.each(call.tensors, lambda x: x.to(DEVICE))
    with configured(config):
        errors = testing.errors(call, DTYPE, 'triton')
        if errors is None:
            return dispatch.failure('global_attention') or 'did not run'
        return '; '.join(f'{name} differs by {x:.3g} times the tolerance' for name, x in errors.items() if x > 1)


def _fields(group: Group) -> dict[str, Any]:
    return dict(zip(('channels', 'config'), group))


def _compare(group: Group) -> None:
    with guarded('tune', **_fields(group)):
        if wrong := _wrong(group):
            record('tune', **_fields(group), error=wrong)


def _time(group: Group) -> None:
    with guarded('tune', **_fields(group)):
        if not _wrong(group):  # otherwise, the error is recorded
            record('tune', **_fields(group), ms=_kernel_times(*group))


def _kernel_times(channels: int, config: tuple[int, ...]) -> dict[str, float]:
    """Measure the ms of each launch of a step on the device."""
    from mmattn.ops.triton import launch

    original, calls = launch.launch, {}

    def spy(kernel: Any, *arguments: Any, **constants: Any) -> None:
        calls[kernel.__name__] = lambda: original(kernel, *arguments, **constants)
        original(kernel, *arguments, **constants)

    call, tensors = bi_nl(1, TIMED_SIDE, channels, WINDOW, DTYPE)
    with configured(config):
        with mock.patch.object(launch, 'launch', spy):
            testing.evaluate(call, tensors)
        return {name: graph_milliseconds(function) for name, function in calls.items()}


def graph_milliseconds(call: Callable[[], Any]) -> float:
    """Measure the ms of a call on the device, without the time of the host."""
    if not GPU:
        return milliseconds(call)
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            call()
    return round(milliseconds(graph.replay) / LAUNCHES, 4)
