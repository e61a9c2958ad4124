"""Launches the kernels of ``local_attention``. ``../local_attention.py`` has the equations.

One launch computes the output, and two the gradients: of queries and window biases, then of keys and values. No kernel
uses atomics, and the order of every sum is fixed.
"""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ..local_attention import LocalArguments
from . import launch
from .blocks import MOST_CHANNELS, Gradient, describe, gradients_like, supports_tensors
from .launch import Config, width
from .local_attention_kernels import Call, local_forward, local_key_gradients, local_query_gradients

LEAST_COLUMNS = 32  # of a map in whose rows the lanes of a warp read adjacent positions


def run(kernel: Any, args: LocalArguments, *arguments: Any) -> None:
    """Run a kernel, whose programs own some positions of each map."""
    value = args.value
    batch, heads, height, columns, value_channels = value.shape
    down, across = args.kernel_size
    channels = value_channels if args.query is None else args.query.shape[-1]
    is_channels_first = value.stride(-2) == 1 and value.stride(-1) != 1  # as a convolution stores it
    in_rows = is_channels_first and columns >= LEAST_COLUMNS
    call = Call(
        describe(args.query),
        describe(args.key),
        describe(value),
        describe(args.window_bias),
        None if args.key_mask is None else args.key_mask.contiguous(),
        height,
        columns,
        down,
        across,
        args.dilation,
        heads,
        tl.constexpr(channels),
        tl.constexpr(value_channels),
        tl.constexpr(in_rows),
        float(args.scale),
    )

    def programs(config: Config) -> int:
        lines, length = (height, columns) if in_rows else (1, height * columns)
        return batch * heads * lines * -(-length // config.owned)

    with torch.cuda.device_of(value):  # no effect on CPUs
        launch.launch(kernel, programs, call, *arguments, D=width(channels), DV=width(value_channels))


def forward(*arguments: Any) -> Any:
    """Compute the outputs, or return NotImplemented if the kernels do not support the call."""
    args = LocalArguments(*arguments)
    if not supports(args):
        return NotImplemented
    out = torch.empty_like(args.value)
    lse = args.value.new_empty(args.value.shape[:-1], dtype=torch.float32)
    run(local_forward, args, describe(out), lse)
    return out, lse


def backward(grad: Tensor, grad_lse: Tensor | None, *arguments: Any) -> Any:
    """Compute the needed gradients, or return NotImplemented if the kernels do not support the call."""
    args = LocalArguments(*arguments[:-1])
    if not supports(args, grad):
        return NotImplemented
    differentiable = args.query, args.key, args.value, args.window_bias
    grads = gradients_like(differentiable, arguments[-1], torch.preserve_format)
    d_query, d_key, d_value, d_window = map(describe, grads)
    lse, along = (args.value.new_empty(args.value.shape[:-1], dtype=torch.float32) for _ in range(2))
    upstream = Gradient(describe(grad), lse, along)
    sums = None if grad_lse is None else grad_lse.contiguous()
    run(local_query_gradients, args, upstream, sums, d_query, d_window)
    if d_key is not None or d_value is not None:
        run(local_key_gradients, args, upstream, d_key, d_value)
    return [x for x in grads if x is not None]


def supports(args: LocalArguments, *more: Tensor) -> bool:
    """Check whether the kernels support a call. ``more`` are tensors that they read beside its operands."""
    query, value = args.query, args.value
    channels = max(x.shape[-1] for x in (query, value) if x is not None)
    farthest = max(value.shape[2:4].numel(), max(args.kernel_size) * args.dilation)
    is_small = channels <= MOST_CHANNELS and farthest < 2**30
    return args.iterations == 1 and is_small and supports_tensors((*args, *more), value)
