"""The call of ``strided_attention``; ``tiles.py`` runs the kernels.

A group of queries is a block, or the positions with the same remainder. Its keys are those that any of its queries
attends to. Where keys are owned, a group of keys comes with all queries that attend to any of them.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..strided_attention import OPERATOR
from ..support import as_step
from . import blocks, tiles
from .blocks import gradients_like, sums_of, table
from .tiles import ANY, AXES, MOST_POSITIONS, Tiles, of_all_axes, vectors
from .tiles_logits import Call, Division

WITHIN = ('centred', 'forward')  # patterns whose queries do not attend to all keys of their group


def call_of(given: Any, of_queries: bool = True) -> Tiles:
    """Return the call for kernels that own queries, or for those that own keys."""
    queries, keys, pattern = given.query.shape[2:-1], given.key.shape[2:-1], given.pattern
    step = of_all_axes(as_step(given.step or None, queries, keys), 1)
    sizes = [of_all_axes(size, 1) for size in ((queries, keys) if of_queries else (keys, queries))]
    cuts = [cut(side, other, h, pattern, of_queries) for side, other, h in zip(sizes[0], sizes[1], step)]
    own, other = (division(size, [each[side] for each in cuts]) for side, size in enumerate(sizes))
    biases = [table(bias) for bias in given.offset_bias] or [None] * len(queries)
    entries = [bias.shape[-1] for bias in given.offset_bias] or [1] * len(queries)
    call = Call(
        vectors(given.query),
        vectors(given.key),
        vectors(given.value),
        tables=(*[None] * (AXES - len(biases)), *biases),
        unit=step if pattern == 'strided' else (1,) * AXES,
        centre=of_all_axes([0 if pattern == 'forward' else count // 2 for count in entries], 0),
        most=ANY,
        outside=None,
        outside_value=0.0,
        reach=tuple((0 if pattern == 'forward' else 1 - h, h - 1) for h in step) if pattern in WITHIN else None,
        groups=tuple(h if pattern == 'strided' else -(-size // h) for size, h in zip(sizes[0], step)),
        queries=own if of_queries else other,
        keys=other if of_queries else own,
        heads=given.query.shape[1],
        scale=float(given.scale),
    )
    return Tiles(call)


def cut(size: int, other_size: int, step: int, pattern: str, of_queries: bool) -> tuple[tuple, tuple]:
    """Return stride, dilation, length and offset before of an axis: of owned positions, and of the others."""
    if pattern == 'strided':
        return (1, step, -(-size // step), 0), (1, step, -(-other_size // step), 0)
    more = step - 1  # others on one side of the group
    before = more if pattern == 'centred' or (pattern == 'forward' and not of_queries) else 0
    after = more if pattern == 'centred' or (pattern == 'forward' and of_queries) else 0
    if size <= step:  # one group: only positions of the map
        return (0, 1, size, 0), (0, 1, min(step + after, other_size), 0)
    return (step, 1, step, 0), (step, 1, before + step + after, before)


def division(size: tuple[int, ...], cuts: list[tuple]) -> Division:
    """Return the division of a map."""
    stride, dilation, length, before = zip(*cuts)
    return Division(size, stride, dilation, length, before, math.prod(length), math.prod(size))


def forward(*arguments: Any) -> Any:
    """Compute the outputs of the operator; return NotImplemented if the kernels do not support the call."""
    given = OPERATOR.Arguments(*arguments)
    return tiles.forward([call_of(given)], *OPERATOR.fake(*arguments)) if supports(given) else NotImplemented


def backward(grad: Tensor, out: Tensor, lse: Tensor, *arguments: Any) -> Any:
    """Compute the needed gradients; return NotImplemented if the kernels do not support the call."""
    given = OPERATOR.Arguments(*arguments[:-1])
    if not supports(given):
        return NotImplemented
    of_queries, of_keys, grad_of = call_of(given), call_of(given, of_queries=False), sums_of(grad, out, lse)
    d_query, d_key, d_value, *d_biases = found = gradients_like([*given[:3], *given.offset_bias], arguments[-1])
    tiles.backward([of_queries], 'query', grad_of, d_query)
    tiles.backward([of_keys], 'key', grad_of, d_key)
    tiles.backward([of_keys], 'value', grad_of, d_value)
    for axis, d_bias in enumerate(d_biases, AXES - len(d_biases)):
        if d_bias is not None:
            tiles.backward_of_offsets(of_queries, axis, grad_of, d_bias)
    return [x for x in found if x is not None]


def supports(given: Any) -> bool:
    """Return whether the kernels support a call; maps must have fewer than 2²⁰ positions."""
    positions = max(x.shape[2:-1].numel() for x in (given.query, given.key))
    return positions < MOST_POSITIONS and blocks.supports(given)
