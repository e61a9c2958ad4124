"""FLOPs of the operators for PyTorch's ``FlopCounterMode``: the matrix products, two each multiply-accumulate."""

import math
from collections.abc import Callable, Sequence

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula

from . import (  # noqa: F401  (they define the operators)
    dynamic_conv,
    global_attention,
    grid_attention,
    local_attention,
    projection,
    strided_attention,
)
from .support import reaches


def _register(op: torch._ops.OpOverloadPacket) -> Callable:
    """``register_flop_formula``; torch 2.4 files a formula under the overload, where its counter does not look."""

    def register(formula: Callable) -> Callable:
        register_flop_formula(op)(formula)
        flop_registry.setdefault(op, flop_registry.get(op.default))
        return formula

    return register


def _products(query: Sequence[int], value: Sequence[int], keys: int, backward: bool = False) -> int:
    """FLOPs of the products with ``keys`` keys a query; backward: logits again, and the gradients of q, k, v and p."""
    queries = math.prod(query[:-1])
    return 2 * queries * keys * ((3 if backward else 1) * query[-1] + (2 if backward else 1) * value[-1])


def _cross(query: Sequence[int]) -> int:
    return sum(query[2:-1]) - (len(query) - 4)


@_register(torch.ops.mmattn.global_attention)
def _global(query, key, value, *_, **__) -> int:
    return _products(query, value, math.prod(key[2:-1]))


@_register(torch.ops.mmattn.global_attention_backward)
def _global_backward(grad, out, lse, query, key, value, *_, **__) -> int:
    return _products(query, value, math.prod(key[2:-1]), backward=True)


@_register(torch.ops.mmattn.grid_attention)
def _grid(query, key, value, *_, **__) -> int:
    return _products(query, value, _cross(query))


@_register(torch.ops.mmattn.grid_attention_backward)
def _grid_backward(grad, out, lse, query, key, value, *_, **__) -> int:
    return _products(query, value, _cross(query), backward=True)


def _local_products(
    query: Sequence[int] | None,
    value: Sequence[int],
    kernel_size: Sequence[int],
    iterations: int,
    backward: bool = False,
) -> int:
    """As :func:`_products`; each pass but the last compares and sums keys. The border is counted as the rest."""
    keys = math.prod(kernel_size)
    flops = _products((*value[:-1], 0 if query is None else query[-1]), value, keys, backward)
    refinements = 0 if query is None else iterations - 1
    return flops + refinements * (3 if backward else 1) * _products(query or value, query or value, keys)


@_register(torch.ops.mmattn.local_attention)
def _local(query, key, value, window, kernel_size, dilation, scale, iterations, *_, **__) -> int:
    return _local_products(query, value, kernel_size, iterations)


@_register(torch.ops.mmattn.local_attention_backward)
def _local_backward(grad, query, key, value, window, kernel_size, dilation, scale, iterations, *_, **__) -> int:
    return _local_products(query, value, kernel_size, iterations, backward=True)


@_register(torch.ops.mmattn.dynamic_conv)
def _dynamic(value, logits, *_, **__) -> int:
    """The border is counted as the rest; predicting the logits is not the operator's."""
    return _products((*value[:-1], 0), value, logits[-1])


@_register(torch.ops.mmattn.dynamic_conv_backward)
def _dynamic_backward(grad, value, logits, *_, **__) -> int:
    return _products((*value[:-1], 0), value, logits[-1], backward=True)


def _strided_products(
    query: Sequence[int],
    key: Sequence[int],
    value: Sequence[int],
    step: Sequence[int],
    pattern: str,
    backward: bool = False,
) -> int:
    """As :func:`_products`, for the pairs of a pattern: all that one axis allows, with all that the others do."""
    pairs = math.prod(
        sum(reaches(i, j, h, pattern) for i in range(queries) for j in range(keys))
        for queries, keys, h in zip(query[2:-1], key[2:-1], step)
    )
    return _products((*query[:2], query[-1]), value, pairs, backward)


@_register(torch.ops.mmattn.strided_attention)
def _strided(query, key, value, offset_logits, step, pattern, *_, **__) -> int:
    return _strided_products(query, key, value, step, pattern)


@_register(torch.ops.mmattn.strided_attention_backward)
def _strided_backward(grad, out, lse, query, key, value, offset_logits, step, pattern, *_, **__) -> int:
    return _strided_products(query, key, value, step, pattern, backward=True)


@_register(torch.ops.mmattn.projection)
def _projection(x, weight, *_, **__) -> int:
    return 2 * math.prod(x) * weight[0]
