"""Configurations of the Triton kernels, and their launch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import triton

from . import interpreted

# Rows that a program owns, rows that it processes per iteration, warps, and stages of the software pipeline.
CONFIGS = [
    triton.Config({'OWN': owned, 'STREAM': stream}, num_warps=warps, num_stages=stages)
    for owned, stream, warps, stages in (
        # 16 bits
        (64, 32, 4, 2),
        (128, 32, 8, 2),
        (64, 64, 8, 2),
        (64, 32, 8, 2),
        (32, 32, 8, 2),
        # float32, whose products need more registers
        (64, 16, 4, 2),
        (64, 16, 8, 2),
        (32, 16, 8, 2),
        (16, 16, 4, 1),
    )
]
# Bytes of a tile of two operands, such as keys and values. Then three of them fit into 96 KiB of shared memory, and the
# sums of the owned rows into registers. Products of float32 take more; a configuration that does not fit is not timed.
MOST_BYTES = 32 * 1024


def filter_configs(configs: list, _: Any, *, D: int, DV: int, PRECISION: str | None, **__: Any) -> list:
    """Select the configurations for a dtype whose tiles are small enough: at least one up to 256 channels."""
    itemsize = 4 if PRECISION else 2

    def fits(config: triton.Config) -> bool:
        owned, stream = config.kwargs['OWN'], config.kwargs['STREAM']
        return (stream == 16) == (PRECISION is not None) and max(owned, stream) * (D + DV) * itemsize <= MOST_BYTES

    return list(filter(fits, configs))


def autotuned(kernel: Callable) -> Any:
    """Decorate a kernel: its first call times the configurations that fit, and Triton's cache keeps the fastest one.

    The choice is kept because another configuration could round differently.
    """
    key = [name for name in inspect.signature(kernel).parameters if name.isupper() and name not in ('OWN', 'STREAM')]
    prune = {'early_config_prune': filter_configs}
    return triton.autotune(CONFIGS, key, prune, cache_results=True)(triton.jit(kernel))


def select_configs(kernel: Any, **constants: Any) -> list:
    """Select the configurations of a kernel that fit. The first one is the default, used where none can be timed."""
    return filter_configs(kernel.configs, None, **constants)


def launch(kernel: Any, programs: Callable[[dict], int], *arguments: Any, **constants: Any) -> None:
    """Run a kernel. ``programs`` returns the number of programs for a configuration."""

    def grid(config: dict) -> tuple[int]:
        return (programs(config),)

    if interpreted():
        kernel.fn[grid](*arguments, **constants, **select_configs(kernel, **constants)[0].all_kwargs())
    else:
        kernel[grid](*arguments, **constants)


def width(channels: int) -> int:
    """Round the number of channels of a tile up to a power of 2 that tensor cores support."""
    return max(16, triton.next_power_of_2(channels))


def precision(dtype: torch.dtype) -> str | None:
    """Choose how products are computed: for float32, from three products of tf32 numbers."""
    return 'tf32x3' if dtype == torch.float32 else None
