"""Base class of the sparse attention layers for video: projections to heads, and position encodings of voxels."""

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn

from mmattn.ops.tables import kept
from mmattn.utils.checks import check_choice, check_count, check_divisor, check_number, check_positive

from .relative_position import RelativePosition

SPATIAL_POSITIONS = ('relative', 'none')
TEMPORAL_POSITIONS = ('sinusoidal', 'absolute', 'relative', 'none')


class EncodingOptions(TypedDict, total=False):
    """The options of :class:`MultiheadAttention3d`, except channels and heads."""

    scale: float
    spatial_position: str
    temporal_position: str
    max_offset: int
    max_frames: int
    clip_offset: int | Sequence[int] | None
    wavelength: float


class MultiheadAttention3d(nn.Module):
    """Base of multi-head attention between voxels: W_out Σ_j softmax_j [scale · q_iᵀ(k_j + E_{j−i})] v_j (Eq. 5.9).

    Absolute temporal encodings are added to the inputs of the query and key projections, but not of the value
    projection. The heads share the relative encodings E of x, y and, if ``temporal_position='relative'``, t.

    Args:
        embed_dims (int): channels C, a multiple of ``num_heads``.
        num_heads (int): number of heads. Defaults to 8.
        scale (float): factor of the logits. Defaults to 1: the thesis found 1/√C harmful (section 5.3).
        spatial_position (str): 'relative' (learned, in x and y) or 'none'. Defaults to 'relative'.
        temporal_position (str): 'sinusoidal' (sines and cosines of the frame number, for an even C), 'absolute' (a
            learned vector for each frame number), 'relative' (learned, requires a relative ``spatial_position``) or
            'none' (Table 5.3). Defaults to 'sinusoidal'.
        max_offset (int): largest offset with a relative encoding. Larger offsets are clipped. Defaults to 96.
        max_frames (int): with 'absolute', frame numbers are clipped to at most ``max_frames`` − 1. Defaults to 256.
        clip_offset (int or tuple[int, ...], optional): clip offsets to this, for all encoded axes, or for (y, x), or
            for (t, y, x) if time is relative. Set it to the largest offsets of the training crops, whose side is one
            larger, because encodings of larger offsets were never trained. Defaults to None, ``max_offset``.
        wavelength (float): with 'sinusoidal', above 0: the wavelengths are at most 2π · ``wavelength`` frames. The
            thesis cites Vaswani et al., who have 10000. Its public operators have 100, so that all channels differ
            within a short clip. Defaults to 10000.
    """

    concatenated = False  # True: E is the concatenation of one vector per axis, which divide the channels among them

    def __init__(
        self,
        embed_dims: int,
        num_heads: int = 8,
        scale: float = 1.0,
        spatial_position: str = 'relative',
        temporal_position: str = 'sinusoidal',
        max_offset: int = 96,
        max_frames: int = 256,
        clip_offset: int | Sequence[int] | None = None,
        wavelength: float = 10000.0,
    ) -> None:
        super().__init__()
        check_divisor('num_heads', num_heads, 'embed_dims', embed_dims)
        check_number('scale', scale)
        check_count('max_frames', max_frames)
        check_choice('spatial_position', spatial_position, SPATIAL_POSITIONS)
        check_choice('temporal_position', temporal_position, TEMPORAL_POSITIONS)
        if temporal_position == 'relative' and spatial_position == 'none':
            raise ValueError("temporal_position='relative' requires spatial_position='relative'")
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
            channels = embed_dims // num_heads
            self.relative_position = RelativePosition(axes, channels, max_offset, self.concatenated, clip_offset)
        self.temporal_encoding = None
        if temporal_position in ('sinusoidal', 'absolute'):
            self.temporal_encoding = TemporalEncoding(temporal_position, embed_dims, max_frames, wavelength)

    def init_weights(self) -> None:
        """Copy the query projection to the key projection, so that attention starts as a search for similar voxels."""
        self.key_proj.load_state_dict(self.query_proj.state_dict())

    def project(
        self, query: Tensor, key: Tensor, frame_numbers: Tensor | None, key_frame_numbers: Tensor | None
    ) -> dict:
        """Compute ``query``, ``key`` and ``value`` of an operator, ``(B, heads, T, H, W, C/heads)``, and its ``scale``.

        The maps are float ``(B, T, H, W, C)`` and may differ in T, H and W. Absolute encodings require int64 frame
        numbers ``(B, T)``.
        """
        timed = self._timed(query, frame_numbers)
        same = key is query and key_frame_numbers is frame_numbers
        inputs = timed, timed if same else self._timed(key, key_frame_numbers), key
        q, k, v = [
            projection(x).unflatten(-1, (self.num_heads, -1)).movedim(-2, 1)
            for projection, x in zip((self.query_proj, self.key_proj, self.value_proj), inputs)
        ]
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
                f'frame_numbers must be (B, T) = {tuple(x.shape[:2])} with this temporal_position; got {got}'
            )
        return x + self.temporal_encoding(frame_numbers)[:, :, None, None].to(x.dtype)


def check_maps(query: Tensor, key: Tensor, embed_dims: int) -> None:
    """Check that queries and keys have the same shape, ``(B, T, H, W, embed_dims)``."""
    if query.dim() != 5 or query.shape[-1] != embed_dims or key.shape != query.shape:
        raise ValueError(
            f'query and key must be (B, T, H, W, {embed_dims}) of one shape; got {tuple(query.shape)} and '
            f'{tuple(key.shape)}'
        )


def pad_maps(x: Tensor, padding: Sequence[int]) -> Tensor:
    """Pad ``(B, T, H, W, C)`` with zeros at the end of T, H and W."""
    if not any(padding):
        return x
    return nn.functional.pad(x, (0, 0, *(side for pad in reversed(padding) for side in (0, pad))))


def pad_numbers(frame_numbers: Tensor | None, padding: int) -> Tensor | None:
    """Repeat the last frame number ``padding`` times: ``(B, T)`` to ``(B, T + padding)``."""
    if frame_numbers is None or not padding:
        return frame_numbers
    return torch.cat([frame_numbers, frame_numbers[:, -1:].expand(-1, padding)], 1)


class TemporalEncoding(nn.Module):
    """A vector for each absolute frame number: its sines and cosines, or a learned embedding (Table 5.3).

    Args:
        kind (str): 'sinusoidal' (*T Sinusoidal*) or 'absolute' (*T Embedding*).
        channels (int): C, even for 'sinusoidal'.
        max_frames (int): number of learned embeddings. Higher frame numbers use the last one.
        wavelength (float): base b of the angles n · b^(−2i/C), above 0.
    """

    def __init__(self, kind: str, channels: int, max_frames: int, wavelength: float) -> None:
        super().__init__()
        check_positive('wavelength', wavelength)
        self.wavelength = wavelength
        if kind == 'sinusoidal' and channels % 2:
            raise ValueError(f'channels must be even for sines and cosines; got {channels}')
        self.channels = channels
        self.embedding = nn.Embedding(max_frames, channels) if kind == 'absolute' else None

    def forward(self, frame_numbers: Tensor) -> Tensor:
        """Encode int64 frame numbers ``(B, T)``, at least 0, as float ``(B, T, C)``."""
        if self.embedding is not None:
            return self.embedding(frame_numbers.clamp(0, self.embedding.num_embeddings - 1))
        angles = frame_numbers.unsqueeze(-1) * kept(_frequencies, frame_numbers, self.channels // 2, self.wavelength)
        return torch.cat([angles.sin(), angles.cos()], -1)


def _frequencies(half: int, wavelength: float, device: torch.device) -> Tensor:
    return wavelength ** (torch.arange(half, dtype=torch.float64, device=device) / -half)
