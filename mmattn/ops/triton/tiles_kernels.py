"""The kernels of ``tiles.py``: the forward pass, and the gradients.

A backward kernel computes the weights of a tile again, from the log-sum-exp.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import LOG2E, decode, point_to_map, store_rows
from .tiles_logits import (
    compute_logits,
    find_entries,
    groups_per_tile,
    load,
    load_outside,
    locate,
    orient,
    own_groups,
    product,
    reached,
)


@triton.jit
def forward_kernel(
    call, before, after,
    D: tl.constexpr, DV: tl.constexpr, CHUNKS: tl.constexpr, VALUE_CHUNKS: tl.constexpr, SKIP_SELF: tl.constexpr,
    PRECISION: tl.constexpr, PACKED: tl.constexpr, OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Compute the output ``(maps, N, Dv)`` and log-sum-exp ``(maps, N)``, starting from the sums before this call."""
    call, before, after = decode(call), decode(before), decode(after)
    chunk = tl.program_id(0) % VALUE_CHUNKS
    map, first, last, start = own_groups(call.queries, call.groups, tl.program_id(0) // VALUE_CHUNKS, OWN, PACKED)
    row = locate(call.queries, call.groups, first, last, start + tl.arange(0, OWN), True, PACKED)
    query = load(call.query, map, row, D)
    outside = load_outside(call, map, row, True)
    acc = tl.zeros([OWN, DV], tl.float32)
    peak = tl.full([OWN], float('-inf'), tl.float32)
    total = tl.zeros([OWN], tl.float32)
    own_sum = map * call.queries.positions + row.flat
    if before is not None:
        acc = load(before[0], map, row, DV, chunk)
        peak = tl.load(before[1] + own_sum, mask=row.flat < call.queries.positions, other=float('-inf')) * LOG2E
        total = tl.where(peak == float('-inf'), 0.0, 1.0)
    for number in range(0, (last - first) * call.keys.group_size, STREAM):
        key = locate(call.keys, call.groups, first, last, number + tl.arange(0, STREAM), False, PACKED)
        x = product(query, call.query, row, call.key, key, map, D, CHUNKS, PRECISION)
        x, _ = compute_logits(call, x, outside, map, row, key, SKIP_SELF, PACKED)
        highest = tl.maximum(peak, tl.max(x, 1))
        zero = tl.where(highest == float('-inf'), 0.0, highest)  # no key yet
        weights = tl.exp2(x - zero[:, None])
        factor = tl.exp2(peak - zero)
        total = total * factor + tl.sum(weights, 1)
        value = load(call.value, map, key, DV, chunk)
        acc = tl.dot(weights.to(value.dtype), value, acc * factor[:, None], input_precision=PRECISION)
        peak = highest
    acc = acc / tl.where(total == 0, 1.0, total)[:, None]
    store_rows(after[0].data, map, row.flat, after[0].positions, after[0].channels, acc, DV, chunk * DV)
    log = tl.where(total == 0, float('-inf'), (peak + tl.log2(tl.where(total == 0, 1.0, total))) / LOG2E)
    tl.store(after[1] + own_sum, log, mask=(row.flat < call.queries.positions) & (chunk == 0))


@triton.jit
def load_sums(call, upstream, map, query, ROWS: tl.constexpr):
    """Load the log-sum-exp, times log₂ e, and Σ gradient · output of each query."""
    at, there = map * call.queries.positions + query.flat, query.flat < call.queries.positions
    lse = tl.load(upstream.lse + at, mask=there, other=0.0) * LOG2E
    return orient(lse, ROWS), orient(tl.load(upstream.along + at, mask=there, other=0.0), ROWS)


@triton.jit
def gradients(
    call, gradient, upstream, before, after, d_tables,
    OPERAND: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, CHUNKS: tl.constexpr, VALUE_CHUNKS: tl.constexpr,
    SKIP_SELF: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr, OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Compute gradients of queries (with ``outside_bias`` and tables), keys or values, from sums before this call."""
    call, gradient, d_tables = decode(call), decode(gradient), decode(d_tables)
    before, after = decode(before), decode(after)
    OF_QUERIES: tl.constexpr = OPERAND == 'query'
    PARTS: tl.constexpr = VALUE_CHUNKS if OPERAND == 'value' else CHUNKS
    WIDTH: tl.constexpr = DV if OPERAND == 'value' else D
    owned, other = (call.queries, call.keys) if OF_QUERIES else (call.keys, call.queries)
    owned_vectors, other_vectors = (call.query, call.key) if OF_QUERIES else (call.key, call.query)
    owned_values, other_values = (gradient, call.value) if OF_QUERIES else (call.value, gradient)
    chunk = tl.program_id(0) % PARTS
    map, first, last, start = own_groups(owned, call.groups, tl.program_id(0) // PARTS, OWN, PACKED)
    row = locate(owned, call.groups, first, last, start + tl.arange(0, OWN), True, PACKED)
    vectors = load(owned_vectors, map, row, D)
    values = load(owned_values, map, row, DV)
    if OF_QUERIES:
        outside = load_outside(call, map, row, True)
        lse, along = load_sums(call, upstream, map, row, True)
    acc = tl.zeros([OWN, WIDTH], tl.float32)
    outside_sum = tl.zeros([OWN], tl.float32)
    for number in range(0, (last - first) * other.group_size, STREAM):
        column = locate(other, call.groups, first, last, number + tl.arange(0, STREAM), False, PACKED)
        if not OF_QUERIES:
            outside = load_outside(call, map, column, False)
            lse, along = load_sums(call, upstream, map, column, False)
        query, key = (row, column) if OF_QUERIES else (column, row)
        x = product(vectors, owned_vectors, row, other_vectors, column, map, D, CHUNKS, PRECISION)
        x, pairs = compute_logits(call, x, outside, map, query, key, SKIP_SELF, PACKED)
        weights = tl.exp2(x - lse)
        if OPERAND == 'value':
            factor = load(other_values, map, column, DV, chunk)
        else:
            factor = load(other_vectors, map, column, D, chunk)
            d_weights = product(values, owned_values, row, other_values, column, map, DV, VALUE_CHUNKS, PRECISION)
            weights = weights * (d_weights - along)
        if after[0] is not None:
            acc = tl.dot(weights.to(factor.dtype), factor, acc, input_precision=PRECISION)
        if OF_QUERIES and call.outside is not None:
            for axis in tl.static_range(3):
                if call.tables[axis] is not None:
                    _, inside = find_entries(call, query, key, axis, SKIP_SELF)
                    outside_sum += tl.sum(tl.where(inside, 0.0, weights), 1)
        for axis in tl.static_range(3):
            if d_tables[axis] is not None:
                entry, inside = find_entries(call, query, key, axis, SKIP_SELF)  # one entry per pair
                to = point_to_map(call, d_tables[axis], map) + query.at * d_tables[axis].query + entry
                tl.store(to, weights.to(to.dtype.element_ty), mask=pairs & inside & (chunk == 0))
    if after[0] is not None:
        if OPERAND != 'value':
            acc *= call.scale
        if before[0] is not None:
            acc += load(before[0], map, row, WIDTH, chunk)
        store_rows(after[0].data, map, row.flat, after[0].positions, after[0].channels, acc, WIDTH, chunk * WIDTH)
    if after[1] is not None:
        to = map * call.queries.positions + row.flat
        if before[1] is not None:
            outside_sum += tl.load(before[1] + to, mask=row.flat < owned.positions, other=0.0)
        tl.store(
            after[1] + to, outside_sum.to(after[1].dtype.element_ty), mask=(row.flat < owned.positions) & (chunk == 0)
        )


@triton.jit
def offset_gradients(
    call, gradient, upstream, d_table,
    AXIS: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, CHUNKS: tl.constexpr, VALUE_CHUNKS: tl.constexpr,
    SKIP_SELF: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr, OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the table of one axis."""
    call, gradient, d_table = decode(call), decode(gradient), decode(d_table)
    length, inner = call.keys.length[AXIS], 1
    for axis in tl.static_range(AXIS + 1, 3):
        inner *= call.keys.length[axis]
    parts = tl.cdiv(groups_per_tile(call.queries, OWN, PACKED) * length, STREAM)
    map, first, last, start = own_groups(call.queries, call.groups, tl.program_id(0) // parts, OWN, PACKED)
    query = locate(call.queries, call.groups, first, last, start + tl.arange(0, OWN), True, PACKED)
    vectors = load(call.query, map, query, D)
    values = load(gradient, map, query, DV)
    outside = load_outside(call, map, query, True)
    lse, along = load_sums(call, upstream, map, query, True)
    owned = tl.program_id(0) % parts * STREAM + tl.arange(0, STREAM)
    there = owned < (last - first) * length
    begin = owned // length * call.keys.group_size + owned % length * inner
    acc = tl.zeros([OWN, STREAM], tl.float32)
    # A program owns queries × coordinates of keys on this axis, and loops over the positions on the other axes.
    for other in range(0, call.keys.group_size // length):
        numbers = begin + (other // inner * length * inner + other % inner)
        numbers = tl.where(there, numbers, (last - first) * call.keys.group_size)
        key = locate(call.keys, call.groups, first, last, numbers, False, PACKED)
        x = product(vectors, call.query, query, call.key, key, map, D, CHUNKS, PRECISION)
        x, _ = compute_logits(call, x, outside, map, query, key, SKIP_SELF, PACKED)
        d_weights = product(values, gradient, query, call.value, key, map, DV, VALUE_CHUNKS, PRECISION)
        acc += tl.exp2(x - lse) * (d_weights - along)
    key = locate(call.keys, call.groups, first, last, begin, False, PACKED)
    pairs = (query.at < call.queries.positions) & orient(there, False)
    pairs &= (key.axis[AXIS] >= 0) & (key.axis[AXIS] < call.keys.size[AXIS])
    if PACKED:
        pairs &= query.group == key.group
    if call.reach is not None:
        pairs &= reached(call, query, key, AXIS)
    entry, _ = find_entries(call, query, key, AXIS, SKIP_SELF)
    to = point_to_map(call, d_table, map) + query.at * d_table.query + entry
    tl.store(to, acc.to(d_table.data.dtype.element_ty), mask=pairs)
