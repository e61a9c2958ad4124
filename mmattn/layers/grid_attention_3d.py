"""Grid attention for video (Eq. 5.2 to 5.5 of the chapter on sparse spatiotemporal transformers)."""

from torch import Tensor

from mmattn.ops import grid_attention
from mmattn.registry import MODELS

from .multihead_attention_3d import MultiheadAttention3d, check_maps


@MODELS.register_module()
class GridAttention3d(MultiheadAttention3d):
    """Every voxel attends to those on the three axes through it: T + H + W − 2 keys.

    Three layers connect any two voxels of a video. Arguments and errors are those of
    :class:`~mmattn.layers.multihead_attention_3d.MultiheadAttention3d`, without ``concatenated``: relative encodings
    are those of the axis on which the key lies, and of x for the voxel itself.
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
    ) -> None:
        super().__init__(embed_dims, num_heads, scale, spatial_position, temporal_position, max_offset, max_frames)

    def forward(self, query: Tensor, key: Tensor | None = None, frame_numbers: Tensor | None = None) -> Tensor:
        """Attend from each voxel of ``query`` to the axes through it in ``key``.

        Args:
            query (Tensor): float ``(B, T, H, W, C)``.
            key (Tensor, optional): float ``(B, T, H, W, C)``, the values, too. Defaults to ``query``.
            frame_numbers (Tensor, optional): int64 ``(B, T)``, numbers of the frames in their clip, from 0 on; needed
                with ``temporal_position`` 'sinusoidal' and 'absolute'.

        Returns:
            Tensor: ``(B, T, H, W, C)``.

        Raises:
            ValueError: other shapes, or no numbers where they are needed.
        """
        key = query if key is None else key
        check_maps(query, key, self.embed_dims)
        operands = self.project(query, key, frame_numbers, frame_numbers)
        if self.relative_position is not None:
            operands |= self.relative_position.arm_bias(operands['query'] * self.scale)
        return self.merge(grid_attention(**operands))
