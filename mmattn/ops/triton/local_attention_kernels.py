"""The kernels of ``local_attention``: the forward pass, and the gradients.

A program owns a few rows of positions, and loops over the k×k neighbours of each. There are no products of matrices: a
neighbour's channels are multiplied and summed as vectors, and stay in the cache for the next neighbour.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from .blocks import LOG2E, Map, decode, finish, load_channels, offset_to, point_to_head, rescale, store_channels


class Call(NamedTuple):
    """The operands of one call. Missing operands are None."""

    query: Map | None
    key: Map | None
    value: Map
    window: Map | None  # the channels are the entries
    key_mask: Tensor | None  # (batch, H, W), contiguous
    height: int
    width: int
    down: int  # sides of the neighbourhood
    across: int
    dilation: int
    heads: int
    channels: tl.constexpr
    value_channels: tl.constexpr
    in_rows: tl.constexpr  # whether a program owns positions of one row, so that lanes read adjacent columns
    scale: float


@triton.jit
def positions(call, OWN: tl.constexpr):
    """Return map, row and column of a program's positions, their numbers among all maps, and whether they exist."""
    if call.in_rows:
        tiles = tl.cdiv(call.width, OWN)
        line = tl.program_id(0) // tiles
        map = (line // call.height).to(tl.int64)
        row = line % call.height + tl.zeros([OWN], tl.int32)
        column = tl.program_id(0) % tiles * OWN + tl.arange(0, OWN)
        owned = column < call.width
    else:
        tiles = tl.cdiv(call.height * call.width, OWN)
        map = (tl.program_id(0) // tiles).to(tl.int64)
        number = tl.program_id(0) % tiles * OWN + tl.arange(0, OWN)
        row = number // call.width
        column = number % call.width
        owned = number < call.height * call.width
    return map, row, column, map * (call.height * call.width) + (row * call.width + column), owned


@triton.jit
def offset(call, entry):
    """Return the offset of a neighbour, row and column, from the centre."""
    down, across = entry // call.across - call.down // 2, entry % call.across - call.across // 2
    return down * call.dilation, across * call.dilation


@triton.jit
def exists(call, row, column):
    """Check whether positions are in the map."""
    return (row >= 0) & (row < call.height) & (column >= 0) & (column < call.width)


@triton.jit
def attended(call, map, row, column, there):
    """Keep the positions of keys that may be attended to."""
    if call.key_mask is not None:
        at = map // call.heads * (call.height * call.width) + (row * call.width + column)
        there &= tl.load(call.key_mask + at, mask=there, other=0) != 0
    return there


@triton.jit
def load(call, x, map, row, column, there, channels, WIDTH: tl.constexpr):
    """Load the channels of positions, ``(len(row), WIDTH)``, in float32. What is not there is 0."""
    return load_channels(call, x, map, offset_to(x, 0, row, column), there, channels, WIDTH).to(tl.float32)


@triton.jit
def logits(call, query, key, map, row, column, entry, pairs):
    """Compute the logits of queries at ``row`` and ``column`` and one neighbour each, times log₂ e, −∞ without it."""
    x = tl.zeros(row.shape, tl.float32)
    if call.query is not None:
        x = tl.sum(query * key, 1) * (call.scale * LOG2E)
    if call.window is not None:
        offsets = offset_to(call.window, 0, row, column) + entry * call.window.channel
        bias = tl.load(point_to_head(call, call.window, map) + offsets, mask=pairs, other=0.0)
        x += bias.to(tl.float32) * LOG2E
    return tl.where(pairs, x, float('-inf'))


@triton.jit
def accumulate(peak, x):
    """Return the largest logit so far, the weights of ``x`` relative to it, and the factor of the sums so far."""
    highest = tl.maximum(peak, x)
    zero, factor = rescale(peak, highest)
    return highest, tl.exp2(x - zero), factor


@triton.jit
def load_neighbours(call, map, row, column, owned, entry, D: tl.constexpr, DV: tl.constexpr):
    """Load keys and values of one neighbour of each query, and whether the query attends to it."""
    down, across = offset(call, entry)
    there = attended(call, map, row + down, column + across, owned & exists(call, row + down, column + across))
    key = tl.zeros([row.shape[0], D], tl.float32)
    if call.key is not None:
        key = load(call, call.key, map, row + down, column + across, there, call.channels, D)
    return key, load(call, call.value, map, row + down, column + across, there, call.value_channels, DV), there


@triton.jit
def load_queries(call, map, row, column, owned, D: tl.constexpr):
    """Load the queries at some positions, 0 without content."""
    query = tl.zeros([row.shape[0], D], tl.float32)
    if call.query is not None:
        query = load(call, call.query, map, row, column, owned, call.channels, D)
    return query


@triton.jit
def local_forward(call, out, lse, D: tl.constexpr, DV: tl.constexpr, OWN: tl.constexpr):
    """Compute the output and the log-sum-exp ``(maps, H·W)``."""
    call = decode(call)
    out = decode(out)
    map, row, column, at, owned = positions(call, OWN)
    query = load_queries(call, map, row, column, owned, D)
    acc = tl.zeros([OWN, DV], tl.float32)
    peak = tl.full([OWN], float('-inf'), tl.float32)
    total = tl.zeros([OWN], tl.float32)
    for entry in range(0, call.down * call.across):
        key, value, pairs = load_neighbours(call, map, row, column, owned, entry, D, DV)
        x = logits(call, query, key, map, row, column, entry, pairs)
        peak, weights, factor = accumulate(peak, x)
        total = total * factor + weights
        acc = acc * factor[:, None] + weights[:, None] * value
    rows, log = finish(acc, peak, total)
    store_channels(call, out, map, offset_to(out, 0, row, column), owned, call.value_channels, rows, DV)
    tl.store(lse + at, log, mask=owned)


@triton.jit
def local_query_gradients(
    call, upstream, grad_lse, d_query, d_window, D: tl.constexpr, DV: tl.constexpr, OWN: tl.constexpr
):
    """Compute the gradients of queries and window biases, and what :func:`local_key_gradients` needs of each query.

    It needs the log-sum-exp times log₂ e, and 0 for a query without neighbours.
    """
    call = decode(call)
    upstream = decode(upstream)
    d_query, d_window = decode(d_query), decode(d_window)
    map, row, column, at, owned = positions(call, OWN)
    query = load_queries(call, map, row, column, owned, D)
    grad = load(call, upstream.rows, map, row, column, owned, call.value_channels, DV)
    peak = tl.full([OWN], float('-inf'), tl.float32)
    total = tl.zeros([OWN], tl.float32)
    along = tl.zeros([OWN], tl.float32)
    for entry in range(0, call.down * call.across):
        key, value, pairs = load_neighbours(call, map, row, column, owned, entry, D, DV)
        x = logits(call, query, key, map, row, column, entry, pairs)
        peak, weights, factor = accumulate(peak, x)
        total = total * factor + weights
        along = along * factor + weights * tl.sum(grad * value, 1)
    some = tl.where(total == 0, 1.0, total)
    along = along / some
    if grad_lse is not None:
        along -= tl.load(grad_lse + at, mask=owned, other=0.0)
    lse = tl.where(total == 0, 0.0, peak + tl.log2(some))
    tl.store(upstream.lse + at, lse, mask=owned)
    tl.store(upstream.along + at, along, mask=owned)
    acc = tl.zeros([OWN, D], tl.float32)
    for entry in range(0, call.down * call.across):
        key, value, pairs = load_neighbours(call, map, row, column, owned, entry, D, DV)
        weights = tl.exp2(logits(call, query, key, map, row, column, entry, pairs) - lse)
        d_logits = weights * (tl.sum(grad * value, 1) - along)
        acc += d_logits[:, None] * key
        if d_window is not None:
            offsets = offset_to(d_window, 0, row, column) + entry * d_window.channel
            to = point_to_head(call, d_window, map) + offsets
            tl.store(to, d_logits.to(d_window.data.dtype.element_ty), mask=owned)
    if d_query is not None:
        to = offset_to(d_query, 0, row, column)
        store_channels(call, d_query, map, to, owned, call.channels, acc * call.scale, D)


@triton.jit
def local_key_gradients(call, upstream, d_key, d_value, D: tl.constexpr, DV: tl.constexpr, OWN: tl.constexpr):
    """Compute the gradients of keys and values. A program owns keys, and loops over the queries that they neighbour."""
    call = decode(call)
    upstream = decode(upstream)
    d_key, d_value = decode(d_key), decode(d_value)
    map, row, column, _, owned = positions(call, OWN)
    there = attended(call, map, row, column, owned)
    value = load(call, call.value, map, row, column, there, call.value_channels, DV)
    key = tl.zeros([OWN, D], tl.float32)
    if call.key is not None:
        key = load(call, call.key, map, row, column, there, call.channels, D)
    key_sum = tl.zeros([OWN, D], tl.float32)
    value_sum = tl.zeros([OWN, DV], tl.float32)
    for entry in range(0, call.down * call.across):
        down, across = offset(call, entry)
        of_row, of_column = row - down, column - across
        pairs = there & exists(call, of_row, of_column)
        at = map * (call.height * call.width) + (of_row * call.width + of_column)
        query = load_queries(call, map, of_row, of_column, pairs, D)
        grad = load(call, upstream.rows, map, of_row, of_column, pairs, call.value_channels, DV)
        lse = tl.load(upstream.lse + at, mask=pairs, other=0.0)
        weights = tl.exp2(logits(call, query, key, map, of_row, of_column, entry, pairs) - lse)
        value_sum += weights[:, None] * grad
        if d_key is not None:
            along = tl.load(upstream.along + at, mask=pairs, other=0.0)
            d_logits = weights * (tl.sum(grad * value, 1) - along)
            key_sum += d_logits[:, None] * query
    if d_value is not None:
        to = offset_to(d_value, 0, row, column)
        store_channels(call, d_value, map, to, owned, call.value_channels, value_sum, DV)
    if d_key is not None:
        to = offset_to(d_key, 0, row, column)
        store_channels(call, d_key, map, to, owned, call.channels, key_sum * call.scale, D)
