"""FCN decode head with a configurable attention module between its two convolutions, and what such heads share."""

import torch
from mmseg.models.decode_heads import FCNHead
from torch import Tensor

from mmattn.registry import MODELS


class TwoConvHead(FCNHead):
    """mmseg's ``FCNHead`` with two convolutions, whose subclasses attend between them."""

    def attend(self, x: Tensor) -> Tensor:
        """Map ``(B, channels, H, W)`` to the same shape."""
        raise NotImplementedError

    def _forward_feature(self, inputs: list[Tensor]) -> Tensor:
        x = self._transform_inputs(inputs)
        y = self.convs[1](self.attend(self.convs[0](x)))
        return self.conv_cat(torch.cat([x, y], 1)) if self.concat_input else y


@MODELS.register_module()
class AttentionHead(TwoConvHead):
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

    def attend(self, x: Tensor) -> Tensor:
        """Apply the attention module, if there is one, to ``(B, channels, H, W)``."""
        return x if self.attention is None else self.attention(x)
