"""The calls of ``grid_attention``: one for each arm, the last axis first; ``tiles.py`` runs the kernels."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..grid_attention import OPERATOR
from . import blocks, tiles
from .blocks import Table, gradients_like, sums_of, table
from .tiles import AXES, MOST_POSITIONS, Tiles, of_all_axes, vectors
from .tiles_logits import Call, Division

LAST = AXES - 1


def arms(given: Any) -> list[Tiles]:
    """Return the calls of the arms."""
    query, key, value = (vectors(x) for x in (given.query, given.key, given.value))
    outside = table(None if given.outside_bias is None else given.outside_bias.unsqueeze(-1))
    size, window_size = sizes(given)
    found = []
    for axis, tables in zip(axes_of(given), tables_of(given, given.window_bias)):
        reach = window_size[axis] // 2
        line = Division(
            size,
            stride=along(axis, 0, 1),
            dilation=(1,) * AXES,
            length=along(axis, size[axis], 1),
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
            outside_value=float(given.outside_value),
            reach=None,
            groups=tuple(1 if other == axis else side for other, side in enumerate(size)),
            queries=line,
            keys=line,
            heads=given.query.shape[1],
            scale=float(given.scale),
        )
        found.append(Tiles(call, others=axis != LAST))
    return found


def sizes(given: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lengths of the map and of the windows; missing axes come first, with length 1."""
    windows = () if given.window_bias is None else given.window_size
    return of_all_axes(given.query.shape[2:-1], 1), of_all_axes(windows, 1)


def axes_of(given: Any) -> list[int]:
    """Return the axes of the arms. An axis with one position has no arm, because only the last arm has the self key."""
    size, _ = sizes(given)
    return [axis for axis in reversed(range(AXES)) if axis == LAST or size[axis] > 1]


def along(axis: int, here: int, elsewhere: int) -> tuple[int, ...]:
    """Return one number per axis."""
    return tuple(here if other == axis else elsewhere for other in range(AXES))


def tables_of(given: Any, window: Tensor | None) -> list[tuple[Table | None, ...]]:
    """Return the tables of each arm: parts of the window biases, or of their gradients."""
    _, window_size = sizes(given)
    entries = [length - (axis != LAST) for axis, length in enumerate(window_size)]
    found = []
    for axis in axes_of(given):
        first = sum(entries[axis + 1 :])
        part = None if window is None else table(window[..., first : first + entries[axis]])
        found.append(tuple(part if other == axis else None for other in range(AXES)))
    return found


def forward(*arguments: Any) -> Any:
    """Compute the outputs of the operator; return NotImplemented if the kernels do not support the call."""
    given = OPERATOR.Arguments(*arguments)
    return tiles.forward(arms(given), *OPERATOR.fake(*arguments)) if supports(given) else NotImplemented


def backward(grad: Tensor, out: Tensor, lse: Tensor, *arguments: Any) -> Any:
    """Compute the needed gradients; return NotImplemented if the kernels do not support the call."""
    given = OPERATOR.Arguments(*arguments[:-1])
    if not supports(given):
        return NotImplemented
    calls, grad_of = arms(given), sums_of(grad, out, lse)
    d_query, d_key, d_value, d_window, d_outside = found = gradients_like(given[:5], arguments[-1])
    if d_window is not None:
        d_window.zero_()  # entries without a key are not written
    tiles.backward(calls, 'query', grad_of, d_query, d_outside, tables_of(given, d_window))
    tiles.backward(calls, 'key', grad_of, d_key)
    tiles.backward(calls, 'value', grad_of, d_value)
    return [x for x in found if x is not None]


def supports(given: Any) -> bool:
    """Return whether the kernels support a call; the lines of its map must have fewer than 2²⁰ positions."""
    return max(given.query.shape[2:-1]) < MOST_POSITIONS and blocks.supports(given)
