"""The parts layers, ops and flex: times and memory beside alternatives."""

import time
from contextlib import nullcontext
from functools import partial
from typing import Any

import layers as benchmark  # tools/benchmarks
import torch
from findings import DEVICE, GPU, SMALL, guarded, record, run_groups, times
from torch import Tensor, nn
from workloads import WORKLOADS, Call, Workload, bi_nl_calls

from mmattn import layers
from mmattn.ops import dispatch
from mmattn.utils import profiling

DTYPES = (torch.float32,) if SMALL else (torch.bfloat16, torch.float32)


def run_layers(seconds: float) -> None:
    """Layers beside stock layers: what the table selects, and compositions alone."""
    run_groups('layers', _layers, ['BA', 'Bi-NL', 'Bi-CC', 'SST'], seconds)


def compared_layers(comparison: str) -> tuple[list[tuple[str, nn.Module]], tuple[int, ...]]:
    """Build the layers of a comparison, the stock layer last. Also returns the shape of their input."""
    built, shape = benchmark.pairs(SMALL)[comparison]
    if comparison == 'Bi-NL':
        built.insert(1, ('Bi-NL, no positions', layers.BilateralNonLocal2d(shape[1], position='none')))
    elif comparison == 'Bi-CC':
        built.insert(1, ('Bi-CC, no positions', layers.BilateralCrissCrossAttention(shape[1], position='none')))
    return built, shape


def _layers(comparison: str) -> None:
    torch.manual_seed(0)
    built, shape = compared_layers(comparison)
    x = torch.randn(shape, device=DEVICE).requires_grad_()
    modes = {'amp bfloat16': torch.bfloat16}
    if GPU:
        modes |= {'amp float16': torch.float16, 'float32': None}
    stock = built[-1][0]
    for mode, dtype in modes.items():
        for title, layer in built:
            layer.to(DEVICE).train()

            def forward(layer: nn.Module = layer, dtype: torch.dtype | None = dtype) -> Tensor:
                with torch.autocast(DEVICE, dtype) if dtype else nullcontext():
                    return layer(x)

            passes = profiling.passes(forward, [x, *layer.parameters()])
            for backend in ['auto'] if title == stock else ['auto', 'composition']:
                fields = {'comparison': comparison, 'title': title, 'backend': backend, 'mode': mode}
                with guarded('layers', **fields), dispatch.backend(backend):
                    for pass_, call in passes.items():
                        record('layers', **fields, **{'pass': pass_}, **times(call))


WORK = {  # workload of tools/benchmarks/workloads.py: operator. The first are asked first
    'P1': 'global_attention',
    'P2': 'grid_attention',
    'P3': 'local_attention',
    'P6, positions': 'strided_attention',
    'P6, 8 heads': 'strided_attention',
    'P5, positions': 'grid_attention',
    'dynamic_conv, 3×3': 'dynamic_conv',
    'dynamic_conv, 13×13': 'dynamic_conv',
}


def build(name: str, dtype: torch.dtype) -> Workload:
    if SMALL and name == 'P1':  # Triton's interpreter is slow
        return Workload(name, *bi_nl_calls(5, 16, 3, dtype, DEVICE))
    return WORKLOADS[name](not SMALL, dtype, DEVICE)


def run_ops(seconds: float) -> None:
    """Compositions, kernels, and the alternatives of tools/benchmarks."""
    names = [*WORK][: 4 if SMALL else None]
    run_groups('ops', _ops, [(name, dtype) for dtype in DTYPES for name in names], seconds)


def _ops(group: tuple[str, torch.dtype]) -> None:
    name, dtype = group
    operator = WORK[name]
    with guarded('ops', workload=name, dtype=dtype):
        torch.manual_seed(0)
        work = build(name, dtype)
        titles = ['composition', *dispatch.kernels_of(operator, torch.device(DEVICE))]
        calls = {title: (title, work.ours) for title in titles}
        calls |= {peer: ('auto', call) for peer, call in work.peers.items() if peer != 'FlexAttention'}
        for title, (implementation, call) in calls.items():
            _time_call(operator, {'workload': name, 'dtype': dtype, 'title': title}, implementation, call)


def _time_call(operator: str, fields: dict[str, Any], implementation: str, call: Call) -> None:
    functions = call.functions()
    with guarded('ops', **fields):
        if dispatch.run_by(implementation, operator, functions[profiling.FORWARD], has_backward=False) is None:
            return
        with dispatch.backend(f'{operator}={implementation}'):
            for pass_, function in functions.items():
                record('ops', **fields, **{'pass': pass_}, **times(function))


def run_flex(seconds: float) -> None:
    """FlexAttention, compiled: Bi-NL's core. The bias outside is no operand, as all pairs would add to its gradient."""
    run_groups('flex', _flex, DTYPES, seconds)


def _flex(dtype: torch.dtype) -> None:
    call = bi_nl_calls(*((5, 16, 3) if SMALL else (97, 256, 31)), dtype, DEVICE)[1]['FlexAttention']
    *inputs, outside = call.inputs
    call.function, call.inputs = partial(call.function, outside=outside.detach()), inputs
    # A rehearsal generates no code.
    with torch.compiler.set_stance('force_eager') if SMALL else nullcontext():
        for pass_, measured in call.functions().items():
            with guarded('flex', dtype=dtype, **{'pass': pass_}):
                start = time.monotonic()
                measured()
                compiled = round(time.monotonic() - start, 1)
                record('flex', dtype=dtype, **{'pass': pass_}, compile_s=compiled, **times(measured))
