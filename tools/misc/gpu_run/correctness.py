"""The part edge: values and gradients beside float64. tests/ops/test_gpu.py has further cases."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from findings import DEVICE, GPU, SMALL, WORKERS, guarded, record, run_groups
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmattn import layers, ops
from mmattn.ops import dispatch, library
from mmattn.ops.gpu import cases, check_gpu
from mmattn.ops.gpu.cases import Case

DTYPES = (torch.float32,) if SMALL else (torch.bfloat16, torch.float32, torch.float16)


def run_edge(seconds: float) -> None:
    """Calls that are rare in a training: operators, layouts, layers under autocast, modes of PyTorch."""
    groups = [('calls', operator, dtype) for operator in library.KERNELS for dtype in DTYPES]
    groups += [(kind, '', dtype) for kind in ('layouts', 'layers', 'modes') for dtype in DTYPES]
    run_groups('edge', run_group, groups, seconds, WORKERS)


def run_group(group: tuple[str, str, torch.dtype]) -> None:
    kind, operator, dtype = group
    if kind == 'calls':
        _calls(operator, dtype)
    else:
        {'layouts': _layouts, 'layers': _layers, 'modes': _modes}[kind](dtype)


def each(function: Callable[[Tensor], Tensor], tensors: cases.Tensors) -> cases.Tensors:
    """Apply a function to all tensors of a call."""
    return {name: [*map(function, x)] if isinstance(x, list) else function(x) for name, x in tensors.items()}


def worst_error(
    operator: str, case: Case, dtype: torch.dtype, change: Callable[[Tensor], Tensor] = lambda x: x
) -> tuple[float, str]:
    """Find the largest error of a case on the device in units of its tolerance, and the name of its tensor.

    ``change`` changes the layout of the operands.
    """
    moved = each(lambda x: change(x.to(DEVICE, dtype)) if x.is_floating_point() else x.to(DEVICE), case.tensors)
    actual = check_gpu.evaluate(operator, Case('', moved, case.settings), dtype, dtype)
    errors = check_gpu.errors_in_tolerances(actual, *check_gpu.reference(operator, case, dtype))
    worst = max(errors, key=errors.__getitem__)
    return round(errors[worst], 3), worst


def rare_cases(operator: str) -> Iterator[Case]:
    """Yield calls that neither the tests nor check_gpu have."""
    draw = cases.Draw('cpu')
    if operator == 'global_attention':
        for side, channels, shift, title in ((16, 16, 0, 'a sample without keys'), (8, 64, -200, 'logits near -200')):
            tensors = draw.operands((2, 2), (side, side), (channels, channels))
            tensors |= {
                'window_bias': draw(2, 2, side, side, 9) + shift,
                'outside_bias': draw(2, 2, side, side) + shift,
            }
            if not shift:
                tensors['key_mask'] = torch.tensor([False, True])[:, None, None].expand(2, side, side).contiguous()
            yield Case(f'{title}, N = {side**2}', tensors, {'window_size': 3})
        tensors = draw.operands((1, 1), (7, 15), (16, 16)) | {'window_bias': draw(1, 1, 7, 15, 9)}
        yield Case('outside -inf, N = 105', tensors, {'window_size': 3, 'outside_bias': -torch.inf})
        for length in (127, 320):
            yield Case(f'causal, N = {length}', draw.operands((2, 2), (length,), (16, 16)), {'is_causal': True})
    elif operator == 'grid_attention':
        yield Case('a line of one position', draw.operands((1, 2), (1, 9), (16, 16)))
    elif operator == 'local_attention':
        settings = {'kernel_size': 5, 'dilation': 9}
        yield Case('dilation beyond the map', draw.operands((1, 2), (5, 4), (16, 16)), settings)


def all_cases(operator: str) -> list[Case]:
    return [*rare_cases(operator), *cases.cases(operator, 'cpu', True)][-1 if SMALL else 0 :]


def _calls(operator: str, dtype: torch.dtype) -> None:
    kernels = [x for x in check_gpu.kernels_of(operator, torch.device(DEVICE)) if GPU or x != 'triton']  # tune has it
    for implementation in ('composition', *kernels):
        for case in all_cases(operator):
            fields = {'operator': operator, 'implementation': implementation, 'dtype': dtype, 'case': case.title}
            with guarded('edge', **fields):
                try:
                    with dispatch.backend(f'{operator}={implementation}'), dispatch.kernels_run() as ran:
                        error, worst = worst_error(operator, case, dtype)
                except RuntimeError as refused:
                    if 'has no kernel for these tensors' not in str(refused):
                        raise
                    continue
                if implementation != 'composition' and operator not in ran:
                    continue  # a Triton kernel does not support the call
                record('edge', **fields, ok=error <= 1, worst=f'{worst}: {error}')


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    'channels first': lambda x: x.movedim(-1, 2).contiguous().movedim(2, -1),
    'sliced': lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
}


def _layouts(dtype: torch.dtype) -> None:
    for operator in library.KERNELS:
        for case in all_cases(operator):
            fields = {'operator': operator, 'case': case.title, 'dtype': dtype}
            for layout, change in LAYOUTS.items():
                with guarded('edge', **fields, layout=layout), dispatch.backend('composition'):
                    error, worst = worst_error(operator, case, dtype, change)
                    record('edge', **fields, layout=layout, ok=error <= 1, worst=f'{worst}: {error}')


def _layers(dtype: torch.dtype) -> None:
    """Layers on the GPU, in 16 bit under autocast, beside themselves in float64 on the CPU."""
    torch.manual_seed(0)
    built: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
        'Bi-NL': (layers.BilateralNonLocal2d(32, window_size=7), (2, 32, 13, 12)),
        'Bi-CC': (layers.BilateralCrissCrossAttention(32, window_size=7), (2, 32, 13, 12)),
        'BA': (layers.LocalBilateralAttention(32), (2, 32, 13, 12)),
        'BA, T = 3': (layers.LocalBilateralAttention(32, share=True, iterations=3), (2, 32, 13, 12)),
        'TransformerAttention2d 1111': (layers.TransformerAttention2d(32, 4, '1111'), (2, 32, 9, 8)),
        'GridAttention3d': (layers.GridAttention3d(32), (1, 3, 6, 7, 32)),
        'StridedAttention3d': (layers.StridedAttention3d(32), (1, 3, 6, 7, 32)),
    }
    for name, (layer, shape) in built.items():
        with guarded('edge', layer=name, dtype=dtype):
            for parameter in layer.parameters():
                if parameter.numel() == 1:
                    nn.init.ones_(parameter)  # the initial 0 would make the layer the identity
            x = torch.randn(shape, dtype=torch.float64)
            expected = _results(layer.double(), x, nullcontext())
            autocast = nullcontext() if dtype == torch.float32 else torch.autocast(DEVICE, dtype)
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                actual = _results(layer.float().to(DEVICE), x.float().to(DEVICE), autocast)
            least = 1e-2 * max(y.norm().item() for y in expected.values())  # some gradients vanish but for rounding
            errors = {
                key: ((actual[key].double().cpu() - y).norm() / y.norm().clamp(min=least)).item()
                for key, y in expected.items()
            }
            limit = 1e-3 if dtype == torch.float32 else 0.2
            wrong = {key: f'{error:.2e}' for key, error in errors.items() if not error <= limit}
            record('edge', layer=name, dtype=dtype, ok=not wrong, output=f'{errors["output"]:.2e}', wrong=wrong)


def _results(layer: nn.Module, x: Tensor, autocast: Any) -> dict[str, Tensor]:
    x = x.detach().clone().requires_grad_()
    frames = {'frame_numbers': torch.arange(x.shape[1], device=x.device)[None]} if x.dim() == 5 else {}
    with autocast:
        out = layer(x, **frames)
    names, parameters = zip(*layer.named_parameters())
    grads = torch.autograd.grad(out.double().sin().sum(), [x, *parameters], allow_unused=True)
    return {name: y.detach() for name, y in zip(('output', 'x', *names), (out, *grads)) if y is not None}


def bi_nl(
    batch: int, side: int, channels: int, window: int, dtype: torch.dtype
) -> tuple[Callable[..., Tensor], list[Tensor]]:
    shapes = ((channels,), (channels,), (channels,), (window**2,), ())
    tensors = [torch.randn(batch, 1, side, side, *x, device=DEVICE, dtype=dtype, requires_grad=True) for x in shapes]

    def call(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, outside: Tensor) -> Tensor:
        return ops.global_attention(query, key, value, window_bias=bias, window_size=window, outside_bias=outside)

    return call, tensors


def _both(call: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    out = call(*tensors)
    return [out.detach(), *torch.autograd.grad(out.float().sin().sum(), tensors)]


def _modes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    call, tensors = bi_nl(2, 17, 32, 7, dtype)
    expected = _both(call, tensors)

    def check(title: str, results: Callable[[], list[Tensor]], wanted: Any = expected, exact: bool = False) -> None:
        with guarded('edge', mode=title, dtype=dtype):
            actual = results()
            tolerance = 0 if exact else 1e-4 if dtype == torch.float32 else 3e-2
            pairs = list(itertools.zip_longest(actual, wanted))
            errors = [((x.double() - y.double()).abs().max() / y.double().abs().max()).item() for x, y in pairs]
            record('edge', mode=title, dtype=dtype, ok=all(error <= tolerance for error in errors), errors=errors)

    def reentrant() -> list[Tensor]:
        out = checkpoint(call, *tensors, use_reentrant=True)
        out.float().sin().sum().backward()
        return [out.detach(), *(x.grad for x in tensors)]

    def in_a_thread() -> list[Tensor]:
        results: list[Tensor] = []
        thread = threading.Thread(target=lambda: results.extend(_both(call, tensors)))
        thread.start()
        thread.join(60)
        return results

    def deterministic() -> list[Tensor]:
        torch.use_deterministic_algorithms(True)
        try:
            return _both(call, tensors)
        finally:
            torch.use_deterministic_algorithms(False)

    def expanded(gradient: Callable[[Tensor], Tensor]) -> list[Tensor]:
        out = call(*tensors)
        return list(torch.autograd.grad(out, tensors, gradient(out)))

    check('checkpoint, reentrant', reentrant)
    check('another thread', in_a_thread)
    with guarded('edge', mode='deterministic algorithms', dtype=dtype):
        check('deterministic algorithms, twice', deterministic, deterministic(), exact=True)
        ones = expanded(torch.ones_like)
        check('an expanded gradient', lambda: expanded(lambda out: out.new_ones(()).expand_as(out)), ones)
    with guarded('edge', mode='no samples', dtype=dtype):
        nothing = _both(*bi_nl(0, 9, 16, 3, dtype))
        record('edge', mode='no samples', dtype=dtype, ok=nothing[0].numel() == 0)
    with guarded('edge', mode='float64', dtype=dtype):
        double = _both(*bi_nl(1, 9, 16, 3, torch.float64))
        record('edge', mode='float64', dtype=dtype, ok=all(x.isfinite().all().item() for x in double))
