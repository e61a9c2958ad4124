"""The exchangeable block of the heads that fuse feature maps: attention or convolution, named in the config."""

from torch import nn

from mmattn.registry import MODELS


def build_block(
    cfg: dict, in_channels: int, out_channels: int, norm_cfg: dict | None, act_cfg: dict | None
) -> nn.Module:
    """Build a block from its config; ``norm_cfg`` and ``act_cfg`` are those of the head unless ``cfg`` has its own."""
    return MODELS.build(
        dict(dict(norm_cfg=norm_cfg, act_cfg=act_cfg), **cfg, in_channels=in_channels, out_channels=out_channels)
    )
