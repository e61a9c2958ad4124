"""Configurations of the Triton kernels, and their launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from triton import knobs

# Rows that a program owns, rows that it processes per iteration, warps, and stages of the software pipeline.
CONFIGS = [
    triton.Config({'OWN': own, 'STREAM': stream}, num_warps=warps, num_stages=stages)
    for own, stream, warps, stages in (
        (64, 32, 4, 2),
        (64, 64, 4, 2),
        (64, 32, 8, 2),
        (32, 32, 8, 2),
        (32, 32, 8, 1),
        (16, 16, 4, 1),
    )
]
MOST_SHARED = 160 * 1024  # bytes of shared memory of a program, as on sm_80
MOST_SUMS = 64  # sums in the registers of a thread, so that few are spilled


def tuned(sums: Callable[[int, int], int]) -> Callable[[Callable], Any]:
    """Return a decorator of kernels: the first call of a kind times the configurations that fit.

    Triton's cache keeps the fastest one, because another one could round differently. ``sums`` is called with the
    numbers of channels of a key and of a value, and returns the number of sums per row that a program owns.
    """

    def fits(config: triton.Config, channels: int, of_row: int, itemsize: int) -> bool:
        own, stream = config.kwargs['OWN'], config.kwargs['STREAM']
        shared = (own + config.num_stages * stream) * channels * itemsize
        return shared <= MOST_SHARED and own * of_row <= MOST_SUMS * 32 * config.num_warps

    def that_fit(configs: list, _: Any, *, D: int, DV: int, PRECISION: str | None, **__: Any) -> list:
        itemsize = 4 if PRECISION else 2
        return [config for config in configs if fits(config, D + DV, sums(D, DV), itemsize)] or configs[-1:]

    key = ['D', 'DV', 'CAUSAL', 'DIMS', 'PRECISION']
    prune = {'early_config_prune': that_fit}
    return lambda kernel: triton.autotune(CONFIGS, key, prune, cache_results=True)(triton.jit(kernel))


def configs_of(kernel: Any, **constants: Any) -> list:
    """Return the configurations of a kernel that fit. The first one is the default, used where none can be timed."""
    return kernel.early_config_prune(kernel.configs, {}, **constants)


def launch(kernel: Any, programs: Callable[[dict], int], *arguments: Any, **constants: Any) -> None:
    """Run a kernel; ``programs`` is called with the configuration and returns the number of programs."""

    def grid(config: dict) -> tuple[int]:
        return (programs(config),)

    if knobs.runtime.interpret:
        kernel.fn[grid](*arguments, **constants, **configs_of(kernel, **constants)[0].all_kwargs())
    else:
        kernel[grid](*arguments, **constants)


def width(channels: int) -> int:
    """Return the number of channels of a tile, including padding: a power of 2 that tensor cores support."""
    return max(16, triton.next_power_of_2(channels))


def precision(dtype: torch.dtype) -> str | None:
    """Return how products of ``dtype`` are computed: those of float32 from three products of tf32 numbers."""
    return 'tf32x3' if dtype == torch.float32 else None
