"""U-Net-BA: U-Net decoder whose blocks fuse maps by local bilateral attention (BA)."""

from collections.abc import Sequence

import torch
from mmseg.models.utils import resize
from torch import Tensor, nn

from mmattn.registry import MODELS

from .blocks import build_block
from .ignored_batch import IgnoredBatch

# Table 4.5, up-1 to up-4.
CHANNELS = (512, 256, 256, 128)
BLOCKS = (
    dict(type='mmattn.LocalBilateralAttention', num_heads=8, iterations=3, share=True),
    dict(type='mmattn.LocalBilateralAttention', num_heads=8),
    dict(type='mmattn.LocalBilateralAttention', num_heads=4),
    dict(type='mmattn.LocalBilateralAttention', num_heads=4),
)


@MODELS.register_module()
class UNetBAHead(IgnoredBatch):
    """U-Net decode head whose up-blocks are local bilateral attention (BA) by default.

    Each block resizes its input to the size of the next lower-level map, concatenates both (low-level map first), and
    fuses them. A 1×1 convolution computes the logits at the size of the first map. With
    ``block=dict(type='ConvModule', kernel_size=3, padding=1)`` it is the plain U-Net of the comparison. Source: Table
    4.5 of *The Attention Mechanism in Vision and Language Analysis* (PhD thesis, University of Technology Sydney,
    2021).

    Args:
        in_channels (Sequence[int]): channels of the M maps, from the lowest level (res-1, the stem) to the highest.
        up_channels (Sequence[int]): output channels of the M - 1 blocks, from the highest level down. Defaults to Table
            4.5.
        block (dict or Sequence[dict]): config of all blocks, or one config per block from the highest level down, as in
            :class:`~mmattn.segmentation.DeepLabV3PlusBAHead`. Defaults to Table 4.5: BA with 8, 8, 4 and 4 heads, the
            first with T=3 and shared projections.
        in_index (Sequence[int], optional): indices of the backbone's maps to use. Defaults to all, in order.
        **kwargs: as in mmseg's ``BaseDecodeHead``, except ``channels`` and ``input_transform``.

    Example:
        >>> block = dict(type='mmattn.LocalBilateralAttention', num_heads=2)
        >>> head = UNetBAHead(in_channels=(4, 8, 16), up_channels=(8, 4), block=block, num_classes=3)
        >>> head([torch.randn(2, 4, 16, 24), torch.randn(2, 8, 8, 12), torch.randn(2, 16, 4, 6)]).shape
        torch.Size([2, 3, 16, 24])
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        up_channels: Sequence[int] = CHANNELS,
        block: dict | Sequence[dict] = BLOCKS,
        in_index: Sequence[int] | None = None,
        **kwargs,
    ) -> None:
        blocks = [block] * len(up_channels) if isinstance(block, dict) else list(block)
        if len(in_channels) != len(up_channels) + 1:
            raise ValueError(
                f'up_channels must be one shorter than in_channels={tuple(in_channels)}; got {tuple(up_channels)}'
            )
        if len(blocks) != len(up_channels):
            raise ValueError(
                f'block must be one config, or one per entry of up_channels={tuple(up_channels)}; got {len(blocks)}'
            )
        super().__init__(
            in_channels=list(in_channels),
            channels=up_channels[-1],
            in_index=list(range(len(in_channels)) if in_index is None else in_index),
            input_transform='multiple_select',
            **kwargs,
        )
        *lower, channels = in_channels
        self.up_blocks = nn.ModuleList()
        for cfg, low, out in zip(blocks, reversed(lower), up_channels):
            self.up_blocks.append(build_block(self, cfg, low + channels, out))
            channels = out

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Fuse maps ``(B, C, H, W)``. Return logits ``(B, num_classes, H, W)`` at the size of the first map."""
        *lower, x = self._transform_inputs(inputs)
        for up_block, low in zip(self.up_blocks, reversed(lower)):
            x = resize(x, size=low.shape[2:], mode='bilinear', align_corners=self.align_corners)
            x = up_block(torch.cat([low, x], 1))
        return self.cls_seg(x)
