"""Relative position encodings: products of the query and learned vectors r_{j−i} (Table 3.2, and Eq. 5.9 for video)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmattn.ops.patterns import OffsetRange
from mmattn.ops.tables import kept
from mmattn.utils.checks import check_count


class RelativePosition(nn.Module):
    """Learned vectors for each axis, indexed by the offset j − i, which is clipped to ±``clip_offset``.

    The methods take a float query ``(B, heads, *S, D)`` that is already scaled.

    Args:
        axes (int): 1 for sequences, 2 for maps, 3 for videos. Queries with more axes use the tables for the last axes.
        channels (int): D, channels of the query.
        max_offset (int): largest offset with a separate vector, at least 0.
        concatenated (bool): divide the D channels among the axes, for :meth:`offset_bias`. If False, each axis has
            vectors of D channels. Defaults to False.
        clip_offset (int or tuple[int, ...], optional): 0 to ``max_offset``, for all axes, or one number for each of the
            last axes. Vectors of larger offsets are not used. Defaults to None, ``max_offset``.
        zero_init (bool): the vectors are 0 at the start. Defaults to False.
    """

    def __init__(
        self,
        axes: int,
        channels: int,
        max_offset: int,
        concatenated: bool = False,
        clip_offset: int | Sequence[int] | None = None,
        zero_init: bool = False,
    ) -> None:
        super().__init__()
        check_count('max_offset', max_offset, least=0)
        limit = max_offset if clip_offset is None else clip_offset
        last = [*limit] if isinstance(limit, Sequence) else [limit] * axes
        limits = [max_offset] * (axes - len(last)) + last
        if len(limits) != axes or not all(isinstance(limit, int) and 0 <= limit <= max_offset for limit in limits):
            raise ValueError(
                f'clip_offset must be one integer from 0 to max_offset={max_offset}, or up to {axes}; got {clip_offset}'
            )
        self.max_offset = max_offset
        self.concatenated = concatenated
        self.clip_offset = tuple(limits)
        shares = [(channels + axis) // axes if concatenated else channels for axis in range(axes)]
        self.tables = nn.ParameterList(
            nn.Parameter(torch.randn(2 * max_offset + 1, share) * (0 if zero_init else channels**-0.5))
            for share in shares
        )

    def _vectors(self, axis: int, table: Callable[..., Tensor], *size: Any, step: int = 1) -> Tensor:
        """Look up the vectors of the offsets that ``table(*size)`` lists."""
        limit = self.clip_offset[axis] // step * step  # only multiples of the step are trained
        vectors = self.tables[axis]
        return vectors[kept(_rows, vectors, table, size, limit, self.max_offset)]

    def axis_bias(self, query: Tensor) -> dict:
        """Compute the logits q·r_W[jx − ix] and q·r_H[jy − iy] of Bello et al. for ``global_attention``.

        Concatenated vectors are multiplied by their share of the channels. The logits of an axis without a table are 0.
        """
        size = query.shape[2:-1]
        parts = self._split(query) if self.concatenated else [query] * len(self.tables)
        axes_without_table = len(size) - len(self.tables)
        logits = [query.new_zeros(1)] * axes_without_table
        for axis, part in enumerate(parts):
            along = axes_without_table + axis
            vectors = self._vectors(axis, _all_pairs, size[along]).to(query.dtype)  # (L, L, D)
            lines = part.movedim(2 + along, -2)
            logits.append(torch.einsum('...id,ijd->...ij', lines, vectors).movedim(-2, 2 + along))
        return dict(axis_bias=logits)

    def _split(self, query: Tensor) -> tuple[Tensor, ...]:
        return query.split([table.shape[1] for table in self.tables], -1)

    def last_row(self, query: Tensor, length: int) -> Tensor:
        """Compute the logits ``(B, heads, length)`` of the last position of a sequence: the query has one position."""
        return query.squeeze(2) @ self._vectors(0, torch.arange, 1 - length, 1).to(query.dtype).T

    def arm_bias(self, query: Tensor) -> dict:
        """Compute the logits q·r_{j−i} of Shaw et al. for ``grid_attention``, as windows over each axis of the map.

        The self key uses the table of the last axis. Keys on an axis without a table have logit 0.
        """
        size: tuple[int, ...] = query.shape[2:-1]
        if torch.jit.is_tracing():  # sizes are tensors; torch warns that a trace has one size
            size = tuple(map(int, size))
        if not isinstance(math.prod(size), int):  # symbolic, in torch.export
            raise ValueError(
                'the windows of relative encodings are as large as the map, so its size must be fixed: export the '
                'network with --input-size, or without dynamic shapes'
            )
        axes_without_table = len(size) - len(self.tables)
        vectors, window_size = [], [1] * len(size)
        for axis in reversed(range(axes_without_table, len(size))):
            window_size[axis] = 2 * size[axis] - 1
            table = torch.arange if axis == len(size) - 1 else _without_0  # the self key belongs to the last axis
            vectors.append(self._vectors(axis - axes_without_table, table, 1 - size[axis], size[axis]))
        return dict(window_bias=query @ torch.cat(vectors).to(query.dtype).T, window_size=tuple(window_size))

    def offset_bias(self, query: Tensor, offsets: Sequence[OffsetRange], step: Sequence[int]) -> dict:
        """Compute the logits q·[r_t, r_y, r_x] (Eq. 5.9) for ``strided_attention``, from ``offset_ranges``.

        The offsets are multiples of ``step``, also where they are clipped.
        """
        axes_without_table = len(offsets) - len(self.tables)
        logits = [query.new_zeros(x.end - x.first) for x in offsets[:axes_without_table]]
        parts = self._split(query)
        for axis, (part, offset, h) in enumerate(zip(parts, offsets[axes_without_table:], step[axes_without_table:])):
            logits.append(part @ self._vectors(axis, _multiples, *offset, step=h).to(query.dtype).T)
        return dict(offset_bias=logits)


def _rows(
    offsets: Callable[..., Tensor], size: tuple[int, ...], limit: int, max_offset: int, device: torch.device
) -> Tensor:
    return offsets(*size, device=device).clamp(-limit, limit) + max_offset


def _all_pairs(length: int, device: torch.device) -> Tensor:
    position = torch.arange(length, device=device)
    return position - position[:, None]


def _without_0(first: int, end: int, device: torch.device) -> Tensor:
    offsets = torch.arange(first, end, device=device)
    return torch.cat([offsets[:-first], offsets[1 - first :]])


def _multiples(first: int, end: int, step: int, device: torch.device) -> Tensor:
    return torch.arange(first, end, device=device) * step
