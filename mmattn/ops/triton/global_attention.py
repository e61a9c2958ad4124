"""Launches the kernels of ``global_attention``. ``../global_attention.py`` has the equations.

No kernel uses atomics, and the order of every sum is fixed. The keys in the windows of consecutive queries are a strip
of consecutive keys, because all axes but the first are complete in it. Only the tiles of this strip load window biases.
All other keys of a query have one bias.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ..global_attention import GlobalArguments, has_biases
from ..layouts import empty_with_layout
from . import launch
from .blocks import AXES, MOST_CHANNELS, gradients_like, prepare_gradient, rows, supports_tensors, table
from .global_attention_kernels import axis_gradients, forward_kernel, key_gradients, query_gradients
from .global_attention_logits import Call
from .launch import Config, width

FEWEST_PAIRS = 2**22  # batch · heads · N · M: found when a launch took a millisecond of the CPU, as a composition


class Operands:
    """The operands of one call, with positions flattened, and the constants of its kernels."""

    def __init__(self, args: GlobalArguments) -> None:
        query, key, value, window = args.query, args.key, args.value, args.window_bias
        axes = query.dim() - 3
        missing = [1] * (AXES - axes)
        size, key_size = query.shape[2:-1], key.shape[2:-1]
        aligned = window is not None or args.is_causal
        reach = [k // 2 for k in args.window_size] if window is not None else [0] * axes
        self.call = Call(
            rows(query),
            rows(key),
            rows(value),
            table(window),
            table(None if args.outside_bias is None else args.outside_bias.unsqueeze(-1)),
            tuple(table(x) for x in [*args.axis_bias, *[None] * AXES][:AXES]),
            None if args.key_bias is None else args.key_bias.contiguous(),
            None if args.key_mask is None else args.key_mask.contiguous(),
            (*size, *missing),
            (*key_size, *missing),
            tuple(k - q if aligned else 0 for q, k in zip([*size, *missing], [*key_size, *missing])),
            (*reach, *(0 for _ in missing)),
            0 if window is None else window.shape[-1],
            query.shape[1],
            size.numel(),
            key_size.numel(),
            tl.constexpr(query.shape[-1]),
            tl.constexpr(value.shape[-1]),
            float(args.outside_value),
            float(args.scale),
        )
        self.maps = query.shape[0] * query.shape[1]
        self.constants = {
            'D': width(query.shape[-1]),
            'DV': width(value.shape[-1]),
            'CAUSAL': args.is_causal,
            'DIMS': 0 if window is None else axes,
        }

    def launch(self, kernel: Any, *arguments: Any, owned: int, parts: int = 0) -> None:
        """Run a kernel whose programs own ``owned`` rows of each map. If ``parts`` > 0, programs share a tile."""

        def programs(config: Config) -> int:
            shares = -(-parts // config.stream) if parts else 1
            return self.maps * -(-owned // config.owned) * shares

        with torch.cuda.device_of(self.call.query):  # no effect on CPUs
            launch.launch(kernel, programs, self.call, *arguments, **self.constants)


def forward(*arguments: Any) -> Any:
    """Compute the outputs, or return NotImplemented if the kernels do not support the call."""
    args = GlobalArguments(*arguments)
    if not supports(args):
        return NotImplemented
    operands = Operands(args)
    query, value = args.query, args.value
    out = empty_with_layout(value, (*query.shape[:-1], value.shape[-1]))
    rows_out = torch.empty_like(out, memory_format=torch.contiguous_format)
    lse = query.new_empty(query.shape[:-1], dtype=torch.float32)
    operands.launch(forward_kernel, rows_out, lse, owned=operands.call.queries)
    return (rows_out if out.is_contiguous() else out.copy_(rows_out)), lse


def backward(grad: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, *arguments: Any) -> Any:
    """Compute the needed gradients, or return NotImplemented if the kernels do not support the call."""
    args = GlobalArguments(*arguments[:-1])
    if not supports(args):
        return NotImplemented
    operands = Operands(args)
    call = operands.call
    upstream = prepare_gradient(grad, grad_lse, out, lse)
    differentiable = [*args[:5], *args.axis_bias, args.key_bias]
    grads = gradients_like(differentiable, arguments[-1])
    d_query, d_key, d_value, d_window, d_outside, *d_axes, d_bias = grads
    if d_window is not None:
        d_window.zero_()  # entries without a key are not written
    if any(x is not None for x in (d_query, d_window, d_outside)):
        operands.launch(query_gradients, upstream, d_query, d_window, d_outside, owned=call.queries)
    if d_outside is not None and grad_lse is not None:
        d_outside += grad_lse.masked_fill(lse == -math.inf, 0)
    if any(x is not None for x in (d_key, d_value, d_bias)):
        operands.launch(key_gradients, upstream, d_key, d_value, d_bias, owned=call.keys)
    for axis, d_axis in enumerate(d_axes):
        if d_axis is not None:
            length, inner = call.key_size[axis], math.prod(call.key_size[axis + 1 :])
            operands.launch(axis_gradients, upstream, d_axis, length, inner, owned=call.queries, parts=length)
    return [x for x in grads if x is not None]


def supports(args: GlobalArguments) -> bool:
    """Check whether the kernels support a call."""
    return max(args.query.shape[-1], args.value.shape[-1]) <= MOST_CHANNELS and supports_tensors(args, args.query)


def is_worthwhile(arguments: tuple) -> bool:
    """Check whether the kernels are faster than PyTorch: with biases, as it has flash attention, and for many pairs."""
    args = GlobalArguments(*arguments)
    return has_biases(args) and args.query.shape[:-1].numel() * args.key.shape[2:-1].numel() >= FEWEST_PAIRS
