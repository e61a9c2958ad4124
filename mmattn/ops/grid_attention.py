"""Grid attention: every query attends to the keys on the axes through it. In 2-D, this is the criss-cross of CCNet.

The keys of a query are one line of keys per axis, an arm. The query's own position counts once. Each arm is a small
batched product. The softmaxes of the arms are merged by their log-sum-exp, so the N×(H+W) logits are never stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .checks import as_scale, check_device, check_operands, check_positions, check_queries, check_window
from .chunks import chunk_bytes, chunks
from .neighbourhood import softmax
from .operator import Operator, empty_with_layout, match_layout, products
from .window_bias import accumulator


class Positions:
    """The window biases of one call, laid out for each arm. For queries ``at`` coordinates, ``(Q)`` replaces ``*S``."""

    def __init__(self, args: Any, at: tuple[Tensor, ...] = (), dtype: torch.dtype | None = None) -> None:
        dtype = accumulator(args.query) if dtype is None else dtype
        self.window_size = args.window_size
        self.window = args.window_bias[_index(*at)].to(dtype)
        if args.outside_bias is None:
            self.outside = self.window.new_full(self.window.shape[:-1], args.outside_value)
        else:
            self.outside = args.outside_bias[_index(*at)].to(dtype)

    @classmethod
    def build(cls, args: Any, at: tuple[Tensor, ...] = (), dtype: torch.dtype | None = None) -> Positions | None:
        """Lay out the window biases of a call, or return None if it has none."""
        return None if args.window_bias is None else cls(args, at, dtype)

    def arm(self, axis: int) -> slice:
        """Select the entries of an axis. The last axis comes first and has the centre, which the other axes omit."""
        counts = [k - 1 for k in self.window_size]
        counts[-1] += 1
        start = sum(counts[axis + 1 :])
        return slice(start, start + counts[axis])

    def logits(self, axis: int, lines: slice) -> Tensor:
        """Position biases of the arm along ``axis``: ``(B, heads, lines, …, L, L)``."""
        window, outside = (lines_along(x, axis)[:, :, lines] for x in (self.window, self.outside.unsqueeze(-1)))
        length = window.shape[-2]
        index = self.index(axis, torch.arange(length, device=window.device), length)
        return self.realign(axis, window, outside, index)

    def realign(self, axis: int, window: Tensor, outside: Tensor, index: Tensor) -> Tensor:
        """Compute biases ``(…, n, length)`` of an arm from ``window`` ``(…, n, K)`` and ``outside`` ``(…, n, 1)``."""
        k = self.window_size[axis]
        entries = window[..., self.arm(axis)]
        if entries.shape[-1] == k:
            table = torch.cat([outside, entries, outside], -1)
        else:  # a placeholder for the centre: the self key belongs to another arm
            table = torch.cat([outside, entries[..., : k // 2], outside, entries[..., k // 2 :], outside], -1)
        return table.gather(-1, index.expand(*table.shape[:-1], -1))

    def write(self, axis: int, d_window: Tensor, d_logits: Tensor, index: Tensor) -> None:
        """Write the gradients of the entries of an arm, ``(…, n, K)``, from the gradients of its logits."""
        k = self.window_size[axis]
        table = d_logits.new_zeros((*d_logits.shape[:-1], k + 2))
        # Keys outside the window are written to the ends, over each other, and dropped.
        entries = table.scatter_(-1, index.expand_as(d_logits), d_logits)[..., 1:-1]
        to = d_window[..., self.arm(axis)]
        if to.shape[-1] == k:
            to.copy_(entries)
        else:
            to[..., : k // 2], to[..., k // 2 :] = entries[..., : k // 2], entries[..., k // 2 + 1 :]

    def index(self, axis: int, position: Tensor, length: int) -> Tensor:
        """Index the keys of an arm, int64 ``(n, length)``, in a row of k window entries between two outside biases."""
        k = self.window_size[axis]
        entry = torch.arange(k // 2 + 1, k // 2 + 1 + length, device=position.device) - position[:, None]
        return entry.clamp(0, k + 1)


def _index(*coordinates: Tensor) -> tuple[slice | Tensor, ...]:
    return slice(None), slice(None), *coordinates


def lines_along(x: Tensor, axis: int) -> Tensor:
    """View ``(B, heads, *S, C)`` as the lines along ``axis``: ``(B, heads, *rest, L, C)``."""
    return x.movedim(2 + axis, -2)


def _arms(args: Any, positions: Positions | None) -> Iterator[tuple[int, slice, Tensor]]:
    """Yield axis, lines and logits ``(B, heads, lines, …, L, L)`` of each arm. The lines fit the byte budget."""
    dtype, axes = accumulator(args.query), args.query.dim() - 3
    for axis in reversed(range(axes)):
        q, k = lines_along(args.query, axis), lines_along(args.key, axis)
        batch, heads, count, *rest = q.shape[:-1]
        channels = q.shape[-1] + args.value.shape[-1]
        line_bytes = batch * heads * math.prod(rest) * (4 * q.shape[-2] + 2 * channels) * dtype.itemsize
        for lines in chunks(count, line_bytes, chunk_bytes(q.device)):
            logits = (q[:, :, lines].to(dtype) * args.scale) @ k[:, :, lines].to(dtype).transpose(-1, -2)
            if positions is not None:
                logits += positions.logits(axis, lines)
            if axis != axes - 1:  # only the arm of the last axis contains the self key
                logits.diagonal(dim1=-2, dim2=-1).fill_(-math.inf)
            yield axis, lines, logits


def _reference(args: Any) -> tuple[Tensor, Tensor]:
    query, value, dtype = args.query, args.value, accumulator(args.query)
    out = torch.zeros(value.shape, dtype=dtype, device=value.device)
    lse = torch.full(query.shape[:-1], -math.inf, dtype=dtype, device=query.device)
    with torch.autocast(query.device.type, enabled=False):
        for axis, lines, p in _arms(args, Positions.build(args)):
            peak = p.amax(-1, keepdim=True)  # -inf in a line of length 1: its key, self, is not in this arm
            total = p.sub_(peak.masked_fill(peak == -math.inf, 0)).exp_().sum(-1, keepdim=True)
            arm = p @ lines_along(value, axis)[:, :, lines].to(dtype)  # unnormalised
            # Merge with the previous arms: the weight of an arm is exp(log-sum-exp).
            before = lines_along(lse.unsqueeze(-1), axis)[:, :, lines]
            merged = torch.logaddexp(before, peak + total.log())
            finite = merged.masked_fill(merged == -math.inf, 0)  # no arm has had a key so far
            lines_along(out, axis)[:, :, lines].mul_((before - finite).exp()).add_(arm.mul_((peak - finite).exp()))
            before.copy_(merged)
    return (match_layout(value, out) if value.stride(-1) == 1 else out.to(value.dtype)), lse


def _reference_backward(grad: Tensor, out: Tensor, lse: Tensor, args: Any) -> list[Tensor]:
    query, key, value, dtype = args.query, args.key, args.value, accumulator(args.query)
    d_query, d_key, d_value = (torch.zeros(x.shape, dtype=dtype, device=x.device) for x in (query, key, value))
    with torch.autocast(query.device.type, enabled=False):
        positions = Positions.build(args)
        d_window = None if positions is None else torch.zeros(args.window_bias.shape, dtype=dtype, device=query.device)
        mean = (grad.to(dtype) * out).sum(-1, keepdim=True)
        lse = lse.masked_fill(lse == -math.inf, 0)  # all keys masked
        for axis, lines, p in _arms(args, positions):
            p.sub_(lines_along(lse.unsqueeze(-1), axis)[:, :, lines]).exp_()
            d_out = lines_along(grad, axis)[:, :, lines].to(dtype)
            lines_along(d_value, axis)[:, :, lines] += p.transpose(-1, -2) @ d_out
            ds = d_out @ lines_along(value, axis)[:, :, lines].to(dtype).transpose(-1, -2)
            ds.sub_(lines_along(mean, axis)[:, :, lines]).mul_(p)
            lines_along(d_query, axis)[:, :, lines] += ds @ lines_along(key, axis)[:, :, lines].to(dtype) * args.scale
            queries = lines_along(query, axis)[:, :, lines].to(dtype) * args.scale
            lines_along(d_key, axis)[:, :, lines] += ds.transpose(-1, -2) @ queries
            if positions is not None and d_window is not None:
                queries = torch.arange(ds.shape[-1], device=ds.device)
                index = positions.index(axis, queries, ds.shape[-1])
                positions.write(axis, lines_along(d_window, axis)[:, :, lines], ds, index)
    grads = [d_query, d_key, d_value]
    if d_window is not None:
        grads.append(d_window)
        if args.outside_bias is not None:  # the gradients of a softmax's logits sum to zero
            grads.append(-d_window.sum(-1))
    return grads


def _fake(args: Any) -> tuple[Tensor, Tensor]:
    value, query = args.value, args.query
    out = empty_with_layout(value, value.shape) if value.stride(-1) == 1 else value.new_empty(value.shape)
    return out, query.new_empty(query.shape[:-1], dtype=accumulator(query))


OPERATOR = Operator(
    'grid_attention',
    'Tensor query, Tensor key, Tensor value, Tensor? window_bias, Tensor? outside_bias, int[] window_size, '
    'float outside_value, float scale',
    '(Tensor, Tensor)',
    reference=_reference,
    backward=_reference_backward,
    fake=_fake,
    flops=lambda args, backward: products(
        args.query, args.value, sum(args.query[2:-1]) - (len(args.query) - 4), backward
    ),
    kept=('out', 'lse'),
)


@OPERATOR.public
def grid_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    window_bias: Tensor | None = None,
    window_size: int | tuple[int, ...] | None = None,
    outside_bias: Tensor | float = 0.0,
) -> tuple:
    """Attend over the keys on the axes through each position of a 2-D or 3-D map.

    y_i = Σ_j softmax_j [scale · q_iᵀk_j + b_{i, j−i}] v_j over the positions j that differ from i on at most one axis,
    with the position biases b. A query has ∑S − (axes − 1) keys. Positions are the dimensions between heads and
    channels: ``(H, W)`` or ``(T, H, W)``, written ``*S``. Differentiable in every tensor. Dtypes are handled as in
    :func:`global_attention`.
    Sources: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, UTS, 2021, Eq. 3.12 for the position
    biases. "Attention and Fusion of Deep Representations for Computer Vision", thesis, Guelph, 2020, Eq. 5.2 to 5.5 for
    3-D.

    Args:
        query, key, value, scale: as in :func:`global_attention`, with one map ``*S``, which must not be empty.
        window_bias (Tensor, optional): float ``(B, heads, *S, K)``, biases of the window of each axis, centred on the
            query. The last axis comes first, including the centre. The other axes follow in reverse order, without the
            centre. In 2-D: k1 horizontal entries, then k0 − 1 vertical ones. The biases are not scaled: divide them by
            σp, or apply :func:`window_zscore`. To exclude a key, use −∞: the float32 gradients of a query whose
            log-sum-exp is ±1e8 or beyond are wrong.
        window_size, outside_bias, return_lse: as in :func:`global_attention`.

    Returns:
        Tensor: ``(B, heads, *S, Dv)``, dtype of ``value``. If the channels of ``value`` are contiguous, the output has
        the same memory order of dimensions. Otherwise it is contiguous, because writing another order would take as
        long as criss-cross attention itself. With ``return_lse=True``, a tuple of this tensor and the log-sum-exp.

    Example:
        >>> query, key, value = torch.randn(3, 1, 8, 32, 32, 16).unbind()  # 8 heads of 16 channels, 32×32 positions
        >>> grid_attention(query, key, value).shape
        torch.Size([1, 8, 32, 32, 16])
    """
    query, key, value = check_operands(query, key, value, axes=(2, 3))
    check_positions('query', query)
    if key.shape != query.shape:
        raise ValueError(f'key must have the positions of query, {tuple(query.shape)}; got {tuple(key.shape)}')
    sizes, outside, outside_value = check_window(
        query, window_bias, window_size, outside_bias, lambda sizes: sum(sizes) - len(sizes) + 1
    )
    check_device(query, key=key, value=value, window_bias=window_bias, outside_bias=outside)
    return query, key, value, window_bias, outside, sizes, outside_value, as_scale(scale, query)


@torch.no_grad()
def grid_attention_weights(query: Tensor, key: Tensor, queries: Tensor, **settings: Any) -> Tensor:
    """Compute the weights of :func:`grid_attention` for selected queries only. Not differentiable.

    Takes the arguments of :func:`global_attention_weights`, with the settings of :func:`grid_attention`. Returns
    ``(B, heads, Q, *S)``, float64 for float64 operands, otherwise float32. Each row sums to 1 and is 0 at keys that are
    not on the axes through the query.

    Example:
        >>> query, key = torch.randn(2, 1, 2, 8, 8, 16).unbind()  # 2 heads of 16 channels, 8×8 positions
        >>> weights = grid_attention_weights(query, key, torch.tensor([[0, 0], [3, 5]]))
        >>> weights.shape, int((weights[0, 0, 1] > 0).sum())  # a query has 8 + 8 − 1 keys
        (torch.Size([1, 2, 2, 8, 8]), 15)
    """
    args = OPERATOR.Arguments(*grid_attention.arguments(query, key, key, **settings))
    query, key = args.query, args.key
    size, dtype = query.shape[2:-1], accumulator(query)
    check_queries(queries, size)
    at = queries.to(query.device).unbind(-1)
    row = torch.arange(len(queries), device=query.device)[:, None]
    with torch.autocast(query.device.type, enabled=False):
        positions = Positions.build(args, at)
        rows = query[_index(*at)].to(dtype) * args.scale  # (B, heads, Q, D)
        logits = rows.new_full((*rows.shape[:-1], *size), -math.inf)
        for axis, length in enumerate(size):  # the last axis, whose arm contains the self key, is written last
            line = [coordinate[:, None] for coordinate in at]
            line[axis] = torch.arange(length, device=query.device)[None]
            arm = torch.einsum('bhqd,bhqld->bhql', rows, key[_index(*line)].to(dtype))
            if positions is not None:
                index = positions.index(axis, at[axis], length)
                arm += positions.realign(axis, positions.window, positions.outside.unsqueeze(-1), index)
            logits[_index(row, *line)] = arm
        return softmax(logits.flatten(3), -1).view(logits.shape)
