"""The kernels of ``grid_attention``: one arm of the forward pass, and of the gradients.

A program owns some positions of one line, and loops over all positions of this line. It adds one arm to the sums of the
arms before. Value channels are processed in chunks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from .blocks import LOG2E, Map, add_tile, decode, finish, load_channels, offset_to, point_to_head, store_channels


class Call(NamedTuple):
    """The operands of one arm. The last position axis of a map is that of the arm. Missing operands are None."""

    query: Map
    key: Map
    value: Map
    window: Map | None  # the channels are the entries of the arm
    outside: Map | None
    lines: tuple[int, ...]  # sides of the two other axes
    length: int  # of a line
    flat: tuple[int, ...]  # strides of the three axes where all positions are contiguous
    positions: int
    reach: int  # of the window
    heads: int
    channels: tl.constexpr
    value_channels: tl.constexpr
    outside_value: float
    scale: float


class Line(NamedTuple):
    """One line of a map, by its coordinates on the other axes."""

    map: Any
    first: Any
    second: Any


@triton.jit
def own(call, PARTS: tl.constexpr, OWN: tl.constexpr):
    """Return the line, the positions and the part of a program."""
    tiles = tl.cdiv(call.length, OWN)
    number = tl.program_id(0) // PARTS
    line = number // tiles
    first = line // call.lines[1]
    at = Line((first // call.lines[0]).to(tl.int64), first % call.lines[0], line % call.lines[1])
    return at, number % tiles * OWN + tl.arange(0, OWN), tl.program_id(0) % PARTS


@triton.jit
def place(x, line, positions):
    """Compute offsets of the first channel of positions of a line."""
    return offset_to(x, line.first, line.second, positions)


@triton.jit
def load(call, x, line, positions, channels, WIDTH: tl.constexpr, chunk=0):
    """Load a chunk of the channels of positions of a line."""
    there = positions < call.length
    return load_channels(call, x, line.map, place(x, line, positions), there, channels, WIDTH, chunk)


@triton.jit
def count(call, line, positions):
    """Number positions of a line among those of all maps."""
    at = line.first * call.flat[0] + line.second * call.flat[1] + positions * call.flat[2]
    return line.map * call.positions + at


@triton.jit
def load_number(call, x, line, positions, other):
    """Load one number of each position from a contiguous tensor."""
    return tl.load(x + count(call, line, positions), mask=positions < call.length, other=other)


@triton.jit
def load_outside(call, line, queries):
    """Load the bias of each query for keys outside the window, times log₂ e."""
    x = tl.full(queries.shape, call.outside_value, tl.float32)
    if call.outside is not None:
        to = point_to_head(call, call.outside, line.map) + place(call.outside, line, queries)
        x = tl.load(to, mask=queries < call.length, other=0.0).to(tl.float32)
    return x * LOG2E


@triton.jit
def find_pairs(call, queries, keys, SELF: tl.constexpr, Q: tl.constexpr):
    """Return which queries of a tile attend to which keys, the entries of their window biases, and if they have one.

    ``Q`` is the axis that vectors of queries lack in the tile: 1 for queries × keys, 0 for keys × queries.
    """
    offset = tl.expand_dims(keys, 1 - Q) - tl.expand_dims(queries, Q)
    pairs = tl.expand_dims(queries < call.length, Q) & tl.expand_dims(keys < call.length, 1 - Q)
    entry = offset + call.reach
    if not SELF:  # the arm of another axis has the key of the query, and the centre of the window
        pairs &= offset != 0
        entry -= (offset > 0).to(tl.int32)
    return pairs, entry, pairs & (offset >= -call.reach) & (offset <= call.reach)


@triton.jit
def compute_logits(call, product, outside, line, queries, keys, SELF: tl.constexpr, Q: tl.constexpr):
    """Compute logits times log₂ e from products, −∞ where a query does not attend to a key. Q: see find_pairs."""
    x = call.scale * LOG2E * product
    pairs, entry, inside = find_pairs(call, queries, keys, SELF, Q)
    if call.window is not None:
        offsets = tl.expand_dims(place(call.window, line, queries), Q) + entry * call.window.channel
        bias = tl.load(point_to_head(call, call.window, line.map) + offsets, mask=inside, other=0.0)
        x += tl.where(inside, bias.to(tl.float32) * LOG2E, tl.expand_dims(outside, Q))
    return tl.where(pairs, x, float('-inf'))


@triton.jit
def grid_forward(
    call, before, lse_before, out, lse,
    D: tl.constexpr, DV: tl.constexpr, CHUNKS: tl.constexpr, SELF: tl.constexpr,
    OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Compute the output and the log-sum-exp ``(maps, N)`` of the arms so far. A program owns a chunk of channels."""
    call, before, out = decode(call), decode(before), decode(out)
    line, queries, chunk = own(call, CHUNKS, OWN)
    query = load(call, call.query, line, queries, call.channels, D)
    outside = load_outside(call, line, queries)
    acc = tl.zeros([OWN, DV], tl.float32)
    peak = tl.full([OWN], float('-inf'), tl.float32)
    total = tl.zeros([OWN], tl.float32)
    if before is not None:
        acc = load(call, before, line, queries, call.value_channels, DV, chunk)
        peak = load_number(call, lse_before, line, queries, float('-inf')) * LOG2E
        total = tl.where(peak == float('-inf'), 0.0, 1.0)
    for start in range(0, call.length, STREAM):
        keys = start + tl.arange(0, STREAM)
        key = load(call, call.key, line, keys, call.channels, D)
        value = load(call, call.value, line, keys, call.value_channels, DV, chunk)
        x = compute_logits(call, tl.dot(query, key.T), outside, line, queries, keys, SELF, 1)
        acc, peak, total = add_tile(acc, peak, total, x, value)
    rows, log = finish(acc, peak, total)
    there = queries < call.length
    store_channels(call, out, line.map, place(out, line, queries), there, call.value_channels, rows, DV, chunk)
    tl.store(lse + count(call, line, queries), log, mask=there & (chunk == 0))


@triton.jit
def grid_along(
    call, upstream, out, grad_lse,
    D: tl.constexpr, DV: tl.constexpr, CHUNKS: tl.constexpr, SELF: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """Compute Σ gradient · output − gradient of the log-sum-exp of each query."""
    call, upstream, out = decode(call), decode(upstream), decode(out)
    line, queries, _ = own(call, 1, OWN)
    total = tl.zeros([OWN], tl.float32)
    for chunk in range(CHUNKS):
        grad = load(call, upstream.rows, line, queries, call.value_channels, DV, chunk)
        total += tl.sum(grad.to(tl.float32) * load(call, out, line, queries, call.value_channels, DV, chunk), 1)
    if grad_lse is not None:
        total -= load_number(call, grad_lse, line, queries, 0.0)
    tl.store(upstream.along + count(call, line, queries), total, mask=queries < call.length)


@triton.jit
def load_queries(call, upstream, line, queries):
    """Load biases outside the window, log-sum-exps (0 without keys), and what :func:`grid_along` computes."""
    lse = load_number(call, upstream.lse, line, queries, 0.0)
    lse = tl.where(lse == float('-inf'), 0.0, lse) * LOG2E
    return load_outside(call, line, queries), lse, load_number(call, upstream.along, line, queries, 0.0)


@triton.jit
def add(
    call, upstream, before, after, d_window, outside_before, d_outside, grad_lse, line, owned, chunk,
    OPERAND: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, CHUNKS: tl.constexpr, SELF: tl.constexpr,
    OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of queries (with biases) or keys, or of a chunk of the channels of values."""
    OF_QUERIES: tl.constexpr = OPERAND == 'query'
    OF_VALUES: tl.constexpr = OPERAND == 'value'
    Q: tl.constexpr = 1 if OF_QUERIES else 0
    WIDTH: tl.constexpr = DV if OF_VALUES else D
    channels = call.value_channels if OF_VALUES else call.channels
    rows, columns = (call.query, call.key) if OF_QUERIES else (call.key, call.query)
    row_values, column_values = (upstream.rows, call.value) if OF_QUERIES else (call.value, upstream.rows)
    row = load(call, rows, line, owned, call.channels, D)
    if OF_QUERIES:
        outside, lse, along = load_queries(call, upstream, line, owned)
    if CHUNKS == 1 and not OF_VALUES:
        row_value = load(call, row_values, line, owned, call.value_channels, DV)
    acc = tl.zeros([OWN, WIDTH], tl.float32)
    outside_sum = tl.zeros([OWN], tl.float32)
    for start in range(0, call.length, STREAM):
        others = start + tl.arange(0, STREAM)
        column = load(call, columns, line, others, call.channels, D)
        queries, keys = (owned, others) if OF_QUERIES else (others, owned)
        if not OF_QUERIES:
            outside, lse, along = load_queries(call, upstream, line, queries)
        x = compute_logits(call, tl.dot(row, column.T), outside, line, queries, keys, SELF, Q)
        weights = tl.exp2(x - tl.expand_dims(lse, Q))
        if OF_VALUES:
            column = load(call, column_values, line, others, call.value_channels, DV, chunk)
        else:
            if CHUNKS == 1:
                d_weights = tl.dot(row_value, load(call, column_values, line, others, call.value_channels, DV).T)
            else:
                d_weights = tl.zeros([OWN, STREAM], tl.float32)
                for part in range(CHUNKS):
                    row_value = load(call, row_values, line, owned, call.value_channels, DV, part)
                    column_value = load(call, column_values, line, others, call.value_channels, DV, part)
                    d_weights = tl.dot(row_value, column_value.T, d_weights)
            weights = weights * (d_weights - tl.expand_dims(along, Q))
        if after is not None:
            acc = tl.dot(weights.to(column.dtype), column, acc)
        if OF_QUERIES and call.window is not None:
            _, entry, inside = find_pairs(call, queries, keys, SELF, 1)
            outside_sum -= tl.sum(tl.where(inside, weights, 0.0), 1)
            if d_window is not None:  # each entry belongs to one pair; entries without a key are not written
                offsets = place(d_window, line, queries)[:, None] + entry * d_window.channel
                to = point_to_head(call, d_window, line.map) + offsets
                tl.store(to, weights.to(d_window.data.dtype.element_ty), mask=inside)
    if after is not None:
        if not OF_VALUES:
            acc *= call.scale
        if before is not None:
            acc += load(call, before, line, owned, channels, WIDTH, chunk)
        there = owned < call.length
        store_channels(call, after, line.map, place(after, line, owned), there, channels, acc, WIDTH, chunk)
    if OF_QUERIES and d_outside is not None:  # the gradients of all logits sum to that of the log-sum-exp
        if outside_before is not None:
            outside_sum += load_number(call, outside_before, line, owned, 0.0)
        if SELF and grad_lse is not None:
            some = load_number(call, upstream.lse, line, owned, float('-inf')) != float('-inf')
            outside_sum += tl.where(some, load_number(call, grad_lse, line, owned, 0.0), 0.0)
        to = d_outside + count(call, line, owned)
        tl.store(to, outside_sum.to(d_outside.dtype.element_ty), mask=owned < call.length)


@triton.jit
def grid_gradients(
    call, upstream, before, after, d_window, outside_before, d_outside, grad_lse,
    D: tl.constexpr, DV: tl.constexpr, CHUNKS: tl.constexpr, SELF: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Add one arm to the gradients of queries, keys and values. A program computes one of them, of values a chunk.

    ``before`` and ``after`` are those of queries, keys and values.
    """
    call, upstream, d_window = decode(call), decode(upstream), decode(d_window)
    before, after = decode(before), decode(after)
    PARTS: tl.constexpr = (1 if QUERIES else 0) + (1 if KEYS else 0) + (CHUNKS if VALUES else 0)
    line, owned, part = own(call, PARTS, OWN)
    if QUERIES:  # noqa: SIM102 (the compiler decides this)
        if part == PARTS - 1:
            add(
                call, upstream, before[0], after[0], d_window, outside_before, d_outside, grad_lse, line, owned, 0,
                'query', D, DV, CHUNKS, SELF, OWN, STREAM,
            )  # fmt: skip
    if KEYS:  # noqa: SIM102 (the compiler decides this)
        if part == (CHUNKS if VALUES else 0):
            add(
                call, upstream, before[1], after[1], None, None, None, None, line, owned, 0,
                'key', D, DV, CHUNKS, SELF, OWN, STREAM,
            )  # fmt: skip
    if VALUES:  # noqa: SIM102 (the compiler decides this)
        if part < CHUNKS:
            add(
                call, upstream, before[2], after[2], None, None, None, None, line, owned, part,
                'value', D, DV, CHUNKS, SELF, OWN, STREAM,
            )  # fmt: skip
