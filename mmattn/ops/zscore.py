"""The z-score of window biases: the biases of each query, normalised over its keys before they are added to logits.

The bias outside the window is one number per query. It counts once for each key outside the window. Rows are normalised
in slices, so that little memory is needed in addition to the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .checks import check_device, check_mask, check_window
from .chunks import chunk_bytes, chunks
from .operator import Operator
from .window_bias import accumulator, axis_index, window_entries, window_keys

EPS = 1e-5  # added to the variance
CACHE_BYTES = 2**21  # of a slice of biases on a CPU, which stays in the cache
SUPPORTS = ('global', 'grid')


class _Support:
    """The window entries that have a key, and the number of keys of each query, for slices of queries."""

    def __init__(self, args: Any) -> None:
        self.args, self.device = args, args.window_bias.device
        self.size, self.window_size = args.window_bias.shape[2:-1], args.window_size

    def slices(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield slices of the N queries, whether each entry has a key ``(B or 1, 1, n, K)``, and the number of keys."""
        batch, heads, *_, entries = self.args.window_bias.shape
        support = self._grid if self.args.support == 'grid' else self._global
        budget = CACHE_BYTES if self.device.type == 'cpu' else chunk_bytes(self.device) // 4  # about four tables
        for rows in chunks(math.prod(self.size), 4 * batch * heads * entries, budget):
            yield rows, *support(torch.arange(rows.start, rows.stop, device=self.device))

    def _grid(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        arms, stride = [], 1
        for axis in reversed(range(len(self.size))):
            length, k = self.size[axis], self.window_size[axis]
            exists = axis_index(length, k, self.device)[1][rows // stride % length]
            if axis != len(self.size) - 1:  # the centre, the query's own position, belongs to the last axis
                exists = torch.cat([exists[:, : k // 2], exists[:, k // 2 + 1 :]], -1)
            arms.append(exists)
            stride *= length
        keys = sum(self.size) - len(self.size) + 1
        return torch.cat(arms, -1)[None, None], torch.full((1, 1, 1), keys, device=self.device)

    def _global(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        causal, mask = self.args.is_causal, self.args.key_mask
        where, exists = window_keys(rows, self.size, self.window_size, causal)
        if mask is None:
            count = rows + 1 if causal else torch.full_like(rows, math.prod(self.size))
            return exists[None, None], count[None, None]
        flat = mask.flatten(1)
        counts = flat.cumsum(-1)[:, rows] if causal else flat.sum(-1, keepdim=True).expand(-1, len(rows))
        return (exists & flat[:, where])[:, None], counts[:, None]


def _reference(args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Two passes relative to the mean of the window: E[x²] − μ² would cancel if biases are far from 0."""
    window = args.window_bias.flatten(2, -2)
    dtype = accumulator(window)
    outside = None if args.outside_bias is None else args.outside_bias.flatten(2).to(dtype)
    # The outputs are no views: autograd forbids in-place changes of these.
    outputs = _fake(args)
    out, (out_outside, rstd) = outputs[0].flatten(2, -2), (x.flatten(2) for x in outputs[1:])
    for rows, exists, count in _Support(args).slices():
        x = window[:, :, rows].to(dtype)
        inside = exists.sum(-1)
        outer = count - inside  # keys outside the window
        some = count.clamp(min=1)
        v = x.new_full(x.shape[:-1], args.outside_value) if outside is None else outside[:, :, rows]
        middle = x.masked_fill(~exists, 0).sum(-1) / inside.clamp(min=1)
        x = torch.sub(x, middle.unsqueeze(-1), out=out[:, :, rows])
        x.masked_fill_(~exists, 0)
        v = (v - middle).masked_fill_(outer == 0, 0)
        mean = (x.sum(-1) + outer * v) / some
        x.sub_(mean.unsqueeze(-1)).masked_fill_(~exists, 0)
        v = v.sub_(mean).masked_fill_(outer == 0, 0)
        factor = ((x.square().sum(-1) + outer * v.square()) / some + EPS).rsqrt()
        x.mul_(factor.unsqueeze(-1))
        out_outside[:, :, rows], rstd[:, :, rows] = v.mul_(factor), factor
    return outputs


def _reference_backward(
    grad: Tensor, grad_outside: Tensor, out: Tensor, out_outside: Tensor, rstd: Tensor, args: Any
) -> list[Tensor | None]:
    out, grad = out.flatten(2, -2), grad.flatten(2, -2)
    out_outside, grad_outside, rstd = (x.flatten(2) for x in (out_outside, grad_outside, rstd))
    d_window, d_outside = torch.empty_like(out), torch.empty_like(out_outside)
    for rows, exists, count in _Support(args).slices():
        z, z_outside, factor = out[:, :, rows], out_outside[:, :, rows], rstd[:, :, rows]
        outer, some = count - exists.sum(-1), count.clamp(min=1)
        g = grad[:, :, rows].masked_fill(~exists, 0)
        g_outside = grad_outside[:, :, rows].masked_fill(outer == 0, 0)
        mean = (g.sum(-1) + g_outside) / some
        along = ((g * z).sum(-1) + g_outside * z_outside) / some
        g.sub_(mean.unsqueeze(-1)).sub_(z * along.unsqueeze(-1)).mul_(factor.unsqueeze(-1))
        d_window[:, :, rows] = g.masked_fill_(~exists, 0)
        d_outside[:, :, rows] = (g_outside - outer * (mean + z_outside * along)) * factor
    size = args.window_bias.shape[2:-1]
    grads: list[Tensor | None] = [d_window.unflatten(2, size)]
    if args.outside_bias is not None:
        grads.append(d_outside.unflatten(2, size))
    return grads if args.key_mask is None else [*grads, None]


def _fake(args: Any) -> tuple[Tensor, Tensor, Tensor]:
    window = args.window_bias
    dtype = accumulator(window)
    one, two = (window.new_empty(window.shape[:-1], dtype=dtype) for _ in range(2))
    return window.new_empty(window.shape, dtype=dtype), one, two


OPERATOR = Operator(
    'window_zscore',
    'Tensor window_bias, Tensor? outside_bias, Tensor? key_mask, int[] window_size, float outside_value, '
    'bool is_causal, str support',
    '(Tensor, Tensor, Tensor)',
    reference=_reference,
    backward=_reference_backward,
    fake=_fake,
    flops=lambda args, backward: 0,  # no matrix products
    kept=('out', 'out_outside', 'rstd'),
    differentiable=2,
)


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

    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, University of Technology Sydney,
    2021, chapter 3.

    Args:
        window_bias (Tensor): float ``(B, heads, *S, K)``, as in :func:`global_attention` or :func:`grid_attention`,
            according to ``support``. A query with a bias of −∞ gets NaN.
        window_size (int or tuple[int, ...]): odd window length k, for all axes or for each axis.
        outside_bias (Tensor or float): v_i, the bias of keys outside the window: float ``(B, heads, *S)`` or a finite
            number. Defaults to 0.
        support (str): the keys of a query: 'global', all positions; 'grid', the keys of :func:`grid_attention`.
            Defaults to 'global'.
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

    def entries(sizes: tuple[int, ...]) -> int:
        return sum(sizes) - len(sizes) + 1 if support == 'grid' else window_entries(sizes, is_causal)

    sizes, outside, outside_value = check_window(window_bias, window_bias, window_size, outside_bias, entries)
    if outside_value == -math.inf:
        raise ValueError('outside_bias must be finite for a z-score; got -inf')
    check_mask(key_mask, (window_bias.shape[0], *window_bias.shape[2:-1]))
    check_device(window_bias, outside_bias=outside, key_mask=key_mask)
    return OPERATOR.run(window_bias, outside, key_mask, sizes, outside_value, is_causal, support)[:2]
