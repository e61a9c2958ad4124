"""Argument checks that the public operators share; each error names the argument, what came and what is accepted."""

import math
from collections.abc import Callable
from numbers import Real

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


def check_device(**operands: Tensor | None) -> None:
    """Check that all tensors are on one device: with fake kernels, such as those of 'meta', nothing else notices."""
    devices = {name: x.device for name, x in operands.items() if x is not None}
    if len(set(devices.values())) > 1:
        found = ', '.join(f'{name} on {device}' for name, device in devices.items())
        raise ValueError(f'all tensors must be on one device; got {found}')


def check_positions(name: str, x: Tensor) -> None:
    """Check that a map ``(B, heads, *positions, channels)`` is not empty."""
    if 0 in x.shape[2:-1]:
        raise ValueError(f'{name} must have at least one position on each axis; got {tuple(x.shape)}')


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
    if outlier != -math.inf:
        check_number('outlier', outlier)
    elif normalize:
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


def check_count(name: str, number: int, least: int = 1) -> None:
    """Check that an argument is an integer of at least ``least``."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f'{name} must be an integer; got {number!r}')
    if number < least:
        raise ValueError(f'{name} must be at least {least}; got {number}')


def check_divisor(name: str, number: int, of: str, channels: int) -> None:
    """Check that an argument is a count that divides a count of channels, the argument ``of``."""
    check_count(of, channels)
    check_count(name, number)
    if channels % number:
        raise ValueError(f'{name} must divide {of}={channels}; got {number}')


def check_number(name: str, number: float, least: float | None = None, most: float | None = None) -> None:
    """Check that an argument is a finite number, not below ``least`` and not above ``most``.

    A tensor is no number: its gradient would be lost.
    """
    if not isinstance(number, Real) or isinstance(number, bool):
        raise TypeError(f'{name} must be a number; got {number!r}')
    if not -math.inf < number < math.inf:  # torch.compile does not trace math.isfinite of a number that it has dynamic
        raise ValueError(f'{name} must be finite; got {number}')
    if (least is not None and number < least) or (most is not None and number > most):
        raise ValueError(f'{name} must be {f"from {least} to {most}" if most else f"at least {least}"}; got {number}')


def as_scale(scale: float | None, query: Tensor) -> float:
    """Return the factor of the content logits as a number: by default 1/√D for a query of D channels."""
    if scale is None:
        return float((query.shape[-1] or 1) ** -0.5)
    check_number('scale', scale)
    return float(scale)


def check_queries(queries: Tensor, size: tuple[int, ...]) -> None:
    """Check that ``queries`` are coordinates within a map of ``size``."""
    if queries.dtype != torch.int64 or queries.dim() != 2 or queries.shape[1] != len(size):
        raise ValueError(
            f'queries must be int64 (Q, {len(size)}) coordinates; got {queries.dtype} {tuple(queries.shape)}'
        )
    outside = ((queries < 0) | (queries >= queries.new_tensor(size))).any(-1)
    if outside.any():
        raise ValueError(f'queries must lie in the map of {tuple(size)}; got {queries[outside].tolist()}')
