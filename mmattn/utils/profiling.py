"""Time and memory of a call, for benchmarks and tests."""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

MIB = 2**20
FORWARD, BOTH = 'forward', 'forward + backward'


def extra_memory(call: Callable[[], Any]) -> tuple[Any, float]:
    """Run ``call``, which returns a tensor or a tuple. Return the result, and the peak memory beyond it in MiB.

    On a GPU, this is the peak of the caching allocator. On a CPU, it comes from the allocations that the profiler
    records, to the byte. The peak resident set size would include memory that libraries allocate besides tensors, but
    pages that malloc retains, or that have not been touched yet, distort it more.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    os.environ.setdefault('KINETO_LOG_LEVEL', '6')  # at its default, the profiler prints two lines per call
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, 'trace.json')
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            result = call()
        tensors = result if isinstance(result, tuple) else (result,)
        kept = sum(x.nbytes for x in tensors)
        if tensors[0].is_cuda:
            return result, (torch.cuda.max_memory_allocated() - before - kept) / MIB
        profiler.export_chrome_trace(str(trace))
        events = [
            event
            for event in json.loads(trace.read_text(encoding='utf-8'))['traceEvents']
            if event.get('name') == '[memory]'
        ]
    first = min(events, key=lambda event: event['ts'])['args']
    peak = max(event['args']['Total Allocated'] for event in events)
    return result, (peak - (first['Total Allocated'] - first['Bytes']) - kept) / MIB


def passes(call: Callable[[], Tensor], wanted: Sequence[Tensor]) -> dict[str, Callable[[], Any]]:
    """Return functions that run the forward pass of a call alone, and both passes, by :data:`FORWARD` and :data:`BOTH`.

    The gradients are those of ``wanted``, of which the call may use some.
    """

    def both() -> tuple[Tensor, ...]:
        grads = torch.autograd.grad(call().sum(), wanted, allow_unused=True)
        return tuple(x for x in grads if x is not None)

    return {FORWARD: torch.no_grad()(call), BOTH: both}


def seconds(
    calls: dict[Any, Callable[[], Any]],
    repeats: int,
    each_twice: bool = False,
    within: Callable[[Any], AbstractContextManager] = nullcontext,
) -> dict[Any, float]:
    """Measure the median seconds of calls, which take turns, so that other load of the machine affects all equally.

    The first turn is a warm-up. With ``each_twice``, there is none, but a call is made before each that is measured.
    ``within`` returns a context for the name of a call, whose own time does not count.
    """
    times: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + (not each_twice)):
        for name, call in calls.items():
            with within(name):
                for _ in range(1 + each_twice):
                    start = time.perf_counter()
                    call()
                    synchronize()
                    spent = time.perf_counter() - start
            times[name].append(spent)
    return {name: statistics.median(measured[not each_twice :]) for name, measured in times.items()}


def milliseconds(call: Callable[[], Any], most: float = 0.5, least: int = 3) -> float:
    """Measure the median ms of a call on the device, after two warm-up calls, in about ``most`` seconds."""
    call()
    synchronize()
    start = time.perf_counter()
    call()
    synchronize()
    times = []
    for _ in range(max(least, min(15, int(most / (time.perf_counter() - start))))):
        if torch.cuda.is_available():
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            call()
            last.record()
            torch.cuda.synchronize()
            times.append(first.elapsed_time(last))
        else:
            start = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def mebibytes(call: Callable[[], Any], device: str | torch.device) -> float:
    """Measure the peak MiB of a call beyond what was allocated before, on a CPU also beyond its results."""
    if torch.device(device).type == 'cpu':
        return extra_memory(call)[1]
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / MIB


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
