"""The backward kernels of ``tiles.py``. They compute the weights of a tile again, from the log-sum-exp."""

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import start_of, store_rows
from .launch import tuned
from .tiles_logits import (
    entries_of,
    facing,
    groups_per_tile,
    load,
    logits_of,
    outside_of,
    own_groups,
    place,
    product,
    reached,
)


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
