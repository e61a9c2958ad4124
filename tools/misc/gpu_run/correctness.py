"""The part edge: values and gradients beside float64. tests/ops/test_gpu.py has further cases."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from findings import DEVICE, GPU, SMALL, WORKERS, guarded, record, run_groups
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmattn import layers, ops
from mmattn.ops import library, operator_calls, testing

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


def _record_errors(fields: dict[str, Any], errors: dict[str, float]) -> None:
    worst = max(errors, key=errors.__getitem__)
    record('edge', **fields, ok=errors[worst] <= 1, worst=f'{worst}: {errors[worst]:.3f}')


def all_calls(operator: str) -> list[operator_calls.Call]:
    return [*operator_calls.all_calls(operator)][-1 if SMALL else 0 :]


def _calls(operator: str, dtype: torch.dtype) -> None:
    kernels = operator_calls.kernels_of(operator, torch.device(DEVICE))
    for implementation in ('composition', *(x for x in kernels if GPU or x != 'triton')):  # the part tune has it
        for call in all_calls(operator):
            fields = {'operator': operator, 'implementation': implementation, 'dtype': dtype, 'case': call.title}
            with guarded('edge', **fields):
                if (errors := testing.errors(call, dtype, implementation, DEVICE)) is not None:
                    _record_errors(fields, errors)
                else:
                    record('edge', **fields, ok=True, declined=True)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    'channels first': lambda x: x.movedim(-1, 2).contiguous().movedim(2, -1) if x.dim() > 3 else x,
    'sliced': lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
}


def _layouts(dtype: torch.dtype) -> None:
    for operator in library.KERNELS:
        for call in all_calls(operator):
            for layout, change in LAYOUTS.items():
                fields = {'operator': operator, 'case': call.title, 'dtype': dtype, 'layout': layout}
                with guarded('edge', **fields):
                    _record_errors(fields, testing.errors(call, dtype, 'composition', DEVICE, change))


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
            autocast = torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32)
            tensors = {'x': operator_calls.randn(*shape), **dict(layer.named_parameters())}

            def call(x: Tensor, layer: nn.Module = layer, **parameters: Tensor) -> Tensor:
                frames = {'frame_numbers': torch.arange(x.shape[1], device=x.device)[None]} if x.dim() == 5 else {}
                return torch.func.functional_call(layer, parameters, (x,), frames)

            layer.double()  # its buffers
            expected = testing.evaluate(call, tensors, torch.float64)
            layer.float().to(DEVICE)
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                on_device = operator_calls.each(tensors, lambda x: x.to(DEVICE, torch.float32))
                actual = testing.evaluate(autocast(call), on_device)
            errors = testing.differences(actual, expected)
            limit = 1e-3 if dtype == torch.float32 else 0.2
            wrong = {key: f'{error:.2e}' for key, error in errors.items() if not error <= limit}
            record('edge', layer=name, dtype=dtype, ok=not wrong, output=f'{errors["output"]:.2e}', wrong=wrong)


def bi_nl(
    batch: int, side: int, channels: int, window: int, dtype: torch.dtype
) -> tuple[Callable, operator_calls.Tensors]:
    """Make a call of Bi-NL's core on the device: a function of tensors, and the tensors."""

    def draw(*shape: int, **_: Any) -> Tensor:
        return torch.randn(*shape, device=DEVICE, dtype=dtype)

    options = dict(batch=batch, channels=channels, value_channels=channels, window_size=window, draw=draw)
    call = operator_calls.make('global_attention', (side, side), *operator_calls.WINDOW, **options)
    return partial(ops.global_attention, **call.settings), call.tensors


def _modes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    call, tensors = bi_nl(2, 17, 32, 7, dtype)
    both = partial(testing.evaluate, call, tensors)
    expected = both()

    def check(title: str, results: Callable[[], Any], wanted: Any = expected, exact: bool = False) -> None:
        with guarded('edge', mode=title, dtype=dtype):
            errors = testing.differences(results(), wanted)
            tolerance = 0 if exact else 1e-4 if dtype == torch.float32 else 3e-2
            record('edge', mode=title, dtype=dtype, ok=max(errors.values()) <= tolerance, errors=errors)

    def reentrant() -> dict[str, Tensor]:
        leaves = operator_calls.each(tensors, lambda x: x.detach().requires_grad_())
        out = checkpoint(lambda *x: call(**dict(zip(leaves, x))), *leaves.values(), use_reentrant=True)
        out.backward(testing.cotangent(out))
        return {'output': out.detach(), **{f'd_{name}': x.grad for name, x in leaves.items()}}

    def in_a_thread() -> dict[str, Tensor]:
        results: dict[str, Tensor] = {}
        thread = threading.Thread(target=lambda: results.update(both()))
        thread.start()
        thread.join(60)
        return results

    def deterministic() -> dict[str, Tensor]:
        torch.use_deterministic_algorithms(True)
        try:
            return both()
        finally:
            torch.use_deterministic_algorithms(False)

    def summed(weigh: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        return testing.evaluate(lambda **x: weigh(call(**x)).sum(), tensors)

    check('checkpoint, reentrant', reentrant)
    check('another thread', in_a_thread)
    with guarded('edge', mode='deterministic algorithms', dtype=dtype):
        check('deterministic algorithms, twice', deterministic, deterministic(), exact=True)
    with guarded('edge', mode='an expanded gradient', dtype=dtype):
        check('an expanded gradient', lambda: summed(lambda out: out), summed(lambda out: out * torch.ones_like(out)))
    with guarded('edge', mode='no samples', dtype=dtype):
        nothing = testing.evaluate(*bi_nl(0, 9, 16, 3, dtype))
        record('edge', mode='no samples', dtype=dtype, ok=nothing['output'].numel() == 0)
    with guarded('edge', mode='float64', dtype=dtype):
        double = testing.evaluate(*bi_nl(1, 9, 16, 3, torch.float64))
        record('edge', mode='float64', dtype=dtype, ok=all(x.isfinite().all().item() for x in double.values()))
