"""Grid attention: every query attends to the keys on the axes through it. In 2-D, this is the criss-cross of CCNet.

The keys of a query are one line of keys per axis, an arm. The query's own position counts once. The logits of an arm
are a small batched product, and one softmax is over all arms. Queries are processed in slices: the logits of all
queries, N×(H+W), are never stored.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .arguments import as_scale, check_device, check_operands, check_positions, check_window
from .chunks import chunk_bytes, chunks
from .dtypes import accumulator
from .flops import attention_flops
from .layouts import empty_with_layout, match_layout
from .library import direct_call
from .operator import Operator
from .tables import kept
from .window_bias import outside_logits

ALL = slice(None)


class GridArguments(NamedTuple):
    """The arguments of ``mmattn::grid_attention``."""

    query: Tensor  # (B, heads, *S, D)
    key: Tensor  # (B, heads, *S, D)
    value: Tensor  # (B, heads, *S, Dv)
    window_bias: Tensor | None  # (B, heads, *S, K)
    outside_bias: Tensor | None  # (B, heads, *S)
    window_size: Sequence[int]
    outside_value: float  # without outside_bias
    scale: float
    return_lse: bool = True


def grid_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    window_bias: Tensor | None = None,
    window_size: int | tuple[int, ...] | None = None,
    outside_bias: Tensor | float = 0.0,
    return_lse: bool = False,
) -> Tensor | Any:  # with return_lse, tuple[Tensor, Tensor]
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
        window_bias (Tensor, optional): float, broadcastable to ``(B, heads, *S, K)``, or one table ``(heads, K)`` for
            all queries: biases of the window of each axis, centred on the query. The last axis comes first, including
            the centre. The other axes follow in reverse order, without the centre. In 2-D: k1 horizontal entries, then
            k0 − 1 vertical ones. The biases are not scaled: divide them by σp, or apply :func:`unit_variance`. To
            exclude a key, use −∞: the float32 gradients of a query whose log-sum-exp is ±1e8 or beyond are wrong.
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
    options = window_bias, outside_bias, window_size, scale, return_lse
    found = None if is_compiling() else direct_call('grid_attention', query, key, value, *options)
    if found is not None:
        return found
    query, key, value = check_operands(query, key, value, axes=(2, 3))
    check_positions('query', query)
    if key.shape != query.shape:
        raise ValueError(f'key must have the positions of query, {tuple(query.shape)}; got {tuple(key.shape)}')
    sizes, window_bias, outside, outside_value = check_window(
        query, window_bias, window_size, outside_bias, on_grid=True
    )
    check_device(query, key=key, value=value, window_bias=window_bias, outside_bias=outside)
    scale = as_scale(scale, query)
    out, lse = torch.ops.mmattn.grid_attention(
        query, key, value, window_bias, outside, sizes, outside_value, scale, return_lse
    )
    return (out, lse) if return_lse else out


def _forward(a: GridArguments, exact: bool = True) -> tuple[Tensor, Tensor]:
    value, a = a.value, _computed_in(a, exact)
    with torch.autocast(value.device.type, enabled=False):
        biases = bias_table(a)
        parts = [attend(a, biases, rows) for rows in _slices(a, 3 * sum(a.query.shape[2:-1]))]
    out, lse = parts[0] if len(parts) == 1 else (torch.cat(part, 2) for part in zip(*parts))
    out = match_layout(value, out) if value.stride(-1) == 1 else out.to(value.dtype).contiguous()
    return out, lse.contiguous()


def bias_table(a: GridArguments) -> Tensor | None:
    """Lay out the biases of a call, ``(B, heads, *S, K + 1)``: the window, then the bias outside."""
    if a.window_bias is None:
        return None
    window = a.window_bias.to(a.query.dtype)
    return torch.cat([window, outside_logits(window, a.outside_bias, a.outside_value).unsqueeze(-1)], -1)


def attend(a: GridArguments, biases: Tensor | None, rows: slice = ALL) -> tuple[Tensor, Tensor]:
    """Compute output and log-sum-exp of some rows of the first axis. Sizes may be symbolic."""
    arms = [_logits(a, biases, axis, rows)[0] for axis in range(a.query.dim() - 3)]
    peak = functools.reduce(torch.maximum, (_from_lines(x.amax(-1, keepdim=True), axis) for axis, x in enumerate(arms)))
    peak = _finite(peak.to(accumulator(a.query)))
    weights = [(x - lines_along(peak, axis)).exp() for axis, x in enumerate(arms)]
    total = functools.reduce(torch.add, (_from_lines(x.sum(-1, keepdim=True), axis) for axis, x in enumerate(weights)))
    # A sum below 1 is 0: the largest weight is 1, unless the query has no key.
    out = functools.reduce(
        torch.add,
        (_from_lines(x.to(a.value.dtype) @ _keys(a.value, axis, rows), axis) for axis, x in enumerate(weights)),
    )
    return out / total.clamp(min=1), (peak + total.log()).squeeze(-1)


def _backward(
    grad: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, a: GridArguments, exact: bool = True
) -> list[Tensor]:
    a, window_bias = _computed_in(a, exact), a.window_bias
    query, key, value, dtype = a.query, a.key, a.value, accumulator(a.query)
    d_query = torch.empty(query.shape, dtype=dtype, device=query.device)
    d_key, d_value = (torch.zeros(x.shape, dtype=dtype, device=x.device) for x in (key, value))
    d_table = None  # as bias_table
    if window_bias is not None:
        d_table = torch.zeros((*query.shape[:-1], window_bias.shape[-1] + 1), dtype=dtype, device=query.device)
    with torch.autocast(query.device.type, enabled=False):
        biases = bias_table(a)
        mean = (grad * out).sum(-1, keepdim=True, dtype=dtype)
        if grad_lse is not None:  # the derivative of the log-sum-exp is the weights
            mean -= grad_lse.unsqueeze(-1)
        finite_lse = _finite(lse).unsqueeze(-1)
        grad = grad.to(query.dtype)
        for rows in _slices(a, 4 * max(query.shape[2:-1])):  # arm by arm
            for axis in range(query.dim() - 3):
                d_out, queries = (lines_along(x[:, :, rows], axis).contiguous() for x in (grad, query))
                keys, values = (_keys(x, axis, rows).contiguous() for x in (key, value))
                logits, index = _logits(a, biases, axis, rows, queries, keys)
                weights = logits.to(dtype).sub_(lines_along(finite_lse[:, :, rows], axis)).exp_()
                _keys(d_value, axis, rows).add_(weights.to(value.dtype).transpose(-1, -2) @ d_out)
                d_weights = (d_out @ values.transpose(-1, -2)).to(dtype)
                d_logits = d_weights.sub_(lines_along(mean[:, :, rows], axis)).mul_(weights)
                d_pairs = d_logits.to(query.dtype)
                d_queries = lines_along(d_query[:, :, rows], axis)
                if axis == 0:
                    torch.mul(d_pairs @ keys, a.scale, out=d_queries)
                else:
                    d_queries.add_(d_pairs @ keys, alpha=a.scale)
                _keys(d_key, axis, rows).add_(d_pairs.transpose(-1, -2) @ queries, alpha=a.scale)
                if d_table is not None and index is not None:
                    # Keys without an entry are written to the last one, over each other, and dropped.
                    lines_along(d_table[:, :, rows], axis).scatter_(-1, index.expand_as(d_logits), d_logits)
    grads = [d_query, d_key, d_value]
    if d_table is not None and window_bias is not None:
        d_window = d_table[..., :-1].to(dtype if exact else window_bias.dtype).contiguous()
        grads.append(d_window)
        if a.outside_bias is not None:  # the gradients of all logits of a query sum to that of its log-sum-exp
            inside = d_window.sum(-1)
            grads.append(-inside if grad_lse is None else grad_lse.masked_fill(lse == -math.inf, 0) - inside)
    return grads


def _computed_in(a: GridArguments, exact: bool) -> GridArguments:
    """Convert the operands to the dtype of the products."""
    dtype = accumulator(a.query) if exact else a.query.dtype
    return a._replace(query=a.query.to(dtype), key=a.key.to(dtype), value=a.value.to(dtype))


def _slices(a: GridArguments, logits: int) -> list[slice]:
    """List slices of the rows of the first axis for which ``logits`` numbers of each query fit the byte budget."""
    size = a.query.shape[2:-1]
    batch, heads = a.query.shape[:2]
    row = batch * heads * size[1:].numel() * logits * accumulator(a.query).itemsize
    return chunks(size[0], row, chunk_bytes(a.query.device))


def _logits(
    a: GridArguments,
    biases: Tensor | None,
    axis: int,
    rows: slice,
    queries: Tensor | None = None,
    keys: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute logits ``(B, heads, *rest, n, L)`` of an arm, and the index of its entries in the biases."""
    if queries is None or keys is None:
        queries, keys = lines_along(a.query[:, :, rows], axis), _keys(a.key, axis, rows)
    length, index = keys.shape[-2], None
    part: tuple[int | None, int | None] = (rows.start, rows.stop) if axis == 0 else (None, None)
    if biases is None:
        arm = (queries * a.scale) @ keys.transpose(-1, -2)
    else:
        index = kept(_entries, keys, length, *part, tuple(a.window_size), axis)
        table = lines_along(biases[:, :, rows], axis)
        of_keys = table.gather(-1, index.expand(*table.shape[:-1], -1))
        pairs = (x.flatten(0, -3) for x in (of_keys, queries, keys.transpose(-1, -2)))
        arm = torch.baddbmm(*pairs, alpha=a.scale).view(of_keys.shape)
    if axis != a.query.dim() - 4:  # only the arm of the last axis contains the self key
        arm = arm.masked_fill(kept(_own, keys, length, *part), -torch.inf)
    return arm, index


def lines_along(x: Tensor, axis: int) -> Tensor:
    """View ``(B, heads, *S, C)`` as the lines along ``axis``: ``(B, heads, *rest, L, C)``."""
    return x.movedim(2 + axis, -2)


def _from_lines(x: Tensor, axis: int) -> Tensor:
    return x.movedim(-2, 2 + axis)


def _keys(x: Tensor, axis: int, rows: slice) -> Tensor:
    return lines_along(x if axis == 0 else x[:, :, rows], axis)


def _finite(lse: Tensor) -> Tensor:
    """Replace −∞, the log-sum-exp of a query whose keys all have −∞, by a number: its weights are then 0."""
    return lse.clamp(min=torch.finfo(lse.dtype).min)


def _entries(
    length: int, start: int | None, stop: int | None, window_size: tuple[int, ...], axis: int, device: torch.device
) -> Tensor:
    """Index :func:`bias_table` for the keys of some queries of an arm: int64 ``(n, length)``."""
    k, last = window_size[axis], axis == len(window_size) - 1
    position = torch.arange(length, device=device)
    entry = position - position[start:stop, None] + k // 2
    inside = (entry >= 0) & (entry < k)
    if not last:  # the last axis has the centre
        inside, entry = inside & (entry != k // 2), entry - (entry > k // 2).long()
    # The last axis comes first. The other axes omit the centre.
    first = sum(window_size[axis + 1 :]) - len(window_size[axis + 2 :])
    return (first + entry).where(inside, sum(window_size) - len(window_size) + 1)


def _own(length: int, start: int | None, stop: int | None, device: torch.device) -> Tensor:
    """Mark the position of each of some queries on its axis: bool ``(n, length)``."""
    position = torch.arange(length, device=device)
    return position == position[start:stop, None]


def _fake(a: GridArguments) -> tuple[Tensor, Tensor]:
    value, query = a.value, a.query
    out = empty_with_layout(value, value.shape) if value.stride(-1) == 1 else value.new_empty(value.shape)
    return out, query.new_empty(query.shape[:-1], dtype=accumulator(query))


def _flops(a: GridArguments, backward: bool) -> int:
    size = a.query.shape[2:-1]
    return attention_flops(a.query.shape, a.value.shape, sum(size) - (len(size) - 1), backward)


OPERATOR = Operator(
    'grid_attention',
    GridArguments,
    forward=_forward,
    backward=_backward,
    fake=_fake,
    flops=_flops,
    kept=('out', 'lse'),
    differentiable=('out', 'lse'),
)
