"""The forward kernel of ``tiles.py``: a program owns queries, and loops over keys."""

from __future__ import annotations

import triton.language as tl

from .blocks import store_rows
from .launch import tuned
from .tiles_logits import load, logits_of, outside_of, own_groups, place, product


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
