"""Relative position encodings, the baselines of Table 3.2: learned vectors r_{j−i} that the query is compared with."""
import torch
from torch import Tensor, nn


class RelativePosition(nn.Module):
    """One table of vectors for each axis, indexed by the offset j − i, clipped to ±``max_offset``.

    Args:
        axes (int): 1 for sequences, 2 for maps.
        channels (int): D, channels of the query.
        max_offset (int): the furthest offset with a vector of its own.

    Raises:
        ValueError: ``max_offset`` below 0.
    """

    def __init__(self, axes: int, channels: int, max_offset: int) -> None:
        super().__init__()
        if max_offset < 0:
            raise ValueError(f'max_offset must be ≥ 0; got {max_offset}')
        self.max_offset = max_offset
        self.tables = nn.ParameterList(
            nn.Parameter(torch.randn(2 * max_offset + 1, channels) * channels**-0.5) for _ in range(axes))

    def _vectors(self, axis: int, offsets: Tensor) -> Tensor:
        return self.tables[axis][offsets.clamp(-self.max_offset, self.max_offset) + self.max_offset]

    def axis_logits(self, query: Tensor) -> dict:
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
        return dict(axis_logits=logits)

    def arm_logits(self, query: Tensor) -> dict:
        """Logits q·r_{j−i} along each arm, Shaw's encoding, for ``grid_attention``: windows that span the whole map.

        The self key uses the table of the last axis.

        Args:
            query (Tensor): ``(B, heads, *S, D)``, multiplied by 1/√d already.
        """
        size = query.shape[2:-1]
        vectors = []
        for axis in reversed(range(len(size))):
            offsets = torch.arange(1 - size[axis], size[axis], device=query.device)
            vectors.append(self._vectors(axis, offsets if axis == len(size) - 1 else offsets[offsets != 0]))
        return dict(
            window=query @ torch.cat(vectors).to(query.dtype).T, window_size=tuple(2 * length - 1 for length in size))
