"""Compile the Triton kernels, without a GPU: ``python tools/benchmarks/compile_triton.py``.

Prints registers, spilled bytes (both as ptxas reports them), shared memory and products of each kernel: wgmma (9.0) and
tcgen05 (10.0) are several times as fast as mma. A configuration is rows that a program owns, rows per iteration, rows
per iteration with window biases, warps, stages. Kernels are compiled for maps of 97×97 positions and a window of
31×31; the kernel of axis biases for a call with these, key biases and a mask; local attention for 3×3 neighbours, with
the channels of all heads last in memory; grid attention for eight times as many channels of values, the last arm;
strided attention for blocks of 4×8×8 positions. With MMATTN_KEYS_AS_ROWS=1, the kernel key_rows is among them.
"""

import argparse
import importlib
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
from mmattn.ops import triton
from mmattn.ops.autograd import list_tensors
from mmattn.ops.operator import record_call

DTYPES = {'float16': torch.float16, 'bfloat16': torch.bfloat16}
CHANNELS = (32, 64, 128, 256)
CAPABILITIES = (80, 90, 100, 120)
SHARED = {80: 163, 90: 227, 100: 227, 120: 99}  # KiB of shared memory that a block can use
COLUMNS = 512  # of tensor memory, on 10.0


class Compiled(NamedTuple):
    """A compiled kernel."""

    kernel: str
    config: str
    registers: int
    spilled: int  # bytes, loads and stores
    shared: int  # bytes
    columns: int  # of tensor memory
    products: str  # the instructions of tensor cores, and of atomic sums


def main() -> int:
    """Print the table. Return 1 if a kernel needs more shared or tensor memory than there is."""
    parser = argparse.ArgumentParser(prog='compile_triton', description='Compile the Triton kernels of mmattn.')
    parser.add_argument('--operators', nargs='+', choices=triton.OPERATORS, default=triton.OPERATORS)
    parser.add_argument('--dtypes', nargs='+', choices=DTYPES, default=list(DTYPES))
    parser.add_argument('--channels', nargs='+', type=int, default=CHANNELS)
    parser.add_argument('--capabilities', nargs='+', type=int, choices=CAPABILITIES, default=CAPABILITIES)
    parser.add_argument('--content', action='store_true', help='compile for a call without position biases')
    args = parser.parse_args()
    print(
        '| operator | GPU | dtype | channels | kernel | configuration | registers | spilled bytes | shared KiB '
        '| products |'
    )
    print('|---|---|---|---|---|---|---|---|---|---|')
    fit = True
    options = itertools.product(args.operators, args.capabilities, args.dtypes, args.channels)
    for operator, capability, dtype, channels in options:
        for kernel in compile_call(operator, DTYPES[dtype], channels, capability, not args.content):
            print(
                f'| {operator} | sm_{capability} | {dtype} | {channels} | {kernel.kernel} | {kernel.config} | '
                f'{kernel.registers} | {kernel.spilled} | {kernel.shared / 1024:.0f} | {kernel.products} |',
                flush=True,
            )
            fit = fit and kernel.shared <= SHARED[capability] * 1024 and kernel.columns <= COLUMNS
    return 0 if fit else 1


def compile_call(
    operator: str,
    dtype: torch.dtype,
    channels: int,
    capability: int,
    positions: bool = True,
    config: Any = None,
    only: str = '',
) -> Iterator[Compiled]:
    """Compile the kernels of an operator and its backward pass, once each.

    Args:
        operator (str): name of the operator.
        dtype (torch.dtype): dtype of all operands.
        channels (int): channels of query, key and value.
        capability (int): 10 times the compute capability of the GPU.
        positions (bool): whether the calls have position biases. Defaults to True.
        config (Config, optional): configuration to compile. Defaults to the one that a launch selects.
        only (str): what titles of launches must contain. Defaults to '', all.

    Yields:
        Compiled: each kernel.
    """
    from mmattn.ops.triton import launch

    for name, (kernel, arguments, constants) in launches(operator, dtype, channels, positions).items():
        if only not in name:
            continue
        selected = config or launch.select_config(kernel, capability // 10, **constants)
        with as_if_on(capability), ptxas_log() as log:
            built = kernel.warmup(*arguments, **constants, **launch.options(selected), grid=(1,))
        stores, loads = re.search(r'(\d+) bytes spill stores, (\d+) bytes spill loads', log.getvalue()).groups()
        registers = int(re.search(r'Used (\d+) registers', log.getvalue())[1])
        title = ', '.join(map(str, selected))
        products = ', '.join(sorted({*re.findall(r'\b(?:wgmma|tcgen05|mma|atom|red)\b', built.asm['ptx'])}))
        columns = getattr(built.metadata, 'tmem_size', None) or 0
        yield Compiled(name, title, registers, int(stores) + int(loads), built.metadata.shared, columns, products)


def launches(operator: str, dtype: torch.dtype, channels: int, positions: bool = True) -> dict[str, tuple]:
    """List the last launches of an operator and its backward pass by title: kernel, arguments and constants."""
    called = calls(operator, dtype, channels, positions)
    recorded = [record_call(getattr(ops, operator), *tensors, **settings)[1] for tensors, settings in called]
    return {name: tuple(x) for call in recorded for name, *x in record_launches(operator, call, with_lse=True)}


def record_launches(operator: str, arguments: tuple, with_lse: bool) -> list[tuple]:
    """List all launches of a call, each with its title. ``with_lse``: its log-sum-exp has a gradient, too."""
    from mmattn.ops.triton import launch

    found: list[tuple] = []

    def record(kernel: Any, _: Any, *arguments: Any, **constants: Any) -> None:
        found.append((launch.title(kernel, constants), kernel, launch.encode(arguments)[0], constants))

    module = importlib.import_module(f'mmattn.ops.triton.{operator}')
    with mock.patch.object(launch, 'launch', record), mock.patch.object(module, 'supports', return_value=True):
        out, lse = module.forward(*arguments)
        kept = () if operator == 'local_attention' else (out, lse)
        needed = [True] * len(list_tensors(arguments))
        module.backward(out, lse if with_lse else None, *kept, *arguments, needed)
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


def calls(operator: str, dtype: torch.dtype, channels: int, positions: bool) -> Iterator[tuple[list, dict]]:
    """Yield the calls that run all kernels of an operator: tensors without data, and settings."""

    def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device='meta')

    size, k = (97, 97), 31
    if operator == 'grid_attention':  # as Bi-CC calls it
        tensors = [empty(1, 1, *size, c) for c in (channels, channels, 8 * channels)]
        window = {'window_bias': empty(1, 1, *size, 2 * k - 1), 'outside_bias': empty(1, 1, *size)}
        yield tensors, window | {'window_size': k} if positions else {}
        return
    if operator == 'local_attention':  # as the layers call it in 16 bit
        *tensors, bias = (empty(1, *size, 8, c).movedim(3, 1) for c in (*[channels] * 3, 9))
        yield tensors, {'window_bias': bias} if positions else {}
        return
    if operator == 'strided_attention':  # blocks, as the layer calls it
        size, step = (16, 64, 64), (4, 8, 8)
        entries = [len(x) for x in ops.strided_offsets(size, step, 'block')]
        maps = [empty(1, *size, 1, c).movedim(4, 1) for c in (*[channels] * 3, *entries)]
        yield maps[:3], {'pattern': 'block', 'step': step, 'offset_bias': maps[3:] if positions else ()}
        return
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
