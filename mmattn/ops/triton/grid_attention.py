"""Launches the kernels of ``grid_attention``. ``../grid_attention.py`` has the equations.

A launch adds one arm to the sums of the arms before, which are in float32. The arm of the last axis, which has the key
of the query itself, comes last, so the output is written in lines. For two axes, two launches compute the output, and
three the gradients; maps with channels first are copied before. No kernel uses atomics, and the order of every sum is
fixed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ..grid_attention import OPERATOR, GridArguments, lines_along
from . import launch
from .blocks import AXES, MOST_CHANNELS, Gradient, describe, gradients_like, supports_tensors
from .grid_attention_kernels import Call, grid_along, grid_forward, grid_gradients
from .launch import Config, width

LAST = AXES - 1
CHUNK = 128  # channels of values that a program sums


def with_rows(x: Tensor) -> Tensor:
    """Return a map with the channels of a position together in memory: columns would read a sector for a number."""
    return x if x.stride(-1) == 1 else x.contiguous()


def on_axis(x: Tensor | None, axis: int) -> Any:
    """Describe a map ``(batch, heads, *S, channels)`` with three axes, the last one that of an arm."""
    return None if x is None else describe(lines_along(x if x.dim() == AXES + 3 else x.unsqueeze(2), axis))


class Operands:
    """The operands of one call, and the launches of its arms. Missing axes come first, with length 1."""

    def __init__(self, args: GridArguments) -> None:
        self.args, self.maps = args, [with_rows(x) for x in args[:3]]
        self.outside = None if args.outside_bias is None else args.outside_bias.unsqueeze(-1)
        self.size, self.window_size = ((*[1] * (AXES - len(x)), *x) for x in (args.query.shape[2:-1], args.window_size))
        # An axis with one position has no arm, because the last one has the key of the query.
        self.axes = [axis for axis in range(AXES) if axis == LAST or self.size[axis] > 1]
        self.chunk = min(width(args.value.shape[-1]), CHUNK)
        self.chunks = -(-args.value.shape[-1] // self.chunk)

    def window_entries(self, window: Tensor | None, axis: int) -> Any:
        """Describe the window biases of an arm, or their gradients. The last axis comes first, with the centre."""
        entries = [length - (other != LAST) for other, length in enumerate(self.window_size)]
        first = sum(entries[axis + 1 :])
        return None if window is None else on_axis(window[..., first : first + entries[axis]], axis)

    def launch(self, kernel: Any, axis: int, *arguments: Any, parts: int = 1, **constants: Any) -> None:
        """Run a kernel, whose programs own some positions of each line of an axis, and one of ``parts``."""
        batch, heads, *_, channels = self.args.query.shape
        positions, length = math.prod(self.size), self.size[axis]
        query, key, value = (on_axis(x, axis) for x in self.maps)
        flat = [self.size[1] * self.size[2], self.size[2], 1]
        call = Call(
            query,
            key,
            value,
            self.window_entries(self.args.window_bias, axis),
            on_axis(self.outside, axis),
            (*self.size[:axis], *self.size[axis + 1 :]),
            length,
            (*flat[:axis], *flat[axis + 1 :], flat[axis]),
            positions,
            self.window_size[axis] // 2,
            heads,
            tl.constexpr(channels),
            tl.constexpr(self.args.value.shape[-1]),
            float(self.args.outside_value),
            float(self.args.scale),
        )

        def programs(config: Config) -> int:
            return batch * heads * (positions // length) * -(-length // config.owned) * parts

        constants = dict(D=width(channels), DV=self.chunk, CHUNKS=self.chunks, SELF=axis == LAST, **constants)
        with torch.cuda.device_of(self.args.query):  # no effect on CPUs
            launch.launch(kernel, programs, call, *arguments, **constants)

    def sums(self, *results: Tensor | None) -> Iterator[tuple[int, tuple, tuple]]:
        """Yield each axis, and where its launch finds the sums of the arms before, and stores its own.

        The last arm stores ``results``.
        """
        before: tuple = (None,) * len(results)
        for axis in self.axes:
            after = results
            if axis != LAST:
                after = tuple(
                    x if x is None else torch.empty_like(x, dtype=torch.float32, memory_format=torch.contiguous_format)
                    for x in results
                )
            yield axis, before, after
            before = after


def forward(*arguments: Any) -> Any:
    """Compute the outputs, or return NotImplemented if the kernels do not support the call."""
    args = GridArguments(*arguments)
    if not supports(args):
        return NotImplemented
    operands = Operands(args)
    out, lse = OPERATOR.fake(*args)
    for axis, before, after in operands.sums(out, lse):
        maps = [on_axis(x, axis) for x in (before[0], after[0])]
        operands.launch(grid_forward, axis, maps[0], before[1], maps[1], after[1], parts=operands.chunks)
    return out, lse


def backward(grad: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, *arguments: Any) -> Any:
    """Compute the needed gradients, or return NotImplemented if the kernels do not support the call."""
    args = GridArguments(*arguments[:-1])
    if not supports(args, grad):
        return NotImplemented
    operands = Operands(args)
    grads = gradients_like(args[:5], arguments[-1])
    d_query, d_key, d_value, d_window, d_outside = grads
    if d_window is not None:
        d_window.zero_()  # entries without a key are not written
    of_queries = any(x is not None for x in (d_query, d_window, d_outside))
    parts = of_queries + (d_key is not None) + (d_value is not None) * operands.chunks
    grad, lse, along = with_rows(grad), lse.contiguous(), torch.empty_like(lse)
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    if of_queries or d_key is not None:
        upstream = Gradient(on_axis(grad, LAST), lse, along)
        operands.launch(grid_along, LAST, upstream, on_axis(out, LAST), grad_lse)
    for axis, before, after in operands.sums(d_query, d_key, d_value, d_outside):
        operands.launch(
            grid_gradients,
            axis,
            Gradient(on_axis(grad, axis), lse, along),
            *(tuple(on_axis(x, axis) for x in sums[:3]) for sums in (before, after)),
            operands.window_entries(d_window, axis),
            before[3],
            after[3],
            grad_lse,
            parts=parts,
            QUERIES=of_queries,
            KEYS=d_key is not None,
            VALUES=d_value is not None,
        )
    return [x for x in grads if x is not None]


def supports(args: GridArguments, *more: Tensor) -> bool:
    """Check whether the kernels support a call. ``more`` are tensors that they read beside its operands."""
    return args.query.shape[-1] <= MOST_CHANNELS and supports_tensors((*args, *more), args.query)
