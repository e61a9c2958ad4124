"""The z-score of window biases: the biases of each query, normalised over its keys before they are added to logits.

The bias outside the window is one number per query and counts once for each key outside the window. Rows are normalised
in slices, so that little memory is needed in addition to the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .arguments import check_device, check_mask, check_window, window_entries
from .chunks import chunk_bytes, chunks
from .dtypes import accumulator
from .operator import Operator
from .tables import kept
from .window_bias import window_keys

EPS = 1e-5  # added to the variance
CACHE_BYTES = 2**21  # of a slice of biases on a CPU, which stays in the cache
SUPPORTS = ('global', 'grid')


class ZscoreArguments(NamedTuple):
    """The arguments of ``mmattn::window_zscore``."""

    window_bias: Tensor  # (B, heads, *S, K)
    outside_bias: Tensor | None  # (B, heads, *S)
    key_mask: Tensor | None  # (B, *S)
    window_size: Sequence[int]
    outside_value: float  # without outside_bias
    is_causal: bool
    support: str


def window_zscore(
    window_bias: Tensor,
    window_size: int | tuple[int, ...],
    outside_bias: Tensor | float = 0.0,
    *,
    support: str = 'global',
    key_mask: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Normalise window biases over the keys of each query: (δp − μ) / √(var + 1e-5).

    μ and var are the mean and the population variance of the biases of all keys of the query, including keys outside
    the window (column N(δp) of Table 3.3). Pass the result to :func:`global_attention` or :func:`grid_attention`.
    Queries and keys must have the same positions ``*S``: if the queries are only the last positions of the keys, the
    statistics differ. Differentiable in both tensors. Computed in float32, or in float64 for float64 biases.
    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, UTS, 2021, chapter 3.

    Args:
        window_bias (Tensor): float ``(B, heads, *S, K)``, as in :func:`global_attention` or :func:`grid_attention`,
            according to ``support``. A query with a bias of −∞ gets NaN.
        window_size (int or tuple[int, ...]): odd window length k, for all axes or for each axis.
        outside_bias (Tensor or float): v_i, the bias of keys outside the window: float ``(B, heads, *S)`` or a finite
            number. Defaults to 0.
        support (str): the keys of a query: 'global' (all positions) or 'grid' (as in :func:`grid_attention`). Defaults
            to 'global'.
        key_mask (Tensor, optional): bool ``(B, *S)``, True for keys that may be attended to. Only with 'global'.
        is_causal (bool): use only keys with j ≤ i. Only with 'global'. Defaults to False.

    Returns:
        tuple[Tensor, Tensor]: normalised ``window_bias`` and ``outside_bias``, float32 or float64 ``(B, heads, *S, K)``
        and ``(B, heads, *S)``, 0 for entries without a key.

    Example:
        >>> bias, outside = window_zscore(torch.randn(1, 8, 32, 32, 7 * 7), 7)
        >>> query, key, value = torch.randn(3, 1, 8, 32, 32, 16).unbind()
        >>> global_attention(query, key, value, window_bias=bias, window_size=7, outside_bias=outside).shape
        torch.Size([1, 8, 32, 32, 16])
    """
    if support not in SUPPORTS:
        raise ValueError(f'support must be one of {SUPPORTS}; got {support!r}')
    if support == 'grid' and (key_mask is not None or is_causal):
        raise ValueError("key_mask and is_causal require support='global'")
    fewest = 2 if support == 'grid' else 1
    if not fewest <= window_bias.dim() - 3 <= 3:
        raise ValueError(
            f'window_bias must be (B, heads, *positions, K) with {fewest} to 3 position axes; got '
            f'{tuple(window_bias.shape)}'
        )
    sizes, _, outside, outside_value = check_window(
        window_bias, window_bias, window_size, outside_bias, on_grid=support == 'grid', is_causal=is_causal
    )
    if outside_value == -math.inf:
        raise ValueError('outside_bias must be finite for a z-score; got -inf')
    if key_mask is not None:
        check_mask(key_mask, (window_bias.shape[0], *window_bias.shape[2:-1]))
    check_device(window_bias, outside_bias=outside, key_mask=key_mask)
    tensors = window_bias, outside, key_mask
    return torch.ops.mmattn.window_zscore(*tensors, sizes, outside_value, is_causal, support)[:2]


class _Counts(NamedTuple):
    """The keys of a slice of queries, inside the window and outside."""

    missing: Tensor  # window entries without a key, bool (B or 1, 1, n, K)
    inside: Tensor  # number of entries with a key, at least 1, (B or 1, 1, n) or (n)
    outer: Tensor  # number of keys outside the window, (B or 1, 1, n)
    none: Tensor  # where outer is 0


class _Slice(NamedTuple):
    rows: slice  # of the N queries
    counts: _Counts
    keys: Tensor | int  # number of keys, at least 1


def _slices(a: ZscoreArguments) -> Iterator[_Slice]:
    window = a.window_bias
    batch, heads, *size, entries = window.shape
    positions = math.prod(size)
    on_grid = a.support == 'grid'
    # Not only in the public function: tables have as many entries as window_size says.
    fits = len(a.window_size) == len(size) and min(a.window_size) > 0
    if not fits or window_entries(tuple(a.window_size), is_causal=a.is_causal, on_grid=on_grid) != entries:
        raise ValueError(f'window_size {list(a.window_size)} does not fit window_bias {tuple(window.shape)}')
    row = size[1:] if on_grid else []  # a slice for 'grid' consists of whole rows of the map
    # On a CPU, a slice stays in the cache. On a GPU, a slice has about four tables.
    budget = CACHE_BYTES if window.device.type == 'cpu' else chunk_bytes(window.device) // 4
    for part in chunks(positions // math.prod(row), 4 * batch * heads * entries * math.prod(row), budget):
        rows = slice(part.start * math.prod(row), part.stop * math.prod(row))
        at = part.start, part.stop, tuple(size), tuple(a.window_size)
        if on_grid:
            yield _Slice(rows, kept(_grid_counts, window, *at), sum(size) - len(size) + 1)
        elif a.key_mask is None:
            counts = kept(_counts, window, *at, a.is_causal)
            keys = torch.arange(rows.start + 1, rows.stop + 1, device=window.device) if a.is_causal else positions
            yield _Slice(rows, counts, keys)
        else:
            mask = a.key_mask.flatten(1)
            where, exists = kept(window_keys, window, *at, a.is_causal)
            keys = mask.cumsum(-1)[:, None, rows] if a.is_causal else mask.sum(-1)[:, None, None]
            counts = _count(~(exists & mask[:, where])[:, None], keys)
            yield _Slice(rows, counts, keys.clamp(min=1))  # there may be no key


def _count(missing: Tensor, keys: Tensor | int) -> _Counts:
    absent, entries = missing.sum(-1), missing.shape[-1]
    outer = (absent + (keys - entries)).view(-1, 1, missing.shape[-2])
    inside = (entries - absent).clamp(min=1)  # there may be no key
    return _Counts(missing.view(-1, 1, *missing.shape[-2:]), inside, outer, outer == 0)


def _counts(
    start: int, stop: int, size: tuple[int, ...], window_size: tuple[int, ...], is_causal: bool, device: torch.device
) -> _Counts:
    _, exists = window_keys(start, stop, size, window_size, is_causal, device)
    keys = torch.arange(start + 1, stop + 1, device=device)
    return _count(~exists, keys if is_causal else math.prod(size))


def _grid_counts(
    start: int, stop: int, size: tuple[int, ...], window_size: tuple[int, ...], device: torch.device
) -> _Counts:
    missing = _not_on_grid(slice(start, stop), size, window_size, device)
    return _count(missing, sum(size) - len(size) + 1)


def _not_on_grid(rows: slice, size: Sequence[int], window_size: Sequence[int], device: torch.device) -> Tensor:
    """Mark the entries ``(n, K)`` without a key on the axes through the query, for rows of the first axis."""
    shape, arms = [rows.stop - rows.start, *size[1:]], []
    for axis in reversed(range(len(size))):
        length, k = size[axis], window_size[axis]
        on_axis = torch.zeros(length, dtype=torch.bool, device=device)
        missing = F.pad(on_axis, (k // 2, k // 2), value=True).unfold(0, k, 1)  # (length, k)
        missing = missing[rows] if axis == 0 else missing
        view = [1] * len(size)
        view[axis] = -1
        missing = missing.view(*view, k).expand(*shape, k)
        # The centre, the query's own position, belongs to the last axis.
        arms += [missing] if axis == len(size) - 1 else [missing[..., : k // 2], missing[..., k // 2 + 1 :]]
    return torch.cat(arms, -1).flatten(0, -2)


def _forward(a: ZscoreArguments) -> tuple[Tensor, Tensor, Tensor]:
    window = a.window_bias.flatten(2, -2)
    # The outputs are no views, because autograd forbids in-place changes of views.
    outputs = _fake(a)
    dtype = outputs[0].dtype
    outside = None if a.outside_bias is None else a.outside_bias.flatten(2).to(dtype)
    out, out_outside, rstd = outputs[0].flatten(2, -2), outputs[1].flatten(2), outputs[2].flatten(2)
    for rows, (missing, inside, outer, none), keys in _slices(a):
        x = window[:, :, rows].to(dtype)
        v = x.new_full(x.shape[:-1], a.outside_value) if outside is None else outside[:, :, rows]
        # Two passes, relative to the mean of the window: E[x²] − μ² would cancel if biases are far from 0.
        middle = x.masked_fill(missing, 0).sum(-1) / inside
        x = torch.sub(x, middle.unsqueeze(-1), out=out[:, :, rows]).masked_fill_(missing, 0)
        v = (v - middle).masked_fill_(none, 0)
        mean = torch.addcmul(x.sum(-1), outer, v) / keys
        x.sub_(mean.unsqueeze(-1)).masked_fill_(missing, 0)
        v = v.sub_(mean).masked_fill_(none, 0)
        variance = torch.addcmul(x.square().sum(-1), outer * v, v) / keys
        factor = torch.rsqrt(variance.add_(EPS), out=rstd[:, :, rows])
        x.mul_(factor.unsqueeze(-1))
        torch.mul(v, factor, out=out_outside[:, :, rows])
    return outputs


def _backward(
    grad: Tensor, grad_outside: Tensor | None, out: Tensor, out_outside: Tensor, rstd: Tensor, a: ZscoreArguments
) -> list[Tensor | None]:
    grad_outside = torch.zeros_like(out_outside) if grad_outside is None else grad_outside
    out, grad = out.flatten(2, -2), grad.flatten(2, -2)
    out_outside, grad_outside, rstd = (x.flatten(2) for x in (out_outside, grad_outside, rstd))
    d_window, d_outside = torch.empty_like(out), torch.empty_like(out_outside)
    for rows, (missing, _, outer, none), keys in _slices(a):
        z, z_outside, factor = out[:, :, rows], out_outside[:, :, rows], rstd[:, :, rows]
        g = grad[:, :, rows].masked_fill(missing, 0)
        g_outside = grad_outside[:, :, rows].masked_fill(none, 0)
        mean = (g.sum(-1) + g_outside) / keys
        along = torch.addcmul((g * z).sum(-1), g_outside, z_outside) / keys
        g.sub_(mean.unsqueeze(-1)).addcmul_(z, along.unsqueeze(-1), value=-1)
        torch.mul(g, factor.unsqueeze(-1), out=d_window[:, :, rows]).masked_fill_(missing, 0)
        g_outside.addcmul_(outer, torch.addcmul(mean, z_outside, along), value=-1)
        torch.mul(g_outside, factor, out=d_outside[:, :, rows])
    size = a.window_bias.shape[2:-1]
    grads: list[Tensor | None] = [d_window.unflatten(2, size)]
    if a.outside_bias is not None:
        grads.append(d_outside.unflatten(2, size))
    return grads if a.key_mask is None else [*grads, None]


def _fake(a: ZscoreArguments) -> tuple[Tensor, Tensor, Tensor]:
    window = a.window_bias
    dtype = accumulator(window)
    out, rows = window.new_empty(window.shape, dtype=dtype), window.shape[:-1]
    return out, window.new_empty(rows, dtype=dtype), window.new_empty(rows, dtype=dtype)


def _flops(a: ZscoreArguments, backward: bool) -> int:
    return 0  # no matrix products


OPERATOR = Operator(
    'window_zscore',
    ZscoreArguments,
    forward=_forward,
    backward=_backward,
    fake=_fake,
    flops=_flops,
    kept=('out', 'outside', 'rstd'),
    differentiable=('out', 'outside'),
    always_exact=True,
)
