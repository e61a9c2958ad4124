"""Launches the kernels of ``strided_attention``.

A group of queries is a block, or the positions with the same remainder. It comes with all keys that any of its queries
attends to. Where programs own keys, a group of keys comes with all queries that attend to any of its keys.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..strided_attention import OPERATOR
from ..support import as_step
from . import blocks, tiles
from .blocks import gradients_like, prepare_gradient, table
from .tiles import ANY, AXES, MOST_POSITIONS, Tiles, pad_axes, vectors
from .tiles_logits import Call, Division

WITHIN = ('centred', 'forward')  # patterns whose queries do not attend to all keys of their group


def build_call(args: Any, of_queries: bool = True) -> Tiles:
    """Describe the call for kernels that own queries, or for kernels that own keys."""
    queries, keys, pattern = args.query.shape[2:-1], args.key.shape[2:-1], args.pattern
    step = pad_axes(as_step(args.step or None, queries, keys), 1)
    sizes = [pad_axes(size, 1) for size in ((queries, keys) if of_queries else (keys, queries))]
    cuts = [cut(side, other, h, pattern, of_queries) for side, other, h in zip(sizes[0], sizes[1], step)]
    owned, other = (division(size, [sides[side] for sides in cuts]) for side, size in enumerate(sizes))
    biases = [table(bias) for bias in args.offset_bias] or [None] * len(queries)
    entries = [bias.shape[-1] for bias in args.offset_bias] or [1] * len(queries)
    call = Call(
        vectors(args.query),
        vectors(args.key),
        vectors(args.value),
        tables=(*[None] * (AXES - len(biases)), *biases),
        unit=step if pattern == 'strided' else (1,) * AXES,
        centre=pad_axes([0 if pattern == 'forward' else count // 2 for count in entries], 0),
        most=ANY,
        outside=None,
        outside_value=0.0,
        reach=tuple((0 if pattern == 'forward' else 1 - h, h - 1) for h in step) if pattern in WITHIN else None,
        groups=tuple(h if pattern == 'strided' else -(-size // h) for size, h in zip(sizes[0], step)),
        queries=owned if of_queries else other,
        keys=other if of_queries else owned,
        heads=args.query.shape[1],
        scale=float(args.scale),
    )
    return Tiles(call)


def cut(size: int, other_size: int, step: int, pattern: str, of_queries: bool) -> tuple[tuple, tuple]:
    """Divide an axis into groups of owned and of other positions: stride, dilation, length and padding before."""
    if pattern == 'strided':
        return (1, step, -(-size // step), 0), (1, step, -(-other_size // step), 0)
    more = step - 1  # positions of the other side, on one side of the group
    before = more if pattern == 'centred' or (pattern == 'forward' and not of_queries) else 0
    after = more if pattern == 'centred' or (pattern == 'forward' and of_queries) else 0
    if size <= step:  # one group: only positions of the map
        return (0, 1, size, 0), (0, 1, min(step + after, other_size), 0)
    return (step, 1, step, 0), (step, 1, before + step + after, before)


def division(size: tuple[int, ...], cuts: list[tuple]) -> Division:
    """Combine the divisions of the axes of a map."""
    stride, dilation, length, before = zip(*cuts)
    return Division(size, stride, dilation, length, before, math.prod(length), math.prod(size))


def forward(*arguments: Any) -> Any:
    """Compute the outputs, or return NotImplemented if the kernels do not support the call."""
    args = OPERATOR.Arguments(*arguments)
    return tiles.forward([build_call(args)], *OPERATOR.fake(*arguments)) if supports(args) else NotImplemented


def backward(grad: Tensor, out: Tensor, lse: Tensor, *arguments: Any) -> Any:
    """Compute the needed gradients, or return NotImplemented if the kernels do not support the call."""
    args = OPERATOR.Arguments(*arguments[:-1])
    if not supports(args):
        return NotImplemented
    of_queries, of_keys, upstream = (
        build_call(args),
        build_call(args, of_queries=False),
        prepare_gradient(grad, out, lse),
    )
    grads = gradients_like([*args[:3], *args.offset_bias], arguments[-1])
    d_query, d_key, d_value, *d_biases = grads
    tiles.backward([of_queries], 'query', upstream, d_query)
    tiles.backward([of_keys], 'key', upstream, d_key)
    tiles.backward([of_keys], 'value', upstream, d_value)
    for axis, d_bias in enumerate(d_biases, AXES - len(d_biases)):
        if d_bias is not None:
            tiles.backward_offsets(of_queries, axis, upstream, d_bias)
    return [x for x in grads if x is not None]


def supports(args: Any) -> bool:
    """Check whether the kernels support a call: maps must have fewer than 2²⁰ positions."""
    positions = max(x.shape[2:-1].numel() for x in (args.query, args.key))
    return positions < MOST_POSITIONS and blocks.supports(args)
