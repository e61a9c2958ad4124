"""Compile the Triton kernels, without a GPU: ``python tools/benchmarks/compile_triton.py``.

Prints registers, spilled bytes (both as ptxas reports them) and shared memory of each kernel, in its default
configuration: the first one that fits. Kernels are compiled for maps of 97×97 positions and a learned window of 31×31;
the kernel of axis biases for a call with these, key biases and a mask.
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

import mmattn.utils.command

import torch

from mmattn.ops import global_attention
from mmattn.ops.autograd import tensors_of

DTYPES = {'float32': torch.float32, 'float16': torch.float16, 'bfloat16': torch.bfloat16}
CHANNELS = (32, 64, 128, 256)
CAPABILITIES = (80, 90, 100)
SHARED = {80: 163, 90: 227, 100: 227}  # KiB of shared memory that a block can use


class Compiled(NamedTuple):
    """A compiled kernel."""

    kernel: str
    config: str
    registers: int
    spilled: int  # bytes, loads and stores
    shared: int  # bytes


def main() -> int:
    """Print the table. Return 1 if a kernel needs more shared memory than there is."""
    parser = argparse.ArgumentParser(prog='compile_triton', description='Compile the Triton kernels of mmattn.')
    parser.add_argument('--dtypes', nargs='+', choices=DTYPES, default=list(DTYPES))
    parser.add_argument('--channels', nargs='+', type=int, default=CHANNELS)
    parser.add_argument('--capabilities', nargs='+', type=int, choices=CAPABILITIES, default=CAPABILITIES)
    parser.add_argument('--content', action='store_true', help='compile for a call without position biases')
    args = parser.parse_args()
    print('| GPU | dtype | channels | kernel | rows, warps, stages | registers | spilled bytes | shared KiB |')
    print('|---|---|---|---|---|---|---|---|')
    fit = True
    for capability, dtype, channels in itertools.product(args.capabilities, args.dtypes, args.channels):
        for each in compile_call(DTYPES[dtype], channels, capability, not args.content):
            print(
                f'| sm_{capability} | {dtype} | {channels} | {each.kernel} | {each.config} | {each.registers} | '
                f'{each.spilled} | {each.shared / 1024:.0f} |',
                flush=True,
            )
            fit = fit and each.shared <= SHARED[capability] * 1024
    return 0 if fit else 1


def compile_call(
    dtype: torch.dtype, channels: int, capability: int, positions: bool = True, all_configs: bool = False
) -> Iterator[Compiled]:
    """Compile the kernels of ``global_attention`` and its backward pass, once each.

    Args:
        dtype (torch.dtype): dtype of all operands.
        channels (int): channels of query, key and value.
        capability (int): 10 times the compute capability of the GPU.
        positions (bool): whether the calls have position biases. Defaults to True.
        all_configs (bool): compile each configuration that fits, not only the default. Defaults to False.

    Yields:
        Compiled: each kernel.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from mmattn.ops.triton import global_attention as kernels
    from mmattn.ops.triton.launch import configs_of

    launches: dict[str, tuple] = {}

    def record(kernel: Any, _: Any, *arguments: Any, **constants: Any) -> None:
        launches.setdefault(kernel.base_fn.__name__, (kernel, arguments, constants))

    def empty(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device='meta')

    size, k = (97, 97), 31
    window = {'window_bias': empty(1, 1, *size, k * k), 'outside_bias': empty(1, 1, *size), 'window_size': k}
    axes = {'axis_bias': [empty(1, 1, *size, side) for side in size], 'key_bias': empty(1, 1, *size)}
    axes['key_mask'] = empty(1, *size, dtype=torch.bool)
    with mock.patch.object(kernels, 'launch', record), mock.patch.object(kernels, 'supports', return_value=True):
        for settings in (window, axes) if positions else ({},):
            arguments = global_attention.arguments(*(empty(1, 1, *size, channels) for _ in range(3)), **settings)
            out, lse = kernels.forward(*arguments)
            kernels.backward(out, out, lse, *arguments, [True] * len(tensors_of(arguments)))
    target = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget('cuda', capability, 32),
    )
    for name, (kernel, arguments, constants) in launches.items():
        for config in configs_of(kernel, **constants)[: None if all_configs else 1]:
            with mock.patch.object(driver, '_active', target), ptxas_log() as log:
                built = kernel.fn.warmup(*arguments, **constants, **config.all_kwargs(), grid=(1,))
            stores, loads = re.search(r'(\d+) bytes spill stores, (\d+) bytes spill loads', log.getvalue()).groups()
            registers = int(re.search(r'Used (\d+) registers', log.getvalue())[1])
            title = f'{config.kwargs["OWN"]} × {config.kwargs["STREAM"]}, {config.num_warps}, {config.num_stages}'
            yield Compiled(name, title, registers, int(stores) + int(loads), built.metadata.shared)


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
