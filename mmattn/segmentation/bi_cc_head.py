"""Decode head with bilateral criss-cross attention (Bi-CC)."""

import torch
from mmseg.models.decode_heads import FCNHead
from torch import Tensor

from mmattn.layers import BilateralCrissCrossAttention
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count

from .ignored_batch import IgnoredBatch


@MODELS.register_module()
class BiCCHead(IgnoredBatch, FCNHead):
    """mmseg's ``CCHead`` with bilateral criss-cross attention (Bi-CC) in place of criss-cross attention.

    The layers are conv → Bi-CC (``recurrence`` times, shared weights) → conv → classifier, as in chapter 3 of *The
    Attention Mechanism in Vision and Language Analysis* (PhD thesis, University of Technology Sydney, 2021). With
    ``position='none'`` it is the stock head: same ``state_dict`` keys, same output.

    Args:
        recurrence (int): number of passes through the attention layer. Defaults to 2.
        window_size, position, padding, smoothing, max_offset, content_smoothing, zero_init: see
            :class:`~mmattn.layers.BilateralCrissCrossAttention`.
        **kwargs: as in mmseg's ``FCNHead``, except ``num_convs``, which is 2.

    Example:
        >>> head = BiCCHead(in_channels=16, channels=8, num_classes=3, window_size=5)
        >>> head([torch.randn(2, 16, 6, 9)]).shape
        torch.Size([2, 3, 6, 9])
    """

    def __init__(
        self,
        recurrence: int = 2,
        window_size: int | tuple[int, int] = 31,
        position: str = 'bilateral',
        padding: str = 'learned',
        smoothing: str | float = 'zscore',
        max_offset: int = 96,
        content_smoothing: float | None = None,
        zero_init: bool = False,
        **kwargs,
    ) -> None:
        check_count('recurrence', recurrence)
        super().__init__(num_convs=2, **kwargs)
        self.recurrence = recurrence
        self.cca = BilateralCrissCrossAttention(
            self.channels,
            window_size=window_size,
            position=position,
            padding=padding,
            smoothing=smoothing,
            max_offset=max_offset,
            content_smoothing=content_smoothing,
            zero_init=zero_init,
        )

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Compute the logits ``(B, classes, H, W)`` of the backbone's maps, of which ``in_index`` selects one."""
        x = self._transform_inputs(inputs)
        y = self.convs[0](x)
        for _ in range(self.recurrence):
            y = self.cca(y)
        y = self.convs[1](y)
        if self.concat_input:
            y = self.conv_cat(torch.cat([x, y], 1))
        return self.cls_seg(y)
