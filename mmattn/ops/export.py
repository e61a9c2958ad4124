"""Compositions for exported networks, whose sizes of maps may be symbolic.

An exporter replaces each operator by its composition, so that any runtime can run the network. Without slices of work,
compositions take more memory: each docstring gives the largest tables beyond operands and output, in numbers per batch
item and head, for N queries, M keys, D channels and K window entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .arguments import window_entries
from .dynamic_conv import ConvArguments
from .global_attention import FlatOperands, GlobalArguments
from .grid_attention import GridArguments, attend, bias_table
from .local_attention import LocalArguments, squash
from .neighbourhood import softmax
from .operator import COMPOSITIONS
from .window_bias import outside_logits
from .zscore import EPS, ZscoreArguments


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
    entries = window_entries(tuple(window_size), is_causal=is_causal)
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


def _grid_attention(a: GridArguments) -> tuple[Tensor, Tensor]:
    """Compose ``grid_attention``: three tables of N·ΣL logits, for axes of lengths L, and one int64 index of N·L."""
    return attend(a, bias_table(a))


def _global_attention(a: GlobalArguments) -> tuple[Tensor, Tensor]:
    """Compose ``global_attention``: three tables of N·M logits, and with windows one int64 index of N·K."""
    x = FlatOperands(a)
    logits = (x.query * a.scale) @ x.key.transpose(-1, -2) + _table(x, a)
    peak = logits.amax(-1, keepdim=True)
    peak = peak.masked_fill(peak == -torch.inf, 0)  # all keys masked
    weights = (logits - peak).exp()
    total = weights.sum(-1, keepdim=True)
    out = (weights @ x.value) / total.masked_fill(total == 0, 1)
    return out.unflatten(2, x.size), (peak + total.log()).squeeze(-1).unflatten(2, x.size)


def _table(x: FlatOperands, a: GlobalArguments) -> Tensor:
    """Build the biases of all pairs, ``(B, heads, N, M)``, without in-place operations, which exporters do not take."""
    count = x.key.shape[2]
    table = x.query.new_zeros((*x.query.shape[:-1], count))
    if x.window_bias is not None:
        where, exists = _window(x.size, x.key_size, a.window_size, a.is_causal, x.query.device)
        window = x.window_bias.to(x.bias_dtype)
        outside = outside_logits(window, x.outside_bias, a.outside_value)
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
    if a.is_causal:
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


def _local_attention(a: LocalArguments) -> tuple[Tensor, Tensor]:
    """Compose ``local_attention`` with kernels of K = k0·k1: two tables of N·k1·D neighbours, two of N·K logits."""
    area = a.kernel_size, a.dilation
    value, key = a.value, a.key
    rows, columns = (_exists(n, k, value.device, a.dilation) for n, k in zip(value.shape[2:4], a.kernel_size))
    outside = ~(rows[:, None, :, None] & columns[None, :, None]).flatten(2)  # (H, W, K)
    if a.key_mask is not None:
        masked = (~a.key_mask[:, None, :, :, None]).to(value.dtype)
        outside = outside | torch.cat([x.squeeze(-1) for x in _neighbours(masked, *area)], -1).bool()
        # 0, because NaN would reach the neighbours: 0 · NaN is NaN
        value = value.masked_fill(masked.bool(), 0)
        key = None if key is None else key.masked_fill(masked.bool(), 0)
    logits = value.new_zeros(()).masked_fill(outside, -torch.inf)
    if a.query is not None and key is not None:
        towards = a.query * a.scale
        for pass_ in range(a.iterations):
            if pass_:
                towards = squash(_weighted(softmax(logits, -1), key, *area))
            dots = [(towards.unsqueeze(-2) * neighbours).sum(-1) for neighbours in _neighbours(key, *area)]
            logits = logits + torch.cat(dots, -1)
    if a.window_bias is not None:
        logits = (logits + a.window_bias).masked_fill(outside, -torch.inf)
    return _weighted(softmax(logits, -1), value, *area), logits.logsumexp(-1)


def _dynamic_conv(a: ConvArguments) -> Tensor:
    """Compose ``dynamic_conv`` with kernels of K = k0·k1: two tables of N·k1·D neighbours, one of N·K weights."""
    return _weighted(softmax(a.logits, -1), a.value, a.kernel_size, a.dilation)


def _window_zscore(a: ZscoreArguments) -> tuple[Tensor, Tensor, Tensor]:
    """Compose ``window_zscore``: four tables of N·K biases, and one bool table of N·K."""
    x, size, mask = a.window_bias.flatten(2, -2), a.window_bias.shape[2:-1], a.key_mask
    if a.support == 'grid':
        exists = _grid_window(size, a.window_size, x.device)[None, None]
        count = torch.full((1, 1, 1), sum(size) - len(size) + 1, device=x.device)
    else:
        where, exists = _window(size, size, a.window_size, a.is_causal, x.device)
        valid = torch.ones_like(x[:1, 0, :, 0], dtype=torch.bool) if mask is None else mask.flatten(1)
        exists = (exists & valid[:, where])[:, None]
        count = (valid.cumsum(-1) if a.is_causal else valid.sum(-1, keepdim=True))[:, None]
    outer = count - exists.sum(-1)  # keys outside the window
    if a.outside_bias is None:
        outside = x.new_full(x.shape[:-1], a.outside_value)
    else:
        outside = a.outside_bias.flatten(2)
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


COMPOSITIONS |= {
    torch.ops.mmattn.dynamic_conv.default: lambda *operands: _dynamic_conv(ConvArguments(*operands)),
    torch.ops.mmattn.global_attention.default: lambda *operands: _global_attention(GlobalArguments(*operands)),
    torch.ops.mmattn.grid_attention.default: lambda *operands: _grid_attention(GridArguments(*operands)),
    torch.ops.mmattn.local_attention.default: lambda *operands: _local_attention(LocalArguments(*operands)),
    torch.ops.mmattn.window_zscore.default: lambda *operands: _window_zscore(ZscoreArguments(*operands)),
}
