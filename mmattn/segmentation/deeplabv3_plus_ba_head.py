"""Decode head of DeepLabV3+ with one fusion block: local bilateral attention (BA)."""

from mmcv.cnn import ConvModule
from mmseg.models.decode_heads import DepthwiseSeparableASPPHead
from torch import nn

from mmattn.registry import MODELS
from mmattn.utils.checks import check_count

from .blocks import build_block
from .ignored_batch import IgnoredBatch


@MODELS.register_module()
class DeepLabV3PlusBAHead(IgnoredBatch, DepthwiseSeparableASPPHead):
    """mmseg's DeepLabV3+ head with a single fusion block, local bilateral attention (BA) by default.

    The low-level map is projected to ``c1_channels``, concatenated with the resized ASPP map, projected to ``channels``
    (1×1 convolution, norm, ReLU), and passed through ``block`` to the classifier. Stock DeepLabV3+ has two depth-wise
    separable 3×3 convolutions in place of the projection and the block. Source: Table 4.2 of *The Attention Mechanism
    in Vision and Language Analysis* (PhD thesis, University of Technology Sydney, 2021).

    Args:
        block (dict): config of a layer with arguments ``in_channels`` and ``out_channels`` that keeps the map's size.
            ``norm_cfg``, ``act_cfg`` and, for a block of convolutions, ``conv_cfg`` default to the head's.
            ``dict(type='ConvModule', kernel_size=3, padding=1)`` is the table's baseline. Defaults to local bilateral
            attention as in row e.
        c1_channels (int): channels of the projected low-level map, at least 1. The thesis uses 48.
        **kwargs: as in mmseg's ``DepthwiseSeparableASPPHead``.

    Example:
        >>> channels = dict(in_channels=16, channels=8, c1_in_channels=4, c1_channels=2)
        >>> head = DeepLabV3PlusBAHead(**channels, in_index=1, dilations=(1, 2), num_classes=3)
        >>> head([torch.randn(2, 4, 12, 16), torch.randn(2, 16, 3, 4)]).shape
        torch.Size([2, 3, 12, 16])
    """

    def __init__(
        self, block: dict = dict(type='mmattn.LocalBilateralAttention'), *, c1_channels: int, **kwargs
    ) -> None:
        check_count('c1_channels', c1_channels)
        super().__init__(c1_channels=c1_channels, **kwargs)
        cfgs = dict(conv_cfg=self.conv_cfg, norm_cfg=self.norm_cfg, act_cfg=self.act_cfg)
        # The stock name of the decoder's convolutions, so that the stock forward pass applies.
        self.sep_bottleneck = nn.Sequential(
            ConvModule(self.channels + c1_channels, self.channels, 1, **cfgs),
            build_block(self, block, self.channels, self.channels),
        )
