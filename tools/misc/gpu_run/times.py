"""The parts layers, ops and flex: times and memory beside alternatives."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import layers as benchmark  # tools/benchmarks
import torch
from findings import DEVICE, GPU, SMALL, guarded, launches, mebibytes, milliseconds, record, run_groups
from mmcv.cnn.bricks import GeneralizedAttention
from torch import Tensor, nn
from workloads import BOTH, WORKLOADS, Call, Workload, bi_nl_calls, with_positions

from mmattn import layers, ops
from mmattn.ops import dispatch, table_attention
from mmattn.ops.gpu import check_gpu

HALF_OR_FLOAT = (torch.bfloat16, torch.float32)

# What a composition does in place of what `table_attention.py` chooses.
VARIANTS = {
    'formulas': {'uses_sdpa': False},
    'SDPA backward': {'uses_sdpa_backward': True},
    'formulas backward': {'uses_sdpa_backward': False},
}


@contextmanager
def selected(title: str) -> Iterator[None]:
    """Select a backend, or 'composition, VARIANT'."""
    backend, _, variant = title.partition(', ')
    with ExitStack() as stack:
        stack.enter_context(dispatch.backend(backend))
        for name, value in VARIANTS.get(variant, {}).items():
            stack.enter_context(mock.patch.object(table_attention, name, return_value=value))
        yield


def no_grad(function: Callable[[], Any]) -> Callable[[], Any]:
    return torch.no_grad()(function)


# Layers


def run_layers(seconds: float) -> None:
    run_groups('layers', _layers, ['BA', 'Bi-NL', 'Bi-CC', 'SST', 'attended residual'], seconds)


def compared_layers(comparison: str) -> tuple[list[tuple[str, nn.Module]], tuple[int, ...]]:
    """Build the layers of a comparison, the stock layer last. Also returns the shape of their input."""
    channels = 32 if SMALL else 512
    if comparison == 'attended residual':
        attention = dict(type='mmattn.TransformerAttention2d', num_heads=8, terms='1111')
        stock = GeneralizedAttention(channels, num_heads=8, kv_stride=1, attention_type='1111')
        ours = layers.AttendedResidual(channels, attention)
        shape = (1, channels, 9, 9) if SMALL else (2, channels, 64, 64)
        return [('attended residual 1111', ours), ('mmcv GeneralizedAttention 1111', stock)], shape
    built, shape = benchmark.pairs(SMALL)[comparison]
    if comparison == 'BA':
        built.insert(1, ('BA, shared, T = 3', layers.LocalBilateralAttention(channels // 2, share=True, iterations=3)))
    elif comparison == 'Bi-NL':
        built.insert(1, ('Bi-NL, no positions', layers.BilateralNonLocal2d(channels, position='none')))
        built.insert(2, ('Bi-NL, sqrt_dim', layers.BilateralNonLocal2d(channels, smoothing='sqrt_dim')))
    elif comparison == 'Bi-CC':
        built.insert(1, ('Bi-CC, no positions', layers.BilateralCrissCrossAttention(channels, position='none')))
    return built, shape


def _layers(comparison: str) -> None:
    torch.manual_seed(0)
    built, shape = compared_layers(comparison)
    x = torch.randn(shape, device=DEVICE).requires_grad_()
    modes = {'float32': None, 'amp bfloat16': torch.bfloat16}
    if comparison in ('Bi-NL', 'BA') and GPU:
        modes['amp float16'] = torch.float16
    for mode, dtype in modes.items():
        for title, layer in built:
            fields = {'comparison': comparison, 'title': title, 'mode': mode}
            layer.to(DEVICE).train()

            def forward(layer: nn.Module = layer, dtype: torch.dtype | None = dtype) -> Tensor:
                with torch.autocast(DEVICE, dtype) if dtype else nullcontext():
                    return layer(x)

            def both(forward: Callable = forward, layer: nn.Module = layer) -> Any:
                return torch.autograd.grad(forward().sum(), [x, *layer.parameters()], allow_unused=True)

            with guarded('layers', **fields):
                for pass_, call in (('forward', no_grad(forward)), (BOTH, both)):
                    ms, count = milliseconds(call), launches(call) if mode == 'amp bfloat16' else None
                    record('layers', **fields, **{'pass': pass_}, ms=ms, mib=mebibytes(call), launches=count)


# Operators

WORK = {  # workload, of tools/benchmarks/workloads.py or of `build`: operator
    'P1': 'global_attention',
    'global, 128 channels': 'global_attention',
    'global, 64 channels': 'global_attention',
    'P3': 'local_attention',
    'P2': 'grid_attention',
    'SST, grid': 'grid_attention',
    'SST, strided': 'strided_attention',
    'P6, positions': 'strided_attention',
    'P5, positions': 'grid_attention',
    'dynamic_conv, 3×3': 'dynamic_conv',
    'P3, T = 3': 'local_attention',
    'P1z': 'global_attention',
    'P5': 'grid_attention',
    'P6, 8 heads': 'strided_attention',
    'dynamic_conv, 13×13': 'dynamic_conv',
    'P7 1111': 'global_attention',
}


def build(name: str, dtype: torch.dtype) -> Workload:
    if name.startswith('global'):
        channels = int(name.split()[1])
        return Workload(name, bi_nl_calls(*((21, channels, 7) if SMALL else (97, channels, 31)), dtype, DEVICE)[0], {})
    if name.startswith('SST'):
        return Workload(name, sst(WORK[name], dtype), {})
    return WORKLOADS[name](not SMALL, dtype, DEVICE)


def sst(operator: str, dtype: torch.dtype) -> Call:
    """Build a call of SST's attention: 8 heads of 32 channels, with position logits of all offsets."""
    size, step = ((2, 4, 4), (2, 2, 2)) if SMALL else ((8, 32, 56), (3, 6, 8))
    maps = [torch.randn(1, 8, *size, 32, dtype=dtype, device=DEVICE, requires_grad=True) for _ in range(3)]
    if operator == 'grid_attention':
        window = (1, *(2 * side - 1 for side in size[1:]))

        def grid(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
            return ops.grid_attention(query, key, value, window_bias=bias, window_size=window)

        return Call(grid, with_positions(maps, [1 + sum(side - 1 for side in window)]))

    def strided(query: Tensor, key: Tensor, value: Tensor, *biases: Tensor) -> Tensor:
        return ops.strided_attention(query, key, value, pattern='block', step=step, offset_bias=biases)

    return Call(strided, with_positions(maps, [len(x) for x in ops.strided_offsets(size, step, 'block')]))


def run_ops(seconds: float) -> None:
    """Compositions, kernels, and the alternatives of tools/benchmarks."""
    run_groups('ops', _ops, [(name, dtype) for name in WORK for dtype in HALF_OR_FLOAT], seconds)


def _ops(group: tuple[str, torch.dtype]) -> None:
    name, dtype = group
    operator = WORK[name]
    with guarded('ops', workload=name, dtype=dtype):
        torch.manual_seed(0)
        work = build(name, dtype)
        titles = ['composition', *check_gpu.kernels_of(operator, torch.device(DEVICE))]
        if operator == 'global_attention':
            titles += [f'composition, {variant}' for variant in VARIANTS]
        elif operator == 'strided_attention':
            titles.append('composition, formulas')
        calls = {title: (f'{operator}={title}', work.ours) for title in titles}
        calls |= {peer: ('auto', call) for peer, call in work.peers.items() if peer != 'FlexAttention'}
        for title, (backend, call) in calls.items():
            _time_call({'workload': name, 'dtype': dtype, 'title': title}, backend, call)


def _time_call(fields: dict[str, Any], backend: str, call: Call) -> None:
    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(call.function(*call.inputs).sum(), call.inputs)

    forward = no_grad(partial(call.function, *call.inputs))
    with guarded('ops', **fields), selected(backend):
        try:
            with dispatch.kernels_run() as kernels:
                forward()
        except RuntimeError as error:
            if 'has no kernel for these tensors' not in str(error):
                raise
        if fields['title'] in ('native', 'triton') and not kernels:
            return
        for pass_, function in (('forward', forward), (BOTH, both)):
            if pass_ in call.passes:
                ms, mib = milliseconds(function, most=0.5), mebibytes(function)
                record('ops', **fields, kernels=sorted({*kernels}), **{'pass': pass_}, ms=ms, mib=mib)


def run_flex(seconds: float) -> None:
    """FlexAttention, compiled: Bi-NL's core. The part ops has its alternatives."""
    run_groups('flex', _flex, HALF_OR_FLOAT, seconds)


def _flex(dtype: torch.dtype) -> None:
    call = bi_nl_calls(*((21, 64, 7) if SMALL else (97, 256, 31)), dtype, DEVICE)[1]['FlexAttention']

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(call.function(*call.inputs).sum(), call.inputs)

    for pass_, function in (('forward', no_grad(partial(call.function, *call.inputs))), (BOTH, both)):
        with guarded('flex', dtype=dtype, **{'pass': pass_}):
            if pass_ in call.passes:
                start = time.monotonic()
                function()
                compiled = round(time.monotonic() - start, 1)
                ms, mib = milliseconds(function), mebibytes(function)
                record('flex', dtype=dtype, **{'pass': pass_}, compile_s=compiled, ms=ms, mib=mib)
