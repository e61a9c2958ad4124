"""Which keys a query of a sparse operator attends to: the patterns of ``strided_attention``, and masks of all pairs.

The masks are for tests and for documentation. Positions are coordinates in a map of 1 to 3 axes, in row-major order.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mmattn.utils.checks import check_choice

from .arguments import as_window_size, check_queries

PATTERNS = ('block', 'centred', 'forward', 'strided')


def grid_support(size: Sequence[int], queries: Tensor | None = None) -> Tensor:
    """Mark the keys that a query of :func:`grid_attention` attends to (Ψ in Eq. 5.3).

    The coordinates of these keys differ from the coordinates of the query on at most one axis.

    Args:
        size (sequence of int): size of the map.
        queries (Tensor, optional): int64 ``(Q, axes)``, coordinates of some queries. Defaults to all positions.

    Returns:
        Tensor: bool ``(Q, *size)``, True for keys. ``.flatten(1)`` is the mask of all pairs.

    Example:
        >>> grid_support((3, 4), torch.tensor([[0, 1]])).int()
        tensor([[[1, 1, 1, 1],
                 [0, 1, 0, 0],
                 [0, 1, 0, 0]]], dtype=torch.int32)
    """
    _check_sizes(size)
    return torch.stack(torch.broadcast_tensors(*(i != j for i, j in _pairs(size, queries, size)))).sum(0) < 2


def strided_support(
    size: Sequence[int],
    step: int | Sequence[int] | None,
    pattern: str,
    queries: Tensor | None = None,
    key_size: Sequence[int] | None = None,
) -> Tensor:
    """Mark the keys that a query of :func:`strided_attention` attends to (I_p in Eq. 5.7).

    Args:
        size, queries: as in :func:`grid_support`, for the map of queries.
        step (int or sequence of int, optional): h ≥ 1, for all axes or for each axis. None means ⌈√side⌉ of each axis,
            which requires maps of one size.
        pattern (str): 'block', 'centred', 'forward' or 'strided', as in :func:`strided_attention`.
        key_size (sequence of int, optional): size of the map of keys. Defaults to ``size``.

    Returns:
        Tensor: bool ``(Q, *key_size)``, True for keys. ``.flatten(1)`` is the mask of all pairs.

    Example:
        >>> strided_support((3, 4), 2, 'strided', torch.tensor([[0, 1]])).int()
        tensor([[[0, 1, 0, 1],
                 [0, 0, 0, 0],
                 [0, 1, 0, 1]]], dtype=torch.int32)
    """
    check_choice('pattern', pattern, PATTERNS)
    key_size = size if key_size is None else key_size
    _check_sizes(size, key_size)
    masks = [
        reaches(i, j, h, pattern) for (i, j), h in zip(_pairs(size, queries, key_size), as_step(step, size, key_size))
    ]
    return torch.stack(torch.broadcast_tensors(*masks)).all(0)


def strided_offsets(
    size: Sequence[int], step: int | Sequence[int] | None, pattern: str, key_size: Sequence[int] | None = None
) -> list[Tensor]:
    """List the offsets j − i along each axis, in the order of ``offset_bias`` of :func:`strided_attention`.

    Args:
        size, step, pattern, key_size: as in :func:`strided_support`.

    Returns:
        list[Tensor]: one int64 tensor ``(K)`` per axis, ascending: −(h−1) … h−1 for 'block' and 'centred', 0 … h−1 for
        'forward', and the multiples of h within the map for 'strided'. h is clipped to the size of the map.

    Example:
        >>> strided_offsets((3, 8), (2, 4), 'strided')
        [tensor([-2,  0,  2]), tensor([-4,  0,  4])]
    """
    return [torch.arange(x.first, x.end) * x.step for x in offset_ranges(size, step, pattern, key_size)]


class OffsetRange(NamedTuple):
    """The offsets ``first * step`` to ``(end - 1) * step`` of an axis."""

    first: int
    end: int
    step: int


def offset_ranges(
    size: Sequence[int], step: int | Sequence[int] | None, pattern: str, key_size: Sequence[int] | None = None
) -> list[OffsetRange]:
    """List what :func:`strided_offsets` does, without tensors."""
    check_choice('pattern', pattern, PATTERNS)
    key_size = size if key_size is None else key_size
    _check_sizes(size, key_size)
    ranges = []
    for h, queries, keys in zip(as_step(step, size, key_size), size, key_size):
        count = -(-max(queries, keys) // h) if pattern == 'strided' else h
        ranges.append(OffsetRange(0 if pattern == 'forward' else 1 - count, count, h if pattern == 'strided' else 1))
    return ranges


def _check_sizes(size: Sequence[int], key_size: Sequence[int] | None = None) -> None:
    if torch.jit.is_tracing():  # where sizes are tensors
        return
    for name, sides in (('size', size), ('key_size', size if key_size is None else key_size)):
        axes = range(1, 4) if key_size is None or name == 'size' else range(len(size), len(size) + 1)
        is_size = isinstance(sides, Sequence) and len(sides) in axes
        # a tuple, because Dynamo of torch 2.4 does not trace a union of types
        if not is_size or not all(isinstance(side, (int, torch.SymInt)) and side > 0 for side in sides):
            count = '1 to 3' if len(axes) > 1 else len(size)
            raise ValueError(f'{name} must be {count} integers of at least 1, the lengths of axes; got {sides!r}')


def reaches(i, j, step: int, pattern: str):
    """Check whether a query at ``i`` attends to a key at ``j`` along one axis. Both are int or Tensor."""
    offset = j - i
    if pattern == 'block':
        return i // step == j // step
    if pattern == 'centred':
        return abs(offset) < step
    if pattern == 'forward':
        return (offset >= 0) & (offset < step)
    return offset % step == 0


def check_step(step: int | Sequence[int] | None, size: Sequence[int], key_size: Sequence[int]) -> tuple[int, ...]:
    """Expand the step to one length per axis. An empty tuple stands for None, which requires maps of one size."""
    if step is None:
        if tuple(size) != tuple(key_size):
            raise ValueError(
                f'step must be given if queries and keys differ in size; got None for {tuple(size)} '
                f'queries and {tuple(key_size)} keys'
            )
        return ()
    return as_window_size(step, len(size), 'step', odd=False)


def as_step(step: int | Sequence[int] | None, size: Sequence[int], key_size: Sequence[int]) -> tuple[int, ...]:
    """Compute the step h of each axis, ⌈√side⌉ for None. Clipping it to the map does not change the result."""
    steps = check_step(step, size, key_size) or tuple(math.ceil(math.sqrt(side)) for side in size)
    return tuple(min(h, max(sides)) for h, *sides in zip(steps, size, key_size))


def _pairs(size: Sequence[int], queries: Tensor | None, key_size: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the coordinates of queries and keys on each axis. They broadcast to ``(Q, *key_size)``."""
    if queries is None:
        queries = torch.cartesian_prod(*map(torch.arange, size)).view(-1, len(size))
    check_queries(queries, tuple(size))
    for axis, (i, keys) in enumerate(zip(queries.unbind(-1), key_size)):
        shape = [1] * len(size)
        shape[axis] = keys
        yield i.view(-1, *[1] * len(size)), torch.arange(keys, device=queries.device).view(shape)
