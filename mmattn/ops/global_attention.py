"""Global attention with structured position biases. :func:`global_attention` has the equation.

The N×N table of all pairs is never stored: logits are computed for slices of queries, and again in the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .checks import (
    as_scale,
    check_device,
    check_mask,
    check_one_per_axis,
    check_operands,
    check_positions,
    check_queries,
    check_window,
    expanded,
)
from .chunks import chunk_bytes, chunks
from .operator import Operator, fake_attention, match_layout, products
from .window_bias import accumulator, window_entries, window_keys


def has_biases(args: Any) -> bool:
    """Check whether a call has biases or excludes keys."""
    biases = (args.window_bias, args.key_bias, args.key_mask)
    return args.is_causal or bool(args.axis_bias) or any(bias is not None for bias in biases)


class Rows:
    """The operands of one call, flattened to N queries and M keys in ``dtype``. Biases of all keys: ``bias_dtype``."""

    def __init__(self, args: Any, dtype: torch.dtype | None = None, bias_dtype: torch.dtype | None = None) -> None:
        dtype = accumulator(args.query) if dtype is None else dtype
        self.args, self.bias_dtype = args, bias_dtype or dtype
        self.query = args.query.flatten(2, -2).to(dtype)  # (B, heads, N, D)
        self.key = args.key.flatten(2, -2).to(dtype)  # (B, heads, M, D)
        self.value = args.value.flatten(2, -2).to(dtype)  # (B, heads, M, Dv)
        window, outside, bias, mask = args.window_bias, args.outside_bias, args.key_bias, args.key_mask
        self.window_bias = None if window is None else window.flatten(2, -2)  # (B, heads, N, K), any float dtype
        self.outside_bias = None if outside is None else outside.flatten(2)  # (B, heads, N)
        self.axis_bias = [x.flatten(2, -2) for x in args.axis_bias]  # (B, heads, N, R[a])
        self.key_bias = None if bias is None else bias.flatten(2)  # (B, heads, M)
        self.key_mask = None if mask is None else mask.flatten(1)  # (B, M)
        self.size, self.key_size = args.query.shape[2:-1], args.key.shape[2:-1]
        # With a window or is_causal, the queries are at the last positions of the keys.
        self.before = self.key.shape[2] - self.query.shape[2]

    def slices(self, tables: int) -> Iterator[slice]:
        """Yield slices of queries for which ``tables`` rows of logits over all keys fit the byte budget."""
        batch, heads, _, _ = self.query.shape
        entries = 0 if self.window_bias is None else self.window_bias.shape[-1]
        row = batch * heads * (tables * self.key.shape[2] + 4 * entries) + 2 * entries
        return chunks(self.query.shape[2], row * self.bias_dtype.itemsize, chunk_bytes(self.query.device))

    def realign(self, rows: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Compute the flat key index ``(n, K)`` of each window entry of each query, and whether the key exists."""
        queries = torch.arange(self.before, self.key.shape[2], device=self.query.device)[rows]
        return window_keys(queries, self.key_size, self.args.window_size, self.args.is_causal)

    def window(self, rows: slice | Tensor, realigned: tuple[Tensor, Tensor], columns: int = 0) -> Tensor:
        """Expand window biases to all keys: ``(B, heads, n, M + 1 + columns)``. Columns from M on are arbitrary."""
        where, exists = realigned
        count = self.key.shape[2]
        window = self.window_bias[:, :, rows].to(self.bias_dtype)  # type: ignore[index]
        if self.outside_bias is None:
            outside = window.new_full(window.shape[:-1], self.args.outside_value)
        else:
            outside = self.outside_bias[:, :, rows].to(self.bias_dtype)
        table = outside.unsqueeze(-1).repeat(1, 1, 1, count + 1 + columns)
        # Entries that do not exist are written to column M.
        return table.scatter_(-1, where.where(exists, count).expand_as(window), window)

    def add_to(self, logits: Tensor, rows: slice | Tensor) -> None:
        """Add axis and key biases of some queries to logits ``(B, heads, n, M)``, in place."""
        for axis, values in enumerate(self.axis_bias):
            shape = [1] * len(self.key_size)
            shape[axis] = self.key_size[axis]
            logits.unflatten(-1, self.key_size).add_(values[:, :, rows].unflatten(-1, shape))
        if self.key_bias is not None:
            logits += self.key_bias.unsqueeze(2)

    def mask(self, logits: Tensor, rows: slice | Tensor) -> None:
        """Set logits ``(B, heads, n, M)`` to −∞, in place, where a query does not attend to a key."""
        if self.key_mask is not None:
            logits.masked_fill_(~self.key_mask[:, None, None], -math.inf)
        if self.args.is_causal:
            keys = torch.arange(logits.shape[-1], device=logits.device)
            logits.masked_fill_(keys > keys[self.before :][rows, None], -math.inf)

    def logits(self, rows: slice | Tensor) -> tuple[Tensor, tuple | None]:
        """Compute logits ``(B, heads, n, M)`` of some queries. Also returns the result of :meth:`realign`."""
        query, scale = self.query[:, :, rows], self.args.scale
        realigned = None
        if self.window_bias is None:
            logits = (query * scale) @ self.key.transpose(-1, -2)
        else:
            realigned = self.realign(rows)
            logits = self.window(rows, realigned)[..., :-1]
            logits.flatten(0, 1).baddbmm_(query.flatten(0, 1), self.key.flatten(0, 1).transpose(-1, -2), alpha=scale)
        self.add_to(logits, rows)
        self.mask(logits, rows)
        return logits, realigned


def _reference(args: Any) -> tuple[Tensor, Tensor]:
    x = Rows(args)
    positions = args.query.shape[:-1]
    # The outputs are no views, because autograd forbids in-place changes of views.
    outs, lses = args.value.new_empty(*positions, args.value.shape[-1]), x.query.new_empty(positions)
    out, lse = outs.flatten(2, -2), lses.flatten(2)
    with torch.autocast(x.query.device.type, enabled=False):
        for rows in x.slices(tables=1):
            p, _ = x.logits(rows)
            peak = p.amax(-1, keepdim=True)
            peak.masked_fill_(peak == -math.inf, 0)  # all keys masked
            total = p.sub_(peak).exp_().sum(-1, keepdim=True)
            out[:, :, rows] = p @ x.value / total.masked_fill(total == 0, 1)
            lse[:, :, rows] = (peak + total.log()).squeeze(-1)
            del p  # free it before the next one is allocated
    return match_layout(args.value, outs), lses


class BiasGradients:
    """The gradients of the biases of a call, filled slice by slice of the queries."""

    def __init__(self, x: Rows) -> None:
        def zeros(bias: Tensor | None, dtype: torch.dtype | None = None) -> Tensor | None:
            return None if bias is None else torch.zeros(bias.shape, dtype=dtype or bias.dtype, device=bias.device)

        self.of = x
        self.window, self.outside = zeros(x.window_bias), zeros(x.outside_bias)
        self.axes = [torch.zeros(bias.shape, dtype=bias.dtype, device=bias.device) for bias in x.axis_bias]
        self.keys = zeros(x.key_bias, accumulator(x.query))  # a sum over slices

    def add(self, rows: slice, d_logits: Tensor, realigned: tuple[Tensor, Tensor] | None) -> None:
        """Add the gradients of some queries' logits, ``(B, heads, n, M)``."""
        if self.window is not None and realigned is not None:
            where, exists = realigned
            inside = d_logits.gather(-1, where.expand(*d_logits.shape[:3], -1)).masked_fill_(~exists, 0)
            self.window[:, :, rows] = inside
            if self.outside is not None:  # the gradients of a softmax's logits sum to zero
                self.outside[:, :, rows] = -inside.sum(-1)
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


def _reference_backward(grad: Tensor, out: Tensor, lse: Tensor, args: Any) -> list[Tensor | None]:
    x = Rows(args)
    grad, out = grad.flatten(2, -2), out.flatten(2, -2)
    lse = lse.flatten(2)
    lse = lse.masked_fill(lse == -math.inf, 0)
    d_query, d_key, d_value = (
        torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (x.query, x.key, x.value)
    )
    biases = BiasGradients(x)
    with torch.autocast(x.query.device.type, enabled=False):
        for rows in x.slices(tables=2):
            p, realigned = x.logits(rows)
            p = p.sub_(lse[:, :, rows, None]).exp_()
            d_out = grad[:, :, rows].to(x.query.dtype)
            d_value += p.transpose(-1, -2) @ d_out
            mean = (d_out * out[:, :, rows]).sum(-1, keepdim=True)
            d_logits = (d_out @ x.value.transpose(-1, -2)).sub_(mean).mul_(p)
            d_query[:, :, rows] = d_logits @ x.key * args.scale
            d_key += d_logits.transpose(-1, -2) @ (x.query[:, :, rows] * args.scale)
            biases.add(rows, d_logits, realigned)
            del p, d_logits, realigned
    return biases.gradients(d_query, d_key, d_value)


OPERATOR = Operator(
    'global_attention',
    'Tensor query, Tensor key, Tensor value, Tensor? window_bias, Tensor? outside_bias, Tensor[] axis_bias, '
    'Tensor? key_bias, Tensor? key_mask, int[] window_size, float outside_value, float scale, bool is_causal',
    '(Tensor, Tensor)',
    reference=_reference,
    backward=_reference_backward,
    fake=fake_attention,
    flops=lambda args, backward: products(args.query, args.value, math.prod(args.key[2:-1]), backward),
    kept=('out', 'lse'),
)


@OPERATOR.public
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
) -> tuple:
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
        window_bias (Tensor, optional): float ``(B, heads, *S, K)``, biases of the window centred on each query,
            row-major, K = ∏k. With ``is_causal``, only the first (∏k + 1)/2 biases, for keys with j ≤ i. The biases are
            not scaled: divide them by σp, or apply :func:`window_zscore`.
        window_size (int or tuple[int, ...], optional): odd window length k, for all axes or for each axis. Required
            with ``window_bias``.
        outside_bias (Tensor or float): with ``window_bias``, the bias v_i of keys outside the window: float
            ``(B, heads, *S)`` or a finite number. ``-inf`` restricts attention to the window. Defaults to 0.
        axis_bias (sequence of Tensor): empty, or one float tensor per key axis a, broadcastable to
            ``(B, heads, *S, R[a])``: a bias for the coordinate of the key on that axis. Defaults to empty.
        key_bias (Tensor, optional): float, broadcastable to ``(B, heads, *R)``. For padding, use −∞ or ``key_mask``. If
            the log-sum-exp of a query is ±1e8 or beyond, for example because all its keys have −1e9, its float32
            gradients are wrong.
        key_mask (Tensor, optional): bool ``(B, *R)``, True for keys that may be attended to.
        is_causal (bool): attend only to keys with j ≤ i in row-major order. Defaults to False.
        return_lse (bool): also return the log-sum-exp of the logits of each query: ``(B, heads, *S)``, float64 for
            float64 operands, otherwise float32, not differentiable. Defaults to False.

    Returns:
        Tensor: ``(B, heads, *S, Dv)``, with dtype and memory order of the dimensions of ``value``. With
        ``return_lse=True``, a tuple of this tensor and the log-sum-exp.

    Example:
        >>> query, key, value = torch.randn(3, 1, 8, 32, 32, 16).unbind()  # 8 heads of 16 channels, 32×32 positions
        >>> bias = torch.randn(1, 8, 32, 32, 7 * 7)
        >>> global_attention(query, key, value, window_bias=bias, window_size=7).shape
        torch.Size([1, 8, 32, 32, 16])
    """
    query, key, value = check_operands(query, key, value, axes=(1, 3))
    size, key_size = query.shape[2:-1], key.shape[2:-1]
    if 0 in key_size and 0 not in size:
        check_positions('key', key)
    if (window_bias is not None or is_causal) and (size[1:] != key_size[1:] or size[0] > key_size[0]):
        raise ValueError(
            'window_bias and is_causal require queries at the last positions of the keys: the same size on all axes '
            f'but the first, and no larger on the first; got {tuple(size)} queries and {tuple(key_size)} keys'
        )
    sizes, outside, outside_value = check_window(
        query, window_bias, window_size, outside_bias, lambda sizes: window_entries(sizes, is_causal)
    )
    check_one_per_axis('axis_bias', axis_bias, len(key_size))
    axes = [
        expanded(f'axis_bias[{axis}]', bias, (*query.shape[:-1], key_size[axis])) for axis, bias in enumerate(axis_bias)
    ]
    if key_bias is not None:
        key_bias = expanded('key_bias', key_bias, key.shape[:-1])
    check_mask(key_mask, (key.shape[0], *key_size))
    check_device(query, key=key, value=value, window_bias=window_bias, outside_bias=outside, key_bias=key_bias)
    if key_mask is not None or axes:
        check_device(query, key_mask=key_mask, **{f'axis_bias[{axis}]': x for axis, x in enumerate(axes)})
    scale = as_scale(scale, query)
    return query, key, value, window_bias, outside, axes, key_bias, key_mask, sizes, outside_value, scale, is_causal


@torch.no_grad()
def global_attention_weights(query: Tensor, key: Tensor, queries: Tensor, **settings: Any) -> Tensor:
    """Compute the weights of :func:`global_attention` for selected queries only. Not differentiable.

    Args:
        query, key (Tensor): as in :func:`global_attention`.
        queries (Tensor): int64 ``(Q, axes)``, coordinates in ``*S``, shared by all batch items.
        **settings: the other arguments of :func:`global_attention`.

    Returns:
        Tensor: ``(B, heads, Q, *R)``, float64 for float64 operands, otherwise float32. Each row sums to 1, or to 0 if
        the query has no keys.

    Example:
        >>> query, key = torch.randn(2, 1, 2, 8, 8, 16).unbind()  # 2 heads of 16 channels, 8×8 positions
        >>> weights = global_attention_weights(query, key, torch.tensor([[0, 0], [3, 5]]), is_causal=True)
        >>> weights.shape, weights[0, 0, 0, 0, 0].item()  # the first query attends to itself only
        (torch.Size([1, 2, 2, 8, 8]), 1.0)
    """
    x = Rows(OPERATOR.Arguments(*global_attention.arguments(query, key, key, **settings)))
    check_queries(queries, x.size)
    rows = torch.arange(x.query.shape[2], device=query.device).view(x.size)[queries.to(query.device).unbind(-1)]
    with torch.autocast(query.device.type, enabled=False):
        logits, _ = x.logits(rows)
        lse = logits.logsumexp(-1, keepdim=True)
        weights = logits.sub_(lse.masked_fill_(lse == -math.inf, 0)).exp_()
    return weights.unflatten(-1, x.key_size)
