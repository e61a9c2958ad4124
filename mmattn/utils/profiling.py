"""Memory of a call, for benchmarks and tests."""

import json
import os
import tempfile
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
