"""Strided attention for video, Eq. 5.7 and 5.9 of the thesis on attention and fusion of deep representations."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from mmattn.ops import attention_rows, strided_attention
from mmattn.ops.patterns import as_step, offset_ranges, strided_support
from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice

from .multihead_attention_3d import EncodingOptions, MultiheadAttention3d, check_maps, pad_maps, pad_numbers


class _Attention(MultiheadAttention3d):
    concatenated = True


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
        **options: ``scale``, ``spatial_position``, ``temporal_position``, ``max_offset``, ``max_frames``,
            ``clip_offset`` and ``wavelength`` as in
            :class:`~mmattn.layers.multihead_attention_3d.MultiheadAttention3d`. The relative encodings of t, y and x
            are concatenated.

    Example:
        >>> layer = StridedAttention3d(16, num_heads=2, step=(2, 4, 4))
        >>> clip = torch.randn(1, 3, 8, 8, 16)  # 3 frames of 8×8 voxels with 16 channels
        >>> layer(clip, frame_numbers=torch.tensor([[0, 1, 2]])).shape
        torch.Size([1, 3, 8, 8, 16])
    """

    attention_kinds = ('local', 'strided')  # of ``attention_weights``

    def __init__(
        self,
        embed_dims: int,
        num_heads: int = 8,
        step: int | tuple[int, int, int] | None = None,
        local_pattern: str = 'block',
        **options: Unpack[EncodingOptions],
    ) -> None:
        super().__init__()
        check_choice('local_pattern', local_pattern, ('block', 'centred', 'forward'))
        if step is not None:
            as_step(step, (1,) * 3, (1,) * 3)
        self.embed_dims = embed_dims
        self.step = step
        self.local_pattern = local_pattern
        self.local_attention, self.strided_attention = (_Attention(embed_dims, num_heads, **options) for _ in range(2))

    def forward(self, query: Tensor, key: Tensor | None = None, frame_numbers: Tensor | None = None) -> Tensor:
        """Attend from each voxel of ``query``, in two steps, to all voxels of ``key``.

        Takes the arguments of :meth:`~mmattn.layers.GridAttention3d.forward`. Returns the sum of the outputs of both
        attentions, ``(B, T, H, W, C)``. In self-attention (``key`` is None), ``query`` provides keys and values, and
        its sum with the output of the first attention is the query of the second attention.
        """
        operands, gathered = self._strided_operands(query, key, frame_numbers)
        return gathered + self.strided_attention.merge(strided_attention(**operands))

    @torch.no_grad()
    def attention_weights(
        self,
        query: Tensor,
        key: Tensor | None = None,
        frame_numbers: Tensor | None = None,
        *,
        queries: Tensor,
        kind: str = 'strided',
    ) -> Tensor:
        """Compute the weights of one of the two attentions for selected queries over all keys.

        Args:
            query, key, frame_numbers: as in ``forward``.
            queries (Tensor): int64 ``(Q, 3)``, frame, row and column of each query.
            kind (str): 'local', the first attention, or 'strided', the second, whose keys are relays: they have
                gathered the values of their neighbours in the first. Defaults to 'strided'.

        Returns:
            Tensor: ``(B, heads, Q, T, H, W)``. Each row sums to 1. With 'strided' and the pattern 'block', the map of
            relays is padded to whole cubes at the end of T, H and W.
        """
        if kind not in self.attention_kinds:
            raise ValueError(f'kind must be one of {self.attention_kinds} in this {type(self).__name__}; got {kind!r}')
        if kind == 'local':
            operands = self._local_operands(query, query if key is None else key, frame_numbers)
        else:
            operands, _ = self._strided_operands(query, key, frame_numbers)
        return attention_rows(strided_attention, **operands, queries=queries)

    def reach(self, voxels: Tensor) -> Tensor:
        """Mark the voxels from which this layer brings information to one of ``voxels``. Both are bool ``(T, H, W)``.

        Example:
            >>> voxels = torch.zeros(1, 3, 4, dtype=torch.bool)
            >>> voxels[0, 0, 1] = True
            >>> StridedAttention3d(16, num_heads=2, step=2, local_pattern='forward').reach(voxels).int()
            tensor([[[0, 1, 1, 1],
                     [0, 1, 1, 1],
                     [0, 1, 1, 1]]], dtype=torch.int32)
        """
        size = voxels.shape
        step, padding = self._step(size)
        relays = _keys(voxels, step, 'strided', [side + pad for side, pad in zip(size, padding)])
        return _keys(relays, step, self.local_pattern, size)

    def _step(self, size: Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
        step = as_step(self.step, size, size)
        return step, [-side % h if self.local_pattern == 'block' else 0 for side, h in zip(size, step)]

    def _local_operands(self, query: Tensor, keys: Tensor, frame_numbers: Tensor | None) -> dict:
        check_maps(query, keys, self.embed_dims)
        step, padding = self._step(query.shape[1:4])
        padded = pad_maps(query, padding), keys, pad_numbers(frame_numbers, padding[0]), frame_numbers
        return self._operands(self.local_attention, self.local_pattern, *padded, step)

    def _strided_operands(self, query: Tensor, key: Tensor | None, frame_numbers: Tensor | None) -> tuple[dict, Tensor]:
        """Compute the arguments of the second attention, and the output of the first, ``(B, T, H, W, C)``."""
        keys = query if key is None else key
        gathered = self.local_attention.merge(strided_attention(**self._local_operands(query, keys, frame_numbers)))
        size = query.shape[1:4]
        step, padding = self._step(size)
        relays = pad_maps(keys, padding) + gathered
        gathered, cropped = (x[:, : size[0], : size[1], : size[2]] for x in (gathered, relays))
        numbers = frame_numbers, pad_numbers(frame_numbers, padding[0])
        query = cropped if key is None else query
        return self._operands(self.strided_attention, 'strided', query, relays, *numbers, step), gathered

    @staticmethod
    def _operands(
        layer: MultiheadAttention3d,
        pattern: str,
        query: Tensor,
        key: Tensor,
        frame_numbers: Tensor | None,
        key_frame_numbers: Tensor | None,
        step: tuple[int, ...],
    ) -> dict:
        operands = layer.project(query, key, frame_numbers, key_frame_numbers)
        if layer.relative_position is not None:
            offsets = offset_ranges(query.shape[1:4], step, pattern, key.shape[1:4])
            steps = step if pattern == 'strided' else (1,) * 3
            operands |= layer.relative_position.offset_bias(operands['query'] * layer.scale, offsets, steps)
        return dict(operands, pattern=pattern, step=step)


def _keys(voxels: Tensor, step: tuple[int, ...], pattern: str, key_size: Sequence[int]) -> Tensor:
    """Mark the keys of all marked queries, bool ``key_size``."""
    keys = voxels.new_zeros(*key_size)
    for queries in voxels.nonzero().split(256):  # bounds the memory
        keys |= strided_support(voxels.shape, step, pattern, queries, key_size).any(0)
    return keys
