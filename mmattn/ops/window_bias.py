"""The layout of window biases.

A query at position i has one bias for each offset o = j − i of an odd window centred on it, and one bias v_i for all
its keys outside the window (Eq. 3.12 of the bilateral-attention thesis). On an axis with a window of length k = 2r + 1,
entry r + o belongs to offset o; the axes are in row-major order. Entries without a key (outside the map, or after the
query if attention is causal) are dropped.
"""

import math
from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor


def accumulator(x: Tensor) -> torch.dtype:
    """Return the dtype in which sums over ``x`` are accumulated: float64 for float64, otherwise float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def as_window_size(window_size: int | tuple[int, ...], axes: int, name: str = 'window_size') -> tuple[int, ...]:
    """Return ``window_size`` as one odd length per axis. ``name`` is the argument's name in the error message.

    Raises:
        ValueError: there is not one length per axis, or a length is even, below 1 or not an integer.
    """
    sizes = as_lengths(window_size, axes)
    if sizes is None or any(k % 2 == 0 for k in sizes):
        raise ValueError(f'{name} must be an odd length ≥ 1, or one for each of {axes} axes; got {window_size!r}')
    return sizes


def as_lengths(lengths: int | Sequence[int], axes: int) -> tuple[int, ...] | None:
    """Return one length per axis, from one for all axes or one for each; None unless all are integers ≥ 1."""
    each = tuple(lengths) if isinstance(lengths, Sequence) else (lengths,) * axes
    if len(each) != axes or any(not isinstance(n, Integral) or isinstance(n, bool) or n < 1 for n in each):
        return None
    return tuple(map(int, each))


def window_entries(window_size: tuple[int, ...], is_causal: bool = False) -> int:
    """Return the number K of window biases of a query: ∏k, or those with j ≤ i if ``is_causal``."""
    entries = math.prod(window_size)
    return (entries + 1) // 2 if is_causal else entries


def axis_index(length: int, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the coordinate of the key, and whether it exists, for each position of an axis and each window entry.

    Returns:
        tuple[Tensor, Tensor]: int64 ``(length, k)``, clamped to the axis; bool ``(length, k)``.
    """
    key = torch.arange(length, device=device)[:, None] + torch.arange(k, device=device) - k // 2
    return key.clamp(0, length - 1), (key >= 0) & (key < length)


def window_keys(
    queries: Tensor, size: Sequence[int], window_size: Sequence[int], is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Return the flat index of the key, and whether it exists, for each window entry of some queries.

    Args:
        queries (Tensor): int64 ``(n)``, flat indices of positions.
        size (sequence of int): size of the map.
        window_size (sequence of int): odd window length of each axis.
        is_causal (bool): return only the entries with j ≤ i.

    Returns:
        tuple[Tensor, Tensor]: int64 ``(n, K)``, clamped to the map; bool ``(n, K)``.
    """
    where, exists = torch.zeros_like(queries)[:, None], torch.ones_like(queries, dtype=torch.bool)[:, None]
    stride = math.prod(size)
    for length, k in zip(size, window_size):
        stride //= length
        key, inside = (x[queries // stride % length] for x in axis_index(length, k, queries.device))  # (n, k)
        where = (where[:, :, None] * length + key[:, None]).flatten(1)
        exists = (exists[:, :, None] & inside[:, None]).flatten(1)
    entries = window_entries(tuple(window_size), is_causal)
    return where[:, :entries], exists[:, :entries]
