"""Relative position encodings: learned vectors r_{j−i} that the query is compared with (Table 3.2; video: Eq. 5.9)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mmattn.ops.checks import check_count


class RelativePosition(nn.Module):
    """One table of vectors for each axis, indexed by the offset j − i, clipped to ±``max_offset``.

    Args:
        axes (int): 1 for sequences, 2 for maps, 3 for videos. Of a map with more, these are the last ones.
        channels (int): D, channels of the query.
        max_offset (int): the furthest offset with a vector of its own.
        concatenated (bool): each axis has its share of the D channels, for :meth:`offset_bias`. Defaults to False: each
            has all.

    Raises:
        TypeError: ``max_offset`` is no integer.
        ValueError: ``max_offset`` below 0.
    """

    def __init__(self, axes: int, channels: int, max_offset: int, concatenated: bool = False) -> None:
        super().__init__()
        check_count('max_offset', max_offset, least=0)
        self.max_offset = max_offset
        shares = [(channels + axis) // axes if concatenated else channels for axis in range(axes)]
        self.tables = nn.ParameterList(
            nn.Parameter(torch.randn(2 * max_offset + 1, share) * channels**-0.5) for share in shares
        )

    def _vectors(self, axis: int, offsets: Tensor) -> Tensor:
        return self.tables[axis][offsets.clamp(-self.max_offset, self.max_offset) + self.max_offset]

    def axis_bias(self, query: Tensor) -> dict:
        """Decomposed logits q·r_W[jx − ix] and q·r_H[jy − iy] of Bello et al. for ``global_attention``.

        Args:
            query (Tensor): ``(B, heads, *S, D)``, multiplied by 1/√d already.
        """
        logits = []
        for axis, length in enumerate(query.shape[2:-1]):
            position = torch.arange(length, device=query.device)
            vectors = self._vectors(axis, position - position[:, None]).to(query.dtype)  # (L, L, D)
            lines = query.movedim(2 + axis, -2)
            logits.append(torch.einsum('...id,ijd->...ij', lines, vectors).movedim(-2, 2 + axis))
        return dict(axis_bias=logits)

    def arm_bias(self, query: Tensor) -> dict:
        """Logits q·r_{j−i} along each arm, Shaw's encoding, for ``grid_attention``: windows that span the whole map.

        The self key uses the table of the last axis. Keys on an axis without a table have logit 0.

        Args:
            query (Tensor): ``(B, heads, *S, D)``, scaled already.
        """
        size = query.shape[2:-1]
        axes_without_table = len(size) - len(self.tables)
        vectors = []
        for axis in reversed(range(axes_without_table, len(size))):
            offsets = torch.arange(1 - size[axis], size[axis], device=query.device)
            if axis != len(size) - 1:  # self has its place on the last axis
                offsets = torch.cat([offsets[: size[axis] - 1], offsets[size[axis] :]])
            vectors.append(self._vectors(axis - axes_without_table, offsets))
        window_size = (*[1] * axes_without_table, *(2 * length - 1 for length in size[axes_without_table:]))
        return dict(window_bias=query @ torch.cat(vectors).to(query.dtype).T, window_size=window_size)

    def offset_bias(self, query: Tensor, offsets: Sequence[Tensor]) -> dict:
        """Logits q·[r_t, r_y, r_x], the axes' vectors concatenated (Eq. 5.9), for ``strided_attention``.

        Args:
            query (Tensor): ``(B, heads, *S, D)``, scaled already.
            offsets (sequence of Tensor): int64 ``(K)`` an axis, those of ``strided_offsets``.
        """
        axes_without_table = len(offsets) - len(self.tables)
        logits = [query.new_zeros(len(offset)) for offset in offsets[:axes_without_table]]
        parts = query.split([table.shape[1] for table in self.tables], -1)
        for axis, (part, offset) in enumerate(zip(parts, offsets[axes_without_table:])):
            logits.append(part @ self._vectors(axis, offset.to(query.device)).to(query.dtype).T)
        return dict(offset_bias=logits)
