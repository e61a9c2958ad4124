"""The composition of ``global_attention``: dense attention of a slice of queries to all keys."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..global_attention import OPERATOR, BiasGradients, Rows, has_biases
from ..operator import match_layout
from ..window_bias import accumulator
from . import table_attention
from .table_attention import attend, attend_backward, close_table, pad, padded_keys, sdpa, sdpa_backward


def forward(args: Any) -> tuple[Tensor, Tensor]:
    """Compute the outputs for slices of queries."""
    call = _Call(args, table_attention.uses_sdpa(args.query.device))
    positions, channels = args.query.shape[:-1], args.value.shape[-1]
    # The outputs are no views, because autograd forbids in-place changes of views.
    outs = args.value.new_empty(*positions, channels)
    lses = args.query.new_full(positions, math.nan, dtype=accumulator(args.query))
    out, lse = outs.flatten(2, -2), lses.flatten(2)
    with torch.autocast(args.query.device.type, enabled=False):
        for rows in call.x.slices(tables=2 if call.fused else 4):
            table, _ = call.table(rows)
            query = call.query[:, :, rows]
            if call.fused:
                out[:, :, rows] = sdpa(query, call.key, call.value, table, args.scale)[..., :channels]
                if args.return_lse:
                    lse[:, :, rows] = attend(query, call.key, call.value[..., :0], table, args.scale)[1]
            else:
                out[:, :, rows], lse[:, :, rows] = attend(query, call.key, call.value, table, args.scale)
            del table
    if args.return_lse and call.fused:
        lses.masked_fill_(lses <= table_attention.lowest(args.query.dtype) / 2, -math.inf)
    return match_layout(args.value, outs), lses


def backward(grad: Tensor, out: Tensor, lse: Tensor, args: Any) -> list[Tensor | None]:
    """Compute the gradients, by attending again in each slice."""
    channels = max(args.query.shape[-1], args.value.shape[-1])
    fused = table_attention.uses_sdpa_backward(args.query.device, channels, has_biases(args))
    call = _Call(args, fused)
    x, dtype = call.x, accumulator(args.query)
    grad, out = grad.flatten(2, -2).to(args.query.dtype), out.flatten(2, -2)
    # On a GPU, the forward pass computes no log-sum-exp.
    lses = None if table_attention.uses_sdpa(args.query.device) else lse.flatten(2)
    d_query = torch.zeros_like(call.query, memory_format=torch.contiguous_format)
    d_key, d_value = (  # sums over slices
        torch.zeros(y.shape, dtype=dtype, device=y.device) for y in (call.key, call.value)
    )
    biases = BiasGradients(x)
    with torch.autocast(args.query.device.type, enabled=False):
        for rows in x.slices(tables=4 if call.fused else 5):
            table, realigned = call.table(rows)
            operands = call.query[:, :, rows], call.key, call.value, table, args.scale
            if call.fused:
                d_rows, d_k, d_v, d_logits = sdpa_backward(pad(grad[:, :, rows]), *operands)
            else:
                d_rows, d_k, d_v, d_logits = attend_backward(
                    grad[:, :, rows], *operands, out[:, :, rows], None if lses is None else lses[:, :, rows]
                )
            d_query[:, :, rows] = d_rows
            d_key += d_k
            d_value += d_v
            if d_logits is not None:
                biases.add(rows, d_logits[..., : x.key.shape[2]], realigned)
            del table, d_logits, realigned, operands
    count = x.key.shape[2]
    shapes = (d_query, x.query), (d_key[:, :, :count], x.key), (d_value[:, :, :count], x.value)
    return biases.gradients(*(grad[..., : like.shape[-1]] for grad, like in shapes))


class _Call:
    def __init__(self, args: Any, fused: bool) -> None:
        self.fused = fused  # by PyTorch's attention
        self.x = x = Rows(args, args.query.dtype, args.query.dtype if self.fused else accumulator(args.query))
        self.has_table = has_biases(args)
        self.query, self.key, self.value = x.query, x.key, x.value
        self.columns = x.key.shape[2]
        if self.fused:
            self.columns = padded_keys(self.columns) if self.has_table else self.columns
            self.query = pad(x.query)
            self.key, self.value = pad(x.key, self.columns), pad(x.value, self.columns)

    def table(self, rows: slice) -> tuple[Tensor | None, tuple[Tensor, Tensor] | None]:
        """Build the biases ``(B, heads, n, columns)`` of some queries. Also returns the result of ``Rows.realign``."""
        x, count = self.x, self.x.key.shape[2]
        if not self.has_table:
            return None, None
        realigned = None
        if x.window_bias is None:
            shape = (*x.query.shape[:2], rows.stop - rows.start, self.columns)
            table = x.query.new_zeros(shape, dtype=x.bias_dtype)
        else:
            realigned = x.realign(rows)
            table = x.window(rows, realigned, max(self.columns - count - 1, 0))
        logits = table[..., :count]
        x.add_to(logits, rows)
        x.mask(logits, rows)
        if self.fused:
            close_table(table, count)
            return table, realigned
        return logits, realigned


OPERATOR.composition(forward, backward)
