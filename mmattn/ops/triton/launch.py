"""Configurations of the Triton kernels, and their launch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
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
    values: Config  # of key_rows
    keys: Config  # of key_rows


# Measured: the fastest of the configurations that ran on an NVIDIA H200, for 97×97 positions and a window of 31×31
# (docs/results/gpu_h200.json, tune), with a strip as long as the stream. Times below 1.1 ms may be of the host.
# Compiled: without a time. A loop with window biases needs registers for their addresses, so it has shorter tiles where
# it would spill. 4 warps and 64 rows share a wgmma: with fewer rows, it is split, or there is mma alone.
# tools/benchmarks/compile_triton.py shows spills and products, and docs/performance.md those for 256 channels.
HOPPER = (  # 9.0, with 227 KiB of shared memory for a block
    Choice(
        channels=64,
        forward_kernel=Config(128, 64, 64, 8, 2),  # measured: 0.58 ms
        query_gradients=Config(64, 32, 32, 4, 2),  # measured: 0.91 ms, with 8 warps 1.34
        key_gradients=Config(64, 64, 32, 4, 2),  # measured: 0.62 ms
        values=Config(128, 64, 64, 8, 2),  # compiled
        keys=Config(128, 64, 32, 8, 2),  # compiled
    ),
    Choice(
        channels=128,  # compiled
        forward_kernel=Config(128, 64, 32, 8, 2),
        query_gradients=Config(128, 64, 32, 8, 2),
        key_gradients=Config(64, 32, 32, 8, 3),
        values=Config(128, 64, 16, 8, 2),
        keys=Config(128, 64, 16, 8, 2),
    ),
    Choice(
        channels=256,
        forward_kernel=Config(128, 64, 16, 8, 2),  # compiled. (128, 64): 0.82 ms; 64 rows spill, 0.79; 32 rows, 1.50
        query_gradients=Config(128, 32, 16, 8, 2),  # measured: 1.05 ms, 32 rows 2.16. 64 rows or a strip of 32 spill
        key_gradients=Config(32, 32, 16, 4, 2),  # measured: 1.90 ms, although it spills
        values=Config(128, 64, 32, 8, 2),  # compiled
        keys=Config(128, 32, 16, 8, 2),  # compiled
    ),
)
# 10.0, where most configurations of 9.0 spill. Not measured: compiled.
BLACKWELL = (
    HOPPER[0]._replace(forward_kernel=Config(128, 64, 16, 8, 2)),
    Choice(
        channels=128,
        forward_kernel=Config(128, 64, 16, 8, 2),
        query_gradients=Config(128, 64, 16, 8, 2),
        key_gradients=Config(128, 64, 16, 8, 2),
        values=Config(128, 64, 16, 8, 2),
        keys=Config(128, 64, 16, 8, 2),
    ),
    Choice(
        channels=256,
        forward_kernel=Config(64, 64, 32, 8, 2),  # 128 rows spill
        query_gradients=Config(64, 64, 32, 8, 2),  # 128 rows spill
        key_gradients=Config(128, 32, 16, 8, 2),
        values=Config(128, 64, 32, 8, 2),
        keys=Config(128, 32, 16, 8, 2),
    ),
)
# They fit into the 99 KiB of 8.6 and 12.0. Not measured: compiled.
OTHERS = (
    Choice(
        channels=64,
        forward_kernel=Config(128, 64, 32, 8, 3),
        query_gradients=Config(64, 16, 16, 8, 3),
        key_gradients=Config(64, 16, 16, 8, 2),
        values=Config(64, 32, 32, 8, 2),
        keys=Config(64, 32, 32, 8, 2),
    ),
    Choice(
        channels=128,
        forward_kernel=Config(64, 32, 32, 8, 2),
        query_gradients=Config(32, 32, 16, 4, 2),
        key_gradients=Config(64, 16, 16, 8, 3),
        values=Config(64, 32, 32, 8, 2),
        keys=Config(64, 32, 32, 8, 2),
    ),
    Choice(
        channels=256,
        forward_kernel=Config(64, 32, 16, 8, 2),
        query_gradients=Config(32, 32, 16, 8, 2),  # 64 rows spill
        key_gradients=Config(32, 32, 16, 8, 2),
        values=Config(64, 32, 16, 8, 2),
        keys=Config(64, 16, 16, 8, 2),
    ),
)
NEIGHBOURS = (  # of the kernels of local attention, on all GPUs: compiled. They have no products for tensor cores
    (32, Config(64, 0, 0, 4, 2)),
    (64, Config(32, 0, 0, 4, 2)),
    (128, Config(16, 0, 0, 4, 2)),
    (256, Config(8, 0, 0, 4, 2)),
)
AXES = (  # fewer products, so fewer registers and less shared memory: on all GPUs, compiled
    (128, Config(64, 32, 0, 8, 3)),
    (256, Config(32, 16, 0, 8, 2)),
)
LINES = (  # of grid attention, on all GPUs, by channels of queries, as values come in chunks of 128: compiled
    (64, Config(64, 16, 0, 4, 2)),  # wgmma where the GPU has it. 32 rows per iteration spill, except on 9.0
    (256, Config(32, 16, 0, 4, 2)),
)
GROUPS = (  # of strided attention, on all GPUs: compiled. Other tiles spill more, or have no wgmma
    (32, Config(64, 32, 0, 4, 2)),
    (128, Config(64, 32, 0, 8, 2)),
    (256, Config(64, 16, 0, 8, 2)),
)
GROUP_GRADIENTS = (
    (32, Config(64, 32, 0, 4, 2)),
    (256, Config(64, 16, 0, 8, 2)),
)
BY_CAPABILITY = {9: HOPPER, 10: BLACKWELL, 11: BLACKWELL}  # the part before the point
BY_CHANNELS: dict[str, tuple[tuple[int, Config], ...]] = dict(
    axis_gradients=AXES,
    grid_forward=LINES,
    grid_along=((256, Config(16, 0, 0, 4, 2)),),
    grid_gradients=LINES,
    local_forward=NEIGHBOURS,
    local_query_gradients=NEIGHBOURS,
    local_key_gradients=NEIGHBOURS,
    strided_forward=GROUPS,
    strided_query_gradients=GROUP_GRADIENTS,
    strided_key_gradients=GROUP_GRADIENTS,
)

# Whether the kernel `key_rows` computes the gradients of keys and values. It has no time yet, so by default
# `key_gradients` does; gpu_run.sh compares them.
KEYS_AS_ROWS = os.environ.get('MMATTN_KEYS_AS_ROWS') == '1'


def select_config(kernel: Any, capability: int, D: int, DV: int, **constants: Any) -> Config:
    """Select the configuration of a kernel for channels and a compute capability, its part before the point."""
    channels = D if 'CHUNKS' in constants else max(D, DV)
    if kernel.__name__ in BY_CHANNELS:
        return next(config for most, config in BY_CHANNELS[kernel.__name__] if channels <= most)
    choice = next(x for x in BY_CAPABILITY.get(capability, OTHERS) if channels <= x.channels)
    if kernel.__name__ == 'key_rows':
        return choice.keys if constants['OF_KEYS'] else choice.values
    return getattr(choice, kernel.__name__)


INTERPRETED = interpreted()  # Triton reads the variable when it is imported, too
ONE = tl.constexpr(1)
# The compiled kernels by all that Triton compiles them for. Its own search takes 500 calls of Python for our operands.
_compiled: dict[tuple, tuple[Any, Config, tuple]] = {}


def launch(kernel: Any, programs: Callable[[Config], int], *arguments: Any, **constants: Any) -> None:
    """Run a kernel with as many programs as ``programs`` computes for its configuration."""
    if INTERPRETED:
        config = select_config(kernel, 0, **constants)
        kernel[programs(config),](*arguments, **constants, **options(config))
        return
    device = torch.cuda.current_device()
    encoded, kind = encode(arguments)
    key = kernel.__name__, device, kind, *constants.values()
    if key in _compiled:
        compiled, config, more = _compiled[key]
        compiled[programs(config), 1, 1](*encoded, *more)
        return
    config = select_config(kernel, torch.cuda.get_device_capability(device)[0], **constants)
    compiled = kernel[programs(config),](*encoded, **constants, **options(config))
    _compiled[key] = compiled, config, (*constants.values(), *blocks(config).values())  # in the kernels' order


def encode(arguments: tuple) -> tuple[tuple, tuple]:
    """Encode the numbers among arguments, also in tuples, so that sizes do not cause new compilations.

    Also returns what Triton compiles a kernel for.
    """
    # Triton compiles a kernel again where a number becomes 1 or divisible by 16, or ceases to be. 2n + 1 is neither.
    # `blocks.decode` is the inverse. 1 is a stride or an axis without positions: it remains, and the compiler uses it.
    # No function is called for an element, except for a tensor or a tuple: this runs at each launch.
    encoded, kinds = [*arguments], [*arguments]
    for i, x in enumerate(arguments):
        kind: Any = type(x)
        if kind is int:
            encoded[i] = 0 if x == 0 else ONE if x == 1 else 2 * x + 1
            kinds[i] = x if x == 0 or x == 1 else 2 if x < 2**30 else 3  # 32 or 64 bits
        elif x is None:
            pass
        elif kind is tuple or kind.__base__ is tuple:  # a NamedTuple
            encoded[i], kinds[i] = encode(x)
        elif kind is tl.constexpr:
            kinds[i] = kind, x.value
        elif kind is not float:  # a tensor, or a parameter
            kinds[i] = x.dtype, x.data_ptr() % 16
    return tuple.__new__(type(arguments), encoded), tuple(kinds)  # also of a NamedTuple


def blocks(config: Config) -> dict[str, int]:
    """Name the numbers of rows of a configuration as the kernels do."""
    rows = {'OWN': config.owned, 'STREAM': config.stream, 'STRIP': config.strip}
    return {name: count for name, count in rows.items() if count}


def options(config: Config) -> dict[str, int]:
    """Convert a configuration to arguments of a launch."""
    return {**blocks(config), 'num_warps': config.warps, 'num_stages': config.stages}


def title(kernel: Any, constants: dict[str, Any]) -> str:
    """Name a launch: a kernel, and which of its gradients and parts."""
    which = {True: 'keys', False: 'values', None: ''}[constants.get('OF_KEYS')]
    return f'{kernel.__name__} {which}'.rstrip()


def width(channels: int) -> int:
    """Round the number of channels of a tile up to a power of 2 that tensor cores support."""
    return max(16, triton.next_power_of_2(channels))
