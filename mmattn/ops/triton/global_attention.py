"""The kernels of ``global_attention``; ``../global_attention.py`` has the equations.

A program owns the rows that it writes: keys in :func:`key_gradients`, queries in the other kernels. It loops over tiles
of the others. No kernel uses atomics, and the order of every sum is fixed. A tile is always queries × keys.

The keys in the windows of consecutive queries are a strip of consecutive keys, because all axes but the first are
complete in it. Therefore only the tiles of this strip load window biases; all others have one bias per query.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..global_attention import OPERATOR
from ..operator import empty_laid_out_as
from . import blocks, launch
from .blocks import Table, gradients_like, load_rows, rows, start_of, store_rows, sums_of, table
from .launch import precision, tuned, width

AXES = 3
MOST_CHANNELS = 256


class Call(NamedTuple):
    """The operands of one call. Missing axes come last, with length 1. Missing operands are None."""

    query: Tensor  # (maps, N, D), contiguous; maps = batch · heads
    key: Tensor  # (maps, M, D), contiguous
    value: Tensor  # (maps, M, Dv), contiguous
    window: Table | None
    outside: Table | None
    axis_bias: tuple[Table | None, ...]
    key_bias: Tensor | None  # (maps, M), contiguous
    key_mask: Tensor | None  # (batch, M), contiguous
    size: tuple[int, ...]
    key_size: tuple[int, ...]
    before: tuple[int, ...]  # with a window or is_causal: positions of keys before the first query
    reach: tuple[int, ...]  # a window has length 2 · reach + 1
    entries: int  # of a window
    heads: int
    queries: int
    keys: int
    channels: int
    value_channels: int
    outside_value: float
    scale: float


@triton.jit
def place(numbers, size):
    """Return the coordinates of positions."""
    return numbers // (size[1] * size[2]), numbers // size[2] % size[1], numbers % size[2]


@triton.jit
def outside_of(call, map, queries):
    """Return the bias of each query for keys outside the window."""
    x = tl.full(queries.shape, call.outside_value, tl.float32)
    if call.outside is not None:
        from_table = start_of(call, call.outside, map) + queries * call.outside.query
        x = tl.load(from_table, mask=queries < call.queries, other=0.0).to(tl.float32)
    return x


@triton.jit
def entries_of(call, queries, keys, DIMS: tl.constexpr):
    """Return the window entry of each pair, and whether it exists."""
    q0, q1, q2 = place(queries, call.size)
    k0, k1, k2 = place(keys, call.key_size)
    entry = k0[None, :] - (q0 + call.before[0] - call.reach[0])[:, None]
    inside = (entry >= 0) & (entry <= 2 * call.reach[0])
    if DIMS > 1:
        offset = k1[None, :] - (q1 - call.reach[1])[:, None]
        inside &= (offset >= 0) & (offset <= 2 * call.reach[1])
        entry = entry * (2 * call.reach[1] + 1) + offset
    if DIMS > 2:
        offset = k2[None, :] - (q2 - call.reach[2])[:, None]
        inside &= (offset >= 0) & (offset <= 2 * call.reach[2])
        entry = entry * (2 * call.reach[2] + 1) + offset
    inside &= entry < call.entries  # with is_causal, entries after the centre do not exist
    return entry, inside & (queries < call.queries)[:, None] & (keys < call.keys)[None, :]


@triton.jit
def axis_logits(call, x, table, map, queries, at):
    """Add the biases of one axis to logits; ``at`` are the coordinates of the keys."""
    from_table = start_of(call, table, map) + (queries[:, None] * table.query + at[None, :] * table.entry)
    return x + tl.load(from_table, mask=(queries < call.queries)[:, None], other=0.0).to(tl.float32)


@triton.jit
def logits_of(
    call, product, outside, map, queries, keys, INSIDE: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr
):
    """Return logits from products; −∞ where a query does not attend to a key."""
    x = call.scale * product
    if call.window is not None:
        if INSIDE:
            entry, inside = entries_of(call, queries, keys, DIMS)
            at = queries[:, None] * call.window.query + entry * call.window.entry
            window = tl.load(start_of(call, call.window, map) + at, mask=inside, other=0.0)
            x += tl.where(inside, window.to(tl.float32), outside[:, None])
        else:
            x += outside[:, None]
    at = place(tl.minimum(keys, call.keys - 1), call.key_size)
    if call.axis_bias[0] is not None:
        x = axis_logits(call, x, call.axis_bias[0], map, queries, at[0])
    if call.axis_bias[1] is not None:
        x = axis_logits(call, x, call.axis_bias[1], map, queries, at[1])
    if call.axis_bias[2] is not None:
        x = axis_logits(call, x, call.axis_bias[2], map, queries, at[2])
    attended = keys < call.keys
    if call.key_bias is not None:
        x += tl.load(call.key_bias + map * call.keys + keys, mask=attended, other=0.0).to(tl.float32)[None, :]
    if call.key_mask is not None:
        attended &= tl.load(call.key_mask + map // call.heads * call.keys + keys, mask=attended, other=0) != 0
    pairs = (queries < call.queries)[:, None] & attended[None, :]
    if CAUSAL:
        pairs &= keys[None, :] <= (queries + call.keys - call.queries)[:, None]
    return tl.where(pairs, x, float('-inf'))


@triton.jit
def strip(first, last, size, other_size, before, reach, end, STREAM: tl.constexpr):
    """Return begin and end of the tiles of the others that contain the windows of positions ``first`` to ``last``.

    ``before`` is the offset from a position of the owned axis to the one of the others at the same place.
    """
    plane = other_size[1] * other_size[2]
    of_first = first // (size[1] * size[2]) + before - reach
    of_last = last // (size[1] * size[2]) + before + reach + 1
    begin = tl.minimum(tl.maximum(of_first, 0) * plane // STREAM * STREAM, end)
    return begin, tl.minimum(tl.maximum(tl.cdiv(of_last * plane, STREAM) * STREAM, begin), end)


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


@triton.jit
def differentiate(
    call, query, key, value, grad, outside, lse, along, map, queries, keys,
    INSIDE: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the weights of a tile, and the gradients of its logits."""
    product = tl.dot(query, key.T, input_precision=PRECISION)
    x = logits_of(call, product, outside, map, queries, keys, INSIDE, CAUSAL, DIMS)
    weights = tl.exp(x - lse[:, None])
    d_weights = tl.dot(grad, value.T, input_precision=PRECISION)
    return weights, weights * (d_weights - along[:, None])


@triton.jit
def load_sums(call, grad_of, map, queries):
    """Load lse and Σ gradient · output."""
    at, there = map * call.queries + queries, queries < call.queries
    return tl.load(grad_of.lse + at, mask=there, other=0.0), tl.load(grad_of.along + at, mask=there, other=0.0)


@tuned
def query_gradients(
    call, grad_of, d_query, d_window, d_outside,
    D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr, PRECISION: tl.constexpr,
    OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of queries, of window biases ``(maps, N, K)``, and of ``outside_bias`` ``(maps, N)``.

    A window entry belongs to one pair; entries without a key are not written.
    """
    tiles = tl.cdiv(call.queries, OWN)
    map = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles * OWN
    last = tl.minimum(first + OWN, call.queries) - 1
    queries = first + tl.arange(0, OWN)
    query = load_rows(call.query, map, queries, call.queries, call.channels, D)
    grad = load_rows(grad_of.rows, map, queries, call.queries, call.value_channels, DV)
    lse, along = load_sums(call, grad_of, map, queries)
    outside = outside_of(call, map, queries)
    acc = tl.zeros([OWN, D], tl.float32)
    end = tl.cdiv(call.keys - call.queries + last + 1 if CAUSAL else call.keys, STREAM) * STREAM
    enter, leave = 0, 0
    if call.window is not None:
        inside_sum = tl.zeros([OWN], tl.float32)
        enter, leave = strip(first, last, call.size, call.key_size, call.before[0], call.reach[0], end, STREAM)
        for start in range(enter, leave, STREAM):
            keys = start + tl.arange(0, STREAM)
            key = load_rows(call.key, map, keys, call.keys, call.channels, D)
            value = load_rows(call.value, map, keys, call.keys, call.value_channels, DV)
            _, d_logits = differentiate(
                call, query, key, value, grad, outside, lse, along, map, queries, keys, True, CAUSAL, DIMS, PRECISION
            )
            if d_query is not None:
                acc = tl.dot(d_logits.to(key.dtype), key, acc, input_precision=PRECISION)
            entry, inside = entries_of(call, queries, keys, DIMS)
            inside_sum += tl.sum(tl.where(inside, d_logits, 0.0), 1)
            if d_window is not None:
                to = d_window + map * call.queries * call.entries + (queries[:, None] * call.entries + entry)
                tl.store(to, d_logits.to(d_window.dtype.element_ty), mask=inside)
        if d_outside is not None:  # the gradients of the logits of a softmax sum to 0
            to = d_outside + map * call.queries + queries
            tl.store(to, (-inside_sum).to(d_outside.dtype.element_ty), mask=queries < call.queries)
    if d_query is not None:
        for start in range(0, end - (leave - enter), STREAM):
            keys = tl.where(start < enter, start, start + leave - enter) + tl.arange(0, STREAM)
            key = load_rows(call.key, map, keys, call.keys, call.channels, D)
            value = load_rows(call.value, map, keys, call.keys, call.value_channels, DV)
            _, d_logits = differentiate(
                call, query, key, value, grad, outside, lse, along, map, queries, keys, False, CAUSAL, DIMS, PRECISION
            )
            acc = tl.dot(d_logits.to(key.dtype), key, acc, input_precision=PRECISION)
        store_rows(d_query, map, queries, call.queries, call.channels, acc * call.scale, D)


@triton.jit
def accumulate(
    call, grad_of, key, value, d_key, d_value, d_bias, map, queries, keys,
    INSIDE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add a tile of queries to the gradients of keys, values and key biases."""
    query = load_rows(call.query, map, queries, call.queries, call.channels, D)
    grad = load_rows(grad_of.rows, map, queries, call.queries, call.value_channels, DV)
    lse, along = load_sums(call, grad_of, map, queries)
    outside = outside_of(call, map, queries)
    weights, d_logits = differentiate(
        call, query, key, value, grad, outside, lse, along, map, queries, keys, INSIDE, CAUSAL, DIMS, PRECISION
    )
    d_value = tl.dot(weights.to(grad.dtype).T, grad, d_value, input_precision=PRECISION)
    d_key = tl.dot(d_logits.to(query.dtype).T, query, d_key, input_precision=PRECISION)
    return d_key, d_value, d_bias + tl.sum(d_logits, 0)


@tuned
def key_gradients(
    call, grad_of, d_key, d_value, d_bias,
    D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr, PRECISION: tl.constexpr,
    OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of keys and values, and of key biases ``(maps, M)``."""
    tiles = tl.cdiv(call.keys, OWN)
    map = (tl.program_id(0) // tiles).to(tl.int64)
    first = tl.program_id(0) % tiles * OWN
    last = tl.minimum(first + OWN, call.keys) - 1
    keys = first + tl.arange(0, OWN)
    key = load_rows(call.key, map, keys, call.keys, call.channels, D)
    value = load_rows(call.value, map, keys, call.keys, call.value_channels, DV)
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
        for start in range(enter, leave, STREAM):
            queries = start + tl.arange(0, STREAM)
            key_sum, value_sum, bias_sum = accumulate(
                call, grad_of, key, value, key_sum, value_sum, bias_sum, map, queries, keys,
                True, D, DV, CAUSAL, DIMS, PRECISION,
            )  # fmt: skip
    for start in range(begin, end - (leave - enter), STREAM):
        queries = tl.where(start < enter, start, start + leave - enter) + tl.arange(0, STREAM)
        key_sum, value_sum, bias_sum = accumulate(
            call, grad_of, key, value, key_sum, value_sum, bias_sum, map, queries, keys,
            False, D, DV, CAUSAL, DIMS, PRECISION,
        )  # fmt: skip
    if d_key is not None:
        store_rows(d_key, map, keys, call.keys, call.channels, key_sum * call.scale, D)
    if d_value is not None:
        store_rows(d_value, map, keys, call.keys, call.value_channels, value_sum, DV)
    if d_bias is not None:
        to = d_bias + map * call.keys + keys
        tl.store(to, bias_sum.to(d_bias.dtype.element_ty), mask=keys < call.keys)


@tuned
def axis_gradients(
    call, grad_of, d_bias, length, inner,
    D: tl.constexpr, DV: tl.constexpr, CAUSAL: tl.constexpr, DIMS: tl.constexpr, PRECISION: tl.constexpr,
    OWN: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the biases of one axis, ``(maps, N, length)``.

    A program owns queries × coordinates on this axis, and loops over the positions on the other axes. ``inner`` is the
    number of positions on the axes after this one.
    """
    tiles, parts = tl.cdiv(call.queries, OWN), tl.cdiv(length, STREAM)
    map = (tl.program_id(0) // (tiles * parts)).to(tl.int64)
    queries = tl.program_id(0) // parts % tiles * OWN + tl.arange(0, OWN)
    at = tl.program_id(0) % parts * STREAM + tl.arange(0, STREAM)
    query = load_rows(call.query, map, queries, call.queries, call.channels, D)
    grad = load_rows(grad_of.rows, map, queries, call.queries, call.value_channels, DV)
    lse, along = load_sums(call, grad_of, map, queries)
    outside = outside_of(call, map, queries)
    acc = tl.zeros([OWN, STREAM], tl.float32)
    for other in range(0, call.keys // length):
        keys = tl.where(at < length, (other // inner * length + at) * inner + other % inner, call.keys)
        key = load_rows(call.key, map, keys, call.keys, call.channels, D)
        value = load_rows(call.value, map, keys, call.keys, call.value_channels, DV)
        _, d_logits = differentiate(
            call, query, key, value, grad, outside, lse, along, map, queries, keys, True, CAUSAL, DIMS, PRECISION
        )
        acc += d_logits
    to = d_bias + map * call.queries * length + (queries[:, None] * length + at[None, :])
    there = (queries < call.queries)[:, None] & (at < length)[None, :]
    tl.store(to, acc.to(d_bias.dtype.element_ty), mask=there)


class Operands:
    """The operands of one call, with positions flattened, and how its kernels are compiled."""

    def __init__(self, given: Any) -> None:
        query, key, value, window = given.query, given.key, given.value, given.window_bias
        axes = query.dim() - 3
        missing = [1] * (AXES - axes)
        size, key_size = query.shape[2:-1], key.shape[2:-1]
        aligned = window is not None or given.is_causal
        reach = [k // 2 for k in given.window_size] if window is not None else [0] * axes
        self.call = Call(
            rows(query),
            rows(key),
            rows(value),
            table(window),
            table(None if given.outside_bias is None else given.outside_bias.unsqueeze(-1)),
            tuple(table(x) for x in [*given.axis_bias, *[None] * AXES][:AXES]),
            None if given.key_bias is None else given.key_bias.contiguous(),
            None if given.key_mask is None else given.key_mask.contiguous(),
            (*size, *missing),
            (*key_size, *missing),
            tuple(k - q if aligned else 0 for q, k in zip([*size, *missing], [*key_size, *missing])),
            (*reach, *(0 for _ in missing)),
            0 if window is None else window.shape[-1],
            query.shape[1],
            size.numel(),
            key_size.numel(),
            query.shape[-1],
            value.shape[-1],
            float(given.outside_value),
            float(given.scale),
        )
        self.maps = query.shape[0] * query.shape[1]
        self.constants = {
            'D': width(query.shape[-1]),
            'DV': width(value.shape[-1]),
            'CAUSAL': given.is_causal,
            'DIMS': 0 if window is None else axes,
            'PRECISION': precision(query.dtype),
        }

    def launch(self, kernel: Any, *arguments: Any, owned: int, parts: int = 0) -> None:
        """Run a kernel whose programs own ``owned`` rows of each map, and share each tile of rows if ``parts`` > 0."""

        def programs(config: dict) -> int:
            each = triton.cdiv(parts, config['STREAM']) if parts else 1
            return self.maps * triton.cdiv(owned, config['OWN']) * each

        with torch.cuda.device_of(self.call.query):  # no effect on CPUs
            launch.launch(kernel, programs, self.call, *arguments, **self.constants)


def forward(*arguments: Any) -> Any:
    """Compute the outputs of the operator; return NotImplemented if the kernels do not support the call."""
    given = OPERATOR.Arguments(*arguments)
    if not supports(given):
        return NotImplemented
    operands = Operands(given)
    query, value = given.query, given.value
    out = empty_laid_out_as(value, (*query.shape[:-1], value.shape[-1]))
    found = torch.empty_like(out, memory_format=torch.contiguous_format)
    lse = query.new_empty(query.shape[:-1], dtype=torch.float32)
    operands.launch(forward_kernel, found, lse, owned=operands.call.queries)
    return (found if out.is_contiguous() else out.copy_(found)), lse


def backward(grad: Tensor, out: Tensor, lse: Tensor, *arguments: Any) -> Any:
    """Compute the needed gradients; return NotImplemented if the kernels do not support the call."""
    given = OPERATOR.Arguments(*arguments[:-1])
    if not supports(given):
        return NotImplemented
    operands = Operands(given)
    call = operands.call
    grad_of = sums_of(grad, out, lse)

    differentiable = [*given[:5], *given.axis_bias, given.key_bias]
    d_query, d_key, d_value, d_window, d_outside, *d_axes, d_bias = found = gradients_like(
        differentiable, arguments[-1]
    )
    if d_window is not None:
        d_window.zero_()  # entries without a key are not written
    if any(x is not None for x in (d_query, d_window, d_outside)):
        operands.launch(query_gradients, grad_of, d_query, d_window, d_outside, owned=call.queries)
    if any(x is not None for x in (d_key, d_value, d_bias)):
        operands.launch(key_gradients, grad_of, d_key, d_value, d_bias, owned=call.keys)
    for axis, d_axis in enumerate(d_axes):
        if d_axis is not None:
            length, inner = call.key_size[axis], math.prod(call.key_size[axis + 1 :])
            operands.launch(axis_gradients, grad_of, d_axis, length, inner, owned=call.queries, parts=length)
    return [x for x in found if x is not None]


def supports(given: Any) -> bool:
    """Return whether the kernels support a call. The sums of more than 256 channels do not fit into registers."""
    return max(given.query.shape[-1], given.value.shape[-1]) <= MOST_CHANNELS and blocks.supports(given)
