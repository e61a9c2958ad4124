"""Bilinear attention between two sets: logits of all pairs, their joint softmax, and bilinear pooling.

Logits and pooling are two derivatives of T = Σ_g Σ_ijk A_g[i,j] p_g[k] x_i[k] y_j[k]: logits are ∂T/∂A, and pooling is
∂T/∂p. T is linear in each of its four factors, so the gradients are derivatives of T as well. The products p_g ∘ x_i
are computed first: they are few, because i runs over words. The product of all pairs, (B, Q, K, C), is never formed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmattn.ops.arguments import check_device, under_autocast
from mmattn.ops.chunks import chunks
from mmattn.ops.dtypes import accumulator
from mmattn.ops.operator import Operator


class LogitsArguments(NamedTuple):
    """The arguments of ``mmattn::bilinear_logits``."""

    query: Tensor  # (B, Q, C)
    key: Tensor  # (B, K, C)
    weight: Tensor  # (B, G, C)


class PoolingArguments(NamedTuple):
    """The arguments of ``mmattn::bilinear_pooling``."""

    weights: Tensor  # (B, G, Q, K)
    query: Tensor  # (B, Q, C)
    value: Tensor  # (B, K, C)


def _check_pair(query: Tensor, key: Tensor, name: str) -> tuple[Tensor, ...]:
    shapes = query.shape, key.shape
    if query.dim() != 3 or key.dim() != 3 or shapes[0][::2] != shapes[1][::2]:
        raise ValueError(
            f'query and {name} must be (B, Q, C) and (B, K, C); got {tuple(shapes[0])}, {tuple(shapes[1])}'
        )
    query, key = under_autocast(query, key)
    if query.dtype != key.dtype or not query.is_floating_point():
        raise TypeError(f'query and {name} must share one floating-point dtype; got {query.dtype} and {key.dtype}')
    return query, key


def bilinear_logits(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """Compute the logits of all pairs of a query x_i and a key y_j: L_g[i,j] = Σ_k p_g[k] x_i[k] y_j[k].

    This is low-rank bilinear pooling of every pair with one output for each of G glimpses (Eq. 9). The product of all
    pairs, ``(B, Q, K, C)``, is never formed. Differentiable in every tensor. float16 and bfloat16 are accumulated in
    float32.
    Source: "Bilinear Attention Networks", 2018.

    Args:
        query (Tensor): x, float ``(B, Q, C)``, the smaller set, for example words.
        key (Tensor): y, float ``(B, K, C)``, same dtype, for example regions.
        weight (Tensor): p, float ``(G, C)``, or ``(B, G, C)`` with one per sample.

    Returns:
        Tensor: ``(B, G, Q, K)``, float64 for float64 operands, otherwise float32.

    Example:
        >>> words, regions, weight = torch.randn(2, 14, 64), torch.randn(2, 36, 64), torch.randn(4, 64)
        >>> bilinear_logits(words, regions, weight).shape
        torch.Size([2, 4, 14, 36])
    """
    query, key = _check_pair(query, key, 'key')
    if not weight.is_floating_point():
        raise TypeError(f'weight must be floating-point; got {weight.dtype}')
    batch, _, channels = query.shape
    if weight.dim() not in (2, 3) or weight.shape[-1] != channels or weight.shape[:-2] not in ((), (batch,)):
        raise ValueError(f'weight must be (G, {channels}) or ({batch}, G, {channels}); got {tuple(weight.shape)}')
    check_device(query, key=key, weight=weight)
    return torch.ops.mmattn.bilinear_logits(query, key, weight.expand(batch, *weight.shape[-2:]))


def bilinear_softmax(logits: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
    """Apply the softmax over all pairs of a glimpse: the weights A_g[i,j] of a sample sum to 1 (Eq. 8).

    Args:
        logits (Tensor): L, float ``(B, G, Q, K)``.
        query_mask, key_mask (Tensor, optional): bool ``(B, Q)`` and ``(B, K)``, True where attention is allowed.

    Returns:
        Tensor: A, ``(B, G, Q, K)``, dtype of ``logits``. Masked pairs have weight 0, even if all pairs are masked.

    Example:
        >>> weights = bilinear_softmax(torch.randn(2, 4, 14, 36))
        >>> torch.allclose(weights.sum((-2, -1)), torch.ones(2, 4))
        True
    """
    if logits.dim() != 4:
        raise ValueError(f'logits must be (B, G, Q, K); got {tuple(logits.shape)}')
    batch, _, queries, keys = logits.shape
    masked = None
    for name, mask, shape in (('query_mask', query_mask, (batch, queries)), ('key_mask', key_mask, (batch, keys))):
        if mask is None:
            continue
        if mask.dtype != torch.bool or mask.shape != shape:
            raise ValueError(f'{name} must be bool {shape}; got {mask.dtype} {tuple(mask.shape)}')
        unseen = ~mask[:, None, :, None] if name == 'query_mask' else ~mask[:, None, None]
        masked = unseen if masked is None else masked | unseen
    if masked is None:
        return logits.flatten(2).softmax(-1).view_as(logits)
    # A finite number: the softmax of −∞ alone and its gradient are NaN.
    least = torch.finfo(logits.dtype).min
    return logits.masked_fill(masked, least).flatten(2).softmax(-1).view_as(logits).masked_fill(masked, 0)


def bilinear_pooling(weights: Tensor, query: Tensor, value: Tensor) -> Tensor:
    """Pool two sets by the weights of their pairs: f_g[k] = Σ_ij A_g[i,j] x_i[k] y_j[k] (Eq. 6 and 12).

    Computed as Σ_i x_i ∘ Σ_j A_g[i,j] y_j. Differentiable in every tensor. float16 and bfloat16 are accumulated in
    float32.
    Source: "Bilinear Attention Networks", 2018.

    Args:
        weights (Tensor): A, float ``(B, G, Q, K)``, from :func:`bilinear_softmax`.
        query (Tensor): x, float ``(B, Q, C)``.
        value (Tensor): y, float ``(B, K, C)``, same dtype.

    Returns:
        Tensor: ``(B, G, C)``, dtype of ``query``.

    Example:
        >>> weights = bilinear_softmax(torch.randn(2, 4, 14, 36))
        >>> bilinear_pooling(weights, torch.randn(2, 14, 64), torch.randn(2, 36, 64)).shape
        torch.Size([2, 4, 64])
    """
    query, value = _check_pair(query, value, 'value')
    if not weights.is_floating_point():
        raise TypeError(f'weights must be floating-point; got {weights.dtype}')
    batch, queries, keys = len(query), query.shape[1], value.shape[1]
    if weights.dim() != 4 or weights.shape[::2] != (batch, queries) or weights.shape[3] != keys:
        raise ValueError(f'weights must be ({batch}, G, {queries}, {keys}); got {tuple(weights.shape)}')
    check_device(query, weights=weights, value=value)
    return torch.ops.mmattn.bilinear_pooling(weights, query, value)


def bilinear_attention(
    query: Tensor,
    key: Tensor,
    weight: Tensor,
    pooled_query: Tensor,
    value: Tensor,
    *,
    query_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Combine :func:`bilinear_logits`, :func:`bilinear_softmax` and :func:`bilinear_pooling` in one call.

    A bias of a glimpse has no effect, because the softmax is over all pairs.
    Source: "Bilinear Attention Networks", 2018, Eq. 6 to 9.

    Args:
        query, key, weight (Tensor): as in :func:`bilinear_logits`, float ``(B, Q, C)``, ``(B, K, C)``, ``(G, C)``.
        pooled_query (Tensor): the queries that are pooled, float ``(B, Q, D)``.
        value (Tensor): float ``(B, K, D)``.
        query_mask, key_mask (Tensor, optional): as in :func:`bilinear_softmax`.

    Returns:
        Tensor: ``(B, G, D)``, dtype of ``pooled_query``, 0 without a pair.

    Example:
        >>> words, regions, weight = torch.randn(2, 14, 64), torch.randn(2, 36, 64), torch.randn(4, 64)
        >>> bilinear_attention(words, regions, weight, words, regions).shape
        torch.Size([2, 4, 64])
    """
    weights = bilinear_softmax(bilinear_logits(query, key, weight), query_mask, key_mask)
    return bilinear_pooling(weights, pooled_query, value)


def _parts(first: Tensor, x: Tensor, y: Tensor, *extra: Tensor) -> Iterator[tuple]:
    """Yield slices of the batch that fit the byte budget, with their tensors. ``first`` is A or p."""
    tensors = first, x, y, *extra
    if any(z.shape[:1] != x.shape[:1] for z in tensors):  # else a part of the result would not be computed
        raise ValueError(f'all tensors must share the batch; got {[tuple(z.shape) for z in tensors]}')
    glimpses, (batch, queries, channels), dtype = first.shape[1], x.shape, accumulator(x)
    for part in chunks(batch, (2 * glimpses * queries + y.shape[1]) * channels * dtype.itemsize):
        yield part, *(z[part].to(dtype) for z in tensors)


def _without_autocast(reference: Callable) -> Callable:
    @functools.wraps(reference)  # autocast would cast the products of a reference
    def run(*arguments: Any) -> Any:
        with torch.autocast(arguments[-1].query.device.type, enabled=False):
            return reference(*arguments)

    return run


def _scaled(p: Tensor, x: Tensor) -> Tensor:
    """p_g ∘ x_i: ``(B, G, Q, C)``."""
    return p.unsqueeze(2) * x.unsqueeze(1)


def _attended(a: Tensor, y: Tensor) -> Tensor:
    """Σ_j A_g[i,j] y_j: ``(B, G, Q, C)``, one product for all glimpses."""
    return (a.flatten(1, 2) @ y).unflatten(1, a.shape[1:3])


def _pair_derivative(p: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """∂T/∂A: ``(B, G, Q, K)``."""
    return (_scaled(p, x).flatten(1, 2) @ y.mT).unflatten(1, (p.shape[1], x.shape[1]))


def _key_derivative(a: Tensor, p: Tensor, x: Tensor) -> Tensor:
    """∂T/∂y: ``(B, K, C)``."""
    return a.flatten(1, 2).mT @ _scaled(p, x).flatten(1, 2)


@_without_autocast
def _logits(args: LogitsArguments) -> Tensor:
    out = _fake_logits(args)
    for part, p, x, y in _parts(args.weight, args.query, args.key):
        out[part] = _pair_derivative(p, x, y)
    return out


@_without_autocast
def _logits_backward(grad: Tensor, args: LogitsArguments) -> list[Tensor]:
    d_query, d_key, d_weight = (torch.empty_like(x) for x in (args.query, args.key, args.weight))
    for part, p, x, y, a in _parts(args.weight, args.query, args.key, grad):
        attended = _attended(a, y)
        d_weight[part] = (attended * x.unsqueeze(1)).sum(2)
        d_query[part] = attended.mul_(p.unsqueeze(2)).sum(1)
        del attended  # before the next product
        d_key[part] = _key_derivative(a, p, x)
    return [d_query, d_key, d_weight]


def _fake_logits(args: LogitsArguments) -> Tensor:
    shape = (*args.weight.shape[:2], args.query.shape[1], args.key.shape[1])
    return args.query.new_empty(shape, dtype=accumulator(args.query))


@_without_autocast
def _pooling(args: PoolingArguments) -> Tensor:
    out = _fake_pooling(args)
    for part, a, x, y in _parts(args.weights, args.query, args.value):
        out[part] = _attended(a, y).mul_(x.unsqueeze(1)).sum(2)
    return out


@_without_autocast
def _pooling_backward(grad: Tensor, args: PoolingArguments) -> list[Tensor]:
    d_weights, d_query, d_value = (torch.empty_like(x) for x in (args.weights, args.query, args.value))
    for part, a, x, y, p in _parts(args.weights, args.query, args.value, grad):
        d_query[part] = _attended(a, y).mul_(p.unsqueeze(2)).sum(1)
        d_weights[part] = _pair_derivative(p, x, y)
        d_value[part] = _key_derivative(a, p, x)
    return [d_weights, d_query, d_value]


def _fake_pooling(args: PoolingArguments) -> Tensor:
    return args.query.new_empty((*args.weights.shape[:2], args.query.shape[-1]))


def _product(query: Tensor, key: Tensor, glimpses: int) -> int:
    """FLOPs of one matrix product over all pairs."""
    return 2 * query.shape[0] * glimpses * query.shape[1] * key.shape[1] * query.shape[2]


def _flops_logits(args: LogitsArguments, backward: bool) -> int:
    return (2 if backward else 1) * _product(args.query, args.key, args.weight.shape[1])


def _flops_pooling(args: PoolingArguments, backward: bool) -> int:
    return (3 if backward else 1) * _product(args.query, args.value, args.weights.shape[1])


LOGITS = Operator(
    'bilinear_logits',
    LogitsArguments,
    forward=_logits,
    backward=_logits_backward,
    fake=_fake_logits,
    flops=_flops_logits,
    layout=torch.preserve_format,
    always_exact=True,
)
POOLING = Operator(
    'bilinear_pooling',
    PoolingArguments,
    forward=_pooling,
    backward=_pooling_backward,
    fake=_fake_pooling,
    flops=_flops_pooling,
    layout=torch.preserve_format,
    always_exact=True,
)
