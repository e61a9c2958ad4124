"""The kernels of ``global_attention``: the forward pass, and the gradients.

A program owns the rows that it writes: keys in :func:`key_gradients`, queries in the other kernels. It loops over tiles
of the other side. A backward kernel computes the weights of a tile again, from the log-sum-exp.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import LOG2E, add_tile, decode, finish, load_rows, store_rows
from .global_attention_logits import compute_logits, find_entries, load_outside, strip


@triton.jit
def load_keys(call, map, keys, D: tl.constexpr, DV: tl.constexpr):
    """Load keys and values. What no query attends to is 0: NaN would reach all queries, since 0 · NaN is NaN."""
    if call.key_mask is not None:
        attended = tl.load(call.key_mask + map // call.heads * call.keys + keys, mask=keys < call.keys, other=0) != 0
        keys = tl.where(attended, keys, call.keys)
    if call.key_bias is not None:
        bias = tl.load(call.key_bias + map * call.keys + keys, mask=keys < call.keys, other=0.0).to(tl.float32)
        keys = tl.where(bias == float('-inf'), call.keys, keys)
    key = load_rows(call.key, map, keys, call.keys, call.channels, D)
    return key, load_rows(call.value, map, keys, call.keys, call.value_channels, DV)


@triton.jit
def attend(
    call, query, outside, acc, peak, total, map, queries, keys,
    INSIDE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Add a tile of keys to the sums of the online softmax."""
    key, value = load_keys(call, map, keys, D, DV)
    product = tl.dot(query, key.T)
    x = compute_logits(call, product, outside, map, queries, keys, INSIDE, CAUSAL, DIMS)
    return add_tile(acc, peak, total, x, value)


@triton.jit
def forward_kernel(
    call, out, lse,
    D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr,
    OWN: tl.constexpr, STREAM: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """Compute the output ``(maps, N, Dv)`` and the log-sum-exp ``(maps, N)``."""
    call = decode(call)
    tiles = tl.cdiv(call.queries, OWN)
    map = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles * OWN
    last = tl.minimum(first + OWN, call.queries) - 1
    queries = first + tl.arange(0, OWN)
    query = load_rows(call.query, map, queries, call.queries, call.channels, D)
    outside = load_outside(call, map, queries)
    acc = tl.zeros([OWN, DV], tl.float32)
    peak = tl.full([OWN], float('-inf'), tl.float32)
    total = tl.zeros([OWN], tl.float32)
    end = tl.cdiv(call.keys - call.queries + last + 1 if CAUSAL else call.keys, STREAM) * STREAM
    enter, leave = 0, 0
    if call.window is not None:
        enter, leave = strip(first, last, call.size, call.key_size, call.before[0], call.reach[0], end, STREAM)
        for start in range(enter, leave, STRIP):
            keys = start + tl.arange(0, STRIP)
            acc, peak, total = attend(
                call, query, outside, acc, peak, total, map, queries, keys, True, D, DV, CAUSAL, DIMS
            )
    for start in range(0, end - (leave - enter), STREAM):
        keys = tl.where(start < enter, start, start + leave - enter) + tl.arange(0, STREAM)
        acc, peak, total = attend(
            call, query, outside, acc, peak, total, map, queries, keys, False, D, DV, CAUSAL, DIMS
        )
    acc, log = finish(acc, peak, total)
    store_rows(out, map, queries, call.queries, call.value_channels, acc, DV)
    tl.store(lse + map * call.queries + queries, log, mask=queries < call.queries)


@triton.jit
def differentiate(
    call, query, key, value, grad, outside, lse, along, map, queries, keys,
    INSIDE: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Compute the weights of a tile, and the gradients of its logits."""
    product = tl.dot(query, key.T)
    x = compute_logits(call, product, outside, map, queries, keys, INSIDE, CAUSAL, DIMS)
    weights = tl.exp2(x - lse[:, None])
    d_weights = tl.dot(grad, value.T)
    return weights, weights * (d_weights - along[:, None])


@triton.jit
def load_queries(call, upstream, map, queries, D: tl.constexpr, DV: tl.constexpr):
    """Load queries, gradients, biases outside the window, log-sum-exps (times log₂ e), and Σ gradient · output."""
    query = load_rows(call.query, map, queries, call.queries, call.channels, D)
    grad = load_rows(upstream.rows, map, queries, call.queries, call.value_channels, DV)
    at, there = map * call.queries + queries, queries < call.queries
    lse = tl.load(upstream.lse + at, mask=there, other=0.0) * LOG2E
    along = tl.load(upstream.along + at, mask=there, other=0.0)
    return query, grad, load_outside(call, map, queries), lse, along


@triton.jit
def query_gradients(
    call, upstream, d_query, d_window, d_outside,
    D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr,
    OWN: tl.constexpr, STREAM: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of queries, window biases ``(maps, N, K)`` and ``outside_bias`` ``(maps, N)``."""
    call = decode(call)
    tiles = tl.cdiv(call.queries, OWN)
    map = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles * OWN
    last = tl.minimum(first + OWN, call.queries) - 1
    queries = first + tl.arange(0, OWN)
    query, grad, outside, lse, along = load_queries(call, upstream, map, queries, D, DV)
    acc = tl.zeros([OWN, D], tl.float32)
    end = tl.cdiv(call.keys - call.queries + last + 1 if CAUSAL else call.keys, STREAM) * STREAM
    enter, leave = 0, 0
    if call.window is not None:
        inside_sum = tl.zeros([OWN], tl.float32)
        enter, leave = strip(first, last, call.size, call.key_size, call.before[0], call.reach[0], end, STREAM)
        for start in range(enter, leave, STRIP):
            keys = start + tl.arange(0, STRIP)
            key, value = load_keys(call, map, keys, D, DV)
            _, d_logits = differentiate(
                call, query, key, value, grad, outside, lse, along, map, queries, keys, True, CAUSAL, DIMS
            )
            if d_query is not None:
                acc = tl.dot(d_logits.to(key.dtype), key, acc)
            entry, inside = find_entries(call, queries, keys, DIMS)
            inside_sum += tl.sum(tl.where(inside, d_logits, 0.0), 1)
            if d_window is not None:  # each entry belongs to one pair; entries without a key are not written
                to = d_window + map * call.queries * call.entries + (queries[:, None] * call.entries + entry)
                tl.store(to, d_logits.to(d_window.dtype.element_ty), mask=inside)
        if d_outside is not None:  # the gradients of all logits sum to that of the log-sum-exp, which is added later
            to = d_outside + map * call.queries + queries
            tl.store(to, (-inside_sum).to(d_outside.dtype.element_ty), mask=queries < call.queries)
    if d_query is not None:
        for start in range(0, end - (leave - enter), STREAM):
            keys = tl.where(start < enter, start, start + leave - enter) + tl.arange(0, STREAM)
            key, value = load_keys(call, map, keys, D, DV)
            _, d_logits = differentiate(
                call, query, key, value, grad, outside, lse, along, map, queries, keys, False, CAUSAL, DIMS
            )
            acc = tl.dot(d_logits.to(key.dtype), key, acc)
        store_rows(d_query, map, queries, call.queries, call.channels, acc * call.scale, D)


@triton.jit
def accumulate(
    call, upstream, key, value, d_key, d_value, d_bias, map, queries, keys,
    INSIDE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """Add a tile of queries to the gradients of keys, values and key biases."""
    query, grad, outside, lse, along = load_queries(call, upstream, map, queries, D, DV)
    weights, d_logits = differentiate(
        call, query, key, value, grad, outside, lse, along, map, queries, keys, INSIDE, CAUSAL, DIMS
    )
    d_value = tl.dot(weights.to(grad.dtype).T, grad, d_value)
    d_key = tl.dot(d_logits.to(query.dtype).T, query, d_key)
    return d_key, d_value, d_bias + tl.sum(d_logits, 0)


@triton.jit
def key_gradients(
    call, upstream, d_key, d_value, d_bias,
    D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr,
    OWN: tl.constexpr, STREAM: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of keys, values and key biases ``(maps, M)``."""
    call = decode(call)
    tiles = tl.cdiv(call.keys, OWN)
    map = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles * OWN
    last = tl.minimum(first + OWN, call.keys) - 1
    keys = first + tl.arange(0, OWN)
    key, value = load_keys(call, map, keys, D, DV)
    key_sum = tl.zeros([OWN, D], tl.float32)
    value_sum = tl.zeros([OWN, DV], tl.float32)
    bias_sum = tl.zeros([OWN], tl.float32)
    begin = 0
    if CAUSAL:  # queries before all of the keys
        begin = tl.maximum(first - (call.keys - call.queries), 0) // STREAM * STREAM
    end = tl.cdiv(call.queries, STREAM) * STREAM
    enter, leave = begin, begin
    if call.window is not None:
        enter, leave = strip(first, last, call.key_size, call.size, -call.before[0], call.reach[0], end, STREAM)
        enter = tl.maximum(enter, begin)
        leave = tl.maximum(leave, begin)
        for start in range(enter, leave, STRIP):
            queries = start + tl.arange(0, STRIP)
            key_sum, value_sum, bias_sum = accumulate(
                call, upstream, key, value, key_sum, value_sum, bias_sum, map, queries, keys,
                True, D, DV, CAUSAL, DIMS,
            )  # fmt: skip
    for start in range(begin, end - (leave - enter), STREAM):
        queries = tl.where(start < enter, start, start + leave - enter) + tl.arange(0, STREAM)
        key_sum, value_sum, bias_sum = accumulate(
            call, upstream, key, value, key_sum, value_sum, bias_sum, map, queries, keys,
            False, D, DV, CAUSAL, DIMS,
        )  # fmt: skip
    if d_key is not None:
        store_rows(d_key, map, keys, call.keys, call.channels, key_sum * call.scale, D)
    if d_value is not None:
        store_rows(d_value, map, keys, call.keys, call.value_channels, value_sum, DV)
    if d_bias is not None:
        to = d_bias + map * call.keys + keys
        tl.store(to, bias_sum.to(d_bias.dtype.element_ty), mask=keys < call.keys)


@triton.jit
def axis_gradients(
    call, upstream, d_bias, length, inner,
    D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr,
    OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the biases of an axis, ``(maps, N, length)``. ``inner`` positions are on later axes."""
    call = decode(call)
    length, inner = decode(length), decode(inner)
    tiles, parts = tl.cdiv(call.queries, OWN), tl.cdiv(length, STREAM)
    map = (tl.program_id(0) // (tiles * parts)).to(tl.int64)
    queries = tl.program_id(0) // parts % tiles * OWN + tl.arange(0, OWN)
    at = tl.program_id(0) % parts * STREAM + tl.arange(0, STREAM)
    query, grad, outside, lse, along = load_queries(call, upstream, map, queries, D, DV)
    acc = tl.zeros([OWN, STREAM], tl.float32)
    # A program owns queries × coordinates on this axis, and loops over positions on the other axes.
    for other in range(0, call.keys // length):
        keys = tl.where(at < length, (other // inner * length + at) * inner + other % inner, call.keys)
        key, value = load_keys(call, map, keys, D, DV)
        _, d_logits = differentiate(
            call, query, key, value, grad, outside, lse, along, map, queries, keys, True, CAUSAL, DIMS
        )
        acc += d_logits
    to = d_bias + map * call.queries * length + (queries[:, None] * length + at[None, :])
    there = (queries < call.queries)[:, None] & (at < length)[None, :]
    tl.store(to, acc.to(d_bias.dtype.element_ty), mask=there)
