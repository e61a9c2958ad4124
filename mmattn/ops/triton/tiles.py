"""The kernels of attention between groups of queries and groups of keys: an arm of ``grid_attention``, or all of
``strided_attention``.

A program owns rows of a tile: queries in the forward pass and for the gradients of queries, otherwise keys. It loops
over the columns, the other positions of the same groups. Small groups share a tile; pairs of two groups are masked.
Channels of the result are divided among programs, ``MOST_WIDTH`` each; every one computes all logits. No kernel uses
atomics, and the order of every sum is fixed.

An operator is a sequence of calls. Each adds to the sums of the previous ones; the forward pass continues their online
softmax. No kernel changes its operands, so that Triton can time it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import blocks, launch
from .blocks import Gradient, Table, load_rows, start_of, store_rows, table
from .launch import precision, tuned, width

AXES = 3
ANY = 1 << 30  # larger than any offset
MOST_WIDTH = 128
MOST_POSITIONS = 2**20  # of a group; see `quotient`
MOST_PACKED = 16  # groups of up to this size share tiles; every tile has at least as many rows


class Rows(NamedTuple):
    """Vectors of all positions."""

    data: Tensor  # (maps, positions, channels), contiguous; maps = batch · heads
    positions: int
    channels: int


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


class Place(NamedTuple):
    """Positions of a tile. All but ``flat`` are rows ``(n, 1)`` or columns ``(1, n)``."""

    flat: Any  # (n), index in the map; the number of positions where there is none
    at: Any
    group: Any  # a number, unless groups share tiles
    axis: Any  # coordinates


@triton.jit
def facing(x, ROWS: tl.constexpr):
    """Return a vector as the rows or as the columns of a tile."""
    return x[:, None] if ROWS else x[None, :]


@triton.jit
def quotient(n, d):
    """Return n // d for 0 ≤ n < 2²⁰, several times faster than a division of integers.

    (n + ½)/d is at least 1/(2d) away from an integer. The computed value differs by less than (n + ½)/d · 2⁻²¹, because
    the division may be wrong by two units in the last place, and the product is rounded.
    """
    return ((n.to(tl.float32) + 0.5) * (1.0 / d)).to(tl.int32)


@triton.jit
def place(division, groups, first, last, numbers, ROWS: tl.constexpr, PACKED: tl.constexpr):
    """Return the places with some numbers, counted from group ``first`` to group ``last`` − 1."""
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
        group = facing(group, ROWS)
    return Place(at, facing(at, ROWS), group, (facing(x0, ROWS), facing(x1, ROWS), facing(x2, ROWS)))


@triton.jit
def groups_per_tile(division, OWN: tl.constexpr, PACKED: tl.constexpr):
    """Return the number of groups that share a tile."""
    packed = 1
    if PACKED:
        packed = OWN // division.group_size
    return packed


@triton.jit
def own_groups(division, groups, number, OWN: tl.constexpr, PACKED: tl.constexpr):
    """Return map, first and last group, and the first owned position of a program, counted from the first group."""
    packed = groups_per_tile(division, OWN, PACKED)
    tiles = tl.cdiv(packed * division.group_size, OWN)
    count = groups[0] * groups[1] * groups[2]
    packs = tl.cdiv(count, packed)
    first = number // tiles % packs * packed
    return (number // tiles // packs).to(tl.int64), first, tl.minimum(first + packed, count), number % tiles * OWN


@triton.jit
def load(rows, map, place, WIDTH: tl.constexpr, chunk=0):
    """Load ``WIDTH`` channels of the vectors of some places."""
    return load_rows(rows.data, map, place.flat, rows.positions, rows.channels, WIDTH, chunk * WIDTH)


@triton.jit
def product(first, rows, row, columns, column, map, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, PRECISION: tl.constexpr):
    """Return the scalar products of a tile; ``first`` are the channels of the rows, if they are a single chunk."""
    if CHUNKS == 1:
        x = tl.dot(first, load(columns, map, column, WIDTH).T, input_precision=PRECISION)
    else:
        x = tl.zeros([row.flat.shape[0], column.flat.shape[0]], tl.float32)
        for chunk in tl.range(0, CHUNKS, num_stages=1):  # one chunk at a time in shared memory
            more = load(rows, map, row, WIDTH, chunk)
            x = tl.dot(more, load(columns, map, column, WIDTH, chunk).T, x, input_precision=PRECISION)
    return x


@triton.jit
def outside_of(call, map, query, ROWS: tl.constexpr):
    """Return the bias of each query for keys outside the window."""
    x = tl.full(query.flat.shape, call.outside_value, tl.float32)
    if call.outside is not None:
        from_table = start_of(call, call.outside, map) + query.flat * call.outside.query
        x = tl.load(from_table, mask=query.flat < call.queries.positions, other=0.0).to(tl.float32)
    return facing(x, ROWS)


@triton.jit
def entries_of(call, query, key, AXIS: tl.constexpr, OTHERS: tl.constexpr):
    """Return the entry of each pair in the table of an axis, and whether there is one."""
    offset = key.axis[AXIS] - query.axis[AXIS]
    entry = offset // call.unit[AXIS] + call.centre[AXIS]
    if OTHERS:  # the centre has no entry
        entry -= (offset > 0).to(tl.int32)
    return entry, (offset >= -call.most) & (offset <= call.most)


@triton.jit
def reached(call, query, key, AXIS: tl.constexpr):
    """Return whether queries attend to keys, by the coordinates on one axis."""
    offset = key.axis[AXIS] - query.axis[AXIS]
    return (offset >= call.reach[AXIS][0]) & (offset <= call.reach[AXIS][1])


@triton.jit
def logits_of(call, product, outside, map, query, key, OTHERS: tl.constexpr, PACKED: tl.constexpr):
    """Return logits from products, −∞ where a query does not attend to a key; and where it does."""
    x = call.scale * product
    pairs = (query.at < call.queries.positions) & (key.at < call.keys.positions)
    if PACKED:
        pairs &= query.group == key.group
    if OTHERS:
        pairs &= query.at != key.at
    for axis in tl.static_range(3):
        if call.reach is not None:
            pairs &= reached(call, query, key, axis)
    for axis in tl.static_range(3):
        if call.tables[axis] is not None:
            entry, inside = entries_of(call, query, key, axis, OTHERS)
            at = query.at * call.tables[axis].query + entry * call.tables[axis].entry
            found = tl.load(start_of(call, call.tables[axis], map) + at, mask=pairs & inside, other=0.0)
            x += tl.where(inside, found.to(tl.float32), outside)
    return tl.where(pairs, x, float('-inf')), pairs


@tuned
def forward_kernel(
    call, before, after,
    D: tl.constexpr, DV: tl.constexpr, CHUNKS: tl.constexpr, VALUE_CHUNKS: tl.constexpr, OTHERS: tl.constexpr,
    PRECISION: tl.constexpr, PACKED: tl.constexpr, OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Compute output ``(maps, N, Dv)`` and log-sum-exp ``(maps, N)`` after this call, from those before it."""
    chunk = tl.program_id(0) % VALUE_CHUNKS
    map, first, last, start = own_groups(call.queries, call.groups, tl.program_id(0) // VALUE_CHUNKS, OWN, PACKED)
    row = place(call.queries, call.groups, first, last, start + tl.arange(0, OWN), True, PACKED)
    query = load(call.query, map, row, D)
    outside = outside_of(call, map, row, True)
    acc = tl.zeros([OWN, DV], tl.float32)
    peak = tl.full([OWN], float('-inf'), tl.float32)
    total = tl.zeros([OWN], tl.float32)
    own_sum = map * call.queries.positions + row.flat
    if before is not None:
        acc = load(before[0], map, row, DV, chunk)
        peak = tl.load(before[1] + own_sum, mask=row.flat < call.queries.positions, other=float('-inf'))
        total = tl.where(peak == float('-inf'), 0.0, 1.0)
    for number in range(0, (last - first) * call.keys.group_size, STREAM):
        key = place(call.keys, call.groups, first, last, number + tl.arange(0, STREAM), False, PACKED)
        x = product(query, call.query, row, call.key, key, map, D, CHUNKS, PRECISION)
        x, _ = logits_of(call, x, outside, map, row, key, OTHERS, PACKED)
        highest = tl.maximum(peak, tl.max(x, 1))
        zero = tl.where(highest == float('-inf'), 0.0, highest)  # no key yet
        weights = tl.exp(x - zero[:, None])
        factor = tl.exp(peak - zero)
        total = total * factor + tl.sum(weights, 1)
        value = load(call.value, map, key, DV, chunk)
        acc = tl.dot(weights.to(value.dtype), value, acc * factor[:, None], input_precision=PRECISION)
        peak = highest
    acc = acc / tl.where(total == 0, 1.0, total)[:, None]
    store_rows(after[0].data, map, row.flat, after[0].positions, after[0].channels, acc, DV, chunk * DV)
    log = tl.where(total == 0, float('-inf'), peak + tl.log(tl.where(total == 0, 1.0, total)))
    tl.store(after[1] + own_sum, log, mask=(row.flat < call.queries.positions) & (chunk == 0))


@triton.jit
def load_sums(call, grad_of, map, query, ROWS: tl.constexpr):
    """Load lse and Σ gradient · output."""
    at, there = map * call.queries.positions + query.flat, query.flat < call.queries.positions
    lse = tl.load(grad_of.lse + at, mask=there, other=0.0)
    return facing(lse, ROWS), facing(tl.load(grad_of.along + at, mask=there, other=0.0), ROWS)


@tuned
def gradients(
    call, gradient, grad_of, before, after, d_tables,
    OF: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, CHUNKS: tl.constexpr, VALUE_CHUNKS: tl.constexpr,
    OTHERS: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr, OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of queries, keys or values after this call, from those before it.

    Those of queries come with those of ``outside_bias`` ``(maps, N)``, and of tables with one entry per pair.
    """
    OF_QUERIES: tl.constexpr = OF == 'query'
    PARTS: tl.constexpr = VALUE_CHUNKS if OF == 'value' else CHUNKS
    WIDTH: tl.constexpr = DV if OF == 'value' else D
    own, other = (call.queries, call.keys) if OF_QUERIES else (call.keys, call.queries)
    own_vectors, other_vectors = (call.query, call.key) if OF_QUERIES else (call.key, call.query)
    own_values, other_values = (gradient, call.value) if OF_QUERIES else (call.value, gradient)
    chunk = tl.program_id(0) % PARTS
    map, first, last, start = own_groups(own, call.groups, tl.program_id(0) // PARTS, OWN, PACKED)
    row = place(own, call.groups, first, last, start + tl.arange(0, OWN), True, PACKED)
    vectors = load(own_vectors, map, row, D)
    values = load(own_values, map, row, DV)
    if OF_QUERIES:
        outside = outside_of(call, map, row, True)
        lse, along = load_sums(call, grad_of, map, row, True)
    acc = tl.zeros([OWN, WIDTH], tl.float32)
    outside_sum = tl.zeros([OWN], tl.float32)
    for number in range(0, (last - first) * other.group_size, STREAM):
        column = place(other, call.groups, first, last, number + tl.arange(0, STREAM), False, PACKED)
        if not OF_QUERIES:
            outside = outside_of(call, map, column, False)
            lse, along = load_sums(call, grad_of, map, column, False)
        query, key = (row, column) if OF_QUERIES else (column, row)
        x = product(vectors, own_vectors, row, other_vectors, column, map, D, CHUNKS, PRECISION)
        x, pairs = logits_of(call, x, outside, map, query, key, OTHERS, PACKED)
        weights = tl.exp(x - lse)
        if OF == 'value':
            factor = load(other_values, map, column, DV, chunk)
        else:
            factor = load(other_vectors, map, column, D, chunk)
            d_weights = product(values, own_values, row, other_values, column, map, DV, VALUE_CHUNKS, PRECISION)
            weights = weights * (d_weights - along)
        if after[0] is not None:
            acc = tl.dot(weights.to(factor.dtype), factor, acc, input_precision=PRECISION)
        if OF_QUERIES and call.outside is not None:
            for axis in tl.static_range(3):
                if call.tables[axis] is not None:
                    _, inside = entries_of(call, query, key, axis, OTHERS)
                    outside_sum += tl.sum(tl.where(inside, 0.0, weights), 1)
        for axis in tl.static_range(3):
            if d_tables[axis] is not None:
                entry, inside = entries_of(call, query, key, axis, OTHERS)
                to = start_of(call, d_tables[axis], map) + query.at * d_tables[axis].query + entry
                tl.store(to, weights.to(to.dtype.element_ty), mask=pairs & inside & (chunk == 0))
    if after[0] is not None:
        if OF != 'value':
            acc *= call.scale
        if before[0] is not None:
            acc += load(before[0], map, row, WIDTH, chunk)
        store_rows(after[0].data, map, row.flat, after[0].positions, after[0].channels, acc, WIDTH, chunk * WIDTH)
    if after[1] is not None:
        to = map * call.queries.positions + row.flat
        if before[1] is not None:
            outside_sum += tl.load(before[1] + to, mask=row.flat < own.positions, other=0.0)
        tl.store(
            after[1] + to, outside_sum.to(after[1].dtype.element_ty), mask=(row.flat < own.positions) & (chunk == 0)
        )


@tuned
def offset_gradients(
    call, gradient, grad_of, d_table,
    AXIS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, CHUNKS: tl.constexpr, VALUE_CHUNKS: tl.constexpr,
    OTHERS: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr, OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the table of one axis.

    A program owns queries × coordinates of keys on this axis, and loops over the positions on the other axes.
    """
    length, inner = call.keys.length[AXIS], 1
    for axis in tl.static_range(AXIS + 1, 3):
        inner *= call.keys.length[axis]
    parts = tl.cdiv(groups_per_tile(call.queries, OWN, PACKED) * length, STREAM)
    map, first, last, start = own_groups(call.queries, call.groups, tl.program_id(0) // parts, OWN, PACKED)
    query = place(call.queries, call.groups, first, last, start + tl.arange(0, OWN), True, PACKED)
    vectors = load(call.query, map, query, D)
    values = load(gradient, map, query, DV)
    outside = outside_of(call, map, query, True)
    lse, along = load_sums(call, grad_of, map, query, True)
    owned = tl.program_id(0) % parts * STREAM + tl.arange(0, STREAM)
    there = owned < (last - first) * length
    begin = owned // length * call.keys.group_size + owned % length * inner
    acc = tl.zeros([OWN, STREAM], tl.float32)
    for other in range(0, call.keys.group_size // length):
        numbers = begin + (other // inner * length * inner + other % inner)
        numbers = tl.where(there, numbers, (last - first) * call.keys.group_size)
        key = place(call.keys, call.groups, first, last, numbers, False, PACKED)
        x = product(vectors, call.query, query, call.key, key, map, D, CHUNKS, PRECISION)
        x, _ = logits_of(call, x, outside, map, query, key, OTHERS, PACKED)
        d_weights = product(values, gradient, query, call.value, key, map, DV, VALUE_CHUNKS, PRECISION)
        acc += tl.exp(x - lse) * (d_weights - along)
    key = place(call.keys, call.groups, first, last, begin, False, PACKED)
    pairs = (query.at < call.queries.positions) & facing(there, False)
    pairs &= (key.axis[AXIS] >= 0) & (key.axis[AXIS] < call.keys.size[AXIS])
    if PACKED:
        pairs &= query.group == key.group
    if call.reach is not None:
        pairs &= reached(call, query, key, AXIS)
    entry, _ = entries_of(call, query, key, AXIS, OTHERS)
    to = start_of(call, d_table, map) + query.at * d_table.query + entry
    tl.store(to, acc.to(d_table.data.dtype.element_ty), mask=pairs)


def vectors(x: Tensor) -> Rows:
    """Return the vectors of ``(batch, heads, *positions, channels)``."""
    flat = blocks.rows(x)
    return Rows(flat, *flat.shape[1:])


def of_all_axes(given: Sequence[int], missing: int) -> tuple[int, ...]:
    """Return one number per axis; missing axes come first."""
    return (*[missing] * (AXES - len(given)), *given)


class Tiles:
    """A call, and how its kernels are compiled. With ``others``, no query attends to its own position."""

    def __init__(self, call: Call, others: bool = False) -> None:
        self.call = call
        channels, value_channels = call.query.channels, call.value.channels
        self.constants = {
            'D': min(width(channels), MOST_WIDTH),
            'DV': min(width(value_channels), MOST_WIDTH),
            'CHUNKS': triton.cdiv(channels, MOST_WIDTH),
            'VALUE_CHUNKS': triton.cdiv(value_channels, MOST_WIDTH),
            'OTHERS': others,
            'PRECISION': precision(call.query.data.dtype),
        }

    def launch(
        self, kernel: Any, *arguments: Any, owned: Division, parts: int = 1, length: int = 0, **constants: Any
    ) -> None:
        """Run a kernel.

        Args:
            kernel: kernel.
            *arguments: its arguments after the call.
            owned: the positions that programs own.
            parts: number of programs that share a tile of them.
            length: for a kernel that owns pairs, the number of coordinates of a group; programs share these, too.
            **constants: further constants.
        """
        constants |= self.constants | {'PACKED': owned.group_size <= MOST_PACKED}

        def programs(config: dict) -> int:
            packed = config['OWN'] // owned.group_size if constants['PACKED'] else 1
            tiles = triton.cdiv(packed * owned.group_size, config['OWN'])
            packs = triton.cdiv(math.prod(self.call.groups), packed)
            shared = triton.cdiv(packed * length, config['STREAM']) if length else parts
            return len(self.call.query.data) * packs * tiles * shared

        with torch.cuda.device_of(self.call.query.data):  # no effect on CPUs
            launch.launch(kernel, programs, self.call, *arguments, **constants)


def forward(calls: Sequence[Tiles], out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the outputs of an operator, and return them."""
    to = torch.empty_like(out, memory_format=torch.contiguous_format)
    before = None
    for each in calls:
        last = each is calls[-1]
        sums = vectors(to if last else torch.empty_like(to, dtype=torch.float32))
        after = sums, lse if last else torch.empty_like(lse)
        each.launch(forward_kernel, before, after, owned=each.call.queries, parts=each.constants['VALUE_CHUNKS'])
        before = after
    return (to if out.is_contiguous() else out.copy_(to)), lse


def backward(
    calls: Sequence[Tiles],
    of: str,
    grad_of: Gradient,
    to: Tensor | None,
    d_outside: Tensor | None = None,
    d_tables: Sequence[tuple[Table | None, ...]] = (),
) -> None:
    """Compute the gradient of an operand ``(batch, heads, *positions, channels)``.

    Args:
        calls: calls of the operator.
        of: 'query', 'key' or 'value'.
        grad_of: the gradient of the output.
        to: the gradient, contiguous; None if it is not needed.
        d_outside: with ``of='query'``, the gradient of ``outside_bias``, contiguous; None if it is not needed.
        d_tables: with ``of='query'``, the gradients of the tables of each call; None for those that are not needed.
    """
    if to is d_outside is None and not any(table for each in d_tables for table in each):
        return
    gradient = Rows(grad_of.rows, *grad_of.rows.shape[1:])
    before: tuple = (None, None)
    for n, each in enumerate(calls):
        last = each is calls[-1]
        sums = [x if last or x is None else torch.empty_like(x, dtype=torch.float32) for x in (to, d_outside)]
        after = None if sums[0] is None else vectors(sums[0]), sums[1]
        tables = d_tables[n] if d_tables else (None,) * AXES
        owned = each.call.queries if of == 'query' else each.call.keys
        parts = each.constants['VALUE_CHUNKS' if of == 'value' else 'CHUNKS']
        each.launch(gradients, gradient, grad_of, before, after, tables, owned=owned, parts=parts, OF=of)
        before = after


def backward_of_offsets(each: Tiles, axis: int, grad_of: Gradient, to: Tensor) -> None:
    """Compute the gradient of the table of an axis, ``(batch, heads, *positions, entries)``, contiguous."""
    to.zero_()  # entries without a key are not written
    keys, gradient = each.call.keys, Rows(grad_of.rows, *grad_of.rows.shape[1:])
    each.launch(
        offset_gradients, gradient, grad_of, table(to), owned=each.call.queries, length=keys.length[axis], AXIS=axis
    )
