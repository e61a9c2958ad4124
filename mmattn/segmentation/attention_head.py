"""FCN decode heads with an attention layer between their two convolutions."""

from inspect import signature
from typing import Any, ClassVar

import torch
from mmseg.models.decode_heads import FCNHead
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import Tensor

from mmattn.registry import MODELS

from .ignored_batch import IgnoredBatch

STOCK = {*signature(FCNHead).parameters, *signature(BaseDecodeHead).parameters}
SHARED = ('conv_cfg', 'norm_cfg', 'act_cfg')  # of the head, for its layer, too


@MODELS.register_module()
class AttentionHead(IgnoredBatch, FCNHead):
    """mmseg's ``FCNHead`` with an attention layer between its convolutions, as in CCNet.

    The layers are conv → attention → conv → classifier. A subclass can set ``layer``, the class of its attention, as
    :class:`BiNLHead` does. Options that the stock head does not have are then options of this layer. The layer gets the
    head's ``conv_cfg``, ``norm_cfg`` and ``act_cfg``, if it has them.

    Args:
        attention (dict, optional): config of a layer that maps ``(B, channels, H, W)`` to the same shape, or with
            ``layer``, options of it. The head sets its ``in_channels=channels``. Defaults to None, the stock head with
            two convolutions, or with ``layer``, no further options.
        num_convs (int): must be 2, the default.
        **kwargs: as in mmseg's ``FCNHead``, and options of ``layer``.

    Example:
        >>> attention = dict(type='mmattn.BilateralNonLocal2d', window_size=3)
        >>> head = AttentionHead(attention, in_channels=8, channels=4, num_classes=3)
        >>> head([torch.randn(2, 8, 6, 9)]).shape
        torch.Size([2, 3, 6, 9])
        >>> class TransformerHead(AttentionHead):
        ...     layer = MODELS.get('mmattn.TransformerAttention2d')
        >>> TransformerHead(in_channels=8, channels=4, num_classes=3, num_heads=2).attention.num_heads
        2
    """

    layer: ClassVar[Any]  # not set here: a subclass may have a module of this name
    attribute = 'attention'  # the layer's, and so the prefix of its weights in a checkpoint

    def __init__(self, attention: dict | None = None, num_convs: int = 2, **kwargs: Any) -> None:
        if num_convs != 2:
            raise ValueError(f'num_convs must be 2, around the attention; got {num_convs}')
        kind = getattr(type(self), 'layer', None)
        options = {} if kind is None else {name: kwargs.pop(name) for name in [*kwargs] if name not in STOCK}
        super().__init__(num_convs=2, **kwargs)
        layer = None
        if kind is not None:
            shared = {name: getattr(self, name) for name in signature(kind).parameters if name in SHARED}
            layer = kind(in_channels=self.channels, **{**shared, **(attention or {}), **options})
        elif attention is not None:
            layer = MODELS.build(dict(attention, in_channels=self.channels))
        setattr(self, self.attribute, layer)

    def attend(self, x: Tensor) -> Tensor:
        """Apply the layer to the output of the first convolution, ``(B, channels, H, W)``."""
        layer = getattr(self, self.attribute)
        return x if layer is None else layer(x)

    def _forward_feature(self, inputs: list[Tensor]) -> Tensor:
        x = self._transform_inputs(inputs)
        y = self.convs[1](self.attend(self.convs[0](x)))
        return self.conv_cat(torch.cat([x, y], 1)) if self.concat_input else y
