"""Blocks of question (e) of docs/evidence_protocol.md, for ``tools/reproduce.py --variant``, and for score_faces.py."""

import torch
from mmcv.cnn import ConvModule
from torch import nn

from mmattn.layers import LocalBilateralAttention
from mmattn.registry import MODELS


class ChannelsLastMean(nn.AvgPool2d):
    """The mean in the layout in which it takes a fifth of the time on a CPU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Average the 3×3 neighbours in a map ``(B, C, H, W)``."""
        return super().forward(x.contiguous(memory_format=torch.channels_last))


@MODELS.register_module()
class MeanBlock(nn.Sequential):
    """BA with equal weights: value projection, mean of the 3×3 neighbours inside the map, output projection.

    Args:
        in_channels (int): channels of the map.
        out_channels (int): channels of the output.
        norm_cfg (dict): norm after each projection.
        act_cfg (dict): activation of the output.
    """

    def __init__(self, in_channels: int, out_channels: int, norm_cfg: dict, act_cfg: dict) -> None:
        super().__init__(
            ConvModule(in_channels, out_channels, 1, norm_cfg=norm_cfg, act_cfg=None),
            ChannelsLastMean(3, 1, 1, count_include_pad=False),
            ConvModule(out_channels, out_channels, 1, norm_cfg=norm_cfg, act_cfg=act_cfg),
        )


@MODELS.register_module()
class SmallStartAttention(LocalBilateralAttention):
    """BA without 1/√d whose content logits start as small as with it: the query's norm starts with the weight d^−½."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs, scale=1.0)
        self._shrink()

    def init_weights(self) -> None:
        """Reset every parameter, and shrink the query again."""
        super().init_weights()
        self._shrink()

    def _shrink(self) -> None:
        d = self.out_channels // self.num_heads
        with torch.no_grad():
            self.projection.norm.weight[: self.out_channels] *= d**-0.5
