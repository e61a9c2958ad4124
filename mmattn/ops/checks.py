"""Argument checks that the public operators share; each error names the argument, what came and what is accepted."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .window_logits import as_window_size


def check_operands(query: Tensor, key: Tensor, value: Tensor, axes: tuple[int, int]) -> None:
    """Check that ``(B, heads, *positions, channels)`` tensors of ``axes`` (fewest, most) position axes fit together."""
    fewest, most = axes
    if not fewest <= query.dim() - 3 <= most or key.dim() != query.dim() or value.dim() != query.dim():
        raise ValueError(
            f'query, key and value must be (B, heads, *positions, channels) with {fewest} to {most} '
            f'position axes; got {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}'
        )
    if key.shape[:2] != query.shape[:2] or key.shape[-1] != query.shape[-1]:
        raise ValueError(
            f'key must share batch, heads and channels with query; got {tuple(key.shape)} for {tuple(query.shape)}'
        )
    if value.shape[:-1] != key.shape[:-1]:
        raise ValueError(
            f'value must share all but its channels with key; got {tuple(value.shape)} for {tuple(key.shape)}'
        )
    if not query.dtype == key.dtype == value.dtype or not query.is_floating_point():
        raise TypeError(
            'query, key and value must share one floating-point dtype; got '
            f'{query.dtype}, {key.dtype} and {value.dtype}'
        )


def check_window(
    query: Tensor,
    window: Tensor | None,
    window_size: int | tuple[int, ...] | None,
    outlier: Tensor | float,
    normalize: bool,
    entries: Callable[[tuple[int, ...]], int],
) -> tuple[tuple[int, ...], Tensor | None, float]:
    """Check the arguments of window logits.

    Args:
        query, window, window_size, outlier, normalize: as in the operators.
        entries (Callable): the number of window logits for a window size.

    Returns:
        tuple[tuple[int, ...], Tensor | None, float]: window length an axis, outlier logits as a tensor, as a number.
    """
    if window is None:
        if normalize:
            raise ValueError('normalize=True needs window: it normalises window logits')
        return (), None, 0.0
    if window_size is None:
        raise ValueError('window_size is required with window')
    sizes = as_window_size(window_size, query.dim() - 3)
    expected = (*query.shape[:-1], entries(sizes))
    if window.shape != expected:
        raise ValueError(f'window must be {tuple(expected)} for window_size={window_size}; got {tuple(window.shape)}')
    if not window.is_floating_point():
        raise TypeError(f'window must be floating-point; got {window.dtype}')
    if isinstance(outlier, Tensor):
        if outlier.shape != query.shape[:-1]:
            raise ValueError(f'outlier must be a number or {tuple(query.shape[:-1])}; got {tuple(outlier.shape)}')
        if not outlier.is_floating_point():
            raise TypeError(f'outlier must be floating-point; got {outlier.dtype}')
        return sizes, outlier, 0.0
    if normalize and math.isinf(outlier):
        raise ValueError('normalize=True is undefined with an infinite outlier')
    return sizes, None, float(outlier)


def expanded(name: str, logits: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return floating-point ``logits`` expanded to ``shape``, or name the argument that does not fit."""
    if not logits.is_floating_point():
        raise TypeError(f'{name} must be floating-point; got {logits.dtype}')
    try:
        return logits.expand(shape)
    except RuntimeError:
        raise ValueError(f'{name} must be broadcastable to {tuple(shape)}; got {tuple(logits.shape)}') from None


def check_count(name: str, number: int) -> None:
    """Check that an argument is an integer of at least 1."""
    if not isinstance(number, int):
        raise TypeError(f'{name} must be an integer; got {number!r}')
    if number < 1:
        raise ValueError(f'{name} must be at least 1; got {number}')


def check_queries(queries: Tensor, size: tuple[int, ...]) -> None:
    """Check that ``queries`` are coordinates within a map of ``size``."""
    if queries.dtype != torch.int64 or queries.dim() != 2 or queries.shape[1] != len(size):
        raise ValueError(
            f'queries must be int64 (Q, {len(size)}) coordinates; got {queries.dtype} {tuple(queries.shape)}'
        )
    outside = ((queries < 0) | (queries >= queries.new_tensor(size))).any(-1)
    if outside.any():
        raise ValueError(f'queries must lie in the map of {tuple(size)}; got {queries[outside].tolist()}')
