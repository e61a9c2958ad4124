"""Decode head with bilateral criss-cross attention."""

from mmseg.models.decode_heads import CCHead, FCNHead

from mmattn.layers import BilateralCrissCrossAttention
from mmattn.ops.checks import check_count
from mmattn.registry import MODELS


@MODELS.register_module()
class BiCCHead(CCHead):
    """mmseg's ``CCHead`` with bilateral criss-cross attention: conv → Bi-CC, ``recurrence`` times → conv → classes.

    With ``position='none'`` it is the stock head: the same ``state_dict`` keys and the same output.

    Args:
        recurrence (int): passes through the one attention block. Defaults to 2.
        window_size, position, padding, smoothing, max_offset: as in
            :class:`~mmattn.layers.BilateralCrissCrossAttention`.
        **kwargs: as in mmseg's ``FCNHead``.

    Raises:
        TypeError, ValueError: a recurrence that is no integer of at least 1, or as the layer raises.
    """

    def __init__(
        self,
        recurrence: int = 2,
        window_size: int | tuple[int, int] = 31,
        position: str = 'bilateral',
        padding: str = 'learned',
        smoothing: str = 'zscore',
        max_offset: int = 96,
        **kwargs,
    ) -> None:
        check_count('recurrence', recurrence)
        FCNHead.__init__(self, num_convs=2, **kwargs)  # not CCHead's, which wants mmcv's compiled operators
        self.recurrence = recurrence
        self.cca = BilateralCrissCrossAttention(
            self.channels,
            window_size=window_size,
            position=position,
            padding=padding,
            smoothing=smoothing,
            max_offset=max_offset,
        )
