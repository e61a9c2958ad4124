"""Strided attention for video, Eq. 5.7 and 5.9 of the thesis on attention and fusion of deep representations."""

from torch import Tensor, nn

from mmattn.ops import strided_attention, strided_offsets
from mmattn.ops.support import as_step, check_pattern
from mmattn.registry import MODELS

from .multihead_attention_3d import MultiheadAttention3d, check_maps, pad_maps, pad_numbers


@MODELS.register_module()
class StridedAttention3d(nn.Module):
    """Two multi-head attentions in sequence: within a cube of voxels (I¹), then to voxels at multiples of a step (I²).

    The side of the cube is the step h. The keys of the second attention have gathered the values of their cubes in the
    first, so both together connect any two voxels of a video (Eq. 5.7). With 'block', the map is padded to whole cubes:
    padded voxels are queries of the first attention and keys of the second, but not keys of the first.
    Source: "Attention and Fusion of Deep Representations for Computer Vision", thesis, Guelph, 2020, chapter 5.

    Args:
        embed_dims (int): channels C, a multiple of ``num_heads``.
        num_heads (int): number of heads. Defaults to 8.
        step (int or tuple[int, int, int], optional): h ≥ 1, for all axes or for (t, y, x). Defaults to ⌈√side⌉ of each
            axis of the map, so that larger maps than in training have larger steps. Set it to keep the trained steps.
        local_pattern (str): 'block' (aligned cubes), 'centred' (|j − i| < h) or 'forward' (0 ≤ j − i < h, literally as
            in the thesis, which does not connect all voxels). Defaults to 'block'.
        **kwargs: ``scale``, ``spatial_position``, ``temporal_position``, ``max_offset``, ``max_frames`` and
            ``clip_offset`` as in
            :class:`~mmattn.layers.multihead_attention_3d.MultiheadAttention3d`. The relative encodings of t, y and x
            are concatenated.

    Example:
        >>> layer = StridedAttention3d(16, num_heads=2, step=(2, 4, 4))
        >>> clip = torch.randn(1, 3, 8, 8, 16)  # 3 frames of 8×8 voxels with 16 channels
        >>> layer(clip, frame_numbers=torch.tensor([[0, 1, 2]])).shape
        torch.Size([1, 3, 8, 8, 16])
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int = 8,
        step: int | tuple[int, int, int] | None = None,
        local_pattern: str = 'block',
        **kwargs,
    ) -> None:
        super().__init__()
        check_pattern(local_pattern)
        if local_pattern == 'strided':
            raise ValueError("local_pattern must be 'block', 'centred' or 'forward'; got 'strided'")
        if step is not None:
            as_step(step, (1,) * 3, (1,) * 3)
        self.embed_dims = embed_dims
        self.step = step
        self.local_pattern = local_pattern
        self.local_attention, self.strided_attention = (
            MultiheadAttention3d(embed_dims, num_heads, concatenated=True, **kwargs) for _ in range(2)
        )

    def forward(self, query: Tensor, key: Tensor | None = None, frame_numbers: Tensor | None = None) -> Tensor:
        """Attend from each voxel of ``query``, in two steps, to all voxels of ``key``.

        Takes the arguments of :meth:`~mmattn.layers.GridAttention3d.forward`. Returns the sum of the outputs of both
        attentions, ``(B, T, H, W, C)``. In self-attention (``key`` is None), ``query`` provides keys and values, and
        its sum with the output of the first attention is the query of the second attention.
        """
        keys = query if key is None else key
        check_maps(query, keys, self.embed_dims)
        size = query.shape[1:4]
        step = as_step(self.step, size, size)
        padding = [-side % h if self.local_pattern == 'block' else 0 for side, h in zip(size, step)]
        numbers, padded = frame_numbers, pad_numbers(frame_numbers, padding[0])
        gathered = self._attend(
            self.local_attention, self.local_pattern, pad_maps(query, padding), keys, padded, numbers, step
        )
        relays = pad_maps(keys, padding) + gathered
        gathered, cropped = (x[:, : size[0], : size[1], : size[2]] for x in (gathered, relays))
        return gathered + self._attend(
            self.strided_attention, 'strided', cropped if key is None else query, relays, numbers, padded, step
        )

    @staticmethod
    def _attend(
        layer: MultiheadAttention3d,
        pattern: str,
        query: Tensor,
        key: Tensor,
        frame_numbers: Tensor | None,
        key_frame_numbers: Tensor | None,
        step: tuple[int, ...],
    ) -> Tensor:
        operands = layer.project(query, key, frame_numbers, key_frame_numbers)
        if layer.relative_position is not None:
            offsets = strided_offsets(query.shape[1:4], step, pattern, key.shape[1:4])
            steps = step if pattern == 'strided' else (1,) * 3
            operands |= layer.relative_position.offset_bias(operands['query'] * layer.scale, offsets, steps)
        return layer.merge(strided_attention(**operands, pattern=pattern, step=step))
