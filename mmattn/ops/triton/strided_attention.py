"""Launches the kernels of ``strided_attention``. ``../strided_attention.py`` has the equations.

One launch computes the output, and two the gradients: of queries and position biases, then of keys and values. No
kernel uses atomics, and the order of every sum is fixed.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from ..layouts import empty_outputs
from ..patterns import as_step
from ..strided_attention import Axis, StridedArguments, cut
from . import launch
from .blocks import AXES, MOST_CHANNELS, Gradient, describe, gradients_like, supports_tensors
from .launch import Config, width
from .strided_attention_kernels import (
    Call,
    Groups,
    Side,
    strided_forward,
    strided_key_gradients,
    strided_query_gradients,
)

MOST_POSITIONS = 2**20  # of a group: see strided_attention_kernels.divide
MOST_COORDINATES = 32  # of keys on an axis for which a program computes the gradients of biases


class Division(NamedTuple):
    """Groups whose rows, queries or keys, are owned by programs."""

    groups: tuple[Groups, ...]
    queries: tuple[Side, ...]
    keys: tuple[Side, ...]
    rows: int  # of a group


@functools.lru_cache(maxsize=512)
def divide(sides: tuple[torch.Size, torch.Size], step: tuple[int, ...], pattern: str, of_keys: bool) -> Division:
    """Divide maps with ``sides`` (of queries, of keys) into groups, whose rows are keys with ``of_keys``."""
    is_forward = pattern == 'forward'
    if of_keys:
        sides, pattern = sides[::-1], 'backward' if is_forward else pattern
    axes = [(Axis(1, 1, 1, 1, 1),) * 2] * (AXES - len(step))
    axes += [cut(*lengths, pattern) for lengths in zip(*sides, step)]
    groups = []
    for row, column in axes:
        most = max(row.length, column.length) - 1  # the step, or its multiples in the map
        groups.append(Groups(row.groups, row.stride, row.dilation, 0 if is_forward else -most, most))
    rows, columns = (tuple(map(describe_side, side)) for side in zip(*axes))
    queries, keys = (columns, rows) if of_keys else (rows, columns)
    return Division(tuple(groups), queries, keys, math.prod(x.length for x in rows))


def describe_side(axis: Axis) -> Side:
    """Describe the positions of queries, or of keys, in the groups of an axis."""
    length = axis.length * axis.pieces
    return Side(axis.size, length, axis.before, 1 / length)


def on_axes(biases: list) -> tuple:
    """Fill in missing axes, or all."""
    return (*[None] * (AXES - len(biases)), *biases)


def run(kernel: Any, args: StridedArguments, division: Division, *arguments: Any, parts: int = 1, **more: Any) -> None:
    """Run a kernel, whose programs own some rows of each group. ``parts`` programs share a tile."""
    query, key, value = args[:3]
    call = Call(
        describe(query),
        describe(key),
        describe(value),
        on_axes([*map(describe, args.offset_bias)]),
        *division[:3],
        query.shape[1],
        tl.constexpr(query.shape[-1]),
        tl.constexpr(value.shape[-1]),
        tl.constexpr(args.pattern in ('centred', 'forward')),
        float(args.scale),
    )
    groups = query.shape[:2].numel() * math.prod(x.groups for x in division.groups)

    def programs(config: Config) -> int:
        return groups * parts * -(-division.rows // config.owned)

    with torch.cuda.device_of(value):  # no effect on CPUs
        launch.launch(kernel, programs, call, *arguments, D=width(query.shape[-1]), DV=width(value.shape[-1]), **more)


def forward(*arguments: Any) -> Any:
    """Compute the outputs, or return NotImplemented if the kernels do not support the call."""
    args = StridedArguments(*arguments)
    if not supports(args):
        return NotImplemented
    out, lse = empty_outputs(args.query, args.value)
    run(strided_forward, args, divide(*layout(args), False), describe(out), lse)
    return out, lse


def backward(grad: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, *arguments: Any) -> Any:
    """Compute the needed gradients, or return NotImplemented if the kernels do not support the call."""
    args = StridedArguments(*arguments[:-1])
    if not supports(args, grad, out):
        return NotImplemented
    grads = gradients_like([*args[:3], *args.offset_bias], arguments[-1])
    d_query, d_key, d_value, *d_bias = map(describe, grads)
    sums = None if grad_lse is None else grad_lse.contiguous()
    lse = lse.contiguous()
    upstream = Gradient(describe(grad), lse, torch.empty_like(lse))
    if any(x is not None for x in (d_query, d_key, *d_bias)):  # the gradients of keys need the sums
        division, of_axes = divide(*layout(args), False), on_axes(d_bias)
        longest = max((x.length for x, to in zip(division.keys, of_axes) if to is not None), default=1)
        wide = min(width(longest), MOST_COORDINATES)
        parts = -(-longest // wide)
        more = describe(out), sums, d_query, of_axes, parts
        run(strided_query_gradients, args, division, upstream, *more, parts=parts, WIDE=wide)
    if d_key is not None or d_value is not None:
        run(strided_key_gradients, args, divide(*layout(args), True), upstream, d_key, d_value)
    return [x for x in grads if x is not None]


def layout(args: StridedArguments) -> tuple[tuple[torch.Size, torch.Size], tuple[int, ...], str]:
    """Return the sides of maps, the step on each axis, and the pattern."""
    sides = args.query.shape[2:-1], args.key.shape[2:-1]
    return sides, as_step(args.step or None, *sides), args.pattern


def supports(args: StridedArguments, *more: Tensor) -> bool:
    """Check whether the kernels support a call. ``more`` are tensors that they read beside its operands."""
    channels = max(args.query.shape[-1], args.value.shape[-1])
    divisions = [divide(*layout(args), of_keys) for of_keys in (False, True)]
    positions = max(math.prod(x.length for x in side) for y in divisions for side in (y.queries, y.keys))
    outputs = args.query.shape[2:-1].numel() * args.value.shape[-1]  # of a map: their offsets have 32 bits
    is_small = channels <= MOST_CHANNELS and positions < MOST_POSITIONS and outputs < 2**31
    return is_small and supports_tensors((*args, *more), args.query)
