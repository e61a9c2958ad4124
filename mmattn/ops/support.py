"""Which keys a query of a sparse operator attends to, written as masks of pairs: for tests and for documentation.

The operators make no such mask. Positions are coordinates in a map of 1 to 3 axes, row-major.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .checks import check_queries
from .window_bias import as_lengths

PATTERNS = ('block', 'centred', 'forward', 'strided')


def grid_support(size: Sequence[int], queries: Tensor | None = None) -> Tensor:
    """Return which keys a query of :func:`grid_attention` attends to (Ψ in Eq. 5.3): those that share all axes but one.

    Args:
        size (sequence of int): the map's.
        queries (Tensor, optional): int64 ``(Q, axes)``, the coordinates of some queries. All of them by default.

    Returns:
        Tensor: bool ``(Q, *size)``. ``.flatten(1)`` is the square mask of all pairs.

    Raises:
        ValueError: ``queries`` of another dtype or shape, or outside the map.
    """
    return torch.stack(torch.broadcast_tensors(*(i != j for i, j in _pairs(size, queries, size)))).sum(0) < 2


def strided_support(
    size: Sequence[int],
    step: int | Sequence[int] | None,
    pattern: str,
    queries: Tensor | None = None,
    key_size: Sequence[int] | None = None,
) -> Tensor:
    """Return which keys a query of :func:`strided_attention` attends to (I_p in Eq. 5.7).

    Args:
        size (sequence of int): the map's of the queries.
        step (int or sequence of int, optional), pattern (str): as in :func:`strided_attention`.
        queries (Tensor, optional): int64 ``(Q, axes)``, the coordinates of some queries. All of them by default.
        key_size (sequence of int, optional): the map's of the keys. Defaults to ``size``.

    Returns:
        Tensor: bool ``(Q, *key_size)``. ``.flatten(1)`` is the mask of all pairs.

    Raises:
        ValueError: an unknown pattern or a step below 1; ``queries`` of another dtype or shape, or outside the map.
    """
    check_pattern(pattern)
    key_size = size if key_size is None else key_size
    masks = [
        reaches(i, j, h, pattern) for (i, j), h in zip(_pairs(size, queries, key_size), as_step(step, size, key_size))
    ]
    return torch.stack(torch.broadcast_tensors(*masks)).all(0)


def strided_offsets(
    size: Sequence[int], step: int | Sequence[int] | None, pattern: str, key_size: Sequence[int] | None = None
) -> list[Tensor]:
    """Return the offsets j − i along each axis that ``offset_bias`` of :func:`strided_attention` belong to.

    Args:
        size, step, pattern, key_size: as in :func:`strided_support`.

    Returns:
        list[Tensor]: int64 ``(K)`` an axis, ascending: −(h−1) … h−1 of 'block' and 'centred', 0 … h−1 of 'forward', and
        the multiples of h within the map of 'strided'. No step h is longer than the map.

    Raises:
        ValueError: as :func:`strided_support`.
    """
    check_pattern(pattern)
    key_size = size if key_size is None else key_size
    offsets = []
    for h, queries, keys in zip(as_step(step, size, key_size), size, key_size):
        count = -(-max(queries, keys) // h) if pattern == 'strided' else h
        offset = torch.arange(0 if pattern == 'forward' else 1 - count, count)
        offsets.append(offset * h if pattern == 'strided' else offset)
    return offsets


def reaches(i, j, step: int, pattern: str):
    """Whether a query at ``i`` attends to a key at ``j``, integers or tensors of them, as far as one axis goes."""
    offset = j - i
    if pattern == 'block':
        return i // step == j // step
    if pattern == 'centred':
        return abs(offset) < step
    if pattern == 'forward':
        return (offset >= 0) & (offset < step)
    return offset % step == 0


def check_pattern(pattern: str) -> None:
    """Check that ``pattern`` is one of those of :func:`strided_attention`."""
    if pattern not in PATTERNS:
        raise ValueError(f'pattern must be one of {PATTERNS}; got {pattern!r}')


def check_step(step: int | Sequence[int] | None, size: Sequence[int], key_size: Sequence[int]) -> tuple[int, ...]:
    """Return the step h of each axis, or nothing where there is none, which :func:`as_step` computes from the sizes.

    Raises:
        ValueError: it has not one length for each axis, a length is below 1, or there is none and the maps' sizes
            differ.
    """
    if step is None:
        if tuple(size) != tuple(key_size):
            raise ValueError(
                f'step must be given where keys are at other positions; got None for {tuple(size)} '
                f'queries and {tuple(key_size)} keys'
            )
        return ()
    steps = as_lengths(step, len(size))
    if steps is None:
        raise ValueError(f'step must be a length ≥ 1, or one for each of {len(size)} axes; got {step!r}')
    return steps


def as_step(step: int | Sequence[int] | None, size: Sequence[int], key_size: Sequence[int]) -> tuple[int, ...]:
    """Return the step h of each axis: no longer than the map, which changes nothing; ⌈√side⌉ where there is none."""
    steps = check_step(step, size, key_size) or tuple(math.ceil(math.sqrt(side)) for side in size)
    return tuple(min(h, max(sides)) for h, *sides in zip(steps, size, key_size))


def _pairs(size: Sequence[int], queries: Tensor | None, key_size: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the coordinates of queries and keys on each axis, which broadcast to ``(Q, *key_size)``."""
    if queries is None:
        queries = torch.cartesian_prod(*map(torch.arange, size)).view(-1, len(size))
    check_queries(queries, tuple(size))
    for axis, (i, keys) in enumerate(zip(queries.unbind(-1), key_size)):
        shape = [1] * len(size)
        shape[axis] = keys
        yield i.view(-1, *[1] * len(size)), torch.arange(keys, device=queries.device).view(shape)
