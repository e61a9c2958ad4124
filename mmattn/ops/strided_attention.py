"""Strided attention: every query attends to a cube of keys around it, or to the keys at multiples of a step from it.

The map is divided into groups of queries with (nearly) the same keys: blocks, or positions with the same remainder.
Each group is a small dense product of views, with a mask. Groups are processed in slices, and again in the backward
pass: the N×N table of all pairs is never stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import functional as F

from mmattn.utils.checks import check_choice

from . import table_attention
from .arguments import (
    as_scale,
    check_device,
    check_one_per_axis,
    check_operands,
    check_positions,
    expanded,
)
from .chunks import chunk_bytes, chunks
from .dtypes import accumulator
from .flops import attention_flops
from .layouts import empty_outputs, match_layout
from .library import direct_call
from .operator import Operator
from .patterns import PATTERNS, as_step, check_step, offset_ranges, reaches
from .table_attention import attend, attend_backward, close_table, log_sum_exp, pad, padded_keys, sdpa, sdpa_backward
from .tables import kept


class StridedArguments(NamedTuple):
    """The arguments of ``mmattn::strided_attention``."""

    query: Tensor  # (B, heads, *S, D)
    key: Tensor  # (B, heads, *R, D)
    value: Tensor  # (B, heads, *R, Dv)
    offset_bias: Sequence[Tensor]  # (B, heads, *S, K) for each axis
    step: Sequence[Annotated[int, torch.SymInt]]  # empty: ⌈√side⌉ of each axis
    pattern: str
    scale: float
    return_lse: bool = True


def strided_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    pattern: str,
    step: int | tuple[int, ...] | None = None,
    scale: float | None = None,
    offset_bias: Sequence[Tensor] = (),
    return_lse: bool = False,
) -> Tensor | Any:  # with return_lse, tuple[Tensor, Tensor]
    """Attend over a cube of keys, or over the keys at multiples of a step.

    y_i = Σ_j softmax_j [scale · q_iᵀk_j + Σₐ Oₐ[i, jₐ − iₐ]] v_j (Eq. 5.7 and 5.9, where K stands for V). The sum is
    over the positions j that satisfy the condition of ``pattern`` on each axis, with the step h of that axis:

    * 'block' (I¹): j is in the same block of length h, ⌊j/h⌋ = ⌊i/h⌋.
    * 'centred' (I¹): |j − i| < h.
    * 'forward' (I¹ literally as in the thesis): 0 ≤ j − i < h.
    * 'strided' (I²): j − i is a multiple of h.

    The two sub-layers of Child et al. are two calls: the first with a pattern of I¹, the second with 'strided'.

    Positions are the dimensions between heads and channels: ``(L)``, ``(H, W)`` or ``(T, H, W)``, written ``*S`` for
    queries and ``*R`` for keys. Both maps start at the same position and may differ in size: a query beyond the last
    key can be a key of the second sub-layer. Positions outside the map are not keys. The output of a query without keys
    is 0. Differentiable in every tensor. Dtypes are handled as in :func:`global_attention`.
    Source: "Attention and Fusion of Deep Representations for Computer Vision", thesis, Guelph, 2020, chapter 5.

    Args:
        query, key, value, scale, return_lse: as in :func:`global_attention`. Maps must not be empty.
        pattern (str): 'block', 'centred', 'forward' or 'strided'.
        step (int or tuple[int, ...], optional): h ≥ 1, for all axes or for each axis. Defaults to ⌈√side⌉ of each axis,
            which requires keys and queries of the same size.
        offset_bias (sequence of Tensor): empty, or one float tensor per axis a, broadcastable to ``(B, heads, *S, K)``:
            a bias for each offset of ``strided_offsets(...)[a]``, q_iᵀE of Eq. 5.9. Offsets without a key are ignored.
            To exclude a key, use −∞: the float32 gradients of a query whose log-sum-exp is ±1e8 or beyond are wrong.
            Defaults to empty.

    Returns:
        Tensor: ``(B, heads, *S, Dv)``, with the dtype and the memory order that :func:`global_attention` returns.

    Example:
        >>> query, key, value = torch.randn(3, 1, 2, 4, 32, 32, 16).unbind()  # 2 heads of 16 channels, 4 frames
        >>> strided_attention(query, key, value, pattern='block', step=(4, 8, 8)).shape
        torch.Size([1, 2, 4, 32, 32, 16])
    """
    options = offset_bias, step, pattern, scale, return_lse
    found = None if is_compiling() else direct_call('strided_attention', query, key, value, *options)
    if found is not None:
        return found
    query, key, value = check_operands(query, key, value, axes=(1, 3))
    check_choice('pattern', pattern, PATTERNS)
    check_positions('query', query)
    check_positions('key', key)
    size, key_size = query.shape[2:-1], key.shape[2:-1]
    steps = check_step(step, size, key_size)
    check_one_per_axis('offset_bias', offset_bias, len(size))
    biases: list[Tensor] = []
    if len(offset_bias):
        offsets = offset_ranges(size, step, pattern, key_size)
        biases = [
            expanded(f'offset_bias[{axis}]', bias, (*query.shape[:-1], offset.end - offset.first))
            for axis, (bias, offset) in enumerate(zip(offset_bias, offsets))
        ]
    check_device(query, key=key, value=value, **{f'offset_bias[{axis}]': x for axis, x in enumerate(biases)})
    scale = as_scale(scale, query)
    out, lse = torch.ops.mmattn.strided_attention(query, key, value, biases, steps, pattern, scale, return_lse)
    return (out, lse) if return_lse else out


def _alone(size: int, axis: int, axes: int) -> list[int]:
    return [size if a == axis else 1 for a in range(axes)]


def _entries(
    queries: Axis, keys: Axis, step: int, pattern: str, columns: tuple[int, int, int] | None, device: torch.device
) -> Tensor:
    """Index the biases of an axis by the offset j − i, ``(groups, positions, keys)``.

    ``columns`` are the first one of the axis in the table of all biases, its number of offsets, and the column for keys
    to which i does not attend. Without them, the logits themselves, which are 0, or −∞ if i does not attend to j.
    """
    i, j = queries.positions(device)[:, :, None], keys.positions(device)[:, None]
    complete = _attends_to_all(keys, pattern, step)
    attended = None if complete else (j >= 0) & (j < keys.size) & reaches(i, j, step, pattern)
    if columns is None:
        assert attended is not None
        return torch.zeros(attended.shape, dtype=torch.float32, device=device).masked_fill_(~attended, -math.inf)
    first, count, none = columns
    offset = (j - i) // step if pattern == 'strided' else j - i
    entry = first + offset + (0 if pattern == 'forward' else count // 2)
    return entry if attended is None else entry.where(attended, none)


class Axis(NamedTuple):
    """Division of an axis of a map into groups of positions: the queries, or the keys, of one small dense product."""

    size: int
    groups: int
    stride: int  # from a group to the next
    dilation: int  # from a position of a group to the next
    length: int  # positions of a piece
    pieces: int = 1  # consecutive pieces of a group; the second one of a group is the first one of the next group
    before: int = 0  # padding before the first group

    @property
    def padded(self) -> int:
        """Side of the map with its padding."""
        return (self.groups - 1) * self.stride + (self.pieces * self.length - 1) * self.dilation + 1

    def positions(self, device: torch.device) -> Tensor:
        """Coordinates ``(groups, pieces·length)``. Coordinates outside the map are padding."""
        group = torch.arange(0, self.groups * self.stride, self.stride, device=device)[:, None]
        end = self.pieces * self.length * self.dilation - self.before
        return group + torch.arange(-self.before, end, self.dilation, device=device)


def cut(size: int, key_size: int, step: int, pattern: str) -> tuple[Axis, Axis]:
    """Divide an axis into groups of queries and groups of keys. 'backward' is 'forward' seen from the keys."""
    if pattern == 'strided':  # one group for each remainder
        return Axis(size, step, 1, step, -(-size // step)), Axis(key_size, step, 1, step, -(-key_size // step))
    sides = {'block': (1, 0), 'centred': (3, step), 'forward': (2, 0), 'backward': (2, step)}
    pieces, before = sides[pattern]  # with the adjacent blocks
    if step in (1, max(size, key_size)):
        pieces, before = 1, 0  # the adjacent blocks contain no key
    groups = -(-size // step)
    return Axis(size, groups, step, 1, step), Axis(key_size, groups, step, 1, step, pieces, before)


def _pad(x: Tensor, axes: Sequence[Axis], sign: int = 1, columns: int = 0, value: float = 0) -> Tensor:
    """Pad ``(B, heads, *S, C)`` to whole groups, and drop positions of no group. ``sign=-1`` undoes this.

    ``columns`` are added to the channels.
    """
    padding = [0, columns]
    for axis in reversed(axes):
        padding += [sign * axis.before, sign * (axis.padded - axis.before - axis.size)]
    if x.numel() == 0:  # torch 2.4 does not pad an empty tensor
        size = [axis.padded if sign > 0 else axis.size for axis in axes]
        return x.new_zeros((*x.shape[:2], *size, x.shape[-1] + columns))
    return F.pad(x, padding, value=value) if any(padding) else x


def _groups(x: Tensor, axes: Sequence[Axis], pieces: bool = True) -> Tensor:
    """View a padded map as ``(B, heads, *groups, *positions, C)``. With ``pieces=False``, each piece is a group."""
    for dim, axis in enumerate(axes, 2):
        length = axis.length * (axis.pieces if pieces else 1)
        x = x.unfold(dim, (length - 1) * axis.dilation + 1, axis.stride)[..., :: axis.dilation]
    return x.movedim(2 + len(axes), -1)


def _filled(
    like: Tensor, axes: Sequence[Axis], dtype: torch.dtype, channels: int, value: float | None = None
) -> tuple[Tensor, Tensor]:
    x = like.new_empty((*like.shape[:2], *(axis.padded for axis in axes), channels), dtype=dtype)
    return x if value is None else x.fill_(value), _groups(x, axes, pieces=False)


def _parts(shape: Sequence[int], bytes_each: int, budget: int) -> Iterator[tuple[slice, ...]]:
    """Yield :func:`chunks` of all dimensions. Later dimensions are split only if one item of the first is too large."""
    if not shape:
        yield ()
        return
    for part in chunks(shape[0], math.prod(shape[1:]) * bytes_each, budget):
        for rest in _parts(shape[1:], (part.stop - part.start) * bytes_each, budget):
            yield part, *rest


def _attends_to_all(axis: Axis, pattern: str, step: int) -> bool:
    if axis.pieces > 1 or axis.padded != axis.size:
        return False
    return pattern != 'forward' or step == 1  # a group of 'forward' that is not alone is the whole axis


class Groups:
    """The operands of one call as views of groups: ``(B, heads, *groups, *positions, C)``."""

    def __init__(self, a: StridedArguments, exact: bool) -> None:
        query, key, value, offset_bias, pattern = a.query, a.key, a.value, a.offset_bias, a.pattern
        step = as_step(a.step or None, query.shape[2:-1], key.shape[2:-1])
        self.a, self.rank = a, len(step)
        self.axes, self.key_axes = zip(*(cut(*side, pattern) for side in zip(query.shape[2:-1], key.shape[2:-1], step)))
        self.dtype = accumulator(query) if exact else query.dtype
        self.query = self.of_queries(query)
        # The biases of all axes, and a column of −∞ for keys to which a query does not attend.
        self.counts = [bias.shape[-1] for bias in offset_bias]
        self.table: Tensor | None = None
        if self.counts:
            table = _pad(torch.cat([*offset_bias], -1), self.axes, columns=1, value=-math.inf)
            self.table = _groups(table, self.axes)
        self.key, self.value = (_groups(_pad(x, self.key_axes), self.key_axes) for x in (key, value))
        self.keys = self.key.shape[2 + self.rank : -1]
        self.entries: dict[int, Tensor] = {}  # (groups, positions, keys) for each axis that is added
        for axis, (i, j, h) in enumerate(zip(self.axes, self.key_axes, step)):
            columns = None
            if self.counts:
                columns = sum(self.counts[:axis]), self.counts[axis], sum(self.counts)
            if columns is not None or not _attends_to_all(j, pattern, h):
                self.entries[axis] = kept(_entries, query, i, j, h, pattern, columns)

    def of_queries(self, x: Tensor) -> Tensor:
        """View a map of queries as groups."""
        return _groups(_pad(x, self.axes), self.axes)

    def entry(self, axis: int, part: tuple[slice, ...]) -> Tensor:
        """Return what ``_entries`` has for an axis, ``(*groups, *positions, keys)``; the other axes have length 1."""
        entry = self.entries[axis][part[2 + axis], part[2 + self.rank + axis]]
        groups, positions, keys = entry.shape
        return entry.view(*_alone(groups, axis, self.rank), *_alone(positions, axis, self.rank), keys)

    def parts(self, tables: int) -> Iterator[tuple[slice, ...]]:
        """Yield slices of the first dimensions of ``query`` for which ``tables`` rows of logits fit the byte budget."""
        keys = math.prod(self.keys)
        copies = 1 + keys // math.prod(self.query.shape[2 + self.rank : -1])
        numbers = tables * keys + 2 * copies * (self.query.shape[-1] + self.value.shape[-1])
        numbers += sum(2 * count + length for count, length in zip(self.counts, self.keys))
        share = 16 if self.query.is_cpu else 1  # use 1/16 of the budget on a CPU, so that a part stays in the cache
        budget = chunk_bytes(self.query.device)
        return _parts(self.query.shape[:-1], share * numbers * self.dtype.itemsize, budget)

    def rows(self, x: Tensor, part: tuple[slice, ...]) -> Tensor:
        """Copy positions of groups, ``(B, heads, *groups, n, C)``."""
        return x[part].flatten(2 + self.rank, -2).to(self.dtype)

    def operands(self, part: tuple[slice, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Copy queries ``(B, heads, *groups, n, D)``, and all keys and values of their groups."""
        groups = part[: 2 + self.rank]
        return self.rows(self.query, part), self.rows(self.key, groups), self.rows(self.value, groups)

    def pairs(self, logits: Tensor, part: tuple[slice, ...]) -> Tensor:
        """View logits ``(B, heads, *groups, n, m)`` as ``(B, heads, *groups, *positions, *keys)``."""
        positions = self.query[part].shape[2 + self.rank : -1]
        return logits.unflatten(-1, self.keys).unflatten(2 + self.rank, positions)

    def logits(self, query: Tensor, key: Tensor, part: tuple[slice, ...]) -> Tensor:
        """Compute logits ``(B, heads, *groups, n, m)`` in float32 or float64."""
        logits = ((query * self.a.scale) @ key.transpose(-1, -2)).to(accumulator(query))
        self.add_biases(logits, part)
        return logits

    def flat(self, query: Tensor, key: Tensor, value: Tensor, part: tuple[slice, ...]) -> tuple[Any, ...]:
        """Pad and flatten the operands of PyTorch's attention. Also returns its table of biases, or None."""
        keys = columns = key.shape[-2]
        table = None
        if self.entries:
            columns = padded_keys(keys)
            table = query.new_zeros((*query.shape[:-1], columns))
            self.add_biases(table[..., :keys], part)
            close_table(table, keys)
        padded = pad(query), pad(key, columns), pad(value, columns), table
        return tuple(None if x is None else x.flatten(0, -3).unsqueeze(1) for x in padded)

    def add_biases(self, logits: Tensor, part: tuple[slice, ...]) -> None:
        """Add the biases by offset, and −∞ where a query does not attend to a key, in place."""
        pairs = self.pairs(logits, part)
        for axis in self.entries:
            along = self.entry(axis, part)
            if self.table is not None:
                table = self.table[part]
                along = table.gather(-1, along.expand(*table.shape[:-1], -1))
            pairs += along.unflatten(-1, _alone(self.keys[axis], axis, self.rank))

    def add_to_keys(self, to: Tensor, part: tuple[slice, ...], summands: Tensor) -> None:
        """Add ``(B, heads, *groups, m, C)`` to the pieces of a map."""
        summands = summands.unflatten(-2, [n for axis in self.key_axes for n in (axis.pieces, axis.length)])
        for piece in product(*(range(axis.pieces) for axis in self.key_axes)):
            target = tuple(slice(p + x.start, p + x.stop) for p, x in zip(piece, part[2 : 2 + self.rank]))
            source = tuple(x for p in piece for x in (p, slice(None)))
            to[(*part[:2], *target)] += summands[(slice(None),) * (2 + self.rank) + source]


class Gradients:
    """The gradients of a call, filled part by part, and padded as its operands are."""

    def __init__(self, x: Groups, dtype_of_logits: torch.dtype) -> None:
        self.of, a, dtype = x, x.a, accumulator(x.a.query)
        self.query, self.queries = _filled(a.query, x.axes, a.query.dtype, a.query.shape[-1])
        self.key, self.keys = _filled(a.key, x.key_axes, dtype, a.key.shape[-1], 0)  # sums over parts
        self.value, self.values = _filled(a.value, x.key_axes, dtype, a.value.shape[-1], 0)
        if x.counts:  # as the table of x
            self.table, self.tables = _filled(a.query, x.axes, dtype_of_logits, sum(x.counts) + 1, 0)

    def add(
        self, part: tuple[slice, ...], d_query: Tensor, d_key: Tensor, d_value: Tensor, d_logits: Tensor | None
    ) -> None:
        """Add the gradients of a part: ``(B, heads, *groups, n or m, C)``, and of logits ``(…, n, m)``."""
        x = self.of
        self.queries[part] = d_query.reshape(self.queries[part].shape)
        x.add_to_keys(self.keys, part, d_key)
        x.add_to_keys(self.values, part, d_value)
        for axis in range(len(x.counts)):
            dims = [a - x.rank for a in range(x.rank) if a != axis]
            pairs = x.pairs(d_logits, part)  # type: ignore[arg-type]
            along = pairs.sum(dims) if dims else pairs
            self.tables[part].scatter_(-1, x.entry(axis, part).expand_as(along), along)

    def gradients(self) -> list[Tensor]:
        """Crop the gradients to the maps, in the order of the tensors."""
        d_key, d_value = (_pad(y, self.of.key_axes, -1) for y in (self.key, self.value))
        grads = [_pad(self.query, self.of.axes, -1), d_key, d_value]
        if self.of.counts:
            d_table = _pad(self.table, self.of.axes, -1, columns=-1)
            grads += [d_bias.contiguous() for d_bias in d_table.split(self.of.counts, -1)]
        return grads


def _forward(a: StridedArguments, exact: bool = True) -> tuple[Tensor, Tensor]:
    x, fused = Groups(a, exact), not exact and table_attention.uses_sdpa(a.query.device)
    out, outs = _filled(a.query, x.axes, a.value.dtype, a.value.shape[-1])
    lse, lses = _filled(a.query, x.axes, accumulator(a.query), 1, math.nan)
    with torch.autocast(a.query.device.type, enabled=False):
        for part in x.parts(tables=1 if exact else 2 if fused else 4):
            query, key, value = x.operands(part)
            if not fused:
                row_out, row_lse = attend(x.logits(query, key, part), value)
            else:
                query, key, value, table = x.flat(query, key, value, part)
                row_out = sdpa(query, key, value, table, a.scale)[..., : a.value.shape[-1]]
                if a.return_lse:
                    row_lse = log_sum_exp(query, key, table, a.scale)
                    row_lse = row_lse.masked_fill(row_lse <= table_attention.lowest(value.dtype) / 2, -math.inf)
            outs[part] = row_out.reshape(outs[part].shape)
            if a.return_lse or not fused:
                lses[part] = row_lse.reshape(lses[part].shape)
    return match_layout(a.value, _pad(out, x.axes, -1)), _pad(lse, x.axes, -1).squeeze(-1)


def _backward(
    grad: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, a: StridedArguments, exact: bool = True
) -> list[Tensor]:
    # PyTorch's attention returns no log-sum-exp.
    x, fused = Groups(a, exact), not exact and table_attention.uses_sdpa(a.query.device) and grad_lse is None
    gradients = Gradients(x, x.dtype if fused else accumulator(a.query))
    d_outs = x.of_queries(grad)
    if not fused:
        outs = x.of_queries(out)
        numbers = [None if y is None else x.of_queries(y.unsqueeze(-1)) for y in (grad_lse, lse)]
    with torch.autocast(a.query.device.type, enabled=False):
        for part in x.parts(tables=2 if exact else 4 if fused else 5):
            operands = x.operands(part)
            query, key = operands[:2]
            d_out = x.rows(d_outs, part)
            if not fused:
                row_grad, row_lse = (None if y is None else y[part].flatten(2 + x.rank, -2) for y in numbers)
                logits = x.logits(query, key, part)
                row_out = x.rows(outs, part)
                gradients.add(part, *attend_backward(d_out, row_out, row_grad, row_lse, logits, *operands, a.scale))
                continue
            flat_query, flat_key, flat_value, table = x.flat(*operands, part)
            flat_grad = pad(d_out).flatten(0, -3).unsqueeze(1)
            grads = sdpa_backward(flat_grad, flat_query, flat_key, flat_value, table, a.scale)
            d_query, d_key, d_value, d_logits = (
                None if y is None else y.squeeze(1).unflatten(0, query.shape[:-2]) for y in grads
            )
            d_query, d_key, d_value = (
                y[..., : like.shape[-2], : like.shape[-1]]  # type: ignore[index]
                for y, like in zip((d_query, d_key, d_value), operands)
            )
            gradients.add(part, d_query, d_key, d_value, None if d_logits is None else d_logits[..., : key.shape[-2]])
    return gradients.gradients()


def _flops(a: StridedArguments, backward: bool) -> int:
    size, key_size = a.query.shape[2:-1], a.key.shape[2:-1]
    pairs = math.prod(
        sum(reaches(i, j, h, a.pattern) for i in range(queries) for j in range(keys))
        for queries, keys, h in zip(size, key_size, as_step(a.step or None, size, key_size))
    )
    return attention_flops((*a.query.shape[:2], a.query.shape[-1]), a.value.shape, pairs, backward)


OPERATOR = Operator(
    'strided_attention',
    StridedArguments,
    forward=_forward,
    backward=_backward,
    fake=lambda a: empty_outputs(a.query, a.value),
    flops=_flops,
    kept=('out', 'lse'),
    differentiable=('out', 'lse'),
)
