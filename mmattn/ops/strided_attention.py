"""Strided attention: every query attends to a cube of keys around it, or to the keys at multiples of a step from it.

The map is cut into groups of queries that see the same keys, or nearly: its blocks, or its positions of one remainder.
Each group is a small dense product, its keys and values a view; what a query of the group does not see is masked. They
are worked on a slice at a time, in the backward pass once more, so no table of all pairs exists.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .checks import as_scale, check_device, check_operands, check_positions, check_queries, expanded
from .chunks import chunks
from .neighbourhood import softmax
from .operator import Operator, empty_laid_out_as, laid_out_as, products
from .support import as_step, check_pattern, check_step, reaches, strided_offsets
from .window_bias import accumulator


def _alone(size: int, axis: int, axes: int) -> list[int]:
    """``size`` on one of ``axes`` axes, 1 on the others."""
    return [size if a == axis else 1 for a in range(axes)]


def _entries(i: Tensor, j: Tensor, keys: int, step: int, pattern: str, table: Tensor | None) -> Tensor:
    """Entry of the offset j − i among the K logits of an axis, of one for all without; K where j is no key of i."""
    there = (j >= 0) & (j < keys) & reaches(i, j, step, pattern)
    if table is None:
        return (~there).long()
    count = table.shape[-1]
    entry = (j - i) // (step if pattern == 'strided' else 1) + (0 if pattern == 'forward' else count // 2)
    return entry.where(there, count)


def _along(entry: Tensor, table: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Logits of an axis ``(…, keys)`` from those by offset ``(…, K)``, or 0; −∞ where there is no key."""
    if table is None:
        return torch.tensor([0, -math.inf], dtype=dtype, device=entry.device)[entry]
    table = F.pad(table.to(dtype), (0, 1), value=-math.inf)
    return table.gather(-1, entry.expand(*table.shape[:-1], -1))


class _Axis(NamedTuple):
    """How an axis of a map is cut into groups of positions, the queries or the keys of one small dense product each."""

    size: int
    groups: int
    stride: int  # from a group to the next
    dilation: int  # from a position of a group to the next
    length: int  # positions of a piece
    pieces: int = 1  # of a group, one after the other; a group's second is the next group's first
    before: int = 0  # padding before the first group

    @property
    def padded(self) -> int:
        return (self.groups - 1) * self.stride + (self.pieces * self.length - 1) * self.dilation + 1

    def positions(self) -> Tensor:
        """Coordinates ``(groups, pieces·length)``; those outside the map are padding."""
        group = torch.arange(self.groups)[:, None] * self.stride
        return group + torch.arange(self.pieces * self.length) * self.dilation - self.before


def _cut(size: int, key_size: int, step: int, pattern: str) -> tuple[_Axis, _Axis]:
    """An axis of the queries, and that of their keys."""
    if pattern == 'strided':  # a group for each remainder
        return _Axis(size, step, 1, step, -(-size // step)), _Axis(key_size, step, 1, step, -(-key_size // step))
    pieces, before = {'block': (1, 0), 'centred': (3, step), 'forward': (2, 0)}[pattern]  # blocks around the group's
    if step in (1, max(size, key_size)):
        pieces, before = 1, 0  # none of the others holds a key
    groups = -(-size // step)
    return _Axis(size, groups, step, 1, step), _Axis(key_size, groups, step, 1, step, pieces, before)


def _pad(x: Tensor, axes: Sequence[_Axis], sign: int = 1) -> Tensor:
    """Pad ``(B, heads, *S, C)`` with zeros to whole groups, and drop what no group holds; with −1, undo this."""
    padding = [0, 0]
    for axis in reversed(axes):
        padding += [sign * axis.before, sign * (axis.padded - axis.before - axis.size)]
    if x.numel() == 0:  # torch 2.4 does not pad such a tensor
        size = [axis.padded if sign > 0 else axis.size for axis in axes]
        return x.new_zeros((*x.shape[:2], *size, x.shape[-1]))
    return F.pad(x, padding) if any(padding) else x


def _groups(x: Tensor, axes: Sequence[_Axis], pieces: bool = True) -> Tensor:
    """View a padded map as ``(B, heads, *groups, *positions, C)``; without ``pieces``, each piece as a group."""
    for dim, axis in enumerate(axes, 2):
        length = axis.length * (axis.pieces if pieces else 1)
        x = x.unfold(dim, (length - 1) * axis.dilation + 1, axis.stride)[..., :: axis.dilation]
    return x.movedim(2 + len(axes), -1)


def _zeros(like: Tensor, axes: Sequence[_Axis], dtype: torch.dtype, channels: int) -> tuple[Tensor, Tensor]:
    """Return a padded map, and the view of its pieces to write to."""
    x = like.new_zeros((*like.shape[:2], *(axis.padded for axis in axes), channels), dtype=dtype)
    return x, _groups(x, axes, pieces=False)


def _parts(shape: Sequence[int], bytes_each: int) -> Iterator[tuple[slice, ...]]:
    """Yield :func:`chunks` of all dimensions of ``shape``: of the last ones only where one of the first is too much."""
    if not shape:
        yield ()
        return
    for part in chunks(shape[0], math.prod(shape[1:]) * bytes_each):
        for rest in _parts(shape[1:], (part.stop - part.start) * bytes_each):
            yield part, *rest


class _Call:
    """The operands of one call, seen as groups: ``(B, heads, *groups, *positions, C)``."""

    def __init__(self, given: Any) -> None:
        query, key, value, offset_bias, _, pattern, _ = given
        step = as_step(given.step or None, query.shape[2:-1], key.shape[2:-1])
        self.rank = len(step)
        self.axes, self.key_axes = zip(
            *(_cut(*side, pattern) for side in zip(query.shape[2:-1], key.shape[2:-1], step))
        )
        self.dtype, self.scale = accumulator(query), given.scale
        self.query, *self.tables = (_groups(_pad(x, self.axes), self.axes) for x in (query, *offset_bias))
        self.key, self.value = (_groups(_pad(x, self.key_axes), self.key_axes) for x in (key, value))
        self.keys = self.key.shape[2 + self.rank : -1]
        tables: list[Tensor | None] = [*self.tables] or [None] * self.rank
        entries = [
            _entries(i.positions()[:, :, None], j.positions()[:, None], j.size, h, pattern, table)
            for i, j, h, table in zip(self.axes, self.key_axes, step, tables)
        ]
        # Axes with logits, or with positions that are no key of some query of their group.
        self.added = [axis for axis, entry in enumerate(entries) if self.tables or entry.any()]
        self.entries = [entry.to(query.device) for entry in entries]  # (groups, positions, keys) an axis

    def entry(self, axis: int, part: tuple[slice, ...]) -> Tensor:
        """Entries of the logits of an axis for some queries, (*groups, *positions, keys), 1 for each other axis."""
        entry = self.entries[axis][part[2 + axis], part[2 + self.rank + axis]]
        groups, positions, keys = entry.shape
        return entry.view(*_alone(groups, axis, self.rank), *_alone(positions, axis, self.rank), keys)

    def work(self, tables: int) -> Iterator[tuple]:
        """Yield some queries at a time, for which ``tables`` rows of logits over their keys fit the byte budget.

        Yields:
            tuple: where they are, slices of the first dimensions of ``query``; their queries, scaled, their keys and
            values, ``(B, heads, *groups, n or m, C)``; their logits ``(B, heads, *groups, n, m)``.
        """
        keys = math.prod(self.keys)
        copies = 1 + keys // math.prod(self.query.shape[2 + self.rank : -1])
        each = tables * keys + 2 * copies * (self.query.shape[-1] + self.value.shape[-1])
        each += sum(2 * table.shape[-1] + length for table, length in zip(self.tables, self.keys))
        share = 16 if self.query.is_cpu else 1  # slices of that part of the budget stay in a CPU's cache
        for part in _parts(self.query.shape[:-1], share * each * self.dtype.itemsize):
            query = self.query[part]
            q = query.flatten(2 + self.rank, -2).to(self.dtype) * self.scale
            k, v = (x[part[: 2 + self.rank]].flatten(2 + self.rank, -2).to(self.dtype) for x in (self.key, self.value))
            logits = q @ k.transpose(-1, -2)
            pairs = logits.view(*query.shape[:-1], *self.keys)
            for axis in self.added:
                table = self.tables[axis][part] if self.tables else None
                along = _along(self.entry(axis, part), table, self.dtype)
                pairs += along.unflatten(-1, _alone(self.keys[axis], axis, self.rank))
            yield part, q, k, v, logits

    def add_to_keys(self, to: Tensor, part: tuple[slice, ...], summands: Tensor) -> None:
        """Add ``(B, heads, *groups, m, C)`` to the pieces of a map."""
        summands = summands.unflatten(-2, [n for axis in self.key_axes for n in (axis.pieces, axis.length)])
        for piece in product(*(range(axis.pieces) for axis in self.key_axes)):
            there = tuple(slice(p + x.start, p + x.stop) for p, x in zip(piece, part[2 : 2 + self.rank]))
            these = tuple(x for p in piece for x in (p, slice(None)))
            to[(*part[:2], *there)] += summands[(slice(None),) * (2 + self.rank) + these]


def _reference(given: Any) -> tuple[Tensor, Tensor]:
    """Forward pass in PyTorch: output ``(B, heads, *S, Dv)`` and log-sum-exp of the logits ``(B, heads, *S)``."""
    x, query, value = _Call(given), given.query, given.value
    out, outs = _zeros(query, x.axes, value.dtype, value.shape[-1])
    lse, lses = _zeros(query, x.axes, x.dtype, 1)
    with torch.autocast(query.device.type, enabled=False):
        for part, _, _, v, p in x.work(tables=1):
            peak = p.amax(-1, keepdim=True)
            peak.masked_fill_(peak == -math.inf, 0)  # no key
            total = p.sub_(peak).exp_().sum(-1, keepdim=True)
            outs[part] = (p @ v).div_(total.masked_fill(total == 0, 1)).view(outs[part].shape)
            lses[part] = (peak + total.log()).view(lses[part].shape)
    return laid_out_as(value, _pad(out, x.axes, -1)), _pad(lse, x.axes, -1).squeeze(-1)


def _reference_backward(grad: Tensor, out: Tensor, lse: Tensor, given: Any) -> list[Tensor]:
    """Gradients of the tensors among the arguments, in their order."""
    x = _Call(given)
    query, key, value = given.query, given.key, given.value
    d_query, d_queries = _zeros(query, x.axes, query.dtype, query.shape[-1])
    d_key, d_keys = _zeros(key, x.key_axes, x.dtype, key.shape[-1])
    d_value, d_values = _zeros(value, x.key_axes, x.dtype, value.shape[-1])
    d_offsets = [_zeros(query, x.axes, bias.dtype, bias.shape[-1]) for bias in given.offset_bias]
    mean = (grad.to(x.dtype) * out).sum(-1, keepdim=True)
    lse = lse.masked_fill(lse == -math.inf, 0).unsqueeze(-1)
    groups = [_groups(_pad(y, x.axes), x.axes) for y in (grad, mean, lse)]
    with torch.autocast(query.device.type, enabled=False):
        for part, q, k, v, p in x.work(tables=2):
            d_out, mean, lse = (y[part].flatten(2 + x.rank, -2).to(x.dtype) for y in groups)
            p.sub_(lse).exp_()
            x.add_to_keys(d_values, part, p.transpose(-1, -2) @ d_out)
            ds = (d_out @ v.transpose(-1, -2)).sub_(mean).mul_(p)
            d_queries[part] = (ds @ k).mul_(given.scale).view(d_queries[part].shape)
            x.add_to_keys(d_keys, part, ds.transpose(-1, -2) @ q)
            pairs = ds.view(*x.query[part].shape[:-1], *x.keys)
            for axis, (_, d_table) in enumerate(d_offsets):
                others = [a - x.rank for a in range(x.rank) if a != axis]
                along = pairs.sum(others) if others else pairs
                entries = along.new_zeros(*along.shape[:-1], d_table.shape[-1] + 1)
                entries.scatter_(-1, x.entry(axis, part).expand_as(along), along)  # the last: what is no key
                d_table[part] = entries[..., :-1]
    d_key, d_value = (_pad(y, x.key_axes, -1) for y in (d_key, d_value))
    d_query, *d_bias = (_pad(y, x.axes, -1) for y in (d_query, *(d_table for d_table, _ in d_offsets)))
    return [d_query, d_key, d_value, *d_bias]


def _fake(given: Any) -> tuple[Tensor, Tensor]:
    positions = given.query.shape[:-1]
    return (
        empty_laid_out_as(given.value, (*positions, given.value.shape[-1])),
        given.query.new_empty(positions, dtype=accumulator(given.query)),
    )


def _flops(given: Any, backward: bool) -> int:
    """The pairs of a pattern: all that one axis allows, with all that the others do."""
    size, key_size = given.query[2:-1], given.key[2:-1]
    pairs = math.prod(
        sum(reaches(i, j, h, given.pattern) for i in range(queries) for j in range(keys))
        for queries, keys, h in zip(size, key_size, as_step(given.step or None, size, key_size))
    )
    return products((*given.query[:2], given.query[-1]), given.value, pairs, backward)


OPERATOR = Operator(
    'strided_attention',
    'Tensor query, Tensor key, Tensor value, Tensor[] offset_bias, SymInt[] step, str pattern, float scale',
    '(Tensor, Tensor)',
    reference=_reference,
    backward=_reference_backward,
    fake=_fake,
    flops=_flops,
    kept=('out', 'lse'),
)


@OPERATOR.public
def strided_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    pattern: str,
    step: int | tuple[int, ...] | None = None,
    scale: float | None = None,
    offset_bias: Sequence[Tensor] = (),
) -> tuple:
    """Softmax attention over a cube of keys, or over the keys at multiples of a step (Eq. 5.7 and 5.9; K there is V).

    y_i = Σ_j softmax_j [scale · q_iᵀk_j + Σₐ Oₐ[i, jₐ − iₐ]] v_j over the positions j that have on each axis, with its
    step h,

    * 'block' (I¹): the same block of length h, ⌊j/h⌋ = ⌊i/h⌋;
    * 'centred' (I¹): |j − i| < h;
    * 'forward' (I¹, to the letter): 0 ≤ j − i < h;
    * 'strided' (I²): j − i a multiple of h.

    Child et al.'s two sub-layers are two calls, the first with one of I¹. Positions are the dimensions between heads
    and channels: ``(L)``, ``(H, W)`` or ``(T, H, W)``, written ``*S`` for queries and ``*R`` for keys. These maps share
    their first position and may differ in size: queries beyond the last key pass on what they see to the second
    sub-layer, where they are keys. What is not in the map is no key; a query without any gives zeros. Differentiable in
    every tensor. float16 and bfloat16 are accumulated in float32. Under autocast, operands of different dtypes are cast
    to autocast's.

    Args:
        query (Tensor): float ``(B, heads, *S, D)``.
        key (Tensor): float ``(B, heads, *R, D)``; with fewer heads, each is that of a group of query heads.
        value (Tensor): float ``(B, heads, *R, Dv)``, with the heads of ``key``.
        pattern (str): 'block', 'centred', 'forward' or 'strided'.
        step (int or tuple[int, ...], optional): h, for all axes or for each. Defaults to ⌈√side⌉, which needs keys at
            the positions of the queries.
        scale (float, optional): factor of the content logits. Defaults to 1/√D.
        offset_bias (sequence of Tensor): empty, or one an axis, float, the a-th broadcastable to
            ``(B, heads, *S, K)``: a bias for each offset of :func:`strided_offsets`, q_iᵀE of Eq. 5.9. Offsets to what
            is no key are not looked at.
        return_lse (bool): return the log-sum-exp of each query's logits, too: ``(B, heads, *S)``, float64 for float64,
            else float32, without a derivative. Defaults to False.

    Returns:
        Tensor: ``(B, heads, *S, Dv)``, dtype and order of dimensions in memory of ``value``; with ``return_lse``
        a tuple of it and the log-sum-exp.

    Raises:
        TypeError: ``query``, ``key`` and ``value`` differ in dtype, ``offset_bias`` is not floating-point, or
            ``scale`` is no number.
        ValueError: shapes that do not fit, an empty map, an unknown pattern, a step below 1 or that is no integer, a
            ``scale`` that is not finite.

    Example:
        >>> query, key, value = torch.randn(3, 1, 2, 4, 32, 32, 16).unbind()  # 2 heads of 16 channels, 4 frames
        >>> strided_attention(query, key, value, pattern='block', step=(4, 8, 8)).shape
        torch.Size([1, 2, 4, 32, 32, 16])
    """
    query, key, value = check_operands(query, key, value, axes=(1, 3))
    check_pattern(pattern)
    check_positions('query', query)
    check_positions('key', key)
    size, key_size = query.shape[2:-1], key.shape[2:-1]
    steps = check_step(step, size, key_size)
    if len(offset_bias) not in (0, len(size)):
        raise ValueError(
            f'offset_bias must be empty or hold one tensor for each of the {len(size)} axes; got {len(offset_bias)}'
        )
    biases: list[Tensor] = []
    if offset_bias:
        offsets = strided_offsets(size, step, pattern, key_size)
        biases = [
            expanded(f'offset_bias[{axis}]', given, (*query.shape[:-1], len(each)))
            for axis, (given, each) in enumerate(zip(offset_bias, offsets))
        ]
    check_device(query, key=key, value=value, **{f'offset_bias[{axis}]': x for axis, x in enumerate(biases)})
    return query, key, value, biases, steps, pattern, as_scale(scale, query)


@torch.no_grad()
def strided_attention_weights(query: Tensor, key: Tensor, queries: Tensor, **settings: Any) -> Tensor:
    """Return the weights with which :func:`strided_attention` sums the values, for some of its queries, for drawing.

    Only the requested rows are computed. Not differentiable.

    Args:
        query, key (Tensor): as in :func:`strided_attention`.
        queries (Tensor): int64 ``(Q, axes)``, coordinates in ``*S``, the same in each batch item.
        **settings: the other arguments of :func:`strided_attention`.

    Returns:
        Tensor: ``(B, heads, Q, *R)``, float64 for float64, else float32. Each row sums to 1, or to 0 where the query
        has no key to attend to, and is 0 off the pattern.

    Raises:
        TypeError, ValueError: as :func:`strided_attention`; ``queries`` of another dtype or shape, or outside the map.
    """
    given = OPERATOR.Arguments(*strided_attention.arguments(query, key, key, **settings))
    query, key, offset_bias, pattern = given.query, given.key, given.offset_bias, given.pattern
    steps = as_step(given.step or None, query.shape[2:-1], key.shape[2:-1])
    size, dtype = key.shape[2:-1], accumulator(query)
    check_queries(queries, query.shape[2:-1])
    at = queries.to(query.device).unbind(-1)
    rows: tuple[slice | Tensor, ...] = (slice(None), slice(None), *at)
    with torch.autocast(query.device.type, enabled=False):
        logits = query[rows].to(dtype) * given.scale @ key.flatten(2, -2).to(dtype).transpose(-1, -2)
        for axis, (i, length, step) in enumerate(zip(at, size, steps)):
            j = torch.arange(length, device=query.device)
            table = offset_bias[axis][rows] if offset_bias else None
            entry = _entries(i[:, None], j, length, step, pattern, table)
            along = _along(entry, table, dtype).unflatten(-1, _alone(length, axis, len(size)))
            logits.unflatten(-1, size).add_(along)
        return softmax(logits, -1).unflatten(-1, size)
