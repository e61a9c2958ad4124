"""Decode head with bilateral criss-cross attention (Bi-CC)."""

from mmseg.models.decode_heads import CCHead, FCNHead

from mmattn.layers import BilateralCrissCrossAttention
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count

from .blocks import take_position_options


@MODELS.register_module()
class BiCCHead(CCHead):
    """mmseg's ``CCHead`` with bilateral criss-cross attention (Bi-CC) in place of criss-cross attention.

    The layers are conv → Bi-CC (``recurrence`` times, shared weights) → conv → classifier, as in chapter 3 of *The
    Attention Mechanism in Vision and Language Analysis* (PhD thesis, University of Technology Sydney, 2021). With
    ``position='none'`` it is the stock head: same ``state_dict`` keys, same output.

    Args:
        recurrence (int): number of passes through the attention layer. Defaults to 2.
        window_size, position, padding, smoothing, max_offset, content_smoothing: see
            :class:`~mmattn.layers.BilateralCrissCrossAttention`.
        **kwargs: as in mmseg's ``FCNHead``, except ``num_convs``, which is 2.

    Example:
        >>> head = BiCCHead(in_channels=16, channels=8, num_classes=3, window_size=5)
        >>> head([torch.randn(2, 16, 6, 9)]).shape
        torch.Size([2, 3, 6, 9])
    """

    def __init__(self, recurrence: int = 2, **kwargs) -> None:
        check_count('recurrence', recurrence)
        options = take_position_options(kwargs)
        FCNHead.__init__(self, num_convs=2, **kwargs)  # CCHead's requires mmcv's compiled operators
        self.recurrence = recurrence
        self.cca = BilateralCrissCrossAttention(self.channels, **options)
