"""What the sparse attention layers of video share: projections to heads, and where and when a voxel is."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mmattn.ops.checks import check_count, check_divisor, check_number

from .relative_position import RelativePosition
from .temporal_encoding import TEMPORAL_POSITIONS, TemporalEncoding

SPATIAL_POSITIONS = ('relative', 'none')


class MultiheadAttention3d(nn.Module):
    """Base of multi-head attention between voxels: softmax_j [scale · q_iᵀ(k_j + E_{j−i})] v_j (Eq. 5.9), projected.

    Absolute encodings of time are added to what queries and keys are made from, not to the values. E, in x, y and, if
    'relative', in t, is shared by the heads.

    Args:
        embed_dims (int): C, a multiple of ``num_heads``.
        num_heads (int): heads. Defaults to 8.
        scale (float): factor of the logits. Defaults to 1: the thesis found 1/√C harmful (section 5.3).
        spatial_position (str): 'relative', learned in x and y, or 'none'. Defaults to 'relative'.
        temporal_position (str): 'sinusoidal' (sines and cosines of the frame's number), 'absolute' (a learned vector
            for each number), 'relative' (learned) or 'none' (Table 5.3). Defaults to 'sinusoidal'.
        max_offset (int): relative encodings clip offsets to ±``max_offset``. Defaults to 96.
        max_frames (int): 'absolute' clips frame numbers to below it. Defaults to 256.
        concatenated (bool): the axes share the channels of E. Defaults to False.

    Raises:
        TypeError: channels, heads, ``max_offset`` or ``max_frames`` are no integers, or ``scale`` is no number.
        ValueError: heads that do not divide the channels, an unknown position, or 'relative' in time alone; an odd
            number of channels for 'sinusoidal'.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int = 8,
        scale: float = 1.0,
        spatial_position: str = 'relative',
        temporal_position: str = 'sinusoidal',
        max_offset: int = 96,
        max_frames: int = 256,
        concatenated: bool = False,
    ) -> None:
        super().__init__()
        check_divisor('num_heads', num_heads, 'embed_dims', embed_dims)
        check_number('scale', scale)
        check_count('max_frames', max_frames)
        if spatial_position not in SPATIAL_POSITIONS:
            raise ValueError(f'spatial_position must be one of {SPATIAL_POSITIONS}; got {spatial_position!r}')
        if temporal_position not in TEMPORAL_POSITIONS:
            raise ValueError(f'temporal_position must be one of {TEMPORAL_POSITIONS}; got {temporal_position!r}')
        if temporal_position == 'relative' and spatial_position == 'none':
            raise ValueError("temporal_position='relative' needs spatial_position='relative'")
        self.embed_dims = embed_dims
        self.num_heads = num_heads
        self.scale = scale
        self.query_proj, self.key_proj, self.value_proj, self.out_proj = (
            nn.Linear(embed_dims, embed_dims) for _ in range(4)
        )
        self.init_weights()
        self.relative_position = None
        if spatial_position == 'relative':
            axes = 3 if temporal_position == 'relative' else 2
            self.relative_position = RelativePosition(axes, embed_dims // num_heads, max_offset, concatenated)
        self.temporal_encoding = None
        if temporal_position in ('sinusoidal', 'absolute'):
            self.temporal_encoding = TemporalEncoding(temporal_position, embed_dims, max_frames)

    def init_weights(self) -> None:
        """Start as a search for what is alike: queries and keys are projected in the same way."""
        self.key_proj.load_state_dict(self.query_proj.state_dict())

    def project(
        self, query: Tensor, key: Tensor, frame_numbers: Tensor | None, key_frame_numbers: Tensor | None
    ) -> dict:
        """Return ``query``, ``key`` and ``value`` of an operator, ``(B, heads, T, H, W, C/heads)``, and its ``scale``.

        Args:
            query, key (Tensor): ``(B, T, H, W, C)``, sizes may differ.
            frame_numbers, key_frame_numbers (Tensor, optional): ``(B, T)``, needed by absolute encodings.

        Raises:
            ValueError: there is an absolute encoding, and no numbers or not one a frame.
        """
        timed = [self._timed(x, numbers) for x, numbers in ((query, frame_numbers), (key, key_frame_numbers))]
        q, k, v = (
            projection(x).unflatten(-1, (self.num_heads, -1)).movedim(-2, 1)
            for projection, x in zip((self.query_proj, self.key_proj, self.value_proj), (*timed, key))
        )
        return dict(query=q, key=k, value=v, scale=self.scale)

    def merge(self, out: Tensor) -> Tensor:
        """Project the operator's result ``(B, heads, T, H, W, C/heads)`` to ``(B, T, H, W, C)``."""
        return self.out_proj(out.movedim(1, -2).flatten(-2))

    def _timed(self, x: Tensor, frame_numbers: Tensor | None) -> Tensor:
        if self.temporal_encoding is None:
            return x
        if frame_numbers is None or frame_numbers.shape != x.shape[:2]:
            got = None if frame_numbers is None else tuple(frame_numbers.shape)
            raise ValueError(
                f'frame_numbers must be (B, T) = {tuple(x.shape[:2])} for this temporal_position; got {got}'
            )
        return x + self.temporal_encoding(frame_numbers)[:, :, None, None].to(x.dtype)


def check_maps(query: Tensor, key: Tensor, embed_dims: int) -> None:
    """Check that queries and keys are ``(B, T, H, W, C)`` of one shape."""
    if query.dim() != 5 or query.shape[-1] != embed_dims or key.shape != query.shape:
        raise ValueError(
            f'query and key must be (B, T, H, W, {embed_dims}) of one shape; got {tuple(query.shape)} and '
            f'{tuple(key.shape)}'
        )


def pad_maps(x: Tensor, padding: Sequence[int]) -> Tensor:
    """Pad ``(B, T, H, W, C)`` with zeros behind each axis of the voxels."""
    if not any(padding):
        return x
    return nn.functional.pad(x, (0, 0, *(side for pad in reversed(padding) for side in (0, pad))))


def pad_numbers(frame_numbers: Tensor | None, padding: int) -> Tensor | None:
    """Repeat the last of ``(B, T)`` frame numbers."""
    if frame_numbers is None or not padding:
        return frame_numbers
    return torch.cat([frame_numbers, frame_numbers[:, -1:].expand(-1, padding)], 1)
