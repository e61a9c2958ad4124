"""The operands of ``global_attention``, and the logits of a tile of queries × keys."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from .blocks import LOG2E, Table, point_to_map


class Call(NamedTuple):
    """The operands of one call. Missing axes come last, with length 1. Missing operands are None."""

    query: Tensor  # (maps, N, D), contiguous; maps = batch · heads
    key: Tensor  # (maps, M, D), contiguous
    value: Tensor  # (maps, M, Dv), contiguous
    window: Table | None
    outside: Table | None
    axis_bias: tuple[Table | None, ...]
    key_bias: Tensor | None  # (maps, M), contiguous
    key_mask: Tensor | None  # (batch, M), contiguous
    size: tuple[int, ...]
    key_size: tuple[int, ...]
    before: tuple[int, ...]  # with a window or is_causal: positions of keys before the first query
    reach: tuple[int, ...]  # a window has length 2 · reach + 1
    entries: int  # of a window
    heads: int
    queries: int
    keys: int
    channels: tl.constexpr
    value_channels: tl.constexpr
    outside_value: float
    scale: float


@triton.jit
def locate(numbers, size):
    """Compute the coordinates of flat positions."""
    return numbers // (size[1] * size[2]), numbers // size[2] % size[1], numbers % size[2]


@triton.jit
def load_outside(call, map, queries):
    """Load the bias of each query for keys outside the window, times log₂ e."""
    x = tl.full(queries.shape, call.outside_value, tl.float32)
    if call.outside is not None:
        from_table = point_to_map(call, call.outside, map) + queries * call.outside.query
        x = tl.load(from_table, mask=queries < call.queries, other=0.0).to(tl.float32)
    return x * LOG2E


@triton.jit
def find_entries(call, queries, keys, DIMS: tl.constexpr):
    """Compute the window entry of each pair, and whether it exists."""
    q0, q1, q2 = locate(queries, call.size)
    k0, k1, k2 = locate(keys, call.key_size)
    entry = k0[None, :] - (q0 + call.before[0] - call.reach[0])[:, None]
    inside = (entry >= 0) & (entry <= 2 * call.reach[0])
    if DIMS > 1:
        offset = k1[None, :] - (q1 - call.reach[1])[:, None]
        inside &= (offset >= 0) & (offset <= 2 * call.reach[1])
        entry = entry * (2 * call.reach[1] + 1) + offset
    if DIMS > 2:
        offset = k2[None, :] - (q2 - call.reach[2])[:, None]
        inside &= (offset >= 0) & (offset <= 2 * call.reach[2])
        entry = entry * (2 * call.reach[2] + 1) + offset
    inside &= entry < call.entries  # with is_causal, entries after the centre do not exist
    return entry, inside & (queries < call.queries)[:, None] & (keys < call.keys)[None, :]


@triton.jit
def axis_logits(call, x, table, map, queries, at):
    """Add the biases of one axis to logits. ``at`` holds the coordinates of the keys."""
    from_table = point_to_map(call, table, map) + (queries[:, None] * table.query + at[None, :] * table.entry)
    return x + tl.load(from_table, mask=(queries < call.queries)[:, None], other=0.0).to(tl.float32) * LOG2E


@triton.jit
def compute_logits(
    call, product, outside, map, queries, keys, INSIDE: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr
):
    """Compute logits times log₂ e from products, −∞ where a query does not attend to a key."""
    x = call.scale * LOG2E * product
    if call.window is not None:
        if INSIDE:
            entry, inside = find_entries(call, queries, keys, DIMS)
            at = queries[:, None] * call.window.query + entry * call.window.entry
            window = tl.load(point_to_map(call, call.window, map) + at, mask=inside, other=0.0)
            x += tl.where(inside, window.to(tl.float32) * LOG2E, outside[:, None])
        else:
            x += outside[:, None]
    at = locate(tl.minimum(keys, call.keys - 1), call.key_size)
    if call.axis_bias[0] is not None:
        x = axis_logits(call, x, call.axis_bias[0], map, queries, at[0])
    if call.axis_bias[1] is not None:
        x = axis_logits(call, x, call.axis_bias[1], map, queries, at[1])
    if call.axis_bias[2] is not None:
        x = axis_logits(call, x, call.axis_bias[2], map, queries, at[2])
    attended = keys < call.keys
    if call.key_bias is not None:
        x += tl.load(call.key_bias + map * call.keys + keys, mask=attended, other=0.0).to(tl.float32)[None, :] * LOG2E
    if call.key_mask is not None:
        attended &= tl.load(call.key_mask + map // call.heads * call.keys + keys, mask=attended, other=0) != 0
    pairs = (queries < call.queries)[:, None] & attended[None, :]
    if CAUSAL:
        pairs &= keys[None, :] <= (queries + call.keys - call.queries)[:, None]
    return tl.where(pairs, x, float('-inf'))


@triton.jit
def strip(first, last, size, other_size, before, reach, end, STREAM: tl.constexpr):
    """Compute begin and end of the tiles that contain the windows of the owned positions ``first`` to ``last``."""
    # `before`: offset on the first axis from an owned position to the same position on the other side
    plane = other_size[1] * other_size[2]
    of_first = first // (size[1] * size[2]) + before - reach
    of_last = last // (size[1] * size[2]) + before + reach + 1
    begin = tl.minimum(tl.maximum(of_first, 0) * plane // STREAM * STREAM, end)
    return begin, tl.minimum(tl.maximum(tl.cdiv(of_last * plane, STREAM) * STREAM, begin), end)
