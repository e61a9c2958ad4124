"""Decode head with bilateral criss-cross attention (Bi-CC)."""

from typing import Any

from torch import Tensor

from mmattn.layers import BilateralCrissCrossAttention
from mmattn.layers.channels_last import compute_channels_last
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count

from .attention_head import AttentionHead


@MODELS.register_module()
class BiCCHead(AttentionHead):
    """mmseg's ``CCHead`` with bilateral criss-cross attention (Bi-CC) in place of criss-cross attention.

    The layers are conv → Bi-CC (``recurrence`` times, shared weights) → conv → classifier, as in chapter 3 of *The
    Attention Mechanism in Vision and Language Analysis* (PhD thesis, University of Technology Sydney, 2021). With
    ``position='none'`` it is the stock head: same ``state_dict`` keys, same output.

    Args:
        recurrence (int): number of passes through the attention layer. Defaults to 2.
        **kwargs: as in mmseg's ``FCNHead``, except ``num_convs``, which is 2, and options of
            :class:`~mmattn.layers.BilateralCrissCrossAttention`, such as ``window_size``.

    Example:
        >>> head = BiCCHead(in_channels=16, channels=8, num_classes=3, window_size=5)
        >>> head([torch.randn(2, 16, 6, 9)]).shape
        torch.Size([2, 3, 6, 9])
    """

    layer = BilateralCrissCrossAttention
    attribute = 'cca'

    def __init__(self, recurrence: int = 2, **kwargs: Any) -> None:
        check_count('recurrence', recurrence)
        super().__init__(**kwargs)
        self.recurrence = recurrence

    def attend(self, x: Tensor) -> Tensor:
        """Apply the layer ``recurrence`` times."""
        return compute_channels_last(self._recur, x)

    def _recur(self, x: Tensor) -> Tensor:
        for _ in range(self.recurrence):
            x = self.cca(x)
        return x
