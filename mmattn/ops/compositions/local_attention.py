"""The composition of ``local_attention``, for the whole batch in parts that fit the byte budget."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..local_attention import OPERATOR, squash, squash_backward
from ..neighbourhood import softmax
from ..window_bias import accumulator
from .neighbourhood import Neighbours, parts, softmax_backward


def forward(args: Any) -> Tensor:
    """Compute the output."""
    out = torch.empty_like(args.value)
    area = Neighbours(args.value.shape[2:4], args.kernel_size, args.dilation)
    for part, query, key, value, bias, outside in _work(args, area):
        _, weights = _passes(args, area, query, None if key is None else area.of(key), bias, outside)
        out[part] = area.weighted(weights, area.of(value))
    return out


def backward(grad: Tensor, args: Any) -> list[Tensor]:
    """Compute the gradients, by attending again in each part."""
    operands = (args.query, args.key, args.value, args.window_bias)
    grads = [None if x is None else torch.empty_like(x) for x in operands]
    area = Neighbours(args.value.shape[2:4], args.kernel_size, args.dilation)
    for part, query, key, value, bias, outside in _work(args, area):
        d_out = grad[part].to(value.dtype)
        keys = None if key is None else area.of(key)
        rounds, weights = _passes(args, area, query, keys, bias, outside)
        d_logits = softmax_backward(area.dot(d_out, area.of(value)), weights)
        d_value = area.weighted(area.transposed(weights), area.of(d_out))
        d_bias, d_query, d_key = d_logits, None, None
        if query is not None and keys is not None:
            d_keys = []  # summands
            for p, total in reversed(rounds):  # logits += squash(Σ p k)ᵀ k
                d_total = squash_backward(area.weighted(d_logits, keys), total).to(value.dtype)
                towards = squash(total).to(value.dtype)
                d_keys.append(area.weighted(area.transposed(d_logits), area.of(towards)))
                d_keys.append(area.weighted(area.transposed(p), area.of(d_total)))
                d_logits = d_logits + softmax_backward(area.dot(d_total, keys), p)
            d_query = area.weighted(d_logits, keys) * args.scale
            d_key = area.weighted(area.transposed(d_logits), area.of(query * args.scale))
            for summand in d_keys:
                d_key += summand
        for to, grad_part in zip(grads, (d_query, d_key, d_value, d_bias)):
            if to is not None and grad_part is not None:
                to[part] = grad_part
    return [x for x in grads if x is not None]


def _work(args: Any, area: Neighbours) -> Iterator[tuple]:
    value = args.value
    channels = max(x.shape[-1] for x in (value, args.query) if x is not None)
    operands = (args.query, args.key, value, args.window_bias)
    outside = area.outside(value.device)
    for part in parts(value, channels, math.prod(args.kernel_size)):
        yield part, *(None if x is None else x[part] for x in operands), outside


def _passes(
    args: Any,
    area: Neighbours,
    query: Tensor | None,
    keys: Tensor | None,
    bias: Tensor | None,
    outside: Tensor,
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Compute weights and weighted keys of each refining pass, and the weights of the last pass."""
    rounds: list[tuple[Tensor, Tensor]] = []
    logits = None
    if query is not None and keys is not None:
        logits = area.dot(query * args.scale, keys).masked_fill_(outside, -torch.inf)
        for _ in range(args.iterations - 1):
            weights = logits.softmax(-1)
            total = area.weighted(weights, keys)
            rounds.append((weights, total))
            logits = logits + area.dot(squash(total).to(query.dtype), keys)
    if bias is not None:
        bias = bias.to(accumulator(args.value)).masked_fill(outside, -torch.inf)
        logits = bias if logits is None else logits + bias
    return rounds, softmax(logits, -1)  # type: ignore[arg-type]


OPERATOR.composition(forward, backward)
