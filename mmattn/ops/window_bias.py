"""The layout of window biases.

A query at position i has one bias for each offset o = j − i of an odd window centred on it, and one bias v_i for all
keys outside the window (Eq. 3.12 of the bilateral-attention thesis). On an axis with a window of length k = 2r + 1,
entry r + o belongs to offset o. The axes are in row-major order. Entries without a key (outside the map, or after the
query if attention is causal) are dropped.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .arguments import window_entries


def outside_logits(window: Tensor, outside_bias: Tensor | None, outside_value: float) -> Tensor:
    """Lay out the biases of keys outside the windows ``(…, K)``: ``(…)``, in the dtype of the windows."""
    return window.new_full(window.shape[:-1], outside_value) if outside_bias is None else outside_bias.to(window.dtype)


def axis_keys(queries: Tensor, length: int, k: int) -> tuple[Tensor, Tensor]:
    """Locate the keys of window entries on an axis: coordinates ``(n, k)``, clamped to it, and whether they exist."""
    key = queries[:, None] + torch.arange(-(k // 2), k // 2 + 1, device=queries.device)
    clamped = key.clamp(0, length - 1)
    return clamped, clamped == key


def window_axes(
    start: int, stop: int, size: Sequence[int], window_size: Sequence[int], device: torch.device
) -> tuple[Tensor, ...]:
    """Locate the keys of the windows of the queries ``start`` to ``stop`` − 1 of a map of ``size``, axis by axis.

    Returns two tables ``(n, k)`` for each axis: what it adds to the flat index of a key, int64, clamped to the map, and
    whether the key is on the axis, bool. Tables of all K entries would be as large as the window biases.
    """
    queries, stride, tables = torch.arange(start, stop, device=device), math.prod(size), []
    for length, k in zip(size, window_size):
        stride //= length
        key, exists = axis_keys(queries // stride % length, length, k)
        tables += [key * stride, exists]
    return tuple(tables)


def combine_axes(tables: Sequence[Tensor], entries: int, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
    """Combine the tables of :func:`window_axes` for some of their queries.

    Returns flat key indices, int64 ``(n, K)``, clamped to the map, and whether each key exists, bool ``(n, K)``, of the
    first ``entries`` of the window.
    """
    where, exists = tables[0][rows], tables[1][rows]
    for along, on_axis in zip(tables[2::2], tables[3::2]):
        where = (where[:, :, None] + along[rows, None]).flatten(1)
        exists = (exists[:, :, None] & on_axis[rows, None]).flatten(1)
    return where[:, :entries], exists[:, :entries]


def keys_of_rows(
    start: int, stop: int, size: Sequence[int], window_size: Sequence[int], is_causal: bool, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Locate the keys of the windows of the queries in rows ``start`` to ``stop`` − 1 of the first axis.

    The result is that of :func:`combine_axes`. All sizes may be symbolic, so nothing is divided.
    """
    where = torch.zeros((1, 1), dtype=torch.long, device=device)
    exists = torch.ones((1, 1), dtype=torch.bool, device=device)
    for axis, (length, k) in enumerate(zip(size, window_size)):
        queries = torch.arange(*((0, length) if axis else (start, stop)), device=device)
        key, inside = axis_keys(queries, length, k)
        where = (where[:, None, :, None] * length + key[:, None]).flatten(2).flatten(0, 1)
        exists = (exists[:, None, :, None] & inside[:, None]).flatten(2).flatten(0, 1)
    entries = window_entries(tuple(window_size), is_causal=is_causal)
    return where[:, :entries], exists[:, :entries]


def grid_exists(start: int, stop: int, size: Sequence[int], window_size: Sequence[int], device: torch.device) -> Tensor:
    """Mark the window entries ``(n, K)`` on the axes through the query that have a key, for rows of the first axis."""
    rows, arms = [stop - start, *size[1:]], []
    for axis in reversed(range(len(size))):
        k, view = window_size[axis], [1] * len(size)
        view[axis] = rows[axis]
        queries = torch.arange(*((0, size[axis]) if axis else (start, stop)), device=device)
        _, exists = axis_keys(queries, size[axis], k)
        if axis != len(size) - 1:  # the centre, the query's own position, belongs to the last axis
            exists = torch.cat([exists[:, : k // 2], exists[:, k // 2 + 1 :]], -1)
        arms.append(exists.view(*view, exists.shape[1]).expand(*rows, exists.shape[1]))
    return torch.cat(arms, -1).flatten(0, -2)
