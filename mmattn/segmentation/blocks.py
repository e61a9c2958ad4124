"""Parts of decode heads: configurable fusion blocks, and the options of position-aware attention."""

from inspect import signature

from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import nn

from mmattn.registry import MODELS
from mmattn.utils.component_type import component_class

POSITION_OPTIONS = ('window_size', 'position', 'padding', 'smoothing', 'max_offset', 'content_smoothing')


def take_position_options(kwargs: dict) -> dict:
    """Remove the options of position-aware attention from the arguments of a head, and return them.

    Example:
        >>> kwargs = dict(in_channels=16, window_size=5)
        >>> take_position_options(kwargs), kwargs
        ({'window_size': 5}, {'in_channels': 16})
    """
    return {name: kwargs.pop(name) for name in POSITION_OPTIONS if name in kwargs}


def build_block(head: BaseDecodeHead, cfg: dict, in_channels: int, out_channels: int) -> nn.Module:
    """Build a block whose ``norm_cfg``, ``act_cfg`` and, for convolutions, ``conv_cfg`` default to the head's."""
    kind = component_class(cfg, MODELS)
    defaults = dict(norm_cfg=head.norm_cfg, act_cfg=head.act_cfg)
    if kind is not None and 'conv_cfg' in signature(kind).parameters:
        defaults['conv_cfg'] = head.conv_cfg
    return MODELS.build({**defaults, **cfg} | dict(in_channels=in_channels, out_channels=out_channels))
