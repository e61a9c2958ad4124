"""FCN decode head with a configurable attention module between its two convolutions."""

import torch
from mmseg.models.decode_heads import FCNHead
from torch import Tensor

from mmattn.registry import MODELS

from .ignored_batch import IgnoredBatch


@MODELS.register_module()
class AttentionHead(IgnoredBatch, FCNHead):
    """mmseg's ``FCNHead`` with an attention module between its convolutions, as in CCNet.

    The layers are conv → attention → conv → classifier.

    Args:
        attention (dict, optional): config of a module that maps ``(B, channels, H, W)`` to the same shape. The head
            sets its ``in_channels=channels``. Defaults to None, the stock head with two convolutions.
        num_convs (int): must be 2, the default.
        **kwargs: as in mmseg's ``FCNHead``.

    Example:
        >>> attention = dict(type='mmattn.BilateralNonLocal2d', window_size=3)
        >>> head = AttentionHead(attention, in_channels=8, channels=4, num_classes=3)
        >>> head([torch.randn(2, 8, 6, 9)]).shape
        torch.Size([2, 3, 6, 9])
    """

    def __init__(self, attention: dict | None = None, num_convs: int = 2, **kwargs) -> None:
        if num_convs != 2:
            raise ValueError(f'num_convs must be 2, around the attention; got {num_convs}')
        super().__init__(num_convs=2, **kwargs)
        self.attention = None if attention is None else MODELS.build(dict(attention, in_channels=self.channels))

    def _forward_feature(self, inputs: list[Tensor]) -> Tensor:
        x = self._transform_inputs(inputs)
        y = self.convs[0](x)
        if self.attention is not None:
            y = self.attention(y)
        y = self.convs[1](y)
        return self.conv_cat(torch.cat([x, y], 1)) if self.concat_input else y
