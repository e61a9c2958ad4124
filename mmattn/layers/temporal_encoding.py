"""Encodings of a frame's absolute number, which tell an attention layer when a voxel is (Table 5.3)."""

import torch
from torch import Tensor, nn

TEMPORAL_POSITIONS = ('sinusoidal', 'absolute', 'relative', 'none')
WAVELENGTH = 10000


class TemporalEncoding(nn.Module):
    """A vector for each frame number: sines and cosines of it, or an embedding of its own.

    Args:
        kind (str): 'sinusoidal' (*T Sinusoidal*) or 'absolute' (*T Embedding*).
        channels (int): C, even for 'sinusoidal'.
        max_frames (int): frame numbers with an embedding of their own; later ones have that of the last.

    Raises:
        ValueError: an odd number of channels for 'sinusoidal'.
    """

    def __init__(self, kind: str, channels: int, max_frames: int) -> None:
        super().__init__()
        if kind == 'sinusoidal' and channels % 2:
            raise ValueError(f'channels must be even for sines and cosines; got {channels}')
        self.channels = channels
        self.embedding = nn.Embedding(max_frames, channels) if kind == 'absolute' else None

    def forward(self, frame_numbers: Tensor) -> Tensor:
        """Encode int64 ``(B, T)`` numbers of at least 0 as ``(B, T, C)``."""
        if self.embedding is not None:
            return self.embedding(frame_numbers.clamp(0, self.embedding.num_embeddings - 1))
        half = self.channels // 2
        exponents = torch.arange(half, dtype=torch.float64, device=frame_numbers.device) / -half
        angles = frame_numbers.unsqueeze(-1) * WAVELENGTH**exponents
        return torch.cat([angles.sin(), angles.cos()], -1)
