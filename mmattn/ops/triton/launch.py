"""Configurations of the Triton kernels, and their launch."""

from __future__ import annotations

import functools
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


# (most channels, configuration of the forward pass, of the gradients), for GPUs whose blocks have much shared memory
# (compute capability 9.0 and 10.0) or less. None spills registers up to 128 channels. All fit into the 99 KiB of the
# smallest GPUs: see tools/benchmarks/compile_triton.py.
CONFIGS = {
    True: (
        (64, Config(128, 64, 8, 3), Config(64, 32, 8, 3)),
        (128, Config(64, 32, 8, 3), Config(64, 32, 8, 3)),
        (256, Config(32, 32, 8, 2), Config(32, 32, 8, 2)),
    ),
    False: (
        (64, Config(128, 64, 8, 3), Config(64, 16, 8, 3)),
        (128, Config(64, 32, 8, 2), Config(64, 16, 8, 3)),
        (256, Config(32, 32, 8, 2), Config(32, 32, 8, 2)),
    ),
}
MUCH = 200 * 1024  # bytes of shared memory


def select_config(kernel: Any, shared: int, D: int, DV: int, **_: Any) -> Config:
    """Select the configuration of a kernel for the shared memory of a block, and channels."""
    owns_pairs = kernel.__name__ == 'axis_gradients'  # fewer products: it needs fewer registers
    forward, gradients = next(config for most, *config in CONFIGS[owns_pairs or shared >= MUCH] if max(D, DV) <= most)
    return forward if kernel.__name__ == 'forward_kernel' else gradients


@functools.cache
def shared_memory(device: int) -> int:
    """Query the bytes of shared memory of a block, 0 in Triton's interpreter."""
    if interpreted():
        return 0
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, 'shared_memory_per_block_optin', properties.shared_memory_per_block)


def launch(kernel: Any, programs: Callable[[Config], int], *arguments: Any, **constants: Any) -> None:
    """Run a kernel with as many programs as ``programs`` computes for its configuration."""
    config = select_config(kernel, shared_memory(0 if interpreted() else torch.cuda.current_device()), **constants)
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
    owned, stream, warps, stages = config
    return {'OWN': owned, 'STREAM': stream, 'num_warps': warps, 'num_stages': stages}


def width(channels: int) -> int:
    """Round the number of channels of a tile up to a power of 2 that tensor cores support."""
    return max(16, triton.next_power_of_2(channels))
