"""Time and memory of a call, for benchmarks and tests."""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

MIB = 2**20


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


def median_time(call: Callable[[], Any], repeats: int = 5) -> float:
    """Measure the median time of ``repeats`` runs in seconds, after one warm-up run."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def interleaved_times(calls: dict[Any, Callable[[], Any]], repeats: int = 5) -> dict[Any, float]:
    """Measure the median times of calls over ``repeats`` runs, in seconds. Calls alternate to share other load."""
    times: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(median_time(call, 1))
    return {name: statistics.median(seconds) for name, seconds in times.items()}
