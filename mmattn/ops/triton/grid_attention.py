"""Launches the kernels of ``grid_attention``: one call for each arm, the last axis first."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..grid_attention import OPERATOR
from . import blocks, tiles
from .blocks import Table, gradients_like, prepare_gradient, table
from .tiles import AXES, MOST_POSITIONS, Tiles, pad_axes, vectors
from .tiles_logits import Call, Division

LAST = AXES - 1


def build_calls(args: Any) -> list[Tiles]:
    """Describe one call for each arm."""
    query, key, value = (vectors(x) for x in (args.query, args.key, args.value))
    outside = table(None if args.outside_bias is None else args.outside_bias.unsqueeze(-1))
    size, window_size = sizes(args)
    calls = []
    for axis, tables in zip(list_axes(args), split_tables(args, args.window_bias)):
        reach = window_size[axis] // 2
        line = Division(
            size,
            stride=on_axis(axis, 0, 1),
            dilation=(1,) * AXES,
            length=on_axis(axis, size[axis], 1),
            before=(0,) * AXES,
            group_size=size[axis],
            positions=math.prod(size),
        )
        call = Call(
            query,
            key,
            value,
            tables,
            unit=(1,) * AXES,
            centre=(reach,) * AXES,
            most=reach,
            outside=outside,
            outside_value=float(args.outside_value),
            reach=None,
            groups=tuple(1 if other == axis else side for other, side in enumerate(size)),
            queries=line,
            keys=line,
            heads=args.query.shape[1],
            scale=float(args.scale),
        )
        calls.append(Tiles(call, skip_self=axis != LAST))
    return calls


def sizes(args: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Pad the sides of the map and of the windows: missing axes come first, with length 1."""
    windows = () if args.window_bias is None else args.window_size
    return pad_axes(args.query.shape[2:-1], 1), pad_axes(windows, 1)


def list_axes(args: Any) -> list[int]:
    """List the axes of the arms. An axis with one position has no arm, because only the last arm has the self key."""
    size, _ = sizes(args)
    return [axis for axis in reversed(range(AXES)) if axis == LAST or size[axis] > 1]


def on_axis(axis: int, here: int, elsewhere: int) -> tuple[int, ...]:
    """Build one number per axis: ``here`` on ``axis``, ``elsewhere`` on the other axes."""
    return tuple(here if other == axis else elsewhere for other in range(AXES))


def split_tables(args: Any, window: Tensor | None) -> list[tuple[Table | None, ...]]:
    """Split the window biases, or their gradients, into one table for each arm."""
    _, window_size = sizes(args)
    entries = [length - (axis != LAST) for axis, length in enumerate(window_size)]
    tables: list[tuple[Table | None, ...]] = []
    for axis in list_axes(args):
        first = sum(entries[axis + 1 :])
        part = None if window is None else table(window[..., first : first + entries[axis]])
        tables.append(tuple(part if other == axis else None for other in range(AXES)))
    return tables


def forward(*arguments: Any) -> Any:
    """Compute the outputs, or return NotImplemented if the kernels do not support the call."""
    args = OPERATOR.Arguments(*arguments)
    return tiles.forward(build_calls(args), *OPERATOR.fake(*arguments)) if supports(args) else NotImplemented


def backward(grad: Tensor, out: Tensor, lse: Tensor, *arguments: Any) -> Any:
    """Compute the needed gradients, or return NotImplemented if the kernels do not support the call."""
    args = OPERATOR.Arguments(*arguments[:-1])
    if not supports(args):
        return NotImplemented
    calls, upstream = build_calls(args), prepare_gradient(grad, out, lse)
    grads = gradients_like(args[:5], arguments[-1])
    d_query, d_key, d_value, d_window, d_outside = grads
    if d_window is not None:
        d_window.zero_()  # entries without a key are not written
    tiles.backward(calls, 'query', upstream, d_query, d_outside, split_tables(args, d_window))
    tiles.backward(calls, 'key', upstream, d_key)
    tiles.backward(calls, 'value', upstream, d_value)
    return [x for x in grads if x is not None]


def supports(args: Any) -> bool:
    """Check whether the kernels support a call: the lines of the map must have fewer than 2²⁰ positions."""
    return max(args.query.shape[2:-1]) < MOST_POSITIONS and blocks.supports(args)
