"""FCN decode heads with an attention layer between their two convolutions."""

from inspect import Parameter, signature
from typing import Any, ClassVar

import torch
from mmseg.models.decode_heads import FCNHead
from torch import Tensor

from mmattn.registry import MODELS
from mmattn.utils.options import ShownOptions, parameters

from .ignored_batch import IgnoredBatch

SHARED = ('conv_cfg', 'norm_cfg', 'act_cfg')  # of the head, for its layer, too


@MODELS.register_module()
class AttentionHead(ShownOptions, IgnoredBatch, FCNHead):
    """mmseg's ``FCNHead`` with an attention layer between its convolutions, as in CCNet.

    The layers are conv → attention → conv → classifier. A subclass can set ``layer``, the class of its attention, as
    :class:`BiNLHead` does. It then takes the options of this layer among its own. An option that both have is the
    head's. The layer gets the head's ``conv_cfg``, ``norm_cfg`` and ``act_cfg``, if it has them.

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
        options = {name: kwargs.pop(name) for name in self.layer_options() if name in kwargs}
        super().__init__(num_convs=2, **kwargs)
        layer = None
        if (own := self.layer_type()) is not None:
            named = attention or {}
            if others := sorted(named.keys() - parameters(own).keys() | named.keys() & {'in_channels'}):
                raise TypeError(f'attention has the options of {own.__name__}, without in_channels; got {others}')
            shared = {name: getattr(self, name) for name in signature(own).parameters if name in SHARED}
            layer = own(in_channels=self.channels, **{**shared, **named, **options})
        elif attention is not None:
            layer = MODELS.build(dict(attention, in_channels=self.channels))
        setattr(self, self.attribute, layer)

    @classmethod
    def layer_type(cls) -> Any:
        """Return the class ``layer``, if there is one."""
        return getattr(cls, 'layer', None)

    @classmethod
    def layer_options(cls) -> dict[str, Parameter]:
        """List the options of ``layer`` that the head does not have."""
        own, stock = cls.layer_type(), parameters(FCNHead)
        options = {} if own is None else signature(own).parameters
        return {name: x for name, x in options.items() if name not in stock and x.kind != x.VAR_KEYWORD}

    @classmethod
    def passed_on(cls) -> dict[str, Parameter]:
        """List the options of ``layer`` and of the stock head."""
        return cls.layer_options() | parameters(FCNHead)

    def attend(self, x: Tensor) -> Tensor:
        """Apply the layer to the output of the first convolution, ``(B, channels, H, W)``."""
        layer = getattr(self, self.attribute)
        return x if layer is None else layer(x)

    def _forward_feature(self, inputs: list[Tensor]) -> Tensor:
        x = self._transform_inputs(inputs)
        y = self.convs[1](self.attend(self.convs[0](x)))
        return self.conv_cat(torch.cat([x, y], 1)) if self.concat_input else y
