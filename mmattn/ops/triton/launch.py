"""Configurations of the Triton kernels, and their launch."""

from __future__ import annotations

import functools
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
    stream: int  # rows that it processes per iteration
    warps: int
    stages: int  # of the software pipeline


class Choice(NamedTuple):
    """The configurations up to a number of channels."""

    channels: int
    forward: Config
    query: Config
    key: Config


# Measured: the fastest of the configurations that ran on an NVIDIA H200, for 97×97 positions and a window of 31×31
# (docs/results/gpu_h200.json, tune). Times below 1.1 ms may be of the host. Compiled: without a time, and none of these
# kernels spills a register. tools/benchmarks/compile_triton.py shows spills, wgmma and shared memory.
MUCH = 200 * 1024  # bytes of shared memory of a block: compute capability 9.0 and 10.0
WITH_MUCH = (
    # measured: 0.58, 0.91 and 0.62 ms
    Choice(64, Config(128, 64, 8, 2), Config(64, 32, 4, 2), Config(64, 64, 4, 2)),
    # compiled
    Choice(128, Config(64, 32, 8, 3), Config(64, 32, 8, 3), Config(64, 32, 8, 3)),
    # measured: 0.79, 1.05 and 1.90 ms, although they spill. 32 rows and 8 warps for all took 1.50, 2.16 and 2.56 ms
    Choice(256, Config(64, 32, 4, 2), Config(128, 32, 8, 2), Config(32, 32, 4, 2)),
)
# Not measured. They fit into the 99 KiB of compute capability 8.6 and 12.0.
WITH_LITTLE = (
    Choice(64, Config(128, 64, 8, 3), Config(64, 16, 8, 3), Config(64, 16, 8, 3)),  # compiled
    Choice(128, Config(64, 32, 8, 2), Config(64, 16, 8, 3), Config(64, 16, 8, 3)),  # compiled
    Choice(256, Config(32, 32, 8, 2), Config(32, 32, 8, 2), Config(32, 32, 8, 2)),  # 99 KiB; spill up to 244 bytes
)
AXES = (  # fewer products, so fewer registers and less shared memory: on all GPUs, compiled
    (128, Config(64, 32, 8, 3)),
    (256, Config(32, 32, 8, 2)),
)

# Whether the kernel `key_rows` computes the gradients of keys and values. It has no time yet, so by default
# `key_gradients` does; gpu_run.sh compares them. Compiled by Triton 3.7 for 9.0, 256 channels and a window, all of its
# products are wgmma, and its four launches spill 112 bytes. `key_gradients` has mma alone, and spills 956.
KEYS_AS_ROWS = os.environ.get('MMATTN_KEYS_AS_ROWS') == '1'
# By channels, for PART 0 and 2, and for PART 1: of values, and of keys.
ROWS_WITH_MUCH = (
    (128, (Config(128, 64, 8, 2), Config(128, 32, 8, 2)), (Config(128, 64, 8, 2), Config(128, 32, 8, 2))),
    (256, (Config(128, 64, 8, 2), Config(128, 16, 8, 2)), (Config(128, 32, 8, 2), Config(128, 16, 8, 2))),
)
ROWS_WITH_LITTLE = (
    (128, (Config(64, 32, 8, 2), Config(64, 32, 8, 2)), (Config(64, 32, 8, 2), Config(64, 32, 8, 2))),
    (256, (Config(32, 32, 8, 2), Config(32, 32, 8, 2)), (Config(32, 32, 8, 2), Config(32, 32, 8, 2))),
)


def select_config(kernel: Any, shared: int, D: int, DV: int, **constants: Any) -> Config:
    """Select the configuration of a kernel for the shared memory of a block, and channels."""
    channels = max(D, DV)
    if kernel.__name__ == 'axis_gradients':
        return next(config for most, config in AXES if channels <= most)
    if kernel.__name__ == 'key_rows':
        table = ROWS_WITH_MUCH if shared >= MUCH else ROWS_WITH_LITTLE
        of_values, of_keys = next(configs for most, *configs in table if channels <= most)
        return (of_keys if constants['OF_KEYS'] else of_values)[constants['PART'] == 1]
    choice = next(x for x in (WITH_MUCH if shared >= MUCH else WITH_LITTLE) if channels <= x.channels)
    return {'forward_kernel': choice.forward, 'query_gradients': choice.query}.get(kernel.__name__, choice.key)


@functools.cache
def shared_memory(device: int) -> int:
    """Query the bytes of shared memory of a block."""
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, 'shared_memory_per_block_optin', properties.shared_memory_per_block)


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
    config = select_config(kernel, shared_memory(device), **constants)
    compiled = kernel[programs(config),](*encoded, **constants, **options(config))
    _compiled[key] = compiled, config, (*constants.values(), config.owned, config.stream)  # in the kernels' order


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
        elif kind is torch.Tensor or isinstance(x, torch.Tensor):  # also a parameter
            kinds[i] = x.dtype, x.data_ptr() % 16
        elif kind is tl.constexpr:
            kinds[i] = kind, x.value
        elif kind is float:
            kinds[i] = kind
        else:
            encoded[i], kinds[i] = encode(x)
    return tuple.__new__(type(arguments), encoded), tuple(kinds)  # also of a NamedTuple


def options(config: Config) -> dict[str, int]:
    """Convert a configuration to arguments of a launch."""
    owned, stream, warps, stages = config
    return {'OWN': owned, 'STREAM': stream, 'num_warps': warps, 'num_stages': stages}


def title(kernel: Any, constants: dict[str, Any]) -> str:
    """Name a launch: a kernel, and which of its gradients and parts."""
    which = {True: 'keys', False: 'values', None: ''}[constants.get('OF_KEYS')]
    return f'{kernel.__name__} {which} {constants["PART"]}' if which else kernel.__name__


def width(channels: int) -> int:
    """Round the number of channels of a tile up to a power of 2 that tensor cores support."""
    return max(16, triton.next_power_of_2(channels))
