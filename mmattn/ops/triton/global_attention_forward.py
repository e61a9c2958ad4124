"""The forward kernel of ``global_attention``: a program owns queries, and loops over tiles of keys."""

from __future__ import annotations

import triton
import triton.language as tl

from .blocks import load_rows, store_rows
from .global_attention_logits import logits_of, outside_of, strip
from .launch import tuned


@triton.jit
def attend(
    call, query, outside, acc, peak, total, map, queries, keys,
    INSIDE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add a tile of keys to the sums of the online softmax."""
    key = load_rows(call.key, map, keys, call.keys, call.channels, D)
    value = load_rows(call.value, map, keys, call.keys, call.value_channels, DV)
    product = tl.dot(query, key.T, input_precision=PRECISION)
    x = logits_of(call, product, outside, map, queries, keys, INSIDE, CAUSAL, DIMS)
    highest = tl.maximum(peak, tl.max(x, 1))
    zero = tl.where(highest == float('-inf'), 0.0, highest)  # all keys masked
    weights = tl.exp(x - zero[:, None])
    factor = tl.exp(peak - zero)
    total = total * factor + tl.sum(weights, 1)
    acc = tl.dot(weights.to(value.dtype), value, acc * factor[:, None], input_precision=PRECISION)
    return acc, highest, total


@tuned
def forward_kernel(
    call, out, lse,
    D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr, PRECISION: tl.constexpr,
    OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Compute output ``(maps, N, Dv)`` and log-sum-exp ``(maps, N)``."""
    tiles = tl.cdiv(call.queries, OWN)
    map = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles * OWN
    last = tl.minimum(first + OWN, call.queries) - 1
    queries = first + tl.arange(0, OWN)
    query = load_rows(call.query, map, queries, call.queries, call.channels, D)
    outside = outside_of(call, map, queries)
    acc = tl.zeros([OWN, DV], tl.float32)
    peak = tl.full([OWN], float('-inf'), tl.float32)
    total = tl.zeros([OWN], tl.float32)
    end = tl.cdiv(call.keys - call.queries + last + 1 if CAUSAL else call.keys, STREAM) * STREAM
    enter, leave = 0, 0
    if call.window is not None:
        enter, leave = strip(first, last, call.size, call.key_size, call.before[0], call.reach[0], end, STREAM)
        for start in range(enter, leave, STREAM):
            keys = start + tl.arange(0, STREAM)
            acc, peak, total = attend(
                call, query, outside, acc, peak, total, map, queries, keys, True, D, DV, CAUSAL, DIMS, PRECISION
            )
    for start in range(0, end - (leave - enter), STREAM):
        keys = tl.where(start < enter, start, start + leave - enter) + tl.arange(0, STREAM)
        acc, peak, total = attend(
            call, query, outside, acc, peak, total, map, queries, keys, False, D, DV, CAUSAL, DIMS, PRECISION
        )
    acc = acc / tl.where(total == 0, 1.0, total)[:, None]
    store_rows(out, map, queries, call.queries, call.value_channels, acc, DV)
    log = tl.where(total == 0, float('-inf'), peak + tl.log(tl.where(total == 0, 1.0, total)))
    tl.store(lse + map * call.queries + queries, log, mask=queries < call.queries)
