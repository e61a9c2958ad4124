"""Decode head with any attention module of the registry between its two convolutions."""

import torch
from mmseg.models.decode_heads import FCNHead
from torch import Tensor

from mmattn.registry import MODELS


@MODELS.register_module()
class AttentionHead(FCNHead):
    """mmseg's ``FCNHead`` with an attention module: conv → attention → conv → classes, the frame of CCNet.

    Args:
        attention (dict, optional): config of a module of ``in_channels`` that keeps the map's shape; it gets
            ``channels``. Without, it is the stock head of two convolutions.
        **kwargs: as in mmseg's ``FCNHead``, without ``num_convs``.
    """

    def __init__(self, attention: dict | None = None, **kwargs) -> None:
        super().__init__(num_convs=2, **kwargs)
        self.attention = None if attention is None else MODELS.build(dict(attention, in_channels=self.channels))

    def _forward_feature(self, inputs: list[Tensor]) -> Tensor:
        """Return the features before the classes: ``(B, channels, H, W)``."""
        x = self._transform_inputs(inputs)
        y = self.convs[0](x)
        if self.attention is not None:
            y = self.attention(y)
        y = self.convs[1](y)
        return self.conv_cat(torch.cat([x, y], 1)) if self.concat_input else y
