"""The part tune: configurations of the Triton kernels of global attention, in bfloat16."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from findings import DEVICE, GPU, SMALL, WORKERS, difference, guarded, milliseconds, record, run_groups
from torch import Tensor

from mmattn import ops
from mmattn.ops import dispatch

DTYPE = torch.bfloat16 if GPU else torch.float32  # the interpreter's products of bfloat16 are wrong
LIMIT = 0.03 if GPU else 1e-4  # of the difference from float64
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


def bi_nl(side: int, channels: int) -> dict[str, Tensor]:
    """Draw the operands of Bi-NL's core."""
    torch.manual_seed(0)
    axes: dict[str, tuple[int, ...]] = dict.fromkeys(('query', 'key', 'value'), (channels,))
    axes |= dict(window_bias=(WINDOW**2,), outside_bias=())
    options: dict[str, Any] = dict(device=DEVICE, dtype=DTYPE, requires_grad=True)
    return {name: torch.randn(1, 1, side, side, *last, **options) for name, last in axes.items()}


def step(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Compute the output and all gradients."""
    out = ops.global_attention(**tensors, window_size=WINDOW)
    grads = torch.autograd.grad(out.square().sum(), [*tensors.values()])
    return {'output': out.detach(), **dict(zip(tensors, grads))}


def _wrong(group: Group) -> str:
    """Say what is wrong with the kernels in a configuration, or return ''."""
    channels, config = group
    tensors = bi_nl(COMPARED_SIDE, channels)
    with dispatch.backend('reference'):
        expected = step({name: x.detach().double().requires_grad_() for name, x in tensors.items()})
    with configured(config):
        actual = dispatch.run_by('triton', 'global_attention', lambda: step(tensors))
        if actual is None:
            return dispatch.failure('global_attention') or 'did not run'
    error = difference(actual, expected)
    return '' if error <= LIMIT else f'differs by {error:.1e}'


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

    with configured(config):
        with mock.patch.object(launch, 'launch', spy):
            step(bi_nl(TIMED_SIDE, channels))
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
