"""Global attention with structured position biases. :func:`global_attention` has the equation.

The N×N table of all pairs is never stored: logits are computed for slices of queries, and again in the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from . import table_attention
from .arguments import (
    as_scale,
    check_device,
    check_mask,
    check_one_per_axis,
    check_operands,
    check_positions,
    check_window,
    expanded,
    window_entries,
)
from .chunks import chunk_bytes, chunks
from .dtypes import accumulator
from .flops import attention_flops
from .layouts import empty_outputs, match_layout
from .library import direct_call
from .operator import Operator
from .table_attention import attend, attend_backward, close_table, log_sum_exp, pad, padded_keys, sdpa, sdpa_backward
from .tables import kept
from .window_bias import combine_axes, outside_logits, window_axes


class GlobalArguments(NamedTuple):
    """The arguments of ``mmattn::global_attention``."""

    query: Tensor  # (B, heads, *S, D)
    key: Tensor  # (B, heads, *R, D)
    value: Tensor  # (B, heads, *R, Dv)
    window_bias: Tensor | None  # (B, heads, *S, K)
    outside_bias: Tensor | None  # (B, heads, *S)
    axis_bias: Sequence[Tensor]  # (B, heads, *S, R[a]) for each axis a
    key_bias: Tensor | None  # (B, heads, *R)
    key_mask: Tensor | None  # (B, *R)
    window_size: Sequence[int]
    outside_value: float  # without outside_bias
    scale: float
    is_causal: bool
    return_lse: bool = True


def global_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    window_bias: Tensor | None = None,
    window_size: int | tuple[int, ...] | None = None,
    outside_bias: Tensor | float = 0.0,
    axis_bias: Sequence[Tensor] = (),
    key_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    return_lse: bool = False,
) -> Tensor | Any:  # with return_lse, tuple[Tensor, Tensor]
    """Attend over all positions of a 1-D, 2-D or 3-D map, with structured position biases.

    y_i = Σ_j softmax_j [scale · q_iᵀk_j + δp(i, j) + Σₐ Aₐ[i, jₐ] + B[j]] v_j over all keys j, with the biases δp of
    ``window_bias`` and ``outside_bias`` (Eq. 3.12), Aₐ of ``axis_bias``, and B of ``key_bias``. Extra memory is linear
    in the number of positions.

    Positions are the dimensions between heads and channels: ``(L)``, ``(H, W)`` or ``(T, H, W)``, written ``*S`` for
    queries and ``*R`` for keys, which may differ. With ``window_bias`` or ``is_causal``, the queries are at the last
    positions of the keys: only the first side of ``*S`` may be smaller than in ``*R``, and all other sides must be
    equal. The output of a query without keys (all masked) is 0. The operator is differentiable in every floating-point
    tensor. float16 and bfloat16 are accumulated in float32. Under autocast, query, key and value are cast to its dtype,
    as for ``torch.nn.functional.scaled_dot_product_attention``.
    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, UTS, 2021, section 3.4.

    Args:
        query (Tensor): float ``(B, heads, *S, D)``.
        key (Tensor): float ``(B, heads, *R, D)``. May have fewer heads, a divisor of the query heads: each key head is
            shared by a group of consecutive query heads.
        value (Tensor): float ``(B, heads, *R, Dv)``, with as many heads as ``key``.
        scale (float, optional): finite factor 1/σc of the content logits. Defaults to 1/√D.
        window_bias (Tensor, optional): float, broadcastable to ``(B, heads, *S, K)``, biases of the window centred on
            each query, row-major, K = ∏k, or one table ``(heads, K)`` for all queries. With ``is_causal``, only the
            first (∏k + 1)/2 biases, for keys with j ≤ i. The biases are not scaled: divide them by σp, or apply
            :func:`unit_variance`.
        window_size (int or tuple[int, ...], optional): odd window length k, for all axes or for each axis. Required
            with ``window_bias``.
        outside_bias (Tensor or float): with ``window_bias``, the bias v_i of keys outside the window: float
            ``(B, heads, *S)`` or a finite number. ``-inf`` restricts attention to the window. Defaults to 0.
        axis_bias (sequence of Tensor): empty, or one float tensor per key axis a, broadcastable to
            ``(B, heads, *S, R[a])``: a bias for the coordinate of the key on that axis. Defaults to empty.
        key_bias (Tensor, optional): float, broadcastable to ``(B, heads, *R)``. For padding, use −∞ or ``key_mask``. If
            the log-sum-exp of a query is ±1e8 or beyond, for example because all its keys have −1e9, its float32
            gradients are wrong.
        key_mask (Tensor, optional): bool ``(B, *R)``, True for keys that may be attended to. Other keys and values, as
            those with a ``key_bias`` of −∞, may hold anything, such as NaN, and have the gradient 0.
        is_causal (bool): attend only to keys with j ≤ i in row-major order. Defaults to False.
        return_lse (bool): also return the log-sum-exp of the logits of each query: ``(B, heads, *S)``, float64 for
            float64 operands, otherwise float32, −∞ without keys. It merges attention over parts of the keys, as in the
            example of :func:`local_attention`. Differentiable. Defaults to False.

    Returns:
        Tensor: ``(B, heads, *S, Dv)``, with dtype and memory order of the dimensions of ``value``. With
        ``return_lse=True``, a tuple of this tensor and the log-sum-exp.

    Example:
        >>> query, key, value = torch.randn(3, 1, 8, 32, 32, 16).unbind()  # 8 heads of 16 channels, 32×32 positions
        >>> bias = torch.randn(1, 8, 32, 32, 7 * 7)
        >>> global_attention(query, key, value, window_bias=bias, window_size=7).shape
        torch.Size([1, 8, 32, 32, 16])
    """
    biases = window_bias, outside_bias, axis_bias, key_bias, key_mask
    options = window_size, scale, is_causal, return_lse
    found = None if is_compiling() else direct_call('global_attention', query, key, value, *biases, *options)
    if found is not None:
        return found
    query, key, value = check_operands(query, key, value, axes=(1, 3))
    size, key_size = query.shape[2:-1], key.shape[2:-1]
    if 0 in key_size and 0 not in size:
        check_positions('key', key)
    if (window_bias is not None or is_causal) and (size[1:] != key_size[1:] or size[0] > key_size[0]):
        raise ValueError(
            'window_bias and is_causal require queries at the last positions of the keys: the same size on all axes '
            f'but the first, and no larger on the first; got {tuple(size)} queries and {tuple(key_size)} keys'
        )
    sizes, window_bias, outside, outside_value = check_window(
        query, window_bias, window_size, outside_bias, is_causal=is_causal
    )
    check_one_per_axis('axis_bias', axis_bias, len(key_size))
    axes = [
        expanded(f'axis_bias[{axis}]', bias, (*query.shape[:-1], key_size[axis])) for axis, bias in enumerate(axis_bias)
    ]
    if key_bias is not None:
        key_bias = expanded('key_bias', key_bias, key.shape[:-1])
    if key_mask is not None:
        check_mask(key_mask, (key.shape[0], *key_size))
    check_device(query, key=key, value=value, window_bias=window_bias, outside_bias=outside, key_bias=key_bias)
    if key_mask is not None or axes:
        check_device(query, key_mask=key_mask, **{f'axis_bias[{axis}]': x for axis, x in enumerate(axes)})
    scale = as_scale(scale, query)
    tensors = query, key, value, window_bias, outside, axes, key_bias, key_mask
    out, lse = torch.ops.mmattn.global_attention(*tensors, sizes, outside_value, scale, is_causal, return_lse)
    return (out, lse) if return_lse else out


def has_biases(a: GlobalArguments) -> bool:
    """Check whether a call has biases or excludes keys."""
    return a.is_causal or bool(a.axis_bias) or any(x is not None for x in (a.window_bias, a.key_bias, a.key_mask))


class FlatOperands:
    """The operands of one call, flattened to N queries and M keys, in the dtype of the products.

    Logits are in ``bias_dtype``. If ``fused``, PyTorch's attention computes them from a table of biases.
    """

    def __init__(self, a: GlobalArguments, exact: bool = True, fused: bool = False) -> None:
        dtype = accumulator(a.query) if exact else a.query.dtype
        self.a, self.bias_dtype = a, dtype if fused else accumulator(a.query)
        self.query = a.query.flatten(2, -2).to(dtype)  # (B, heads, N, D)
        self.key = a.key.flatten(2, -2).to(dtype)  # (B, heads, M, D)
        self.value = a.value.flatten(2, -2).to(dtype)  # (B, heads, M, Dv)
        window, outside, bias, mask = a.window_bias, a.outside_bias, a.key_bias, a.key_mask
        self.window_bias = None if window is None else window.flatten(2, -2)  # (B, heads, N, K), any float dtype
        self.outside_bias = None if outside is None else outside.flatten(2)  # (B, heads, N)
        self.axis_bias = [x.flatten(2, -2) for x in a.axis_bias]  # (B, heads, N, R[a])
        self.key_bias = None if bias is None else bias.flatten(2)  # (B, heads, M)
        self.key_mask = None if mask is None else mask.flatten(1)  # (B, M)
        # What no query attends to is 0: NaN would reach all queries, since 0 · NaN is NaN.
        if self.key_mask is not None:
            self._drop(~self.key_mask[:, None, :, None])
        if self.key_bias is not None:
            self._drop(self.key_bias.unsqueeze(-1) == -math.inf)
        self.size, self.key_size = a.query.shape[2:-1], a.key.shape[2:-1]
        # With a window or is_causal, the queries are at the last positions of the keys.
        self.before = self.key.shape[2] - self.query.shape[2]
        self._located: tuple[slice, tuple[Tensor, Tensor]] | None = None  # the last result of `window_keys`

    def _drop(self, unseen: Tensor) -> None:
        self.key, self.value = self.key.masked_fill(unseen, 0), self.value.masked_fill(unseen, 0)

    def slices(self, tables: int) -> list[slice]:
        """List slices of queries for which ``tables`` rows of logits over all keys fit the byte budget."""
        batch, heads, _, _ = self.query.shape
        entries = 0 if self.window_bias is None else self.window_bias.shape[-1]
        row = batch * heads * (tables * self.key.shape[2] + 4 * entries) + 2 * entries
        return chunks(self.query.shape[2], row * self.bias_dtype.itemsize, chunk_bytes(self.query.device))

    def window_keys(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Compute the flat key index ``(n, K)`` of each window entry of each query, and whether the key exists."""
        if self._located is None or self._located[0] != rows:
            self._located = None  # free the last one first
            all_queries = self.before, self.key.shape[2], tuple(self.key_size), tuple(self.a.window_size)
            entries = window_entries(tuple(self.a.window_size), is_causal=self.a.is_causal)
            self._located = rows, combine_axes(kept(window_axes, self.query, *all_queries), entries, rows)
        return self._located[1]

    def window(self, rows: slice, columns: int = 0) -> Tensor:
        """Expand window biases to all keys: ``(B, heads, n, M + 1 + columns)``. Columns from M on are arbitrary."""
        where, exists = self.window_keys(rows)
        count = self.key.shape[2]
        window = self.window_bias[:, :, rows].to(self.bias_dtype)  # type: ignore[index]
        outside = None if self.outside_bias is None else self.outside_bias[:, :, rows]
        outside = outside_logits(window, outside, self.a.outside_value)
        table = outside.unsqueeze(-1).repeat(1, 1, 1, count + 1 + columns)
        # Entries that do not exist are written to column M.
        return table.scatter_(-1, where.where(exists, count).expand_as(window), window)

    def add_to(self, logits: Tensor, rows: slice) -> None:
        """Add axis and key biases of some queries to logits ``(B, heads, n, M)``, in place."""
        for axis, values in enumerate(self.axis_bias):
            shape = [1] * len(self.key_size)
            shape[axis] = self.key_size[axis]
            logits.unflatten(-1, self.key_size).add_(values[:, :, rows].unflatten(-1, shape))
        if self.key_bias is not None:
            logits += self.key_bias.unsqueeze(2)

    def mask(self, logits: Tensor, rows: slice) -> None:
        """Set logits ``(B, heads, n, M)`` to −∞, in place, where a query does not attend to a key."""
        if self.key_mask is not None:
            logits.masked_fill_(~self.key_mask[:, None, None], -math.inf)
        if self.a.is_causal:
            key = kept(torch.arange, logits, logits.shape[-1])
            query = key[self.before + rows.start : self.before + rows.stop]
            logits.masked_fill_(key > query[:, None], -math.inf)

    def logits(self, rows: slice) -> Tensor:
        """Compute logits ``(B, heads, n, M)`` of some queries."""
        query, key, scale = self.query[:, :, rows], self.key.transpose(-1, -2), self.a.scale
        if self.window_bias is None:
            logits = ((query * scale) @ key).to(self.bias_dtype)
        else:
            logits = self.window(rows)[..., :-1]
            if query.dtype == logits.dtype:
                logits.flatten(0, 1).baddbmm_(query.flatten(0, 1), key.flatten(0, 1), alpha=scale)
            else:
                logits += (query * scale) @ key
        self.add_to(logits, rows)
        self.mask(logits, rows)
        return logits

    def table(self, rows: slice, columns: int) -> Tensor | None:
        """Build the biases ``(B, heads, n, columns)`` of some queries."""
        count = self.key.shape[2]
        if not has_biases(self.a):
            return None
        if self.window_bias is None:
            shape = (*self.query.shape[:2], rows.stop - rows.start, columns)
            table = self.query.new_zeros(shape, dtype=self.bias_dtype)
        else:
            table = self.window(rows, columns - count - 1)
        self.add_to(table[..., :count], rows)
        self.mask(table[..., :count], rows)
        close_table(table, count)
        return table

    def padded(self) -> tuple[Tensor, Tensor, Tensor, int]:
        """Pad query, key and value for PyTorch's attention. Also returns the number of columns of its table."""
        columns = padded_keys(self.key.shape[2]) if has_biases(self.a) else self.key.shape[2]
        return pad(self.query), pad(self.key, columns), pad(self.value, columns), columns


def _forward(a: GlobalArguments, exact: bool = True) -> tuple[Tensor, Tensor]:
    fused = not exact and table_attention.uses_sdpa(a.query.device)
    x = FlatOperands(a, exact, fused)
    query, key, value, columns = x.padded() if fused else (x.query, x.key, x.value, 0)
    positions, channels = a.query.shape[:-1], a.value.shape[-1]
    # The outputs are no views, because autograd forbids in-place changes of views.
    outs = a.value.new_empty(*positions, channels)
    lses = a.query.new_full(positions, math.nan, dtype=accumulator(a.query))
    out, lse = outs.flatten(2, -2), lses.flatten(2)
    with torch.autocast(a.query.device.type, enabled=False):
        for rows in x.slices(tables=1 if exact else 2 if fused else 4):
            if not fused:
                logits = x.logits(rows)
                out[:, :, rows], lse[:, :, rows, None] = attend(logits, value)
                del logits  # free them before the next ones are allocated
                continue
            table = x.table(rows, columns)
            out[:, :, rows] = sdpa(query[:, :, rows], key, value, table, a.scale)[..., :channels]
            if a.return_lse:
                lse[:, :, rows] = log_sum_exp(query[:, :, rows], key, table, a.scale)
            del table
    if a.return_lse and fused:
        lses.masked_fill_(lses <= table_attention.lowest(a.query.dtype) / 2, -math.inf)
    return match_layout(a.value, outs), lses


class BiasGradients:
    """The gradients of the biases of a call, filled slice by slice of the queries."""

    def __init__(self, x: FlatOperands) -> None:
        def zeros(bias: Tensor | None, dtype: torch.dtype | None = None) -> Tensor | None:
            return None if bias is None else torch.zeros(bias.shape, dtype=dtype or bias.dtype, device=bias.device)

        self.of = x
        self.window, self.outside = zeros(x.window_bias), zeros(x.outside_bias)
        self.axes = [torch.zeros(bias.shape, dtype=bias.dtype, device=bias.device) for bias in x.axis_bias]
        self.keys = zeros(x.key_bias, accumulator(x.query))  # a sum over slices

    def add(self, rows: slice, d_logits: Tensor) -> None:
        """Add the gradients of some queries' logits, ``(B, heads, n, M)``."""
        if self.window is not None:
            where, exists = self.of.window_keys(rows)
            inside = d_logits.gather(-1, where.expand(*d_logits.shape[:3], -1)).masked_fill_(~exists, 0)
            self.window[:, :, rows] = inside
            if self.outside is not None:  # the gradients of all logits of a query sum to that of its log-sum-exp
                self.outside[:, :, rows] -= inside.sum(-1)
        for axis, d_axis in enumerate(self.axes):
            dims = [3 + a for a in range(len(self.of.key_size)) if a != axis]
            d_axis[:, :, rows] = d_logits.unflatten(-1, self.of.key_size).sum(dims) if dims else d_logits
        if self.keys is not None:
            self.keys += d_logits.sum(2)

    def gradients(self, d_query: Tensor, d_key: Tensor, d_value: Tensor) -> list[Tensor | None]:
        """Return all gradients of the call, in the order and with the shapes of its tensors."""
        size, key_size = self.of.size, self.of.key_size
        grads = [(d_query, size), (d_key, key_size), (d_value, key_size), (self.window, size), (self.outside, size)]
        grads += [*((d_axis, size) for d_axis in self.axes), (self.keys, key_size)]
        unflattened: list[Tensor | None] = [grad.unflatten(2, size) for grad, size in grads if grad is not None]
        return unflattened if self.of.key_mask is None else [*unflattened, None]


def _backward(
    grad: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, a: GlobalArguments, exact: bool = True
) -> list[Tensor | None]:
    channels = max(a.query.shape[-1], a.value.shape[-1])
    fused = not exact and table_attention.uses_sdpa_backward(a.query.device, channels, has_biases(a))
    fused = fused and grad_lse is None  # PyTorch's attention returns no log-sum-exp
    x = FlatOperands(a, exact, fused)
    query, key, value, columns = x.padded() if fused else (x.query, x.key, x.value, 0)
    grad, out = grad.flatten(2, -2).to(query.dtype), out.flatten(2, -2)
    # With PyTorch's attention, the forward pass may have computed no log-sum-exp.
    lses = lse.flatten(2).unsqueeze(-1) if exact or not table_attention.uses_sdpa(a.query.device) else None
    grad_lses = None if grad_lse is None else grad_lse.flatten(2).unsqueeze(-1)
    d_query = torch.zeros_like(query, memory_format=torch.contiguous_format)
    d_key, d_value = (torch.zeros(y.shape, dtype=accumulator(a.query), device=y.device) for y in (key, value))  # sums
    biases = BiasGradients(x)
    if biases.outside is not None and grad_lse is not None:
        biases.outside += grad_lse.masked_fill(lse == -math.inf, 0).flatten(2)
    with torch.autocast(query.device.type, enabled=False):
        for rows in x.slices(tables=2 if exact else 4 if fused else 5):
            d_out, q = grad[:, :, rows], query[:, :, rows]
            if fused:
                table = x.table(rows, columns)
                d_q, d_k, d_v, d_logits = sdpa_backward(pad(d_out), q, key, value, table, a.scale)
                del table
            else:
                logits = x.logits(rows)
                row_lse, row_grad = (None if y is None else y[:, :, rows] for y in (lses, grad_lses))
                d_q, d_k, d_v, d_logits = attend_backward(
                    d_out, out[:, :, rows], row_grad, row_lse, logits, q, key, value, a.scale
                )
                del logits
            d_query[:, :, rows] = d_q
            d_key += d_k
            d_value += d_v
            if d_logits is not None:
                biases.add(rows, d_logits[..., : x.key.shape[2]])
            del d_logits
    padded = (d_query, x.query), (d_key, x.key), (d_value, x.value)
    return biases.gradients(*(d[:, :, : like.shape[2], : like.shape[-1]] for d, like in padded))


def _flops(a: GlobalArguments, backward: bool) -> int:
    return attention_flops(a.query.shape, a.value.shape, math.prod(a.key.shape[2:-1]), backward)


OPERATOR = Operator(
    'global_attention',
    GlobalArguments,
    forward=_forward,
    backward=_backward,
    fake=lambda a: empty_outputs(a.query, a.value),
    flops=_flops,
    kept=('out', 'lse'),
    differentiable=('out', 'lse'),
)
