"""Argument checks of the public operators. Errors name the argument, the accepted values and the actual value."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from mmattn.utils.checks import check_number

FLOAT32_MAX = torch.finfo(torch.float32).max


def under_autocast(*tensors: Tensor, always: bool = False) -> tuple[Tensor, ...]:
    """Cast tensors of different dtypes, or all with ``always``, to the dtype of autocast if it is enabled."""
    device = tensors[0].device.type
    if not always and len({x.dtype for x in tensors}) == 1:
        return tensors
    # Dynamo of torch before 2.13 cannot trace is_autocast_available, and traces no device without autocast.
    available = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device)
    if not available or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in tensors)


def check_operands(query: Tensor, key: Tensor, value: Tensor, axes: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Check query, key and value ``(B, heads, *positions, channels)``, with ``axes[0]`` to ``axes[1]`` position axes.

    Returns them in one dtype (under autocast, its dtype), with key and value heads repeated to the number of query
    heads.
    """
    fewest, most = axes
    if not (isinstance(query, Tensor) and isinstance(key, Tensor) and isinstance(value, Tensor)):
        raise TypeError(f'query, key and value must be tensors; got {type(query)}, {type(key)} and {type(value)}')
    queries, keys, values = query.shape, key.shape, value.shape
    if not fewest <= len(queries) - 3 <= most or len(keys) != len(queries) or len(values) != len(queries):
        raise ValueError(
            f'query, key and value must be (B, heads, *positions, channels) with {fewest} to {most} '
            f'position axes; got {tuple(queries)}, {tuple(keys)} and {tuple(values)}'
        )
    heads, key_heads = queries[1], keys[1]
    grouped = key_heads != heads
    if (
        keys[0] != queries[0]
        or keys[-1] != queries[-1]
        or (grouped and (key_heads == 0 or heads == 0 or heads % key_heads != 0))
    ):
        raise ValueError(
            'key must share batch and channels with query, and its heads must be those of query or divide them; got '
            f'{tuple(keys)} for {tuple(queries)}'
        )
    if values[:-1] != keys[:-1]:
        raise ValueError(f'value must share all but its channels with key; got {tuple(values)} for {tuple(keys)}')
    query, key, value = under_autocast(query, key, value, always=True)
    if not query.dtype == key.dtype == value.dtype or not query.is_floating_point():
        raise TypeError(
            'query, key and value must share one floating-point dtype; got '
            f'{query.dtype}, {key.dtype} and {value.dtype}'
        )
    if grouped:
        key, value = (x.repeat_interleave(heads // key_heads, 1) for x in (key, value))
    return query, key, value


def check_device(first: Tensor, **more: Tensor | None) -> None:
    """Check that all tensors are on one device, because fake kernels would not detect that they differ."""
    device = first.device
    for name, x in more.items():
        if x is not None and x.device != device:
            raise ValueError(f'all tensors must be on one device; got {name} on {x.device}, and others on {device}')


def check_positions(name: str, x: Tensor) -> None:
    """Check that a map ``(B, heads, *positions, channels)`` is not empty."""
    if 0 in x.shape[2:-1]:
        raise ValueError(f'{name} must have at least one position on each axis; got {tuple(x.shape)}')


def as_window_size(
    lengths: int | Sequence[int], axes: int, name: str = 'window_size', odd: bool = True
) -> tuple[int, ...]:
    """Expand ``lengths`` to one odd length ≥ 1 per axis. Error messages call the argument ``name``."""
    # An int comes first, as it is usual, and checks of abstract types take several times as long.
    sizes: tuple[Any, ...] = (
        tuple(lengths) if type(lengths) is not int and isinstance(lengths, Sequence) else (lengths,) * axes
    )
    valid = len(sizes) == axes
    for n in sizes:
        is_integer = type(n) is int or (isinstance(n, Integral) and not isinstance(n, bool))
        valid = valid and is_integer and n >= 1 and (not odd or n % 2 == 1)
    if not valid:
        kind = 'an odd length' if odd else 'a length'
        raise ValueError(f'{name} must be {kind} ≥ 1, or one for each of {axes} axes; got {lengths!r}')
    return tuple(map(int, sizes))


def window_entries(window_size: tuple[int, ...], *, is_causal: bool = False, on_grid: bool = False) -> int:
    """Count the window biases K of a query: ∏k, or fewer if ``is_causal`` (j ≤ i) or ``on_grid`` (on the axes)."""
    if on_grid:
        return sum(window_size) - len(window_size) + 1
    entries = math.prod(window_size)
    return (entries + 1) // 2 if is_causal else entries


def check_window(
    query: Tensor,
    window_bias: Tensor | None,
    window_size: int | tuple[int, ...] | None,
    outside_bias: Tensor | float,
    *,
    on_grid: bool = False,
    is_causal: bool = False,
) -> tuple[tuple[int, ...], Tensor | None, Tensor | None, float]:
    """Check the arguments of window biases, of windows over each axis if ``on_grid``.

    Returns one window length per axis, ``window_bias``, expanded, ``outside_bias`` as a tensor or None, and
    ``outside_bias`` as a number or 0.
    """
    if window_bias is None:
        return (), None, None, 0.0
    if window_size is None:
        raise ValueError('window_size is required with window_bias')
    sizes = as_window_size(window_size, query.dim() - 3)
    positions = query.shape[:-1]
    window_bias = expanded_window(
        window_bias, (*positions, window_entries(sizes, is_causal=is_causal, on_grid=on_grid))
    )
    if isinstance(outside_bias, Tensor):
        if outside_bias.shape != positions:
            raise ValueError(f'outside_bias must be a number or {tuple(positions)}; got {tuple(outside_bias.shape)}')
        if not outside_bias.is_floating_point():
            raise TypeError(f'outside_bias must be floating-point; got {outside_bias.dtype}')
        return sizes, window_bias, outside_bias, 0.0
    if outside_bias != -math.inf:
        check_number('outside_bias', outside_bias)
    return sizes, window_bias, None, float(outside_bias)


def check_mask(key_mask: Tensor, shape: tuple[int, ...]) -> None:
    """Check that ``key_mask`` is bool of this shape."""
    if key_mask.dtype != torch.bool or key_mask.shape != shape:
        raise ValueError(f'key_mask must be bool {shape}; got {key_mask.dtype} {tuple(key_mask.shape)}')


def expanded(name: str, bias: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Expand the floating-point tensor ``bias`` to ``shape``. Error messages call the argument ``name``."""
    if not isinstance(bias, Tensor):
        raise TypeError(f'{name} must be a tensor; got {bias!r}')
    if not bias.is_floating_point():
        raise TypeError(f'{name} must be floating-point; got {bias.dtype}')
    # `Tensor.expand` takes a microsecond. An exporter records a comparison of two axes, heads and batch.
    if bias.dim() == len(shape) and bias.shape == shape:
        return bias
    try:
        return bias.expand(shape)
    except RuntimeError:
        raise ValueError(f'{name} must be broadcastable to {tuple(shape)}; got {tuple(bias.shape)}') from None


def expanded_window(bias: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Expand window biases to ``shape``, ``(B, heads, *positions, K)``, also from one table ``(heads, K)``."""
    if isinstance(bias, Tensor) and bias.dim() == len(shape) and bias.shape == shape and bias.is_floating_point():
        return bias
    if isinstance(bias, Tensor) and bias.dim() == 2:
        if bias.shape[1] not in (1, shape[-1]) or bias.shape[0] not in (1, shape[1]):
            raise ValueError(f'window_bias must be a table {(shape[1], shape[-1])}; got {tuple(bias.shape)}')
        bias = bias.view(bias.shape[0], *[1] * (len(shape) - 3), bias.shape[1])
    return expanded('window_bias', bias, shape)


def check_one_per_axis(name: str, biases: Sequence[Tensor], axes: int) -> None:
    """Check that ``biases`` is empty, or has one item per axis."""
    if isinstance(biases, Tensor) or len(biases) not in (0, axes):
        got = f'one of shape {tuple(biases.shape)}' if isinstance(biases, Tensor) else len(biases)
        raise ValueError(f'{name} must be empty or hold one tensor for each of the {axes} axes; got {got}')


def as_scale(scale: float | None, query: Tensor) -> float:
    """Convert the factor of the content logits to a number: 1/√D for None and a query of D channels."""
    if scale is None:
        return float((query.shape[-1] or 1) ** -0.5)
    if not (type(scale) is float and -FLOAT32_MAX <= scale <= FLOAT32_MAX):
        check_number('scale', scale)
        if query.dtype != torch.float64 and not -FLOAT32_MAX <= scale <= FLOAT32_MAX:
            raise ValueError(f'scale must be finite in float32; got {scale}')
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
