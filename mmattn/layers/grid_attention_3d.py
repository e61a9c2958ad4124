"""Grid attention for video, Eq. 5.2 to 5.5 of the thesis on attention and fusion of deep representations."""

from torch import Tensor

from mmattn.ops import grid_attention
from mmattn.registry import MODELS

from .attention_weights import KINDS, AttentionWeights
from .multihead_attention_3d import MultiheadAttention3d, check_maps


@MODELS.register_module()
class GridAttention3d(AttentionWeights, MultiheadAttention3d):
    """Multi-head attention in which each voxel attends to the voxels on the three axes through it.

    A query has T + H + W − 2 keys. Three layers connect any two voxels of a video (Eq. 5.2 to 5.5). The relative
    encoding of a key belongs to the axis on which the key lies. The voxel itself uses the encoding of the x axis.
    Source: "Attention and Fusion of Deep Representations for Computer Vision", thesis, Guelph, 2020, chapter 5.

    Args:
        embed_dims (int): channels C, a multiple of ``num_heads``.
        num_heads, scale, spatial_position, temporal_position, max_offset, max_frames, clip_offset, wavelength: as in
            :class:`~mmattn.layers.multihead_attention_3d.MultiheadAttention3d`, with the same defaults.

    Example:
        >>> layer = GridAttention3d(16, num_heads=2)
        >>> clip = torch.randn(1, 3, 8, 8, 16)  # 3 frames of 8×8 voxels with 16 channels
        >>> layer(clip, frame_numbers=torch.tensor([[0, 1, 2]])).shape
        torch.Size([1, 3, 8, 8, 16])
    """

    operator = staticmethod(grid_attention)

    def forward(self, query: Tensor, key: Tensor | None = None, frame_numbers: Tensor | None = None) -> Tensor:
        """Attend from each voxel of ``query`` to voxels of ``key``: in grid attention, to those on the axes through it.

        Args:
            query (Tensor): float ``(B, T, H, W, C)``. The output has the same shape.
            key (Tensor, optional): float ``(B, T, H, W, C)``, keys and values. Defaults to ``query``.
            frame_numbers (Tensor, optional): int64 ``(B, T)``, index of each frame in its clip, at least 0. Required if
                ``temporal_position`` is 'sinusoidal' or 'absolute'.
        """
        return self.merge(self.operator(**self.operands(query, key, frame_numbers)))

    def operands(self, query: Tensor, key: Tensor | None = None, frame_numbers: Tensor | None = None) -> dict:
        """Compute the arguments of ``grid_attention`` from the inputs of ``forward``."""
        key = query if key is None else key
        check_maps(query, key, self.embed_dims)
        operands = self.project(query, key, frame_numbers, frame_numbers)
        if self.relative_position is not None:
            operands |= self.relative_position.arm_bias(operands['query'] * self.scale)
        return operands

    @property
    def attention_kinds(self) -> tuple[str, ...]:
        """The kinds of ``attention_weights``. Absolute encodings of time are content, relative encodings position."""
        return KINDS[:1] if self.relative_position is None else KINDS

    def reach(self, voxels: Tensor) -> Tensor:
        """Mark the voxels from which this layer brings information to one of ``voxels``. Both are bool ``(T, H, W)``.

        Example:
            >>> voxels = torch.zeros(1, 3, 4, dtype=torch.bool)
            >>> voxels[0, 0, 1] = True
            >>> GridAttention3d(16, num_heads=2).reach(voxels).int()
            tensor([[[1, 1, 1, 1],
                     [0, 1, 0, 0],
                     [0, 1, 0, 0]]], dtype=torch.int32)
        """
        return voxels.any(0, keepdim=True) | voxels.any(1, keepdim=True) | voxels.any(2, keepdim=True)
