"""Attention of all voxels to all voxels, Eq. 5.1 of the thesis on attention and fusion of deep representations."""

from torch import Tensor

from mmattn.ops import global_attention
from mmattn.registry import MODELS

from .grid_attention_3d import GridAttention3d
from .multihead_attention_3d import check_maps


@MODELS.register_module()
class DenseAttention3d(GridAttention3d):
    """Multi-head attention in which each voxel attends to all voxels: softmax(QKᵀ)V (Eq. 5.1).

    The sparse layers approximate it. Its memory is linear in the number of voxels, as theirs is, but the products QKᵀ
    and AV each take (THW)²C multiply-accumulates: 137 G for 16×64×64 voxels of 32 channels, against 0.6 G for both in
    :class:`GridAttention3d`. Use it for small clips, or to compare. The relative encodings of t, y and x are
    concatenated, as in :class:`StridedAttention3d`.
    Source: "Attention and Fusion of Deep Representations for Computer Vision", thesis, Guelph, 2020, section 5.3.

    Args:
        embed_dims (int): channels C, a multiple of ``num_heads``.
        num_heads, scale, spatial_position, temporal_position, max_offset, max_frames, clip_offset, wavelength: as in
            :class:`~mmattn.layers.multihead_attention_3d.MultiheadAttention3d`, with the same defaults.

    Example:
        >>> layer = DenseAttention3d(16, num_heads=2)
        >>> clip = torch.randn(1, 3, 8, 8, 16)  # 3 frames of 8×8 voxels with 16 channels
        >>> layer(clip, frame_numbers=torch.tensor([[0, 1, 2]])).shape
        torch.Size([1, 3, 8, 8, 16])
    """

    concatenated = True
    operator = staticmethod(global_attention)

    def operands(self, query: Tensor, key: Tensor | None = None, frame_numbers: Tensor | None = None) -> dict:
        """Compute the arguments of ``global_attention`` from the inputs of ``forward``."""
        key = query if key is None else key
        check_maps(query, key, self.embed_dims)
        operands = self.project(query, key, frame_numbers, frame_numbers)
        if self.relative_position is not None:
            operands |= self.relative_position.axis_bias(operands['query'] * self.scale)
        return operands

    def reach(self, voxels: Tensor) -> Tensor:
        """Mark all voxels if any of ``voxels`` is marked. Both are bool ``(T, H, W)``."""
        return voxels.any().expand_as(voxels)
