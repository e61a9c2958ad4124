"""Compile the Triton kernels, without a GPU: ``python tools/benchmarks/compile_triton.py``.

Prints registers, spilled bytes (both as ptxas reports them), shared memory and products of each kernel on compute
capability 9.0, where wgmma is several times as fast as mma. A configuration is rows that a program owns, rows per
iteration, rows per iteration with window biases, warps, stages. Kernels are compiled for maps of 97×97 positions and a
window of 31×31; the kernel of axis biases for a call with these, key biases and a mask.
"""

import argparse
import io
import itertools
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch

import mmattn.utils.command
from mmattn import ops
from mmattn.ops.autograd import list_tensors
from mmattn.ops.operator import record_call

DTYPES = {'float16': torch.float16, 'bfloat16': torch.bfloat16}
CHANNELS = (32, 64, 128, 256)
CAPABILITY = 90
SHARED = 227  # KiB of shared memory that a block can use


class Compiled(NamedTuple):
    """A compiled kernel."""

    kernel: str
    config: str
    registers: int
    spilled: int  # bytes, loads and stores
    shared: int  # bytes
    products: str  # the instructions of tensor cores, and of atomic sums


def main() -> int:
    """Print the table. Return 1 if a kernel needs more shared memory than there is."""
    parser = argparse.ArgumentParser(prog='compile_triton', description='Compile the Triton kernels of mmattn.')
    parser.add_argument('--dtypes', nargs='+', choices=DTYPES, default=list(DTYPES))
    parser.add_argument('--channels', nargs='+', type=int, default=CHANNELS)
    parser.add_argument('--content', action='store_true', help='compile for a call without position biases')
    args = parser.parse_args()
    print('| dtype | channels | kernel | configuration | registers | spilled bytes | shared KiB | products |')
    print('|---|---|---|---|---|---|---|---|')
    fit = True
    for dtype, channels in itertools.product(args.dtypes, args.channels):
        for kernel in compile_call(DTYPES[dtype], channels, not args.content):
            print(
                f'| {dtype} | {channels} | {kernel.kernel} | {kernel.config} | {kernel.registers} | {kernel.spilled} '
                f'| {kernel.shared / 1024:.0f} | {kernel.products} |',
                flush=True,
            )
            fit = fit and kernel.shared <= SHARED * 1024
    return 0 if fit else 1


def compile_call(dtype: torch.dtype, channels: int, positions: bool = True) -> Iterator[Compiled]:
    """Compile the kernels of ``global_attention`` and its backward pass, once each.

    Args:
        dtype (torch.dtype): dtype of all operands.
        channels (int): channels of query, key and value.
        positions (bool): whether the calls have position biases. Defaults to True.

    Yields:
        Compiled: each kernel.
    """
    from mmattn.ops.triton import launch

    for name, (kernel, arguments, constants) in launches(dtype, channels, positions).items():
        selected = launch.select_config(kernel, **constants)
        with as_if_on(CAPABILITY), ptxas_log() as log:
            built = kernel.warmup(*arguments, **constants, **launch.options(selected), grid=(1,))
        stores, loads = re.search(r'(\d+) bytes spill stores, (\d+) bytes spill loads', log.getvalue()).groups()
        registers = int(re.search(r'Used (\d+) registers', log.getvalue())[1])
        title = ', '.join(map(str, selected))
        products = ', '.join(sorted({*re.findall(r'\b(?:wgmma|mma|atom|red)\b', built.asm['ptx'])}))
        yield Compiled(name, title, registers, int(stores) + int(loads), built.metadata.shared, products)


def launches(dtype: torch.dtype, channels: int, positions: bool = True) -> dict[str, tuple]:
    """List the last launches of both passes by the kernel's name: kernel, arguments and constants."""
    from mmattn.ops.triton import global_attention, launch

    found: dict[str, tuple] = {}

    def record(kernel: Any, _: Any, *arguments: Any, **constants: Any) -> None:
        found[kernel.__name__] = kernel, [*map(launch.encode, arguments)], constants

    supported = mock.patch.object(global_attention, 'supports', return_value=True)
    with mock.patch.object(launch, 'launch', record), supported:
        for tensors, settings in calls(dtype, channels, positions):
            arguments = record_call(ops.global_attention, *tensors, **settings)[1]
            out, lse = global_attention.forward(*arguments)
            global_attention.backward(out, lse, out, lse, *arguments, [True] * len(list_tensors(arguments)))
    return found


@contextmanager
def as_if_on(capability: int) -> Iterator[None]:
    """Let Triton compile for a GPU of this capability."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    target = SimpleNamespace(
        get_current_device=lambda: capability,  # Triton keeps the first target of a device, and its kernels
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget('cuda', capability, 32),
    )
    with mock.patch.object(driver, '_active', target):
        yield


def calls(dtype: torch.dtype, channels: int, positions: bool) -> Iterator[tuple[list, dict]]:
    """Yield the calls that run all kernels: tensors without data, and settings."""

    def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device='meta')

    size, k = (97, 97), 31
    tensors = [empty(1, 1, *size, channels) for _ in range(3)]
    if not positions:
        yield tensors, {}
        return
    axes = {'axis_bias': [empty(1, 1, *size, side) for side in size], 'key_bias': empty(1, 1, *size)}
    yield tensors, axes | {'key_mask': empty(1, *size, dtype=torch.bool)}
    window = {'window_bias': empty(1, 1, *size, k * k), 'outside_bias': empty(1, 1, *size)}
    yield tensors, window | {'window_size': k}


@contextmanager
def ptxas_log() -> Iterator[io.StringIO]:
    """Yield what ptxas prints; nothing is taken from Triton's cache, because ptxas would not run."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as cache, knobs.cache.scope(), knobs.nvidia.scope():
        knobs.cache.dir, knobs.nvidia.dump_ptxas_log = cache, True
        with redirect_stdout(io.StringIO()) as log:
            yield log


if __name__ == '__main__':
    mmattn.utils.command.run(main)
