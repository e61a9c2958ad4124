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

from .dynamic_conv import ConvArguments
from .global_attention import FlatOperands, GlobalArguments
from .grid_attention import GridArguments, attend, bias_table
from .local_attention import LocalArguments, squash
from .neighbourhood import softmax
from .operator import COMPOSITIONS
from .window_bias import keys_of_rows, outside_logits


def _exists(length: int, k: int, device: torch.device, dilation: int = 1) -> Tensor:
    key = torch.arange(length, device=device)[:, None] + (torch.arange(k, device=device) - k // 2) * dilation
    return (key >= 0) & (key < length)


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
        rows = x.key_size[0] - x.size[0], x.key_size[0]
        where, exists = keys_of_rows(*rows, x.key_size, a.window_size, a.is_causal, x.query.device)
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


COMPOSITIONS |= {
    torch.ops.mmattn.dynamic_conv.default: lambda *operands: _dynamic_conv(ConvArguments(*operands)),
    torch.ops.mmattn.global_attention.default: lambda *operands: _global_attention(GlobalArguments(*operands)),
    torch.ops.mmattn.grid_attention.default: lambda *operands: _grid_attention(GridArguments(*operands)),
    torch.ops.mmattn.local_attention.default: lambda *operands: _local_attention(LocalArguments(*operands)),
}
