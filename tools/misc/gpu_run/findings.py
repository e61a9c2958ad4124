"""What the parts share: findings, written as they come, times, memory, and processes that may end."""

import importlib.util
import json
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import torch

from mmattn.utils import profiling

OUT = Path(os.environ.get('OUT') or 'gpu_run_out')
SMALL = bool(os.environ.get('SMALL'))  # small shapes, also without a GPU
WORKERS = int(os.environ.get('WORKERS') or 1)
GPU = torch.cuda.is_available()
DEVICE = 'cuda' if GPU else 'cpu'
START = 'spawn' if GPU else 'fork'  # CUDA does not survive a fork, and a rehearsal shall be short
WITH_INDUCTOR = ('capture', 'flex')  # parts that call torch.compile
UNUSABLE = 3  # exit code of a process that can use the GPU no longer


def record(part: str, **fields: Any) -> None:
    """Append a line to results.jsonl, and print it in brief."""
    line = json.dumps({'part': part, **fields}, ensure_ascii=False, default=lambda x: str(x).removeprefix('torch.'))
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / 'results.jsonl').open('a', encoding='utf-8') as file:
        file.write(line + '\n')
    print(brief(json.loads(line)), flush=True)


def brief(line: dict[str, Any]) -> str:
    """Shorten a line: the end of what a lent machine prints, 12,000 characters, may be all that it gives back."""
    words = []
    for name, value in line.items():
        if name not in ('ok', 'trace') and value not in (None, ''):
            words.append(value if isinstance(value, str) and name != 'error' else f'{name} {value}')
    return ' '.join([*words, *(['WRONG'] if line.get('ok') is False else [])])[:200]


def use_carried_cache() -> None:
    """Let Triton find the kernels that prepare.sh compiled. Not with Inductor, whose processes have their own keys."""
    if importlib.util.find_spec('triton'):
        importlib.import_module('carried_cache').install()


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
    ForkingPickler.dumps((function, groups))  # a rehearsal, which forks, fails where 'spawn' would
    context = multiprocessing.get_context(START)
    end = time.monotonic() + seconds
    complete = []

    def lane(mine: Sequence[Any]) -> None:
        position = context.Value('i', 0)
        while position.value < len(mine):
            first = position.value
            process = context.Process(target=_run, args=(part, function, mine, position))
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
                    # At its very end, a process has no group any more: it is the last one's.
                    group = mine[min(position.value, len(mine) - 1)]
                    record(part, group=group, error=f'ended its process, exit code {code}')
                position.value += 1

    threads = [threading.Thread(target=lane, args=(groups[i::workers],)) for i in range(min(workers, len(groups)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return complete


def _run(part: str, function: Callable[[Any], None], groups: Sequence[Any], position: Synchronized) -> None:
    if part not in WITH_INDUCTOR:
        use_carried_cache()
    while position.value < len(groups):
        function(groups[position.value])
        position.value += 1


def difference(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Compute the largest norm of a difference, relative to the result's norm, or to 1 % of the largest norm."""
    norms = torch.stack([x.double().norm() for x in expected.values()])
    changes = torch.stack([(actual[name].double() - x.double()).norm() for name, x in expected.items()])
    return (changes / norms.clamp(min=0.01 * norms.max().item())).max().item()


def milliseconds(call: Callable[[], Any], most: float = 1.0) -> float:
    """Measure the median ms of a call on the device; a rehearsal measures one call."""
    return round(profiling.milliseconds(call, most) if GPU else profiling.milliseconds(call, 0, 1), 4)


def times(call: Callable[[], Any], most: float = 0.5) -> dict[str, float]:
    """Measure a call: ms that it takes, ms that the device works for it, kernels that it launches, and peak MiB."""
    ms, mib = milliseconds(call, most), round(profiling.mebibytes(call, DEVICE), 1) if GPU else 0.0
    activities = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activities.CUDA if GPU else activities.CPU]) as profiler:
        call()
        profiling.synchronize()
    events = [event for event in profiler.key_averages() if event.device_type.name == DEVICE.upper()]
    spent = sum(event.self_device_time_total if GPU else event.self_cpu_time_total for event in events)
    return {'ms': ms, 'device_ms': round(spent / 1e3, 4), 'launches': sum(event.count for event in events), 'mib': mib}
