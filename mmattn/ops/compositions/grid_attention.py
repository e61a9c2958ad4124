"""The composition of ``grid_attention``: the logits of all arms side by side, one softmax, one product per arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..chunks import chunk_bytes, chunks
from ..grid_attention import OPERATOR, Positions, lines_along, without_centre
from ..operator import match_layout
from ..window_bias import accumulator, axis_index

ALL = slice(None)


def forward(args: Any) -> tuple[Tensor, Tensor]:
    """Compute the outputs for slices of queries along the first axis."""
    outs = torch.empty_like(args.value, memory_format=torch.contiguous_format)
    lses = args.query.new_empty(args.query.shape[:-1], dtype=accumulator(args.query))
    with torch.autocast(args.query.device.type, enabled=False):
        positions = Positions.build(args)
        for rows in _slices(args, tables=3):
            outs[:, :, rows], lses[:, :, rows] = attend(args, positions, rows)
    return (match_layout(args.value, outs) if args.value.stride(-1) == 1 else outs), lses


def attend(args: Any, positions: Positions | None, rows: slice = ALL) -> tuple[Tensor, Tensor]:
    """Compute output and log-sum-exp of some queries. Sizes may be symbolic."""
    logits = _logits(args, positions, rows)
    lse = logits.logsumexp(-1, keepdim=True)
    all_weights = (logits - lse.masked_fill(lse == -torch.inf, 0)).exp().to(args.value.dtype)
    out = None
    for axis, weights in enumerate(all_weights.split(list(args.query.shape[2:-1]), -1)):
        value = lines_along(args.value if axis == 0 else args.value[:, :, rows], axis)
        arm = (lines_along(weights, axis) @ value).movedim(-2, 2 + axis)
        out = arm if out is None else out + arm
    return out, lse.squeeze(-1)  # type: ignore[return-value]


def backward(grad: Tensor, out: Tensor, lse: Tensor, args: Any) -> list[Tensor]:
    """Compute the gradients from output and log-sum-exp."""
    query, key, value, dtype = args.query, args.key, args.value, accumulator(args.query)
    d_query = torch.empty_like(query, memory_format=torch.contiguous_format)
    d_key, d_value = (torch.zeros(x.shape, dtype=dtype, device=x.device) for x in (key, value))  # sums
    d_window = None if args.window_bias is None else torch.empty_like(args.window_bias)
    with torch.autocast(query.device.type, enabled=False):
        positions = Positions.build(args)
        mean = (grad * out).sum(-1, keepdim=True, dtype=dtype)
        lse = lse.masked_fill(lse == -torch.inf, 0).unsqueeze(-1)
        grad = grad.to(query.dtype)
        for rows in _slices(args, tables=5):
            weights = (_logits(args, positions, rows) - lse[:, :, rows]).exp_()
            arms = list(query.shape[2:-1])
            parts = [lines_along(arm, axis) for axis, arm in enumerate(weights.to(query.dtype).split(arms, -1))]
            logits = []
            for axis, p in enumerate(parts):
                keys = ALL if axis == 0 else rows
                d_out = lines_along(grad[:, :, rows], axis)
                lines_along(d_value[:, :, keys], axis).add_(p.transpose(-1, -2) @ d_out)
                d_p = d_out @ lines_along(value[:, :, keys], axis).transpose(-1, -2)
                logits.append(d_p.movedim(-2, 2 + axis))
            d_logits = (torch.cat(logits, -1).to(dtype) - mean[:, :, rows]).mul_(weights)
            d_arms = d_logits.to(query.dtype).split(arms, -1)
            d_rows = None
            for axis, d_arm in enumerate(d_arms):
                keys = ALL if axis == 0 else rows
                d_arm = lines_along(d_arm, axis)
                part = (d_arm @ lines_along(key[:, :, keys], axis)).movedim(-2, 2 + axis)
                d_rows = part if d_rows is None else d_rows + part
                queries = lines_along(query[:, :, rows], axis)
                lines_along(d_key[:, :, keys], axis).add_(d_arm.transpose(-1, -2) @ queries, alpha=args.scale)
            d_query[:, :, rows] = d_rows * args.scale  # type: ignore[operator]
            if d_window is not None and positions is not None:
                _add_window(d_window, d_logits.split(arms, -1), positions, rows)
    grads = [d_query, d_key, d_value]
    if d_window is not None:
        grads.append(d_window)
        if args.outside_bias is not None:  # the gradients of a softmax's logits sum to zero
            grads.append(-d_window.sum(-1))
    return grads


def _slices(args: Any, tables: int) -> Any:
    size = args.query.shape[2:-1]
    batch, heads = args.query.shape[:2]
    row = batch * heads * size[1:].numel() * sum(size) * tables * accumulator(args.query).itemsize
    return chunks(size[0], row, chunk_bytes(args.query.device))


def _logits(args: Any, positions: Positions | None, rows: slice) -> Tensor:
    """Compute logits ``(B, heads, *S, ΣL)`` of some queries for the keys of all arms, axis by axis."""
    query, axes = args.query[:, :, rows] * args.scale, args.query.dim() - 3
    arms = []
    for axis in range(axes):
        key = lines_along(args.key if axis == 0 else args.key[:, :, rows], axis)
        arm = lines_along(query, axis) @ key.transpose(-1, -2)
        place = torch.arange(arm.shape[-1], device=arm.device)
        own = place[rows] if axis == 0 else place
        if positions is not None:
            window, outside = (
                lines_along(x[:, :, rows], axis) for x in (positions.window, positions.outside.unsqueeze(-1))
            )
            arm = arm + positions.realign(axis, window, outside, own, arm.shape[-1])
        if axis != axes - 1:  # only the arm of the last axis contains the self key
            arm = arm.masked_fill(place == own[:, None], -torch.inf)
        arms.append(arm.movedim(-2, 2 + axis))
    return torch.cat(arms, -1).to(accumulator(args.query))


def _add_window(d_window: Tensor, arms: Sequence[Tensor], positions: Positions, rows: slice) -> None:
    """Write the gradients of the window biases of some queries from the gradients of their logits."""
    for axis, arm in enumerate(arms):
        d_logits = lines_along(arm, axis)
        where, exists = axis_index(d_logits.shape[-1], positions.window_size[axis], d_logits.device)
        if axis == 0:
            where, exists = where[rows], exists[rows]
        entries = d_logits.gather(-1, where.expand(*d_logits.shape[:-1], -1)).masked_fill_(~exists, 0)
        if axis != len(arms) - 1:
            entries = without_centre(entries)
        lines_along(d_window[:, :, rows][..., positions.arm(axis)], axis).copy_(entries)


OPERATOR.composition(forward, backward)
