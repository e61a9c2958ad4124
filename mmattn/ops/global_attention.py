"""Global attention with structured position logits.

Every query attends to every key, with logits

    scale · qᵢᵀkⱼ + δp(i, j) + Σₐ Aₐ[i, jₐ] + B[j]

where δp are window logits with an outlier value (Eq. 3.12 of the bilateral-attention thesis), optionally z-scored; Aₐ
are logits for each axis of the key's position (decomposed relative encodings); and B are logits of the key alone. All
of them are small beside the N×N table of all pairs, which never exists: rows are computed a slice of queries at a
time, in the backward pass once more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import autograd, native
from .checks import as_scale, check_device, check_operands, check_positions, check_queries, check_window, expanded
from .chunks import chunks
from .window_logits import accumulator, axis_index, window_entries, zscore, zscore_backward


def global_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    window: Tensor | None = None,
    window_size: int | tuple[int, ...] | None = None,
    outlier: Tensor | float = 0.0,
    normalize: bool = False,
    axis_logits: Sequence[Tensor] = (),
    key_logits: Tensor | None = None,
    key_mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Softmax attention over all positions of a 1-D, 2-D or 3-D map.

    Positions are the dimensions between heads and channels: ``(L)``, ``(H, W)`` or ``(T, H, W)``, written ``*S`` for
    queries and ``*R`` for keys, which may differ unless ``window`` or ``causal`` relates them. Differentiable in every
    floating-point tensor. float16 and bfloat16 are accumulated in float32. A query with no key to attend to (all
    masked) gives zeros.

    Args:
        query (Tensor): float ``(B, heads, *S, D)``.
        key (Tensor): float ``(B, heads, *R, D)``.
        value (Tensor): float ``(B, heads, *R, Dv)``.
        scale (float, optional): factor 1/σc of the content logits. Defaults to 1/√D.
        window (Tensor, optional): float ``(B, heads, *S, K)``, logits of the window centred on each query, row-major,
            K = ∏k; under ``causal`` only the first (K + 1)/2, those with j ≤ i. Added as they are: divide by σp first.
        window_size (int or tuple[int, ...], optional): odd window length k, for all axes or for each. Required with
            ``window``.
        outlier (Tensor or float): v_i, the logit of keys outside the window: float ``(B, heads, *S)``, or one number;
            ``-inf`` restricts attention to the window. Only read with ``window``.
        normalize (bool): z-score the realigned position logits of each query, outliers included, over its support
            (column N(δp) of Table 3.3).
        axis_logits (sequence of Tensor): empty, or one a key axis, float, the a-th broadcastable to
            ``(B, heads, *S, R[a])``: a logit for the key's absolute coordinate on that axis.
        key_logits (Tensor, optional): float, broadcastable to ``(B, heads, *R)``.
        key_mask (Tensor, optional): bool ``(B, *R)``, True where a key may be attended to.
        causal (bool): only keys with j ≤ i in row-major order.

    Returns:
        Tensor: ``(B, heads, *S, Dv)``, dtype of ``value``.

    Raises:
        TypeError: ``query``, ``key`` and ``value`` differ in dtype, they or any logits are not floating-point, or
            ``scale`` or ``outlier`` is no number.
        ValueError: shapes that do not fit, queries without any key, an even window, a ``scale`` that is not finite,
            ``normalize`` with the number ``-inf`` as outlier, another outlier that is not finite; what a tensor holds
            is not looked at, and such queries get NaN.
    """
    out, _ = _global_attention(
        *_arguments(
            query,
            key,
            value,
            scale=scale,
            window=window,
            window_size=window_size,
            outlier=outlier,
            normalize=normalize,
            axis_logits=axis_logits,
            key_logits=key_logits,
            key_mask=key_mask,
            causal=causal,
        )
    )
    return out


@torch.no_grad()
def global_attention_weights(query: Tensor, key: Tensor, queries: Tensor, **settings) -> Tensor:
    """Return the weights with which :func:`global_attention` sums the values, for some of its queries, for drawing.

    Only the asked rows are computed. Not differentiable.

    Args:
        query, key (Tensor): as in :func:`global_attention`.
        queries (Tensor): int64 ``(Q, axes)``, coordinates in ``*S``, the same in each batch item.
        **settings: the other arguments of :func:`global_attention`.

    Returns:
        Tensor: ``(B, heads, Q, *R)``, float64 for float64, else float32. Each row sums to 1, or to 0 where the query
        has no key to attend to.

    Raises:
        TypeError, ValueError: as :func:`global_attention`; ``queries`` of another dtype or shape, or outside the map.
    """
    x = _Rows.of(*_arguments(query, key, key, **settings))
    check_queries(queries, x.size)
    rows = torch.arange(x.query.shape[2], device=query.device).view(x.size)[queries.to(query.device).unbind(-1)]
    with torch.autocast(query.device.type, enabled=False):
        logits, _ = x.logits(rows)
        lse = logits.logsumexp(-1, keepdim=True)
        weights = logits.sub_(lse.masked_fill_(lse == -math.inf, 0)).exp_()
    return weights.unflatten(-1, x.key_size)


def _arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    window: Tensor | None = None,
    window_size: int | tuple[int, ...] | None = None,
    outlier: Tensor | float = 0.0,
    normalize: bool = False,
    axis_logits: Sequence[Tensor] = (),
    key_logits: Tensor | None = None,
    key_mask: Tensor | None = None,
    causal: bool = False,
) -> tuple:
    """Check the arguments of :func:`global_attention` and return those of the dispatcher operator."""
    check_operands(query, key, value, axes=(1, 3))
    size, key_size = query.shape[2:-1], key.shape[2:-1]
    if 0 not in size:
        check_positions('key', key)
    if (window is not None or causal) and size != key_size:
        raise ValueError(
            f'window and causal need keys at the positions of the queries; got {tuple(size)} queries and '
            f'{tuple(key_size)} keys'
        )

    sizes, outlier_tensor, outlier_value = check_window(
        query, window, window_size, outlier, normalize, lambda sizes: window_entries(sizes, causal)
    )
    if len(axis_logits) not in (0, len(key_size)):
        raise ValueError(
            f'axis_logits must be empty or hold one tensor for each of the {len(key_size)} key axes; got '
            f'{len(axis_logits)}'
        )
    axes = [
        expanded(f'axis_logits[{axis}]', logits, (*query.shape[:-1], key_size[axis]))
        for axis, logits in enumerate(axis_logits)
    ]
    if key_logits is not None:
        key_logits = expanded('key_logits', key_logits, key.shape[:-1])
    if key_mask is not None and (key_mask.dtype != torch.bool or key_mask.shape != (key.shape[0], *key_size)):
        raise ValueError(
            f'key_mask must be bool {(key.shape[0], *key_size)}; got {key_mask.dtype} {tuple(key_mask.shape)}'
        )
    check_device(
        query=query,
        key=key,
        value=value,
        window=window,
        outlier=outlier_tensor,
        key_logits=key_logits,
        key_mask=key_mask,
        **{f'axis_logits[{axis}]': x for axis, x in enumerate(axes)},
    )
    return (
        query,
        key,
        value,
        window,
        outlier_tensor,
        axes,
        key_logits,
        key_mask,
        list(sizes),
        outlier_value,
        as_scale(scale, query),
        normalize,
        causal,
    )


# Operands and settings, as they stand in the schema of the forward and the backward operator. Written out, because
# older torch infers schemas from fewer kinds of annotations.
ARGUMENTS = (
    'Tensor query, Tensor key, Tensor value, Tensor? window, Tensor? outlier, Tensor[] axis_logits, '
    'Tensor? key_logits, Tensor? key_mask, int[] window_size, float outlier_value, float scale, '
    'bool normalize, bool causal'
)


def _fits(query: Tensor, value: Tensor) -> bool:
    """Whether the kernel has room for the channels of a position: on CUDA, in a block's shared memory.

    That of data-centre GPUs, 163 KiB and more, has room for 512 bytes; that of others of their generations, 99 KiB, for
    256. The backward pass of 512 takes 155 KiB, of 256 91.
    """
    if not value.is_cuda:
        return True
    major, minor = torch.cuda.get_device_capability(value.device)
    large = (major, minor) in ((8, 0), (8, 7)) or major in (9, 10, 11)
    return max(query.shape[-1], value.shape[-1]) * value.element_size() <= (512 if large else 256)


def _operands(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Tensor | None,
    outlier: Tensor | None,
    axis_logits: Sequence[Tensor],
    key_logits: Tensor | None,
) -> list[Tensor]:
    """Return the operands that are there and have a gradient."""
    return [x for x in (query, key, value, window, outlier, *axis_logits, key_logits) if x is not None]


@torch.library.custom_op('mmattn::global_attention', mutates_args=(), schema=f'({ARGUMENTS}) -> (Tensor, Tensor)')
def _global_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Tensor | None,
    outlier: Tensor | None,
    axis_logits: Sequence[Tensor],
    key_logits: Tensor | None,
    key_mask: Tensor | None,
    window_size: Sequence[int],
    outlier_value: float,
    scale: float,
    normalize: bool,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    arguments = (
        query,
        key,
        value,
        window,
        outlier,
        axis_logits,
        key_logits,
        key_mask,
        window_size,
        outlier_value,
        scale,
        normalize,
        causal,
    )
    # Query and key may be without channels.
    operands = filter(Tensor.numel, _operands(*arguments[:7]))
    if _fits(query, value) and native.takes('global_attention', value, *operands):
        return torch.ops.mmattn_native.global_attention(*arguments)
    return global_attention_reference(_Rows.of(*arguments))


@_global_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return (
        value.new_empty(*query.shape[:-1], value.shape[-1]),
        query.new_empty(query.shape[:-1], dtype=accumulator(query)),
    )


@torch.library.custom_op(
    'mmattn::global_attention_backward',
    mutates_args=(),
    schema=f'(Tensor grad, Tensor out, Tensor lse, {ARGUMENTS}) -> Tensor[]',
)
def _global_attention_backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Tensor | None,
    outlier: Tensor | None,
    axis_logits: Sequence[Tensor],
    key_logits: Tensor | None,
    key_mask: Tensor | None,
    window_size: Sequence[int],
    outlier_value: float,
    scale: float,
    normalize: bool,
    causal: bool,
) -> list[Tensor]:
    arguments = (
        query,
        key,
        value,
        window,
        outlier,
        axis_logits,
        key_logits,
        key_mask,
        window_size,
        outlier_value,
        scale,
        normalize,
        causal,
    )
    operands = _operands(*arguments[:7])
    there = filter(Tensor.numel, operands)
    if _fits(query, value) and native.takes('global_attention_backward', grad, out, lse, *there):
        return torch.ops.mmattn_native.global_attention_backward(grad, out, lse, *arguments)
    grads = global_attention_reference_backward(grad, out, lse, _Rows.of(*arguments))
    return [grad.to(operand.dtype) for grad, operand in zip(grads, operands)]


@_global_attention_backward.register_fake
def _(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Tensor | None,
    outlier: Tensor | None,
    axis_logits: Sequence[Tensor],
    key_logits: Tensor | None,
    *_: object,
) -> list[Tensor]:
    operands = _operands(query, key, value, window, outlier, axis_logits, key_logits)
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in operands]


autograd.register('global_attention')


@dataclass
class _Rows:
    """The operands of one call, positions flattened to N queries and M keys, in the accumulator's dtype."""

    query: Tensor  # (B, heads, N, D)
    key: Tensor  # (B, heads, M, D)
    value: Tensor  # (B, heads, M, Dv)
    window: Tensor | None  # (B, heads, N, K), any float dtype
    outlier: Tensor | None  # (B, heads, N)
    axis_logits: list[Tensor]  # (B, heads, N, R[a])
    key_logits: Tensor | None  # (B, heads, M)
    key_mask: Tensor | None  # (B, M)
    size: tuple[int, ...]
    key_size: tuple[int, ...]
    window_size: tuple[int, ...]
    outlier_value: float
    scale: float
    normalize: bool
    causal: bool
    value_dtype: torch.dtype

    @classmethod
    def of(
        cls,
        query,
        key,
        value,
        window,
        outlier,
        axis_logits,
        key_logits,
        key_mask,
        window_size,
        outlier_value,
        scale,
        normalize,
        causal,
    ) -> _Rows:
        dtype = accumulator(query)
        return cls(
            query=query.flatten(2, -2).to(dtype),
            key=key.flatten(2, -2).to(dtype),
            value=value.flatten(2, -2).to(dtype),
            window=window if window is None else window.flatten(2, -2),
            outlier=outlier if outlier is None else outlier.flatten(2).to(dtype),
            axis_logits=[logits.flatten(2, -2) for logits in axis_logits],
            key_logits=key_logits if key_logits is None else key_logits.flatten(2).to(dtype),
            key_mask=key_mask if key_mask is None else key_mask.flatten(1),
            size=tuple(query.shape[2:-1]),
            key_size=tuple(key.shape[2:-1]),
            window_size=tuple(window_size),
            outlier_value=outlier_value,
            scale=scale,
            normalize=normalize,
            causal=causal,
            value_dtype=value.dtype,
        )

    def slices(self, tables: int):
        """Slices of queries for which ``tables`` rows of logits over all keys fit the byte budget."""
        batch, heads, _, _ = self.query.shape
        entries = 0 if self.window is None else self.window.shape[-1]
        row = batch * heads * (tables * self.key.shape[2] + 4 * entries) + 2 * entries
        return chunks(self.query.shape[2], row * self.query.element_size())

    def realign(self, rows: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Flat key index ``(n, K)`` of each window entry of each query, and whether it exists, ``(n or B, …)``."""
        device = self.query.device
        index = torch.arange(self.query.shape[2], device=device)[rows]
        where = index.new_zeros(len(index), 1)
        exists = torch.ones_like(where, dtype=torch.bool)
        stride = math.prod(self.size)
        for length, k in zip(self.size, self.window_size):
            stride //= length
            key, inside = (x[index // stride % length] for x in axis_index(length, k, device))  # (n, k)
            where = (where[:, :, None] + key[:, None] * stride).flatten(1)
            exists = (exists[:, :, None] & inside[:, None]).flatten(1)
        entries = window_entries(self.window_size, self.causal)
        return where[:, :entries], exists[:, :entries]

    def support(self, rows: slice | Tensor, where: Tensor, exists: Tensor) -> tuple[Tensor, Tensor]:
        """For the z-score: which entries are in the support, ``(…, n, K)``, and how many keys are, ``(…, n)``."""
        if self.key_mask is not None:
            exists = (exists & self.key_mask[:, where]).unsqueeze(1)  # (B, 1, n, K)
            counts = (
                self.key_mask.cumsum(-1)
                if self.causal
                else self.key_mask.sum(-1, keepdim=True).expand(self.key_mask.shape)
            )
            return exists, counts[:, None, rows]
        if self.causal:
            return exists, torch.arange(1, self.query.shape[2] + 1, device=where.device)[rows]
        return exists, torch.tensor(self.key.shape[2], device=where.device)

    def positions(self, rows: slice | Tensor, where: Tensor, exists: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Window logits ``(B, heads, n, K)``, outlier logits ``(B, heads, n)``, and the z-score's factor."""
        assert self.window is not None
        window = self.window[:, :, rows].to(self.query.dtype).contiguous()
        if self.outlier is not None:
            outlier = self.outlier[:, :, rows]
        else:
            outlier = window.new_full(window.shape[:-1], self.outlier_value)
        if not self.normalize:
            return window, outlier, None
        return zscore(window, outlier, *self.support(rows, where, exists))

    def logits(self, rows: slice | Tensor) -> tuple[Tensor, tuple | None]:
        """Logits ``(B, heads, n, M)`` of some queries, and what the window's gradient needs of it."""
        query = self.query[:, :, rows]
        count = self.key.shape[2]
        realigned = None
        if self.window is None:
            logits = (query * self.scale) @ self.key.transpose(-1, -2)
        else:
            where, exists = self.realign(rows)
            window, outlier, rstd = self.positions(rows, where, exists)
            # One column more than keys: entries that do not exist are written there and dropped.
            table = outlier.unsqueeze(-1).repeat(1, 1, 1, count + 1)
            table.scatter_(-1, where.where(exists, count).expand_as(window), window)
            logits = table[..., :count]
            logits.flatten(0, 1).baddbmm_(
                query.flatten(0, 1), self.key.flatten(0, 1).transpose(-1, -2), alpha=self.scale
            )
            realigned = (where, exists, window, outlier, rstd)
        for axis, values in enumerate(self.axis_logits):
            shape = [1] * len(self.key_size)
            shape[axis] = self.key_size[axis]
            logits.unflatten(-1, self.key_size).add_(values[:, :, rows].unflatten(-1, shape))
        if self.key_logits is not None:
            logits += self.key_logits.unsqueeze(2)
        if self.key_mask is not None:
            logits.masked_fill_(~self.key_mask[:, None, None], -math.inf)
        if self.causal:
            keys = torch.arange(count, device=query.device)
            logits.masked_fill_(keys > keys[rows, None], -math.inf)
        return logits, realigned


def global_attention_reference(x: _Rows) -> tuple[Tensor, Tensor]:
    """Forward pass in PyTorch: output ``(B, heads, *S, Dv)`` and log-sum-exp of the logits ``(B, heads, *S)``."""
    out = x.value.new_empty(*x.query.shape[:-1], x.value.shape[-1], dtype=x.value_dtype)
    lse = x.query.new_empty(x.query.shape[:-1])
    with torch.autocast(x.query.device.type, enabled=False):
        for rows in x.slices(tables=1):
            p, _ = x.logits(rows)
            peak = p.amax(-1, keepdim=True)
            peak.masked_fill_(peak == -math.inf, 0)  # all keys masked
            total = p.sub_(peak).exp_().sum(-1, keepdim=True)
            out[:, :, rows] = p @ x.value / total.masked_fill(total == 0, 1)
            lse[:, :, rows] = (peak + total.log()).squeeze(-1)
            del p  # or it would live on while the next one is made
    return out.unflatten(2, x.size), lse.unflatten(2, x.size)


def global_attention_reference_backward(grad: Tensor, out: Tensor, lse: Tensor, x: _Rows) -> list[Tensor]:
    """Gradients of the floating-point operands that are there, in the order of the operator's arguments."""
    dtype = x.query.dtype
    grad, out = grad.flatten(2, -2), out.flatten(2, -2)
    lse = lse.flatten(2)
    lse = lse.masked_fill(lse == -math.inf, 0)
    d_query, d_key, d_value = (
        torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (x.query, x.key, x.value)
    )
    d_window = None if x.window is None else torch.empty_like(x.window, memory_format=torch.contiguous_format)
    d_outlier = None if x.outlier is None else torch.empty_like(x.outlier)
    d_axes = [torch.empty_like(logits, memory_format=torch.contiguous_format) for logits in x.axis_logits]
    d_keys = None if x.key_logits is None else torch.zeros_like(x.key_logits, memory_format=torch.contiguous_format)
    with torch.autocast(x.query.device.type, enabled=False):
        for rows in x.slices(tables=2):
            p, realigned = x.logits(rows)
            p = p.sub_(lse[:, :, rows, None]).exp_()
            d_out = grad[:, :, rows].to(dtype)
            d_value += p.transpose(-1, -2) @ d_out
            mean = (d_out * out[:, :, rows]).sum(-1, keepdim=True)
            d_logits = (d_out @ x.value.transpose(-1, -2)).sub_(mean).mul_(p)
            d_query[:, :, rows] = d_logits @ x.key * x.scale
            d_key += d_logits.transpose(-1, -2) @ (x.query[:, :, rows] * x.scale)
            if d_window is not None and realigned is not None:
                where, exists, window, outlier, rstd = realigned
                inside = d_logits.gather(-1, where.expand_as(window)).masked_fill_(~exists, 0)
                # The gradients of a softmax's logits sum to zero, so the outliers' sum is what the window leaves.
                outside = -inside.sum(-1)
                if x.normalize:
                    inside, outside = zscore_backward(inside, window, outlier, rstd, *x.support(rows, where, exists))
                d_window[:, :, rows] = inside
                if d_outlier is not None:
                    d_outlier[:, :, rows] = outside
            for axis, d_axis in enumerate(d_axes):
                others = [3 + a for a in range(len(x.key_size)) if a != axis]
                d_axis[:, :, rows] = d_logits.unflatten(-1, x.key_size).sum(others) if others else d_logits
            if d_keys is not None:
                d_keys += d_logits.sum(2)
            del p, d_logits, realigned
    grads = [
        (d_query, x.size),
        (d_key, x.key_size),
        (d_value, x.key_size),
        (d_window, x.size),
        (d_outlier, x.size),
        *((d_axis, x.size) for d_axis in d_axes),
        (d_keys, x.key_size),
    ]
    return [grad.unflatten(2, size) for grad, size in grads if grad is not None]
