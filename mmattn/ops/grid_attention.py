"""Grid attention: every query attends to the keys on the axes through it; in 2-D, the criss-cross of CCNet.

The support is the union of one line of keys for each axis, the query's own position counted once. Each arm is a small
batched product, and the arms' softmaxes are merged by their log-sum-exp, so no table of N×(H+W) logits exists.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from . import autograd, native
from .checks import as_scale, check_device, check_operands, check_positions, check_queries, check_window
from .chunks import chunks
from .window_logits import accumulator, axis_index, zscore, zscore_backward


def grid_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    window: Tensor | None = None,
    window_size: int | tuple[int, ...] | None = None,
    outlier: Tensor | float = 0.0,
    normalize: bool = False,
) -> Tensor:
    """Softmax attention over the axes through each position of a 2-D or 3-D map.

    Positions are the dimensions between heads and channels: ``(H, W)`` or ``(T, H, W)``, written ``*S``. A support
    holds ∑S − (axes − 1) keys. Differentiable in every tensor. float16 and bfloat16 are accumulated in float32.

    Args:
        query (Tensor): float ``(B, heads, *S, D)``.
        key (Tensor): float ``(B, heads, *S, D)``.
        value (Tensor): float ``(B, heads, *S, Dv)``.
        scale (float, optional): factor 1/σc of the content logits. Defaults to 1/√D.
        window (Tensor, optional): float ``(B, heads, *S, K)``, logits of the windows centred on each query, the last
            axis first with its centre, then the axes before it, backwards, without: in 2-D, k1 horizontal and k0 − 1
            vertical ones. Added as they are: divide by σp first.
        window_size (int or tuple[int, ...], optional): odd window length k, for all axes or for each, in the order of
            ``*S``. Required with ``window``.
        outlier (Tensor or float): v_i, the logit of keys outside the windows: float ``(B, heads, *S)``, or one number;
            ``-inf`` restricts attention to the windows. Only read with ``window``.
        normalize (bool): z-score the realigned position logits of each query, outliers included, over its support
            (column N(δp) of Table 3.3).

    Returns:
        Tensor: ``(B, heads, *S, Dv)``, dtype of ``value``.

    Raises:
        TypeError: ``query``, ``key`` and ``value`` differ in dtype, they or any logits are not floating-point, or
            ``scale`` or ``outlier`` is no number.
        ValueError: shapes that do not fit, an empty map, an even window, a ``scale`` that is not finite,
            ``normalize`` with the number ``-inf`` as outlier, another outlier that is not finite; what a tensor holds
            is not looked at, and such queries get NaN.
    """
    out, _ = _grid_attention(
        *_arguments(
            query, key, value, scale=scale, window=window, window_size=window_size, outlier=outlier, normalize=normalize
        )
    )
    return out


@torch.no_grad()
def grid_attention_weights(query: Tensor, key: Tensor, queries: Tensor, **settings) -> Tensor:
    """Return the weights with which :func:`grid_attention` sums the values, for some of its queries, for drawing.

    Only the asked rows are computed. Not differentiable.

    Args:
        query, key (Tensor): as in :func:`grid_attention`.
        queries (Tensor): int64 ``(Q, axes)``, coordinates in ``*S``, the same in each batch item.
        **settings: the other arguments of :func:`grid_attention`.

    Returns:
        Tensor: ``(B, heads, Q, *S)``, float64 for float64, else float32. Each row sums to 1 and is 0 off the axes
        through its query.

    Raises:
        TypeError, ValueError: as :func:`grid_attention`; ``queries`` of another dtype or shape, or outside the map.
    """
    query, key, _, window, outlier, window_size, outlier_value, scale, normalize = _arguments(
        query, key, key, **settings
    )
    size, dtype = query.shape[2:-1], accumulator(query)
    check_queries(queries, size)
    at = queries.to(query.device).unbind(-1)
    row = torch.arange(len(queries), device=query.device)[:, None]
    with torch.autocast(query.device.type, enabled=False):
        positions = _Positions.of(query, window, outlier, window_size, outlier_value, normalize, at)
        asked = query[_index(*at)].to(dtype) * scale  # (B, heads, Q, D)
        logits = asked.new_full((*asked.shape[:-1], *size), -math.inf)
        for axis, length in enumerate(size):  # the last axis last: the self key is in its arm
            line = [coordinate[:, None] for coordinate in at]
            line[axis] = torch.arange(length, device=query.device)[None]
            arm = torch.einsum('bhqd,bhqld->bhql', asked, key[_index(*line)].to(dtype))
            if positions is not None:
                arm += positions.realign(axis, positions.window, positions.outlier.unsqueeze(-1), at[axis], length)
            logits[_index(row, *line)] = arm
        return logits.flatten(3).softmax(-1).view(logits.shape)


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
) -> tuple:
    """Check the arguments of :func:`grid_attention` and return those of the dispatcher operator."""
    check_operands(query, key, value, axes=(2, 3))
    check_positions('query', query)
    if key.shape != query.shape:
        raise ValueError(f'key must have the positions of query, {tuple(query.shape)}; got {tuple(key.shape)}')
    sizes, outlier_tensor, outlier_value = check_window(
        query, window, window_size, outlier, normalize, lambda sizes: sum(sizes) - len(sizes) + 1
    )
    check_device(query=query, key=key, value=value, window=window, outlier=outlier_tensor)
    return query, key, value, window, outlier_tensor, list(sizes), outlier_value, as_scale(scale, query), normalize


# Operands and settings, as they stand in the schema of the forward and the backward operator.
ARGUMENTS = (
    'Tensor query, Tensor key, Tensor value, Tensor? window, Tensor? outlier, int[] window_size, '
    'float outlier_value, float scale, bool normalize'
)


@torch.library.custom_op('mmattn::grid_attention', mutates_args=(), schema=f'({ARGUMENTS}) -> (Tensor, Tensor)')
def _grid_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Tensor | None,
    outlier: Tensor | None,
    window_size: Sequence[int],
    outlier_value: float,
    scale: float,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    fits = native.takes('grid_attention', query, key, value, window, outlier)
    run = torch.ops.mmattn_native.grid_attention if fits else grid_attention_reference
    return run(query, key, value, window, outlier, window_size, outlier_value, scale, normalize)


@_grid_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(value, memory_format=torch.contiguous_format), query.new_empty(
        query.shape[:-1], dtype=accumulator(query)
    )


@torch.library.custom_op(
    'mmattn::grid_attention_backward',
    mutates_args=(),
    schema=f'(Tensor grad, Tensor out, Tensor lse, {ARGUMENTS}) -> Tensor[]',
)
def _grid_attention_backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Tensor | None,
    outlier: Tensor | None,
    window_size: Sequence[int],
    outlier_value: float,
    scale: float,
    normalize: bool,
) -> list[Tensor]:
    fits = native.takes('grid_attention_backward', grad, out, lse, query, key, value, window, outlier)
    run = torch.ops.mmattn_native.grid_attention_backward if fits else grid_attention_reference_backward
    grads = run(grad, out, lse, query, key, value, window, outlier, window_size, outlier_value, scale, normalize)
    operands = [x for x in (query, key, value, window, outlier) if x is not None]
    return [grad.to(operand.dtype) for grad, operand in zip(grads, operands)]


@_grid_attention_backward.register_fake
def _(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Tensor | None,
    outlier: Tensor | None,
    *_: object,
) -> list[Tensor]:
    operands = [x for x in (query, key, value, window, outlier) if x is not None]
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in operands]


autograd.register('grid_attention')


class _Positions:
    """The window logits of one call: z-scored, and laid out for each arm.

    Args:
        query (Tensor): ``(B, heads, *S, D)``.
        window (Tensor): ``(B, heads, *S, K)``.
        outlier (Tensor, optional): ``(B, heads, *S)``.
        window_size, outlier_value, normalize: as in the operator.
        at (tuple[Tensor, ...]): coordinates ``(Q,)`` on each axis of the only queries to keep, ``(Q)`` in place of
            ``*S`` from then on. All of them by default.
    """

    def __init__(
        self,
        query: Tensor,
        window: Tensor,
        outlier: Tensor | None,
        window_size: Sequence[int],
        outlier_value: float,
        normalize: bool,
        at: tuple[Tensor, ...] = (),
    ) -> None:
        size, dtype = query.shape[2:-1], accumulator(query)
        if outlier is None:
            outlier = query.new_full(query.shape[:-1], outlier_value, dtype=dtype)
        self.window_size = window_size
        self.window, self.outlier = (x[_index(*at)].to(dtype) for x in (window, outlier))
        self.rstd: Tensor | None = None
        exists = []
        for axis in reversed(range(len(size))):
            inside = axis_index(size[axis], window_size[axis], query.device)[1]
            if axis != len(size) - 1:
                inside = _without_centre(inside)
            shape = [1] * len(size)
            shape[axis] = size[axis]
            exists.append(inside.view(*shape, -1).expand(*size, -1)[at])
        self.exists = torch.cat(exists, -1)  # (*S, K)
        self.count = torch.tensor(sum(size) - len(size) + 1, device=query.device)
        if normalize:
            self.window, self.outlier, self.rstd = zscore(self.window, self.outlier, self.exists, self.count)

    @classmethod
    def of(cls, query: Tensor, window: Tensor | None, *settings) -> _Positions | None:
        """The position logits of a call, None where it has none."""
        return None if window is None else cls(query, window, *settings)

    def arm(self, axis: int) -> slice:
        """The entries of an axis within K: the last axis first, with its centre; the others without."""
        own = [k - 1 for k in self.window_size]
        own[-1] += 1
        start = sum(own[axis + 1 :])
        return slice(start, start + own[axis])

    def logits(self, axis: int, lines: slice) -> Tensor:
        """Position logits of the arm along ``axis``: ``(B, heads, lines, …, L, L)``."""
        window, outlier = (_lines(x, axis)[:, :, lines] for x in (self.window, self.outlier.unsqueeze(-1)))
        length = window.shape[-2]
        return self.realign(axis, window, outlier, torch.arange(length, device=window.device), length)

    def realign(self, axis: int, window: Tensor, outlier: Tensor, position: Tensor, length: int) -> Tensor:
        """Logits ``(…, n, length)`` of the arm along ``axis``, for n queries.

        Args:
            window, outlier (Tensor): their logits, ``(…, n, K)`` and ``(…, n, 1)``.
            position (Tensor): their coordinates ``(n,)`` on the axis.
            length (int): the axis's.
        """
        k = self.window_size[axis]
        entries = window[..., self.arm(axis)]
        if entries.shape[-1] != k:  # the centre's place; self belongs to another arm
            entries = torch.cat([entries[..., : k // 2], outlier, entries[..., k // 2 :]], -1)
        table = torch.cat([entries, outlier], -1)
        entry = torch.arange(length, device=table.device) - position[:, None] + k // 2
        entry = entry.where((entry >= 0) & (entry < k), k)
        return table.gather(-1, entry.expand(*table.shape[:-1], length))

    def gradients(self, d_logits: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients at the operator's window and outlier logits from those at the realigned window logits."""
        if self.rstd is None:
            return d_logits, -d_logits.sum(-1)  # a softmax's gradients sum to zero
        return zscore_backward(d_logits, self.window, self.outlier, self.rstd, self.exists, self.count)


def _index(*coordinates: Tensor) -> tuple[slice | Tensor, ...]:
    """Index into ``(B, heads, *S, …)``, from a tensor for each axis of ``*S``; of all there is, from none."""
    return slice(None), slice(None), *coordinates


def _without_centre(entries: Tensor) -> Tensor:
    centre = entries.shape[-1] // 2
    return torch.cat([entries[..., :centre], entries[..., centre + 1 :]], -1)


def _lines(x: Tensor, axis: int) -> Tensor:
    """View ``(B, heads, *S, C)`` as the lines along ``axis``: ``(B, heads, *others, L, C)``."""
    return x.movedim(2 + axis, -2)


def _arms(
    query: Tensor, key: Tensor, value: Tensor, positions: _Positions | None, scale: float
) -> Iterator[tuple[int, slice, Tensor]]:
    """Yield the logits of each arm, a bounded number of lines at a time: axis, lines, ``(B, heads, lines, …, L, L)``.

    The self key is in the arm of the last axis alone.
    """
    dtype, axes = accumulator(query), query.dim() - 3
    for axis in reversed(range(axes)):
        q, k = _lines(query, axis), _lines(key, axis)
        batch, heads, count, *rest = q.shape[:-1]
        channels = q.shape[-1] + value.shape[-1]
        each = batch * heads * math.prod(rest) * (4 * q.shape[-2] + 2 * channels) * dtype.itemsize
        for lines in chunks(count, each):
            logits = (q[:, :, lines].to(dtype) * scale) @ k[:, :, lines].to(dtype).transpose(-1, -2)
            if positions is not None:
                logits += positions.logits(axis, lines)
            if axis != axes - 1:
                logits.diagonal(dim1=-2, dim2=-1).fill_(-math.inf)
            yield axis, lines, logits


def grid_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Tensor | None,
    outlier: Tensor | None,
    window_size: Sequence[int],
    outlier_value: float,
    scale: float,
    normalize: bool,
) -> tuple[Tensor, Tensor]:
    """Forward pass in PyTorch: output ``(B, heads, *S, Dv)`` and log-sum-exp of the logits ``(B, heads, *S)``."""
    dtype = accumulator(query)
    out = torch.zeros(value.shape, dtype=dtype, device=value.device)
    lse = torch.full(query.shape[:-1], -math.inf, dtype=dtype, device=query.device)
    with torch.autocast(query.device.type, enabled=False):
        positions = _Positions.of(query, window, outlier, window_size, outlier_value, normalize)
        for axis, lines, p in _arms(query, key, value, positions, scale):
            peak = p.amax(-1, keepdim=True)
            peak.masked_fill_(peak == -math.inf, 0)  # a line of one: only the self key, which is not in this arm
            total = p.sub_(peak).exp_().sum(-1, keepdim=True)
            arm = p @ _lines(value, axis)[:, :, lines].to(dtype)  # unnormalised
            # Merge with the arms before: each weighs exp(its log-sum-exp).
            before = _lines(lse.unsqueeze(-1), axis)[:, :, lines]
            merged = torch.logaddexp(before, peak + total.log())
            _lines(out, axis)[:, :, lines].mul_((before - merged).exp()).add_(arm.mul_((peak - merged).exp()))
            before.copy_(merged)
    return out.to(value.dtype), lse


def grid_attention_reference_backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window: Tensor | None,
    outlier: Tensor | None,
    window_size: Sequence[int],
    outlier_value: float,
    scale: float,
    normalize: bool,
) -> list[Tensor]:
    """Gradients of the floating-point operands that are there, in the order of the operator's arguments."""
    dtype = accumulator(query)
    d_query, d_key, d_value = (torch.zeros(x.shape, dtype=dtype, device=x.device) for x in (query, key, value))
    with torch.autocast(query.device.type, enabled=False):
        positions = _Positions.of(query, window, outlier, window_size, outlier_value, normalize)
        d_logits = torch.zeros(() if window is None else window.shape, dtype=dtype, device=query.device)
        mean = (grad.to(dtype) * out).sum(-1, keepdim=True)
        for axis, lines, p in _arms(query, key, value, positions, scale):
            p.sub_(_lines(lse.unsqueeze(-1), axis)[:, :, lines]).exp_()
            d_out = _lines(grad, axis)[:, :, lines].to(dtype)
            _lines(d_value, axis)[:, :, lines] += p.transpose(-1, -2) @ d_out
            ds = d_out @ _lines(value, axis)[:, :, lines].to(dtype).transpose(-1, -2)
            ds.sub_(_lines(mean, axis)[:, :, lines]).mul_(p)
            _lines(d_query, axis)[:, :, lines] += ds @ _lines(key, axis)[:, :, lines].to(dtype) * scale
            queries = _lines(query, axis)[:, :, lines].to(dtype) * scale
            _lines(d_key, axis)[:, :, lines] += ds.transpose(-1, -2) @ queries
            if positions is not None:
                where, exists = axis_index(ds.shape[-1], window_size[axis], ds.device)
                entries = ds.gather(-1, where.expand(*ds.shape[:-1], -1)).masked_fill_(~exists, 0)
                if axis != query.dim() - 4:
                    entries = _without_centre(entries)
                _lines(d_logits[..., positions.arm(axis)], axis)[:, :, lines] = entries
        grads = [d_query, d_key, d_value]
        if positions is not None:
            d_window, d_outlier = positions.gradients(d_logits)
            grads += [d_window] if outlier is None else [d_window, d_outlier]
    return grads
