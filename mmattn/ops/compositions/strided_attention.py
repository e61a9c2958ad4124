"""The composition of ``strided_attention``: dense attention within each group of positions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..strided_attention import OPERATOR, Gradients, Groups, Results
from ..window_bias import accumulator
from . import table_attention
from .table_attention import attend, attend_backward, close_table, pad, padded_keys, sdpa, sdpa_backward


def forward(args: Any) -> tuple[Tensor, Tensor]:
    """Compute the outputs for parts of the groups."""
    x, fused = Groups(args, args.query.dtype), table_attention.uses_sdpa(args.query.device)
    results = Results(x)
    channels = args.value.shape[-1]
    with torch.autocast(args.query.device.type, enabled=False):
        for part in x.parts(tables=2 if fused else 4):
            query, key, value = x.operands(part)
            table = _table(x, query, key, part, fused)
            if fused:
                query, key, value, table = _flat(query, key, value, table)
                out = sdpa(query, key, value, table, args.scale)[..., :channels]
                lse = out.new_full(out.shape[:-1], math.nan)
                if args.return_lse:
                    lse = attend(query, key, value[..., :0], table, args.scale)[1]
                    lse = lse.masked_fill(lse <= table_attention.lowest(value.dtype) / 2, -math.inf)
            else:
                out, lse = attend(query, key, value, table, args.scale)
            results.write(part, out, lse)
    return results.outputs()


def backward(grad: Tensor, out: Tensor, lse: Tensor, args: Any) -> list[Tensor]:
    """Compute the gradients, by attending again in each part."""
    x, fused = Groups(args, args.query.dtype), table_attention.uses_sdpa(args.query.device)
    gradients = Gradients(x)
    groups = [x.of_queries(y) for y in (grad, out, lse.unsqueeze(-1))]
    with torch.autocast(args.query.device.type, enabled=False):
        for part in x.parts(tables=4 if fused else 5):
            query, key, value = x.operands(part)
            table = _table(x, query, key, part, fused)
            d_out, outs = (x.rows(y, part) for y in groups[:2])
            if fused:
                operands = _flat(query, key, value, table)
                grads = sdpa_backward(pad(d_out).flatten(0, -3).unsqueeze(1), *operands, args.scale)
                d_query, d_key, d_value, d_logits = (
                    None if y is None else y.squeeze(1).unflatten(0, query.shape[:-2]) for y in grads
                )
                d_query, d_key, d_value = (
                    y[..., : like.shape[-2], : like.shape[-1]]  # type: ignore[index]
                    for y, like in ((d_query, query), (d_key, key), (d_value, value))
                )
                d_logits = None if d_logits is None else d_logits[..., : key.shape[-2]]
            else:
                lses = groups[2][part].flatten(2 + x.rank)
                d_query, d_key, d_value, d_logits = attend_backward(
                    d_out, query, key, value, table, args.scale, outs, lses
                )
            gradients.add(part, d_query, d_key, d_value, d_logits)
    return gradients.gradients()


def _table(x: Groups, query: Tensor, key: Tensor, part: tuple[slice, ...], fused: bool) -> Tensor | None:
    """Build the table ``(B, heads, *groups, n, m)`` of biases. Columns for empty keys follow if ``fused``."""
    if not x.added:
        return None
    keys = key.shape[-2]
    columns, dtype = (padded_keys(keys), query.dtype) if fused else (keys, accumulator(query))
    table = query.new_zeros((*query.shape[:-1], columns), dtype=dtype)
    x.add_biases(table[..., :keys], part)
    if fused:
        close_table(table, keys)
    return table


def _flat(query: Tensor, key: Tensor, value: Tensor, table: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Any]:
    columns = key.shape[-2] if table is None else table.shape[-1]
    padded = pad(query), pad(key, columns), pad(value, columns)
    query, key, value = (x.flatten(0, -3).unsqueeze(1) for x in padded)
    return query, key, value, None if table is None else table.flatten(0, -3).unsqueeze(1)


OPERATOR.composition(forward, backward)
