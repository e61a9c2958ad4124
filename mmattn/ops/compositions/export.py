"""Compositions for exported networks, whose sizes of maps may be symbolic.

An exporter replaces each operator by its composition, so that any runtime can run the network. Without slices of work,
compositions take more memory: each docstring gives the largest tables beyond operands and output, in numbers per batch
item and head, for N queries, M keys, D channels and K window entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..dispatch import OPERATORS
from ..global_attention import Rows
from ..grid_attention import Positions
from ..local_attention import squash
from ..neighbourhood import softmax
from ..window_bias import window_entries
from ..zscore import EPS
from . import grid_attention
from .table_attention import attend

# For ``torch.export.ExportedProgram.run_decompositions``: the composition of each operator.
COMPOSITIONS: dict[Any, Callable] = {torch.ops.mmattn.projection.default: F.linear}


def _composes(name: str) -> Callable:
    operator = OPERATORS[name]

    def register(composition: Callable) -> Callable:
        COMPOSITIONS[operator.run] = lambda *arguments: composition(operator.Arguments(*arguments))
        return composition

    return register


def _exists(length: int, k: int, device: torch.device, dilation: int = 1) -> Tensor:
    key = torch.arange(length, device=device)[:, None] + (torch.arange(k, device=device) - k // 2) * dilation
    return (key >= 0) & (key < length)


def _window(
    size: Sequence[int], key_size: Sequence[int], window_size: Sequence[int], is_causal: bool, device: torch.device
) -> tuple[Tensor, Tensor]:
    # As `window_bias.window_keys`, but without a division of symbolic sizes.
    where, exists = (
        torch.zeros((1, 1), dtype=torch.long, device=device),
        torch.ones((1, 1), dtype=torch.bool, device=device),
    )
    for queries, keys, k in zip(size, key_size, window_size):
        position = torch.arange(queries, device=device) + (keys - queries)
        key = position[:, None] + torch.arange(k, device=device) - k // 2
        inside = (key >= 0) & (key < keys)
        where = (where[:, None, :, None] * keys + key.clamp(0, keys - 1)[:, None]).flatten(2).flatten(0, 1)
        exists = (exists[:, None, :, None] & inside[:, None]).flatten(2).flatten(0, 1)
    entries = window_entries(tuple(window_size), is_causal)
    return where[:, :entries], exists[:, :entries]


def _grid_window(size: Sequence[int], window_size: Sequence[int], device: torch.device) -> Tensor:
    """Mark the window entries ``(N, K)`` of ``grid_attention`` that have a key."""
    arms = []
    for axis in reversed(range(len(size))):
        k = window_size[axis]
        exists = _exists(size[axis], k, device)
        if axis != len(size) - 1:  # the centre, the query's own position, belongs to the last axis
            exists = torch.cat([exists[:, : k // 2], exists[:, k // 2 + 1 :]], -1)
        shape = [1] * len(size)
        shape[axis] = size[axis]
        arms.append(exists.view(*shape, -1).expand(*size, exists.shape[1]))
    return torch.cat(arms, -1).flatten(0, -2)


@_composes('grid_attention')
def _grid_attention(args: Any) -> tuple[Tensor, Tensor]:
    """Compose ``grid_attention``: three tables of N·ΣL logits, for axes of lengths L, and one int64 index of N·L."""
    return grid_attention.attend(args, Positions.build(args))


@_composes('global_attention')
def _global_attention(args: Any) -> tuple[Tensor, Tensor]:
    """Compose ``global_attention``: three tables of N·M logits, and with windows one int64 index of N·K."""
    x = Rows(args)
    out, lse = attend(x.query, x.key, x.value, _table(x, args), args.scale)
    return out.unflatten(2, x.size), lse.unflatten(2, x.size)


def _table(x: Rows, args: Any) -> Tensor:
    """Build the biases of all pairs, ``(B, heads, N, M)``, without in-place operations, which exporters do not take."""
    count = x.key.shape[2]
    table = x.query.new_zeros((*x.query.shape[:-1], count))
    if x.window_bias is not None:
        where, exists = _window(x.size, x.key_size, args.window_size, args.is_causal, x.query.device)
        window = x.window_bias.to(x.bias_dtype)
        if x.outside_bias is None:
            outside = window.new_full(window.shape[:-1], args.outside_value)
        else:
            outside = x.outside_bias.to(x.bias_dtype)
        # One extra column: entries that do not exist are written to it and dropped.
        table = outside.unsqueeze(-1).repeat(1, 1, 1, count + 1)
        table = table.scatter(-1, where.where(exists, count).expand(window.shape), window)[..., :-1]
    for axis, bias in enumerate(x.axis_bias):
        shape = [1] * len(x.key_size)
        shape[axis] = x.key_size[axis]
        table = (table.unflatten(-1, x.key_size) + bias.unflatten(-1, shape)).flatten(3)
    if x.key_bias is not None:
        table = table + x.key_bias.unsqueeze(2)
    if x.key_mask is not None:
        table = table.masked_fill(~x.key_mask[:, None, None], -torch.inf)
    if args.is_causal:
        keys = torch.arange(count, device=table.device)
        table = table.masked_fill(keys > keys[x.before :, None], -torch.inf)
    return table


def _neighbours(x: Tensor, kernel_size: Sequence[int], dilation: int) -> Iterator[Tensor]:
    """Yield the neighbours of each position, ``(B, heads, H, W, k1, C)``, for each row of the kernel, 0 outside."""
    k0, k1 = kernel_size  # all rows are views of one table, which also has (k0 − 1) · dilation rows of zeros
    width = x.shape[3]
    beyond = k1 // 2 * dilation, k1 // 2 * dilation, k0 // 2 * dilation, k0 // 2 * dilation
    x = F.pad(x, (0, 0, *beyond))
    column = torch.arange(width, device=x.device)[:, None] + torch.arange(k1, device=x.device) * dilation
    x = x.index_select(3, column.flatten()).unflatten(3, (-1, k1))
    # A graph repeats the operations of this loop, and exporting takes time for each: there are as few as possible.
    # An end that is counted from the bottom does not depend on the height.
    for row in range(k0):
        yield x[:, :, row * dilation : (row + 1 - k0) * dilation or None]


def _weighted(weights: Tensor, x: Tensor, kernel_size: Sequence[int], dilation: int) -> Tensor:
    """Σ_j w_ij x_j, ``(B, heads, H, W, C)``, for weights ``(B, heads, H, W, K)``."""
    out = torch.zeros_like(x)
    rows = weights.unsqueeze(-1).split(kernel_size[1], -2)
    for row, neighbours in zip(rows, _neighbours(x, kernel_size, dilation)):
        out = out + (row * neighbours).sum(-2)
    return out


@_composes('local_attention')
def _local_attention(args: Any) -> Tensor:
    """Compose ``local_attention`` with kernels of K = k0·k1: two tables of N·k1·D neighbours, two of N·K logits."""
    area = args.kernel_size, args.dilation
    value, key = args.value, args.key
    rows, columns = (_exists(n, k, value.device, args.dilation) for n, k in zip(value.shape[2:4], args.kernel_size))
    outside = ~(rows[:, None, :, None] & columns[None, :, None]).flatten(2)  # (H, W, K)
    logits = value.new_zeros(()).masked_fill(outside, -torch.inf)
    if key is not None:
        towards = args.query * args.scale
        for pass_ in range(args.iterations):
            if pass_:
                towards = squash(_weighted(logits.softmax(-1), key, *area))
            dots = [(towards.unsqueeze(-2) * neighbours).sum(-1) for neighbours in _neighbours(key, *area)]
            logits = logits + torch.cat(dots, -1)
    if args.window_bias is not None:
        logits = logits + args.window_bias
    return _weighted(softmax(logits, -1), value, *area)


@_composes('dynamic_conv')
def _dynamic_conv(args: Any) -> Tensor:
    """Compose ``dynamic_conv`` with kernels of K = k0·k1: two tables of N·k1·D neighbours, one of N·K weights."""
    return _weighted(softmax(args.logits, -1), args.value, args.kernel_size, args.dilation)


@_composes('window_zscore')
def _window_zscore(args: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Compose ``window_zscore``: four tables of N·K biases, and one bool table of N·K."""
    x, size, mask = args.window_bias.flatten(2, -2), args.window_bias.shape[2:-1], args.key_mask
    if args.support == 'grid':
        exists = _grid_window(size, args.window_size, x.device)[None, None]
        count = torch.full((1, 1, 1), sum(size) - len(size) + 1, device=x.device)
    else:
        where, exists = _window(size, size, args.window_size, args.is_causal, x.device)
        valid = torch.ones_like(x[:1, 0, :, 0], dtype=torch.bool) if mask is None else mask.flatten(1)
        exists = (exists & valid[:, where])[:, None]
        count = (valid.cumsum(-1) if args.is_causal else valid.sum(-1, keepdim=True))[:, None]
    outer = count - exists.sum(-1)  # keys outside the window
    if args.outside_bias is None:
        outside = x.new_full(x.shape[:-1], args.outside_value)
    else:
        outside = args.outside_bias.flatten(2)
    some = count.clamp(min=1)
    outside = outside.masked_fill(outer == 0, 0)
    x = x.masked_fill(~exists, 0)
    mean = (x.sum(-1) + outer * outside) / some
    x = (x - mean.unsqueeze(-1)).masked_fill(~exists, 0)
    outside = (outside - mean).masked_fill(outer == 0, 0)
    factor = ((x.square().sum(-1) + outer * outside.square()) / some + EPS).rsqrt()
    outputs = x * factor.unsqueeze(-1), outside * factor, factor
    window, outside, rstd = (y.unflatten(2, size) for y in outputs)
    return window, outside, rstd
