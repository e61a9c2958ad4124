"""Configurable fusion blocks of decode heads."""

from inspect import signature

from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import nn

from mmattn.registry import MODELS
from mmattn.utils.component_type import component_class


def build_block(head: BaseDecodeHead, cfg: dict, in_channels: int, out_channels: int) -> nn.Module:
    """Build a block whose ``norm_cfg``, ``act_cfg`` and, for convolutions, ``conv_cfg`` default to the head's."""
    kind = component_class(cfg, MODELS)
    defaults = dict(norm_cfg=head.norm_cfg, act_cfg=head.act_cfg)
    if kind is not None and 'conv_cfg' in signature(kind).parameters:
        defaults['conv_cfg'] = head.conv_cfg
    return MODELS.build({**defaults, **cfg} | dict(in_channels=in_channels, out_channels=out_channels))
