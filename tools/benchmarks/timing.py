"""Calls that take turns, so that other load of the machine affects all of them equally."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def seconds(calls: dict[Any, Callable[[], object]], repeats: int) -> dict[Any, float]:
    """Return the median seconds of each call, which take turns; the first turn is a warm-up."""
    times: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}
