"""The order of dimensions in memory: outputs have the order of ``value``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .dtypes import accumulator


def match_layout(like: Tensor, x: Tensor) -> Tensor:
    """Copy ``x``, if needed, to the dtype of ``like`` and its order of dimensions in memory."""
    to = empty_with_layout(like, x.shape)
    return x if x.dtype == to.dtype and x.stride() == to.stride() else to.copy_(x)


def empty_with_layout(like: Tensor, size: Sequence[int]) -> Tensor:
    """Allocate a tensor with the memory order of dimensions of ``like``, contiguous if ``like`` is expanded."""
    strides = like.stride()
    order = list(range(like.dim()))
    if 0 not in strides:
        order.sort(key=lambda dim: -strides[dim])
    return torch.empty_permuted(size, order, dtype=like.dtype, device=like.device)


def copy_for_inductor(x: Tensor) -> Tensor:
    """Copy a map ``(B, C, H, W)`` that a convolution reads, if ``torch.compile`` compiles a training.

    With symbolic sizes, Inductor of torch 2.13 cannot keep a view for a gradient if a convolution follows (TypeError:
    cannot determine truth value of Relational). It would remove a copy that has the same layout.
    """
    if not torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return x
    return x.contiguous(memory_format=torch.contiguous_format if x.stride(1) == 1 else torch.channels_last)


def empty_outputs(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate output ``(B, heads, *S, Dv)`` and log-sum-exp ``(B, heads, *S)`` of attention, without data."""
    out = empty_with_layout(value, (*query.shape[:-1], value.shape[-1]))
    return out, query.new_empty(query.shape[:-1], dtype=accumulator(query))
