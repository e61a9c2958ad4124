"""Local attention: every query attends to the k×k keys around it, weighted by content, by geometry, or by both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from mmattn.utils.checks import check_count

from .arguments import (
    as_scale,
    as_window_size,
    check_device,
    check_mask,
    check_operands,
    expanded_window,
)
from .dtypes import accumulator
from .flops import attention_flops
from .library import direct_call
from .neighbourhood import Offsets, Unfolded, softmax, softmax_backward
from .operator import Operator
from .tables import kept

NEITHER = 'query and key, or window_bias, must be given; got neither'


class LocalArguments(NamedTuple):
    """The arguments of ``mmattn::local_attention``."""

    query: Tensor | None  # (B, heads, H, W, D)
    key: Tensor | None  # (B, heads, H, W, D)
    value: Tensor  # (B, heads, H, W, Dv)
    window_bias: Tensor | None  # (B, heads, H, W, k0·k1)
    key_mask: Tensor | None  # (B, H, W)
    kernel_size: Sequence[int]
    dilation: int
    scale: float
    iterations: int
    return_lse: bool = True


def local_attention(
    query: Tensor | None,
    key: Tensor | None,
    value: Tensor,
    kernel_size: int | tuple[int, int] = 3,
    *,
    dilation: int = 1,
    scale: float | None = None,
    window_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    iterations: int = 1,
    return_lse: bool = False,
) -> Tensor | Any:  # with return_lse, tuple[Tensor, Tensor]
    """Attend over the k×k neighbourhood of each position of a 2-D map.

    y_i = Σ_j softmax_j [scale · q_iᵀk_j + b_{i, j−i}] v_j (Eq. 4.6 to 4.9), with the window biases b. The sum is over
    the positions j in the k×k neighbourhood of i. Their weights sum to 1. At the border of the map, a neighbourhood is
    clipped and has fewer positions. Differentiable in every floating-point tensor. Dtypes are handled as in
    :func:`global_attention`.

    NATTEN shifts a neighbourhood inwards instead, so that it keeps its size. Its tensors are ``(B, H, W, heads, D)``:
    pass ``query.movedim(3, 1)``, which copies nothing, and use ``out.movedim(1, 3)``.
    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, UTS, 2021, chapter 4.

    Args:
        query (Tensor, optional): float ``(B, heads, H, W, D)``. If None, ``window_bias`` determines the weights.
        key (Tensor, optional): float ``(B, heads, H, W, D)``, None if and only if ``query`` is None. May have fewer
            heads, as in :func:`global_attention`.
        value (Tensor): float ``(B, heads, H, W, Dv)``, with as many heads as ``key``.
        kernel_size (int or tuple[int, int]): odd side k of the neighbourhood, or (vertical, horizontal). Defaults to 3.
        dilation (int): step ≥ 1 between the positions of a neighbourhood. Defaults to 1.
        scale (float, optional): finite factor of the content logits. Defaults to 1/√D.
        window_bias (Tensor, optional): float, broadcastable to ``(B, heads, H, W, k0·k1)``, the geometric logits γ of
            each query, row-major over its neighbourhood, or one table ``(heads, k0·k1)`` for all queries, as in Swin
            and NATTEN. They are not scaled. A gradient is computed for each query before it is summed to a table.
        key_mask (Tensor, optional): bool ``(B, H, W)``, True for keys that may be attended to. Other keys
            and values may hold anything, such as NaN, and have the gradient 0.
        iterations (int): T ≥ 1, number of softmax passes of iterative refinement (Algorithm 1), above 1 only with
            ``query``. The first T − 1 passes use content logits only. Each adds uᵀk_j to the logits, where u is the
            squashed sum of the keys, weighted by the softmax of the pass. ``scale`` applies to the first logits only.
            Defaults to 1.
        return_lse (bool): also return the log-sum-exp of the last logits, as :func:`global_attention` does.

    Returns:
        Tensor: ``(B, heads, H, W, Dv)``, dtype of ``value``, and its strides if they are dense. The output of a query
        is 0 if all its neighbours are masked, or have the logit −∞. With ``return_lse=True``, a tuple of this tensor
        and the log-sum-exp.

    Example:
        >>> query, key, value = torch.randn(3, 1, 8, 32, 32, 16).unbind()  # 8 heads of 16 channels, 32×32 positions
        >>> local_attention(query, key, value, kernel_size=5).shape
        torch.Size([1, 8, 32, 32, 16])

        Each position also attends to five tokens, such as CLS and registers. The log-sum-exps merge the two softmaxes:

        >>> token_keys, token_values = torch.randn(2, 1, 8, 5, 16).unbind()
        >>> near, near_lse = local_attention(query, key, value, kernel_size=5, return_lse=True)
        >>> far, far_lse = global_attention(query.flatten(2, 3), token_keys, token_values, return_lse=True)
        >>> share = (near_lse.flatten(2) - far_lse).sigmoid().unsqueeze(-1)  # of the neighbours
        >>> (share * near.flatten(2, 3) + (1 - share) * far).unflatten(2, (32, 32)).shape
        torch.Size([1, 8, 32, 32, 16])
    """
    options = window_bias, key_mask, kernel_size, dilation, scale, iterations, return_lse
    found = None if is_compiling() else direct_call('local_attention', query, key, value, *options)
    if found is not None:
        return found
    if (query is None) != (key is None):
        raise ValueError(f'query and key must be given together; {"query" if query is None else "key"} is missing')
    if query is None and window_bias is None:
        raise ValueError(NEITHER)
    if window_bias is not None and not window_bias.is_floating_point():
        raise TypeError(f'window_bias must be floating-point; got {window_bias.dtype}')
    if query is None or key is None:
        like, _, value = check_operands(value, value, value, axes=(2, 2))
    else:
        like, key, value = check_operands(query, key, value, axes=(2, 2))
        query = like
    if like.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            f'query must have the positions of value, {tuple(value.shape[2:4])}; got {tuple(like.shape[2:4])}'
        )
    sizes = as_window_size(kernel_size, axes=2, name='kernel_size')
    check_count('dilation', dilation)
    check_count('iterations', iterations)
    if query is None and iterations > 1:
        raise ValueError(f'iterations above 1 require query and key; got iterations={iterations} without them')
    if window_bias is not None:
        window_bias = expanded_window(window_bias, (*value.shape[:-1], sizes[0] * sizes[1]))
    if key_mask is not None:
        check_mask(key_mask, (value.shape[0], *value.shape[2:4]))
    check_device(value, query=query, key=key, window_bias=window_bias, key_mask=key_mask)
    scale = as_scale(scale, like)
    out, lse = torch.ops.mmattn.local_attention(
        query, key, value, window_bias, key_mask, sizes, dilation, scale, iterations, return_lse
    )
    return (out, lse) if return_lse else out


def squash(x: Tensor) -> Tensor:
    """‖x‖²/(1 + ‖x‖²) · x/‖x‖ over the channels, 0 at 0."""
    norm = x.norm(dim=-1, keepdim=True)
    return x * (norm / (1 + norm * norm))


def squash_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Compute the gradient of x from the gradient of :func:`squash`."""
    norm = x.norm(dim=-1, keepdim=True)
    square = norm * norm
    along = (grad * x).sum(-1, keepdim=True) / norm.clamp(min=torch.finfo(x.dtype).tiny)  # ≤ ‖grad‖: 0 at 0
    return grad * (norm / (1 + square)) + x * (along * (1 - square) / (1 + square) ** 2)


class _Part(NamedTuple):
    """The tensors of a slice of batch and heads, in the dtype of the products, and how to sum over neighbours."""

    area: Offsets | Unfolded
    at: tuple[slice, slice]
    outside: Tensor  # marks neighbours that are masked or outside the map
    query: Tensor | None
    key: Tensor | None
    value: Tensor
    window_bias: Tensor | None


def _parts(a: LocalArguments, exact: bool) -> Iterator[_Part]:
    area = (Offsets if exact else Unfolded)(a.value.shape[2:4], a.kernel_size, a.dilation)
    dtype = accumulator(a.value) if exact else a.value.dtype
    if a.key_mask is None:
        outside = kept(_outside, a.value, type(area), tuple(a.value.shape[2:4]), tuple(a.kernel_size), a.dilation)
    channels = max(x.shape[-1] for x in (a.value, a.query) if x is not None)
    for at in area.parts(a.value, channels, a.iterations + 3):
        query, key, value = (None if x is None else x[at].to(dtype) for x in (a.query, a.key, a.value))
        bias = None if a.window_bias is None else a.window_bias[at]
        if a.key_mask is not None:
            masked = ~a.key_mask[at[0]]
            outside = area.outside(masked)
            # 0, because NaN would reach the neighbours: 0 · NaN is NaN
            key, value = (None if x is None else x.masked_fill(masked[:, None, ..., None], 0) for x in (key, value))
        assert value is not None
        yield _Part(area, at, outside, query, key, value, bias)


def _outside(
    kind: type[Offsets | Unfolded], size: Sequence[int], kernel_size: Sequence[int], dilation: int, device: torch.device
) -> Tensor:
    return kind(size, kernel_size, dilation).outside(torch.zeros((1, *size), dtype=torch.bool, device=device))


def _passes(a: LocalArguments, part: _Part) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Compute weights and weighted keys of each refining pass, and the logits of the last pass."""
    area, dim = part.area, part.area.dim
    rounds: list[tuple[Tensor, Tensor]] = []
    logits = None
    if part.query is not None and part.key is not None:
        keys = area.of(part.key)
        logits = area.dot(part.query * a.scale, keys).masked_fill_(part.outside, -torch.inf)
        for _ in range(a.iterations - 1):
            weights = softmax(logits, dim)
            total = area.gather(weights, keys)
            rounds.append((weights, total))
            logits += area.dot(squash(total).to(keys.dtype), keys)
    if part.window_bias is not None:
        bias = area.weights(part.window_bias).to(accumulator(a.value)).masked_fill(part.outside, -torch.inf)
        logits = bias if logits is None else logits.add_(bias)
    assert logits is not None
    return rounds, logits


def _forward(a: LocalArguments, exact: bool = True) -> tuple[Tensor, Tensor]:
    out, lse = _fake(a)
    for part in _parts(a, exact):
        _, logits = _passes(a, part)
        out[part.at] = part.area.gather(softmax(logits, part.area.dim), part.area.of(part.value))
        if a.return_lse:
            lse[part.at] = logits.logsumexp(part.area.dim)
    return out, lse


def _backward(grad: Tensor, grad_lse: Tensor | None, a: LocalArguments, exact: bool = True) -> list[Tensor | None]:
    grads = [None if x is None else torch.empty_like(x) for x in (a.query, a.key, a.value, a.window_bias)]
    for part in _parts(a, exact):
        area, dim = part.area, part.area.dim
        rounds, logits = _passes(a, part)
        weights = softmax(logits, dim)
        d_out = grad[part.at].to(part.value.dtype)
        d_value = area.scatter(weights, area.of(d_out))
        d_logits = softmax_backward(area.dot(d_out, area.of(part.value)), weights, dim)
        if grad_lse is not None:  # the derivative of the log-sum-exp is the weights
            d_logits += weights * grad_lse[part.at].unsqueeze(dim)
        d_bias, d_query, d_key = area.entries(d_logits), None, None
        if part.query is not None and part.key is not None:
            keys = area.of(part.key)
            d_keys = []  # summands
            for p, total in reversed(rounds):  # logits += squash(Σ p k)ᵀ k
                d_total = squash_backward(area.gather(d_logits, keys), total).to(keys.dtype)
                d_keys.append(area.scatter(d_logits, area.of(squash(total).to(keys.dtype))))
                d_keys.append(area.scatter(p, area.of(d_total)))
                d_logits = d_logits + softmax_backward(area.dot(d_total, keys), p, dim)
            d_query = area.gather(d_logits, keys).mul_(a.scale)
            d_key = area.scatter(d_logits, area.of(part.query * a.scale))
            for summand in d_keys:
                d_key += summand
        for to, grad_part in zip(grads, (d_query, d_key, d_value, d_bias)):
            if to is not None and grad_part is not None:
                to[part.at] = grad_part
    given: list[Tensor | None] = [x for x in grads if x is not None]
    return given if a.key_mask is None else [*given, None]


def _fake(a: LocalArguments) -> tuple[Tensor, Tensor]:
    return torch.empty_like(a.value), a.value.new_empty(a.value.shape[:-1], dtype=accumulator(a.value))


def _flops(a: LocalArguments, backward: bool) -> int:
    # Each pass but the last sums keys. Border positions count as having all k×k neighbours.
    keys, value = math.prod(a.kernel_size), a.value.shape
    flops = attention_flops((*value[:-1], 0 if a.query is None else a.query.shape[-1]), value, keys, backward)
    if a.query is None:
        return flops
    refining = attention_flops(a.query.shape, a.query.shape, keys, backward=False)
    return flops + (a.iterations - 1) * (3 if backward else 1) * refining


OPERATOR = Operator(
    'local_attention',
    LocalArguments,
    forward=_forward,
    backward=_backward,
    fake=_fake,
    flops=_flops,
    differentiable=('out', 'lse'),
    layout=torch.preserve_format,
    cuda_lacks=('key_mask', 'return_lse'),
)
