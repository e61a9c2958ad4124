"""The calls of ``global_attention``; ``../global_attention.py`` has the equations.

A program owns the rows that it writes, and loops over tiles of the others. No kernel uses atomics, and the order of
every sum is fixed.

The keys in the windows of consecutive queries are a strip of consecutive keys, because all axes but the first are
complete in it. Therefore only the tiles of this strip load window biases; all others have one bias per query.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from ..global_attention import OPERATOR
from ..operator import empty_laid_out_as
from . import blocks, launch
from .blocks import gradients_like, rows, sums_of, table
from .global_attention_backward import axis_gradients, key_gradients, query_gradients
from .global_attention_forward import forward_kernel
from .global_attention_logits import Call
from .launch import precision, width

AXES = 3
MOST_CHANNELS = 256


class Operands:
    """The operands of one call, with positions flattened, and how its kernels are compiled."""

    def __init__(self, given: Any) -> None:
        query, key, value, window = given.query, given.key, given.value, given.window_bias
        axes = query.dim() - 3
        missing = [1] * (AXES - axes)
        size, key_size = query.shape[2:-1], key.shape[2:-1]
        aligned = window is not None or given.is_causal
        reach = [k // 2 for k in given.window_size] if window is not None else [0] * axes
        self.call = Call(
            rows(query),
            rows(key),
            rows(value),
            table(window),
            table(None if given.outside_bias is None else given.outside_bias.unsqueeze(-1)),
            tuple(table(x) for x in [*given.axis_bias, *[None] * AXES][:AXES]),
            None if given.key_bias is None else given.key_bias.contiguous(),
            None if given.key_mask is None else given.key_mask.contiguous(),
            (*size, *missing),
            (*key_size, *missing),
            tuple(k - q if aligned else 0 for q, k in zip([*size, *missing], [*key_size, *missing])),
            (*reach, *(0 for _ in missing)),
            0 if window is None else window.shape[-1],
            query.shape[1],
            size.numel(),
            key_size.numel(),
            query.shape[-1],
            value.shape[-1],
            float(given.outside_value),
            float(given.scale),
        )
        self.maps = query.shape[0] * query.shape[1]
        self.constants = {
            'D': width(query.shape[-1]),
            'DV': width(value.shape[-1]),
            'CAUSAL': given.is_causal,
            'DIMS': 0 if window is None else axes,
            'PRECISION': precision(query.dtype),
        }

    def launch(self, kernel: Any, *arguments: Any, owned: int, parts: int = 0) -> None:
        """Run a kernel whose programs own ``owned`` rows of each map, and share each tile of rows if ``parts`` > 0."""

        def programs(config: dict) -> int:
            each = triton.cdiv(parts, config['STREAM']) if parts else 1
            return self.maps * triton.cdiv(owned, config['OWN']) * each

        with torch.cuda.device_of(self.call.query):  # no effect on CPUs
            launch.launch(kernel, programs, self.call, *arguments, **self.constants)


def forward(*arguments: Any) -> Any:
    """Compute the outputs of the operator; return NotImplemented if the kernels do not support the call."""
    given = OPERATOR.Arguments(*arguments)
    if not supports(given):
        return NotImplemented
    operands = Operands(given)
    query, value = given.query, given.value
    out = empty_laid_out_as(value, (*query.shape[:-1], value.shape[-1]))
    found = torch.empty_like(out, memory_format=torch.contiguous_format)
    lse = query.new_empty(query.shape[:-1], dtype=torch.float32)
    operands.launch(forward_kernel, found, lse, owned=operands.call.queries)
    return (found if out.is_contiguous() else out.copy_(found)), lse


def backward(grad: Tensor, out: Tensor, lse: Tensor, *arguments: Any) -> Any:
    """Compute the needed gradients; return NotImplemented if the kernels do not support the call."""
    given = OPERATOR.Arguments(*arguments[:-1])
    if not supports(given):
        return NotImplemented
    operands = Operands(given)
    call = operands.call
    grad_of = sums_of(grad, out, lse)

    differentiable = [*given[:5], *given.axis_bias, given.key_bias]
    d_query, d_key, d_value, d_window, d_outside, *d_axes, d_bias = found = gradients_like(
        differentiable, arguments[-1]
    )
    if d_window is not None:
        d_window.zero_()  # entries without a key are not written
    if any(x is not None for x in (d_query, d_window, d_outside)):
        operands.launch(query_gradients, grad_of, d_query, d_window, d_outside, owned=call.queries)
    if any(x is not None for x in (d_key, d_value, d_bias)):
        operands.launch(key_gradients, grad_of, d_key, d_value, d_bias, owned=call.keys)
    for axis, d_axis in enumerate(d_axes):
        if d_axis is not None:
            length, inner = call.key_size[axis], math.prod(call.key_size[axis + 1 :])
            operands.launch(axis_gradients, grad_of, d_axis, length, inner, owned=call.queries, parts=length)
    return [x for x in found if x is not None]


def supports(given: Any) -> bool:
    """Return whether the kernels support a call. The sums of more than 256 channels do not fit into registers."""
    return max(given.query.shape[-1], given.value.shape[-1]) <= MOST_CHANNELS and blocks.supports(given)
