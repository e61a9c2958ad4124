"""The configurable fusion block, attention or convolution, of the decode heads that fuse feature maps."""

from inspect import signature

from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import nn

from mmattn.registry import MODELS
from mmattn.utils.component_type import component_class


def build_block(head: BaseDecodeHead, cfg: dict, in_channels: int, out_channels: int) -> nn.Module:
    """Build a block of a head from its config.

    ``norm_cfg``, ``act_cfg`` and, if the block has convolutions (such as ``ConvModule``), ``conv_cfg`` default to those
    of the head.
    """
    kind = component_class(cfg, MODELS)
    defaults = dict(norm_cfg=head.norm_cfg, act_cfg=head.act_cfg)
    if kind is not None and 'conv_cfg' in signature(kind).parameters:
        defaults['conv_cfg'] = head.conv_cfg
    return MODELS.build({**defaults, **cfg} | dict(in_channels=in_channels, out_channels=out_channels))
