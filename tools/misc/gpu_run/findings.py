"""What the parts share: findings, written as they come, times, memory, and processes that may end."""

import json
import multiprocessing
import os
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import torch

OUT = Path(os.environ.get('OUT') or 'gpu_run_out')
SMALL = bool(os.environ.get('SMALL'))  # small shapes, also without a GPU
WORKERS = int(os.environ.get('WORKERS') or 1)
GPU = torch.cuda.is_available()
DEVICE = 'cuda' if GPU else 'cpu'
UNUSABLE = 3  # exit code of a process that can use the GPU no longer


def record(part: str, **fields: Any) -> None:
    """Append a line to results.jsonl, and print it."""
    line = json.dumps({'part': part, **fields}, ensure_ascii=False, default=lambda x: str(x).removeprefix('torch.'))
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / 'results.jsonl').open('a', encoding='utf-8') as file:
        file.write(line + '\n')
    print(line[:600], flush=True)


@contextmanager
def guarded(part: str, **fields: Any) -> Iterator[None]:
    """Record an exception. It ends the process only if every later call on the GPU would fail, too."""
    try:
        yield
    except Exception as error:
        trace = traceback.format_exc().strip().splitlines()[-8:]
        record(part, **fields, error=f'{type(error).__name__}: {str(error)[:400]}', trace=trace)
        if not usable():
            raise SystemExit(UNUSABLE) from None


def usable() -> bool:
    """Check whether this process can still use the GPU, which it cannot after an illegal access to memory."""
    try:
        if GPU:
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def run_groups(
    part: str, function: Callable[[Any], None], groups: Sequence[Any], seconds: float, workers: int = 1
) -> list[Any]:
    """Run groups of cases in new processes, some at a time. Returns the groups that came to their end.

    A process runs one group after the other. When a group ends its process, a new process runs the next ones.
    """
    context = multiprocessing.get_context('spawn')
    end = time.monotonic() + seconds
    complete = []

    def lane(mine: Sequence[Any]) -> None:
        position = context.Value('i', 0)
        while position.value < len(mine):
            first = position.value
            process = context.Process(target=_run, args=(function, mine, position))
            process.start()
            process.join(max(0.0, end - time.monotonic()))
            code = process.exitcode
            if code is None:
                process.kill()
                process.join()
            complete.extend(mine[first : position.value])
            if code is None:
                for group in mine[position.value :]:
                    record(part, group=group, error='ran out of time')
                return
            if code:
                if code != UNUSABLE:  # otherwise, the error is recorded
                    record(part, group=mine[position.value], error=f'ended its process, exit code {code}')
                position.value += 1

    threads = [threading.Thread(target=lane, args=(groups[i::workers],)) for i in range(min(workers, len(groups)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return complete


def _run(function: Callable[[Any], None], groups: Sequence[Any], position: Synchronized) -> None:
    while position.value < len(groups):
        function(groups[position.value])
        position.value += 1


def milliseconds(call: Callable[[], Any], repeats: int = 15, most: float = 1.0) -> float:
    """Measure the median ms of a call on the device, after two warm-up calls, in about ``most`` seconds."""
    call()
    synchronize()
    start = time.perf_counter()
    call()
    synchronize()
    once = time.perf_counter() - start
    if not GPU:
        return round(1e3 * once, 4)
    times = []
    for _ in range(max(3, min(repeats, int(most / once)))):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last))
    return round(statistics.median(times), 4)


def mebibytes(call: Callable[[], Any]) -> float:
    """Measure the peak MiB of a call beyond what was allocated before."""
    if not GPU:
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)


def launches(call: Callable[[], Any]) -> int:
    """Count the kernels that a call launches, after a first call."""
    if not GPU:
        return 0
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    return sum(event.count for event in profiler.key_averages() if event.device_type.name == 'CUDA')


def synchronize() -> None:
    if GPU:
        torch.cuda.synchronize()
