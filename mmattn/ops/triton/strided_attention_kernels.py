"""The kernels of ``strided_attention``: the forward pass, and the gradients.

A program owns the rows that it writes: some queries or keys of one group. It loops over tiles of the other side of the
group. Tiles of the gradients of keys and values are keys × queries, so that no weights are transposed.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from .blocks import LOG2E, Map, add_tile, decode, finish, load_channels, offset_to, point_to_head, store_channels


class Groups(NamedTuple):
    """The groups of an axis. Position n of group g is at g · stride + n · dilation."""

    groups: int
    stride: int
    dilation: int
    low: int  # smallest and largest difference of n, key − query, of a pair: the first and the last position bias
    high: int


class Side(NamedTuple):
    """The queries, or the keys, of each group of an axis: −before ≤ n < length − before, where they are in the map."""

    size: int
    length: int
    before: int
    inverse: float  # 1 / length


class Call(NamedTuple):
    """The operands of one call. Missing axes come first, with one position. Missing operands are None."""

    query: Map
    key: Map
    value: Map
    bias: tuple[Map | None, ...]  # by axis; the channels are the entries
    groups: tuple[Groups, ...]
    queries: tuple[Side, ...]
    keys: tuple[Side, ...]
    heads: int
    channels: tl.constexpr
    value_channels: tl.constexpr
    within: tl.constexpr  # whether differences between `low` and `high` are checked: the other groups have no others
    scale: float


@triton.jit
def assign(call, side, parts, OWN: tl.constexpr):
    """Return map, group, and numbers within the group of the positions that a program owns, and which part it is."""
    part = tl.program_id(0) % parts
    rest = tl.program_id(0) // parts
    tiles = tl.cdiv(side[0].length * side[1].length * side[2].length, OWN)
    numbers = rest % tiles * OWN + tl.arange(0, OWN)
    rest = rest // tiles
    group2 = rest % call.groups[2].groups
    rest = rest // call.groups[2].groups
    group1 = rest % call.groups[1].groups
    rest = rest // call.groups[1].groups
    return (rest // call.groups[0].groups).to(tl.int64), (rest % call.groups[0].groups, group1, group2), numbers, part


@triton.jit
def coordinate(call, group, n, AXIS: tl.constexpr):
    """Compute the coordinate of positions of a group on an axis."""
    return group[AXIS] * call.groups[AXIS].stride + n * call.groups[AXIS].dilation


@triton.jit
def is_in_map(call, side, group, n, AXIS: tl.constexpr):
    """Check whether positions of a group are in the map on an axis."""
    at = coordinate(call, group, n, AXIS)
    return (at >= 0) & (at < side[AXIS].size)


@triton.jit
def divide(numbers, side):
    """Divide numbers of positions, below 2²⁰, by the length of an axis. Returns quotient and remainder."""
    # An integer division takes 20 times as many instructions, and each thread divides the numbers of many columns.
    quotient = ((numbers + 0.5) * side.inverse).to(tl.int32)
    return quotient, numbers - quotient * side.length


@triton.jit
def locate(call, side, group, numbers):
    """Return positions by axis from their numbers within the group, and whether they exist."""
    rest, n2 = divide(numbers, side[2])
    n0, n1 = divide(rest, side[1])
    there = n0 < side[0].length
    n0, n1, n2 = n0 - side[0].before, n1 - side[1].before, n2 - side[2].before
    there &= is_in_map(call, side, group, n0, 0) & is_in_map(call, side, group, n1, 1)
    return (n0, n1, n2), there & is_in_map(call, side, group, n2, 2)


@triton.jit
def place(call, x, group, n):
    """Compute offsets of the first channel of positions of a group."""
    at0, at1, at2 = coordinate(call, group, n[0], 0), coordinate(call, group, n[1], 1), coordinate(call, group, n[2], 2)
    return offset_to(x, at0, at1, at2)


@triton.jit
def load(call, x, map, group, n, there, channels, WIDTH: tl.constexpr):
    """Load the channels of positions of a group, ``(len(there), WIDTH)``."""
    return load_channels(call, x, map, place(call, x, group, n), there, channels, WIDTH)


@triton.jit
def number(call, map, group, n):
    """Number queries among those of all maps."""
    row = coordinate(call, group, n[0], 0) * call.queries[1].size + coordinate(call, group, n[1], 1)
    at = row * call.queries[2].size + coordinate(call, group, n[2], 2)
    return map * (call.queries[0].size * call.queries[1].size * call.queries[2].size) + at


@triton.jit
def is_within(call, query, key, AXIS: tl.constexpr):
    """Check whether keys are in the reach of queries on an axis."""
    return (key - query >= call.groups[AXIS].low) & (key - query <= call.groups[AXIS].high)


@triton.jit
def place_of_centre(call, bias, group, query, AXIS: tl.constexpr):
    """Compute the offset of the bias of each query for a key that is at 0 of the group on an axis."""
    return place(call, bias, group, query) + (-call.groups[AXIS].low - query[AXIS]) * bias.channel


@triton.jit
def axis_logits(call, x, bias, map, group, query, key, pairs, AXIS: tl.constexpr, Q: tl.constexpr):
    """Add the position biases of an axis to logits."""
    of_query = place_of_centre(call, bias, group, query, AXIS)
    places = tl.expand_dims(of_query, Q) + tl.expand_dims(key[AXIS] * bias.channel, 1 - Q)
    return x + tl.load(point_to_head(call, bias, map) + places, mask=pairs, other=0.0).to(tl.float32) * LOG2E


@triton.jit
def compute_logits(call, product, map, group, query, owned, key, there, Q: tl.constexpr):
    """Compute logits times log₂ e from products, −∞ where a query does not attend to a key.

    ``Q`` is the axis that vectors of queries lack in the tile: 1 for queries × keys, 0 for keys × queries.
    """
    pairs = tl.expand_dims(owned, Q) & tl.expand_dims(there, 1 - Q)
    if call.within:
        pairs &= is_within(call, tl.expand_dims(query[0], Q), tl.expand_dims(key[0], 1 - Q), 0)
        pairs &= is_within(call, tl.expand_dims(query[1], Q), tl.expand_dims(key[1], 1 - Q), 1)
        pairs &= is_within(call, tl.expand_dims(query[2], Q), tl.expand_dims(key[2], 1 - Q), 2)
    x = call.scale * LOG2E * product
    if call.bias[0] is not None:
        x = axis_logits(call, x, call.bias[0], map, group, query, key, pairs, 0, Q)
    if call.bias[1] is not None:
        x = axis_logits(call, x, call.bias[1], map, group, query, key, pairs, 1, Q)
    if call.bias[2] is not None:
        x = axis_logits(call, x, call.bias[2], map, group, query, key, pairs, 2, Q)
    return tl.where(pairs, x, float('-inf'))


@triton.jit
def load_keys(call, map, group, numbers, D: tl.constexpr, DV: tl.constexpr):
    """Load keys and values of a group. Also returns their positions, and whether they exist."""
    n, there = locate(call, call.keys, group, numbers)
    key = load(call, call.key, map, group, n, there, call.channels, D)
    return key, load(call, call.value, map, group, n, there, call.value_channels, DV), n, there


@triton.jit
def load_queries(call, upstream, map, group, numbers, D: tl.constexpr, DV: tl.constexpr):
    """Load queries of a group, gradients of their outputs, and their log-sum-exps, times log₂ e; 0 without keys."""
    n, there = locate(call, call.queries, group, numbers)
    query = load(call, call.query, map, group, n, there, call.channels, D)
    grad = load(call, upstream.rows, map, group, n, there, call.value_channels, DV)
    lse = tl.load(upstream.lse + number(call, map, group, n), mask=there, other=0.0) * LOG2E
    return query, grad, tl.where(lse == float('-inf'), 0.0, lse), n, there


@triton.jit
def strided_forward(
    call, out, lse, D: tl.constexpr, DV: tl.constexpr, OWN: tl.constexpr, STREAM: tl.constexpr
):  # fmt: skip
    """Compute the output and the log-sum-exp ``(maps, N)``."""
    call = decode(call)
    out = decode(out)
    map, group, numbers, _ = assign(call, call.queries, 1, OWN)
    n, owned = locate(call, call.queries, group, numbers)
    query = load(call, call.query, map, group, n, owned, call.channels, D)
    acc = tl.zeros([OWN, DV], tl.float32)
    peak = tl.full([OWN], float('-inf'), tl.float32)
    total = tl.zeros([OWN], tl.float32)
    for start in range(0, call.keys[0].length * call.keys[1].length * call.keys[2].length, STREAM):
        key, value, at, there = load_keys(call, map, group, start + tl.arange(0, STREAM), D, DV)
        x = compute_logits(call, tl.dot(query, key.T), map, group, n, owned, at, there, 1)
        acc, peak, total = add_tile(acc, peak, total, x, value)
    rows, log = finish(acc, peak, total)
    store_channels(call, out, map, place(call, out, group, n), owned, call.value_channels, rows, DV)
    tl.store(lse + number(call, map, group, n), log, mask=owned)


@triton.jit
def sum_by_coordinate(call, acc, d_logits, key, first, WIDE: tl.constexpr, AXIS: tl.constexpr):
    """Add the gradients of logits of a tile to their sums by the key's coordinate on an axis, from ``first`` on."""
    at = key[AXIS] + call.keys[AXIS].before - first
    return tl.dot(d_logits, (at[:, None] == tl.arange(0, WIDE)[None, :]).to(d_logits.dtype), acc)


@triton.jit
def attends(call, group, query, key, AXIS: tl.constexpr):
    """Check whether queries attend to keys at coordinates on an axis."""
    side = call.keys[AXIS]
    in_group = (key >= -side.before) & (key < side.length - side.before)
    return in_group & is_in_map(call, call.keys, group, key, AXIS) & is_within(call, query, key, AXIS)


@triton.jit
def store_biases(call, to, acc, map, group, query, owned, first, WIDE: tl.constexpr, AXIS: tl.constexpr):
    """Store the gradients of position biases of an axis from their sums by the key's coordinate."""
    head = point_to_head(call, to, map)
    centre = place_of_centre(call, to, group, query, AXIS)[:, None]
    n, owned = query[AXIS][:, None], owned[:, None]
    key = (first - call.keys[AXIS].before + tl.arange(0, WIDE))[None, :]
    acc = acc.to(to.data.dtype.element_ty)
    tl.store(head + (centre + key * to.channel), acc, mask=owned & attends(call, group, n, key, AXIS))
    if first == 0:  # one program stores the entries without a key
        for start in range(call.groups[AXIS].low, call.groups[AXIS].high + 1, WIDE):
            off = (start + tl.arange(0, WIDE))[None, :]
            missing = owned & (off <= call.groups[AXIS].high) & ~attends(call, group, n, n + off, AXIS)
            tl.store(head + (centre + (n + off) * to.channel), tl.zeros_like(acc), mask=missing)


@triton.jit
def strided_query_gradients(
    call, upstream, out, grad_lse, d_query, d_bias, parts,
    D: tl.constexpr, DV: tl.constexpr, WIDE: tl.constexpr, OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of queries and position biases, and the sums that the gradients of keys need.

    A program computes the gradients of biases for ``WIDE`` coordinates of keys on each axis.
    """
    call = decode(call)
    upstream, out = decode(upstream), decode(out)
    d_query, d_bias, parts = decode(d_query), decode(d_bias), decode(parts)
    map, group, numbers, part = assign(call, call.queries, parts, OWN)
    query, grad, lse, n, owned = load_queries(call, upstream, map, group, numbers, D, DV)
    rows = load(call, out, map, group, n, owned, call.value_channels, DV)
    along = tl.sum(grad.to(tl.float32) * rows.to(tl.float32), 1)
    if grad_lse is not None:
        along -= tl.load(grad_lse + number(call, map, group, n), mask=owned, other=0.0)
    tl.store(upstream.along + number(call, map, group, n), along, mask=owned & (part == 0))
    acc = tl.zeros([OWN, D], tl.float32)
    sum0 = tl.zeros([OWN, WIDE], tl.float32)
    sum1 = tl.zeros([OWN, WIDE], tl.float32)
    sum2 = tl.zeros([OWN, WIDE], tl.float32)
    for start in range(0, call.keys[0].length * call.keys[1].length * call.keys[2].length, STREAM):
        key, value, at, there = load_keys(call, map, group, start + tl.arange(0, STREAM), D, DV)
        x = compute_logits(call, tl.dot(query, key.T), map, group, n, owned, at, there, 1)
        d_logits = tl.exp2(x - lse[:, None]) * (tl.dot(grad, value.T) - along[:, None])
        d_logits = d_logits.to(key.dtype)
        if d_query is not None:
            acc = tl.dot(d_logits, key, acc)
        if d_bias[0] is not None:
            sum0 = sum_by_coordinate(call, sum0, d_logits, at, part * WIDE, WIDE, 0)
        if d_bias[1] is not None:
            sum1 = sum_by_coordinate(call, sum1, d_logits, at, part * WIDE, WIDE, 1)
        if d_bias[2] is not None:
            sum2 = sum_by_coordinate(call, sum2, d_logits, at, part * WIDE, WIDE, 2)
    if d_query is not None:
        to = place(call, d_query, group, n)
        store_channels(call, d_query, map, to, owned & (part == 0), call.channels, acc * call.scale, D)
    if d_bias[0] is not None:
        store_biases(call, d_bias[0], sum0, map, group, n, owned, part * WIDE, WIDE, 0)
    if d_bias[1] is not None:
        store_biases(call, d_bias[1], sum1, map, group, n, owned, part * WIDE, WIDE, 1)
    if d_bias[2] is not None:
        store_biases(call, d_bias[2], sum2, map, group, n, owned, part * WIDE, WIDE, 2)


@triton.jit
def strided_key_gradients(
    call, upstream, d_key, d_value, D: tl.constexpr, DV: tl.constexpr, OWN: tl.constexpr, STREAM: tl.constexpr
):  # fmt: skip
    """Compute the gradients of keys and values."""
    call = decode(call)
    upstream = decode(upstream)
    d_key, d_value = decode(d_key), decode(d_value)
    map, group, numbers, _ = assign(call, call.keys, 1, OWN)
    key, value, n, owned = load_keys(call, map, group, numbers, D, DV)
    key_sum = tl.zeros([OWN, D], tl.float32)
    value_sum = tl.zeros([OWN, DV], tl.float32)
    for start in range(0, call.queries[0].length * call.queries[1].length * call.queries[2].length, STREAM):
        query, grad, lse, at, there = load_queries(call, upstream, map, group, start + tl.arange(0, STREAM), D, DV)
        x = compute_logits(call, tl.dot(key, query.T), map, group, at, there, n, owned, 0)
        weights = tl.exp2(x - lse[None, :])
        if d_value is not None:
            value_sum = tl.dot(weights.to(grad.dtype), grad, value_sum)
        if d_key is not None:
            along = tl.load(upstream.along + number(call, map, group, at), mask=there, other=0.0)
            d_logits = weights * (tl.dot(value, grad.T) - along[None, :])
            key_sum = tl.dot(d_logits.to(query.dtype), query, key_sum)
    if d_value is not None:
        store_channels(call, d_value, map, place(call, d_value, group, n), owned, call.value_channels, value_sum, DV)
    if d_key is not None:
        store_channels(call, d_key, map, place(call, d_key, group, n), owned, call.channels, key_sum * call.scale, D)
