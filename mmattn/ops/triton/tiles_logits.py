"""Groups of positions, the pairs of a tile, and their logits. See ``tiles.py``."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from .blocks import LOG2E, Table, load_rows, point_to_map


class Rows(NamedTuple):
    """Vectors of all positions."""

    data: Tensor  # (maps, positions, channels), contiguous; maps = batch · heads
    positions: int
    channels: tl.constexpr


class Division(NamedTuple):
    """Groups of positions: on an axis, position n of group g is at g · stride + n · dilation − before."""

    size: tuple[int, ...]  # of the map
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    length: tuple[int, ...]  # positions of a group; those outside the map do not exist
    before: tuple[int, ...]
    group_size: int  # the product of ``length``
    positions: int  # of the map


class Call(NamedTuple):
    """The operands of one call. Missing axes come first, with length 1. Missing operands are None."""

    query: Rows
    key: Rows
    value: Rows
    tables: tuple[Table | None, ...]  # for each axis, biases by the offset key − query
    unit: tuple[int, ...]  # distance between the offsets of consecutive entries
    centre: tuple[int, ...]  # entry of offset 0
    most: int  # keys at a larger distance have the outside bias
    outside: Table | None
    outside_value: float
    reach: tuple[tuple[int, int], ...] | None  # for each axis, smallest and largest offset; None: the whole group
    groups: tuple[int, ...]  # on each axis
    queries: Division
    keys: Division
    heads: int
    scale: float


class Location(NamedTuple):
    """Positions of a tile. All fields but ``flat`` are rows ``(n, 1)`` or columns ``(1, n)``."""

    flat: Any  # (n), index in the map; the number of positions where there is none
    at: Any
    group: Any  # a number, unless groups share tiles
    axis: Any  # coordinates


@triton.jit
def orient(x, ROWS: tl.constexpr):
    """View a vector as the rows or as the columns of a tile."""
    return x[:, None] if ROWS else x[None, :]


@triton.jit
def quotient(n, d):
    """Compute n // d for 0 ≤ n < 2²⁰, several times faster than a division of integers."""
    # (n + ½)/d is at least 1/(2d) away from an integer. The computed value differs by less than (n + ½)/d · 2⁻²¹,
    # because the division may be wrong by two units in the last place, and the product is rounded.
    return ((n.to(tl.float32) + 0.5) * (1.0 / d)).to(tl.int32)


@triton.jit
def locate(division, groups, first, last, numbers, ROWS: tl.constexpr, PACKED: tl.constexpr):
    """Locate positions by their numbers, counted from group ``first`` to group ``last`` − 1."""
    group, n = first, numbers
    if PACKED:
        group, n = first + numbers // division.group_size, numbers % division.group_size
    n01 = quotient(n, division.length[2])
    n0 = quotient(n01, division.length[1])
    x2 = group % groups[2] * division.stride[2] - division.before[2]
    x1 = group // groups[2] % groups[1] * division.stride[1] - division.before[1]
    x0 = group // groups[2] // groups[1] * division.stride[0] - division.before[0]
    x2 += (n - n01 * division.length[2]) * division.dilation[2]
    x1 += (n01 - n0 * division.length[1]) * division.dilation[1]
    x0 += n0 * division.dilation[0]
    there = (numbers < (last - first) * division.group_size) & (x0 >= 0) & (x1 >= 0) & (x2 >= 0)
    there &= (x0 < division.size[0]) & (x1 < division.size[1]) & (x2 < division.size[2])
    at = tl.where(there, (x0 * division.size[1] + x1) * division.size[2] + x2, division.positions)
    if PACKED:
        group = orient(group, ROWS)
    return Location(at, orient(at, ROWS), group, (orient(x0, ROWS), orient(x1, ROWS), orient(x2, ROWS)))


@triton.jit
def groups_per_tile(division, OWN: tl.constexpr, PACKED: tl.constexpr):
    """Count the groups that share a tile."""
    packed = 1
    if PACKED:
        packed = OWN // division.group_size
    return packed


@triton.jit
def own_groups(division, groups, number, OWN: tl.constexpr, PACKED: tl.constexpr):
    """Compute map, first and last group, and first position (counted from the first group) of a program."""
    packed = groups_per_tile(division, OWN, PACKED)
    tiles = tl.cdiv(packed * division.group_size, OWN)
    count = groups[0] * groups[1] * groups[2]
    packs = tl.cdiv(count, packed)
    first = number // tiles % packs * packed
    return (number // tiles // packs).to(tl.int64), first, tl.minimum(first + packed, count), number % tiles * OWN


@triton.jit
def load(rows, map, location, WIDTH: tl.constexpr, chunk=0):
    """Load ``WIDTH`` channels of the vectors at some positions."""
    return load_rows(rows.data, map, location.flat, rows.positions, rows.channels, WIDTH, chunk * WIDTH)


@triton.jit
def product(first, rows, row, columns, column, map, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, PRECISION: tl.constexpr):
    """Compute the scalar products of a tile. ``first`` holds the channels of the rows if they are a single chunk."""
    if CHUNKS == 1:
        x = tl.dot(first, load(columns, map, column, WIDTH).T, input_precision=PRECISION)
    else:
        x = tl.zeros([row.flat.shape[0], column.flat.shape[0]], tl.float32)
        for chunk in tl.range(0, CHUNKS, num_stages=1):  # one chunk at a time in shared memory
            more = load(rows, map, row, WIDTH, chunk)
            x = tl.dot(more, load(columns, map, column, WIDTH, chunk).T, x, input_precision=PRECISION)
    return x


@triton.jit
def load_outside(call, map, query, ROWS: tl.constexpr):
    """Load the bias of each query for keys outside the window, times log₂ e."""
    x = tl.full(query.flat.shape, call.outside_value, tl.float32)
    if call.outside is not None:
        from_table = point_to_map(call, call.outside, map) + query.flat * call.outside.query
        x = tl.load(from_table, mask=query.flat < call.queries.positions, other=0.0).to(tl.float32)
    return orient(x * LOG2E, ROWS)


@triton.jit
def find_entries(call, query, key, AXIS: tl.constexpr, SKIP_SELF: tl.constexpr):
    """Compute the entry of each pair in the table of an axis, and whether it exists."""
    offset = key.axis[AXIS] - query.axis[AXIS]
    entry = offset // call.unit[AXIS] + call.centre[AXIS]
    if SKIP_SELF:  # the centre has no entry
        entry -= (offset > 0).to(tl.int32)
    return entry, (offset >= -call.most) & (offset <= call.most)


@triton.jit
def reached(call, query, key, AXIS: tl.constexpr):
    """Check whether queries attend to keys, by the coordinates on one axis."""
    offset = key.axis[AXIS] - query.axis[AXIS]
    return (offset >= call.reach[AXIS][0]) & (offset <= call.reach[AXIS][1])


@triton.jit
def compute_logits(call, product, outside, map, query, key, SKIP_SELF: tl.constexpr, PACKED: tl.constexpr):
    """Compute logits times log₂ e from products, −∞ where a query does not attend to a key, and the mask of pairs."""
    x = call.scale * LOG2E * product
    pairs = (query.at < call.queries.positions) & (key.at < call.keys.positions)
    if PACKED:
        pairs &= query.group == key.group
    if SKIP_SELF:
        pairs &= query.at != key.at
    for axis in tl.static_range(3):
        if call.reach is not None:
            pairs &= reached(call, query, key, axis)
    for axis in tl.static_range(3):
        if call.tables[axis] is not None:
            entry, inside = find_entries(call, query, key, axis, SKIP_SELF)
            at = query.at * call.tables[axis].query + entry * call.tables[axis].entry
            bias = tl.load(point_to_map(call, call.tables[axis], map) + at, mask=pairs & inside, other=0.0)
            x += tl.where(inside, bias.to(tl.float32) * LOG2E, outside)
    return tl.where(pairs, x, float('-inf')), pairs
