"""Encodings of absolute frame numbers for attention between voxels (Table 5.3)."""

import torch
from torch import Tensor, nn

TEMPORAL_POSITIONS = ('sinusoidal', 'absolute', 'relative', 'none')
WAVELENGTH = 10000


class TemporalEncoding(nn.Module):
    """A vector for each frame number: its sines and cosines, or a learned embedding.

    Args:
        kind (str): 'sinusoidal' (*T Sinusoidal*) or 'absolute' (*T Embedding*).
        channels (int): C, even for 'sinusoidal'.
        max_frames (int): number of learned embeddings; higher frame numbers use the last one.

    Raises:
        ValueError: ``channels`` is odd with 'sinusoidal'.
    """

    def __init__(self, kind: str, channels: int, max_frames: int) -> None:
        super().__init__()
        if kind == 'sinusoidal' and channels % 2:
            raise ValueError(f'channels must be even for sines and cosines; got {channels}')
        self.channels = channels
        self.embedding = nn.Embedding(max_frames, channels) if kind == 'absolute' else None

    def forward(self, frame_numbers: Tensor) -> Tensor:
        """Encode int64 frame numbers ``(B, T)``, at least 0, as float ``(B, T, C)``."""
        if self.embedding is not None:
            return self.embedding(frame_numbers.clamp(0, self.embedding.num_embeddings - 1))
        half = self.channels // 2
        exponents = torch.arange(half, dtype=torch.float64, device=frame_numbers.device) / -half
        angles = frame_numbers.unsqueeze(-1) * WAVELENGTH**exponents
        return torch.cat([angles.sin(), angles.cos()], -1)
