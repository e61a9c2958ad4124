"""The configurable fusion block, attention or convolution, of the decode heads that fuse feature maps."""

from torch import nn

from mmattn.registry import MODELS


def build_block(
    cfg: dict, in_channels: int, out_channels: int, norm_cfg: dict | None, act_cfg: dict | None
) -> nn.Module:
    """Build a block from its config. ``norm_cfg`` and ``act_cfg`` in ``cfg`` override those of the head."""
    return MODELS.build(
        dict(dict(norm_cfg=norm_cfg, act_cfg=act_cfg), **cfg, in_channels=in_channels, out_channels=out_channels)
    )
