"""Window biases with a variance of 1 over the keys of each query, which make the logits a z-score.

The bias outside the window is one number per query and counts once for each key outside the window. Queries are
computed in slices, so that little memory is needed in addition to the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .arguments import check_device, check_mask, check_window
from .chunks import chunk_bytes, chunks
from .dtypes import accumulator
from .tables import kept
from .window_bias import grid_exists, keys_of_rows

EPS = 1e-5  # added to the variance
CACHE_BYTES = 2**21  # of a slice of biases on a CPU, which stays in the cache
SUPPORTS = ('global', 'grid')


class _Windows(NamedTuple):
    """What the keys of the queries depend on."""

    key_mask: Tensor | None  # (B, *S)
    window_size: tuple[int, ...]
    is_causal: bool
    support: str


class _Keys(NamedTuple):
    """The keys of n queries."""

    missing: Tensor  # window entries without a key, bool (n, K) or (B, 1, n, K)
    all: Tensor  # number of keys, at least 1, (n) or (B, 1, n)
    inside: Tensor  # number of keys in the window, at least 1
    alone: Tensor  # whether all keys are inside, or all outside
    between: Tensor  # variance between the mean of the window and a bias outside that is 1 higher, times all


def unit_variance(
    window_bias: Tensor,
    window_size: int | tuple[int, ...],
    outside_bias: Tensor | float = 0.0,
    *,
    support: str = 'global',
    key_mask: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Scale window biases so that their variance over the keys of each query is 1.

    The z-score is (δp − μ) / √(var + 1e-5), with the mean μ and the population variance of the biases of all keys of
    the query, including keys outside the window (column N(δp) of Table 3.3). A softmax does not see a number that is
    subtracted from all logits of a query. So μ is not computed: the mean of the window is subtracted in its place,
    which keeps the numbers small, and the attention is that of the z-score. Only its log-sum-exp differs.

    Pass the result to :func:`global_attention` or :func:`grid_attention`. Queries and keys must have the same positions
    ``*S``: if the queries are only the last positions of the keys, the statistics differ. Differentiable in both
    tensors. Computed in float32, or in float64 for float64 biases.
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
        tuple[Tensor, Tensor]: scaled ``window_bias`` and ``outside_bias``, float32 or float64 ``(B, heads, *S, K)``
        and ``(B, heads, *S)``. Entries without a key are 0.

    Raises:
        ValueError: if ``window_size`` does not fit the entries of ``window_bias``, if ``outside_bias`` is −∞ for all
            queries, if a shape, a device or the mask's dtype is wrong, or for ``key_mask`` or ``is_causal`` with
            'grid'.
        TypeError: if a bias is not floating-point.

    Example:
        >>> bias, outside = unit_variance(torch.randn(1, 8, 32, 32, 7 * 7), 7)
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
    given = outside_value if outside is None else outside
    window, flat, _ = _UnitVariance.apply(window_bias, given, key_mask, sizes, is_causal, support)
    return window.unflatten(2, window_bias.shape[2:-1]), flat.unflatten(2, window_bias.shape[2:-1])


class _UnitVariance(torch.autograd.Function):
    """The scaled biases of N queries, ``(B, heads, N, K)`` and ``(B, heads, N)``, and their factors.

    The sizes of the map are read here, because ``torch.jit.trace`` must see within it all that it uses.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(window: Tensor, outside: Tensor | float, *windows: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        flat = outside.flatten(2) if isinstance(outside, Tensor) else outside
        return _in_slices(_scaled, window.shape[2:-1], _Windows(*windows), window.flatten(2, -2), flat)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        window, outside, key_mask, *windows = inputs
        ctx.save_for_backward(*output, key_mask)
        ctx.shape, ctx.windows, ctx.learned = window.shape, windows, isinstance(outside, Tensor)
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple:  # type: ignore[override]
        if all(grad is None for grad in grads[:2]):  # not `==`, which Dynamo of torch 2.11 does not trace
            return (None,) * 6
        *output, key_mask = ctx.saved_tensors
        given = [torch.zeros_like(x) if grad is None else grad for x, grad in zip(output[:2], grads)]
        windows = _Windows(key_mask, *ctx.windows)
        d_window, d_outside = _in_slices(_scaled_backward, ctx.shape[2:-1], windows, *given, *output)
        learned = d_outside.reshape(ctx.shape[:-1]) if ctx.learned else None
        return d_window.reshape(ctx.shape), learned, *[None] * 4


def _scaled(keys: _Keys, window: Tensor, outside: Tensor | float) -> tuple[Tensor, Tensor, Tensor]:
    x = window.to(accumulator(window)).masked_fill(keys.missing, 0)
    for _ in range(2):  # the mean of biases far from 0 is rounded, and E[x²] − μ² would cancel
        middle = x.sum(-1) / keys.inside
        x.sub_(middle.unsqueeze(-1)).masked_fill_(keys.missing, 0)
        outside = outside - middle
    assert isinstance(outside, Tensor)
    v = outside.masked_fill(keys.alone, 0)
    within = torch.linalg.vector_norm(x, dim=-1).square()  # in one pass
    variance = torch.addcmul(within, keys.between, v.square()) / keys.all
    factor = (variance + EPS).rsqrt()
    return x * factor.unsqueeze(-1), v * factor, factor


def _scaled_backward(
    keys: _Keys, grad: Tensor, grad_outside: Tensor, window: Tensor, outside: Tensor, factor: Tensor
) -> tuple[Tensor, Tensor]:
    grad, grad_outside = grad.masked_fill(keys.missing, 0), grad_outside.masked_fill(keys.alone, 0)
    along = ((grad * window).sum(-1) + grad_outside * outside) / keys.all
    d_outside = torch.addcmul(grad_outside, along * outside, keys.between, value=-1)
    d_middle = (grad.sum(-1) + d_outside) / keys.inside
    grad = torch.addcmul(grad, window, along.unsqueeze(-1), value=-1).sub_(d_middle.unsqueeze(-1))
    return grad.mul_(factor.unsqueeze(-1)).masked_fill_(keys.missing, 0), d_outside * factor


def _in_slices(
    function: Callable[..., tuple], size: Sequence[int], windows: _Windows, *tensors: Tensor | float
) -> tuple[Tensor, ...]:
    """Call a function with slices of N queries of each tensor, ``(B, heads, N, …)``, and join its results."""
    window = tensors[0]
    assert isinstance(window, Tensor)
    batch, heads, positions, entries = window.shape
    row = math.prod(size[1:])
    parts = [slice(0, size[0])]
    if not torch.compiler.is_compiling() and not torch.jit.is_tracing():  # sizes may be symbolic
        # On a CPU, a slice stays in the cache. On a GPU, a slice has about four tables.
        budget = CACHE_BYTES if window.device.type == 'cpu' else chunk_bytes(window.device) // 4
        parts = chunks(size[0], 4 * batch * heads * entries * row, budget)
    if len(parts) == 1:
        return function(_keys(window, parts[0], tuple(size), windows), *tensors)
    results: tuple[Tensor, ...] = ()
    for part in parts:
        rows = slice(part.start * row, part.stop * row)
        given = (x[:, :, rows] if isinstance(x, Tensor) else x for x in tensors)
        found = function(_keys(window, part, tuple(size), windows), *given)
        results = results or tuple(x.new_empty(batch, heads, positions, *x.shape[3:]) for x in found)
        for result, x in zip(results, found):
            result[:, :, rows] = x
    return results


def _keys(like: Tensor, part: slice, size: tuple[int, ...], windows: _Windows) -> _Keys:
    """Count the keys of the queries in some rows of the first axis."""
    mask, window_size, is_causal, _ = windows
    if mask is None:
        return kept(_unmasked_keys, like, part.start, part.stop, size, *windows[1:], accumulator(like))
    row = math.prod(size[1:])
    where, exists = keys_of_rows(part.start, part.stop, size, window_size, is_causal, like.device)
    mask = mask.flatten(1)
    count = mask.cumsum(-1)[:, part.start * row : part.stop * row] if is_causal else mask.sum(-1, keepdim=True)
    return _count((exists & mask[:, where])[:, None], count[:, None], accumulator(like))


def _unmasked_keys(
    start: int,
    stop: int,
    size: tuple[int, ...],
    window_size: tuple[int, ...],
    is_causal: bool,
    support: str,
    dtype: torch.dtype,
    device: torch.device,
) -> _Keys:
    if support == 'grid':
        exists, count = grid_exists(start, stop, size, window_size, device), sum(size) - len(size) + 1
    else:
        _, exists = keys_of_rows(start, stop, size, window_size, is_causal, device)
        count = math.prod(size)
    queries = torch.arange(start * math.prod(size[1:]), stop * math.prod(size[1:]), device=device)
    return _count(exists, queries + 1 if is_causal else torch.full_like(queries, count), dtype)


def _count(exists: Tensor, count: Tensor, dtype: torch.dtype) -> _Keys:
    inside, keys = exists.sum(-1), count.clamp(min=1).to(dtype)  # there may be no key
    between = inside * (count - inside) / keys
    return _Keys(~exists, keys, inside.clamp(min=1).to(dtype), between == 0, between)
