"""Configurations of the Triton kernels, and their launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import triton
import triton.language as tl

from . import interpreted


class Config(NamedTuple):
    """How a kernel is compiled."""

    owned: int  # rows that a program owns
    stream: int  # rows that it processes per iteration, a multiple of `strip`; 0 without a loop over tiles
    strip: int  # the same where pairs have window biases, which need registers; 0 for a kernel without this loop
    warps: int
    stages: int  # of the software pipeline


class Choice(NamedTuple):
    """The configurations up to a number of channels."""

    channels: int
    forward_kernel: Config
    query_gradients: Config
    key_gradients: Config
    axis_gradients: Config


# Measured: the fastest of the configurations that ran on an NVIDIA H200 (9.0, with 227 KiB of shared memory for a
# block), for 97×97 positions and a window of 31×31 (docs/results/gpu_h200.json, tune), with a strip as long as the
# stream. Times below 1.1 ms may be of the host. Compiled: without a time. A loop with window biases needs registers for
# their addresses, so it has shorter tiles where it would spill. 4 warps and 64 rows share a wgmma: with fewer rows, it
# is split, or there is mma alone. The gradients of axis biases take fewer products, so fewer registers and less memory.
# tools/benchmarks/compile_triton.py shows spills and products.
CHOICES = (
    Choice(
        channels=64,
        forward_kernel=Config(128, 64, 64, 8, 2),  # measured: 0.58 ms
        query_gradients=Config(64, 32, 32, 4, 2),  # measured: 0.91 ms, with 8 warps 1.34
        key_gradients=Config(64, 64, 32, 4, 2),  # measured: 0.62 ms
        axis_gradients=Config(64, 32, 0, 8, 3),  # compiled
    ),
    Choice(
        channels=128,  # compiled
        forward_kernel=Config(128, 64, 32, 8, 2),
        query_gradients=Config(128, 64, 32, 8, 2),
        key_gradients=Config(64, 32, 32, 8, 3),
        axis_gradients=Config(64, 32, 0, 8, 3),
    ),
    Choice(
        channels=256,
        forward_kernel=Config(128, 64, 16, 8, 2),  # compiled. (128, 64): 0.82 ms; 64 rows spill, 0.79; 32 rows, 1.50
        query_gradients=Config(128, 32, 16, 8, 2),  # measured: 1.05 ms, 32 rows 2.16. 64 rows or a strip of 32 spill
        key_gradients=Config(32, 32, 16, 4, 2),  # measured: 1.90 ms, although it spills
        axis_gradients=Config(32, 16, 0, 8, 2),  # compiled
    ),
)


def select_config(kernel: Any, D: int, DV: int, **_: Any) -> Config:
    """Select the configuration of a kernel for channels."""
    choice = next(x for x in CHOICES if max(D, DV) <= x.channels)
    return getattr(choice, kernel.__name__)


def launch(kernel: Any, programs: Callable[[Config], int], *arguments: Any, **constants: Any) -> None:
    """Run a kernel with as many programs as ``programs`` computes for its configuration."""
    config = select_config(kernel, **constants)
    kernel[programs(config),](*map(encode, arguments), **constants, **options(config))


def encode(x: Any) -> Any:
    """Encode the numbers of an argument, also in tuples, so that sizes do not cause new compilations."""
    # Triton compiles a kernel again where a number becomes 1 or divisible by 16, or ceases to be. 2n + 1 is neither.
    # `blocks.decode` is the inverse. 1 is a stride or an axis without positions: it remains, and the compiler uses it.
    if isinstance(x, tuple):
        parts = map(encode, x)
        return type(x)(*parts) if hasattr(x, '_fields') else tuple(parts)
    if isinstance(x, bool) or not isinstance(x, int) or x == 0 or interpreted():
        return x
    return tl.constexpr(1) if x == 1 else 2 * x + 1


def options(config: Config) -> dict[str, int]:
    """Convert a configuration to arguments of a launch."""
    rows = {'OWN': config.owned, 'STREAM': config.stream, 'STRIP': config.strip}
    return {
        **{name: count for name, count in rows.items() if count},
        'num_warps': config.warps,
        'num_stages': config.stages,
    }


def width(channels: int) -> int:
    """Round the number of channels of a tile up to a power of 2 that tensor cores support."""
    return max(16, triton.next_power_of_2(channels))
