"""The decode head of DeepLabV3+ with one fusion block, local bilateral attention."""

from mmcv.cnn import ConvModule
from mmseg.models.decode_heads import DepthwiseSeparableASPPHead
from torch import nn

from mmattn.ops.checks import check_count
from mmattn.registry import MODELS

from .blocks import build_block


@MODELS.register_module()
class DeepLabV3PlusBAHead(DepthwiseSeparableASPPHead):
    """mmseg's DeepLabV3+ head whose decoder is one block, as in Table 4.2 of the bilateral-attention thesis.

    ASPP map, resized to the low-level map, and low-level map → 1×1 + norm + ReLU to ``channels`` → ``block`` → classes.
    Stock DeepLabV3+ has two depth-wise separable 3×3 convolutions in place of the latter two.

    Args:
        block (dict): config of the one block: a layer of ``in_channels`` and ``out_channels`` that keeps the map's
            size; ``norm_cfg`` and ``act_cfg`` are the head's unless given. ``dict(type='ConvModule', kernel_size=3,
            padding=1)`` is the baseline of the table. Defaults to local bilateral attention as in row e.
        c1_channels (int): channels of the projected low-level map, 48 in the thesis's network.
        **kwargs: as in mmseg's ``DepthwiseSeparableASPPHead``.

    Raises:
        TypeError, ValueError: ``c1_channels`` is no integer of at least 1, or as the block raises.
    """

    def __init__(
        self, block: dict = dict(type='mmattn.LocalBilateralAttention'), *, c1_channels: int, **kwargs
    ) -> None:
        check_count('c1_channels', c1_channels)
        super().__init__(c1_channels=c1_channels, **kwargs)
        # Stock's place for the decoder's convolutions, and so stock's forward pass.
        self.sep_bottleneck = nn.Sequential(
            ConvModule(self.channels + c1_channels, self.channels, 1, norm_cfg=self.norm_cfg, act_cfg=self.act_cfg),
            build_block(block, self.channels, self.channels, self.norm_cfg, self.act_cfg),
        )
