"""Strided attention for video (Eq. 5.7 and 5.9 of the chapter on sparse spatiotemporal transformers)."""

from torch import Tensor, nn

from mmattn.ops import strided_attention, strided_offsets
from mmattn.ops.support import as_step, check_pattern
from mmattn.registry import MODELS

from .multihead_attention_3d import MultiheadAttention3d, check_maps, pad_maps, pad_numbers


@MODELS.register_module()
class StridedAttention3d(nn.Module):
    """Two attentions in sequence: to a cube of voxels (I¹), then to those at multiples of the cube's side h (I²).

    Together they connect any two voxels of a video by relays, which have gathered their cube. With 'block' cubes the
    map is padded to whole cubes: padded voxels are no keys of the first attention but gather their cube, and so relay.

    Args:
        embed_dims (int): C, a multiple of ``num_heads``.
        num_heads (int): heads. Defaults to 8.
        step (int or tuple[int, int, int], optional): h, of all axes or (t, y, x). Defaults to ⌈√side⌉ of each axis.
        local_pattern (str): 'block' (aligned cubes), 'centred' (|j − i| < h) or 'forward' (0 ≤ j − i < h, the
            thesis to the letter, which does not connect all voxels). Defaults to 'block'.
        **kwargs: ``scale``, positions and so on, as in
            :class:`~mmattn.layers.multihead_attention_3d.MultiheadAttention3d`; relative encodings are those of t, y
            and x concatenated.

    Raises:
        ValueError: as :class:`~mmattn.layers.multihead_attention_3d.MultiheadAttention3d`; an unknown pattern,
            'strided' among them; a step below 1 or that is no integer.
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
            raise ValueError("local_pattern must be 'block', 'centred' or 'forward'; got 'strided', the second one's")
        if step is not None:
            as_step(step, (1,) * 3, (1,) * 3)
        self.embed_dims = embed_dims
        self.step = step
        self.local_pattern = local_pattern
        self.local_attention, self.strided_attention = (
            MultiheadAttention3d(embed_dims, num_heads, concatenated=True, **kwargs) for _ in range(2)
        )

    def forward(self, query: Tensor, key: Tensor | None = None, frame_numbers: Tensor | None = None) -> Tensor:
        """Attend from each voxel of ``query``, by way of relays, to all of ``key``.

        Args:
            query (Tensor): float ``(B, T, H, W, C)``.
            key (Tensor, optional): float ``(B, T, H, W, C)``, the values, too. Defaults to ``query``, which then is
                what the first attention makes of it in the second.
            frame_numbers (Tensor, optional): int64 ``(B, T)``, numbers of the frames in their clip, from 0 on; needed
                with ``temporal_position`` 'sinusoidal' and 'absolute'.

        Returns:
            Tensor: ``(B, T, H, W, C)``, the sum of what the two attentions find.

        Raises:
            ValueError: other shapes, no numbers where they are needed, or a step that does not fit.
        """
        keys = query if key is None else key
        check_maps(query, keys, self.embed_dims)
        size = query.shape[1:4]
        step = as_step(self.step, size, size)
        padding = [-side % h if self.local_pattern == 'block' else 0 for side, h in zip(size, step)]
        numbers, padded = frame_numbers, pad_numbers(frame_numbers, padding[0])
        found = self._attend(
            self.local_attention, self.local_pattern, pad_maps(query, padding), keys, padded, numbers, step
        )
        relays = pad_maps(keys, padding) + found
        found, own = (x[:, : size[0], : size[1], : size[2]] for x in (found, relays))
        return found + self._attend(
            self.strided_attention, 'strided', own if key is None else query, relays, numbers, padded, step
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
            operands |= layer.relative_position.offset_bias(operands['query'] * layer.scale, offsets)
        return layer.merge(strided_attention(**operands, pattern=pattern, step=step))
