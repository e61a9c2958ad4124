"""The composition of ``grid_attention``: the logits of all arms side by side, one softmax, one product per arm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..chunks import chunk_bytes, chunks
from ..grid_attention import OPERATOR, Positions, lines_along
from ..operator import match_layout
from ..window_bias import accumulator

ALL = slice(None)


def forward(args: Any) -> tuple[Tensor, Tensor]:
    """Compute the outputs for slices of queries along the first axis."""
    with torch.autocast(args.query.device.type, enabled=False):
        positions = Positions.build(args, dtype=args.query.dtype)
        parts = [attend(args, positions, rows) for rows in _slices(args, tables=3)]
    out, lse = parts[0] if len(parts) == 1 else (torch.cat(part, 2) for part in zip(*parts))
    return (match_layout(args.value, out) if args.value.stride(-1) == 1 else out.contiguous()), lse


def attend(args: Any, positions: Positions | None, rows: slice = ALL) -> tuple[Tensor, Tensor]:
    """Compute output and log-sum-exp of some queries. Sizes may be symbolic."""
    axes = range(args.query.dim() - 3)
    arms = [_logits(args, positions, axis, rows)[0].movedim(-2, 2 + axis) for axis in axes]
    logits = torch.cat(arms, -1).to(accumulator(args.query))
    lse = logits.logsumexp(-1, keepdim=True)
    weights = (logits - finite(lse)).exp().to(args.value.dtype)
    out = None
    for axis, arm in enumerate(weights.split([arm.shape[-1] for arm in arms], -1)):
        sums = lines_along(arm, axis) @ _keys(args.value, axis, rows)
        out = sums.movedim(-2, 2 + axis) if out is None else out + sums.movedim(-2, 2 + axis)
    return out, lse.squeeze(-1)  # type: ignore[return-value]


def backward(grad: Tensor, out: Tensor, lse: Tensor, args: Any) -> list[Tensor]:
    """Compute the gradients arm by arm, from output and log-sum-exp."""
    query, key, value, dtype = args.query, args.key, args.value, accumulator(args.query)
    d_query = torch.empty(query.shape, dtype=dtype, device=query.device)
    d_key, d_value = (torch.zeros(x.shape, dtype=dtype, device=x.device) for x in (key, value))
    d_window = None if args.window_bias is None else torch.empty_like(args.window_bias)
    with torch.autocast(query.device.type, enabled=False):
        positions = Positions.build(args, dtype=query.dtype)
        mean = (grad * out).sum(-1, keepdim=True, dtype=dtype)
        lse = finite(lse).unsqueeze(-1)
        grad = grad.to(query.dtype)
        for rows in _slices(args, tables=4):
            for axis in range(query.dim() - 3):
                d_out, queries = (lines_along(x[:, :, rows], axis).contiguous() for x in (grad, query))
                keys, values = (_keys(x, axis, rows).contiguous() for x in (key, value))
                logits, index = _logits(args, positions, axis, rows, queries, keys)
                weights = (logits - lines_along(lse[:, :, rows], axis)).exp_()
                _keys(d_value, axis, rows).add_(weights.to(value.dtype).transpose(-1, -2) @ d_out)
                d_weights = d_out @ values.transpose(-1, -2)
                d_logits = (d_weights - lines_along(mean[:, :, rows], axis)).mul_(weights)
                d_pairs = d_logits.to(query.dtype)
                d_queries = lines_along(d_query[:, :, rows], axis)
                if axis == 0:
                    torch.mul(d_pairs @ keys, args.scale, out=d_queries)
                else:
                    d_queries.add_(d_pairs @ keys, alpha=args.scale)
                _keys(d_key, axis, rows).add_(d_pairs.transpose(-1, -2) @ queries, alpha=args.scale)
                if d_window is not None and positions is not None and index is not None:
                    positions.write(axis, lines_along(d_window[:, :, rows], axis), d_logits, index)
    grads = [d_query, d_key, d_value]
    if d_window is not None:
        grads.append(d_window)
        if args.outside_bias is not None:  # the gradients of a softmax's logits sum to zero
            grads.append(-d_window.sum(-1))
    return grads


def finite(lse: Tensor) -> Tensor:
    """Replace −∞, the log-sum-exp of a query whose keys all have −∞, by a number: its weights are then 0."""
    return lse.clamp(min=torch.finfo(lse.dtype).min)


def _slices(args: Any, tables: int) -> Iterator[slice]:
    size = args.query.shape[2:-1]
    batch, heads = args.query.shape[:2]
    row = batch * heads * size[1:].numel() * sum(size) * tables * accumulator(args.query).itemsize
    return chunks(size[0], row, chunk_bytes(args.query.device))


def _keys(x: Tensor, axis: int, rows: slice) -> Tensor:
    return lines_along(x if axis == 0 else x[:, :, rows], axis)


def _logits(
    args: Any,
    positions: Positions | None,
    axis: int,
    rows: slice,
    queries: Tensor | None = None,
    keys: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute logits ``(B, heads, *rest, n, L)`` of an arm, and the index of ``Positions.index``."""
    if queries is None or keys is None:
        queries, keys = lines_along(args.query[:, :, rows], axis), _keys(args.key, axis, rows)
    length, index = keys.shape[-2], None
    position = torch.arange(length, device=keys.device)
    if positions is None:
        arm = (queries * args.scale) @ keys.transpose(-1, -2)
    else:
        index = positions.index(axis, position[rows] if axis == 0 else position, length)
        window, outside = (
            lines_along(x[:, :, rows], axis) for x in (positions.window, positions.outside.unsqueeze(-1))
        )
        biases = positions.realign(axis, window, outside, index)
        pairs = (x.flatten(0, -3) for x in (biases, queries, keys.transpose(-1, -2)))
        arm = torch.baddbmm(*pairs, alpha=args.scale).view(biases.shape)
    if axis != args.query.dim() - 4:  # only the arm of the last axis contains the self key
        arm = arm.masked_fill(position == (position[rows] if axis == 0 else position)[:, None], -torch.inf)
    return arm, index


OPERATOR.composition(forward, backward)
