"""Decode head with bilateral criss-cross attention (Bi-CC)."""

from torch import Tensor

from mmattn.layers import BilateralCrissCrossAttention
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count

from .attention_head import TwoConvHead


@MODELS.register_module()
class BiCCHead(TwoConvHead):
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

    def attend(self, x: Tensor) -> Tensor:
        """Apply Bi-CC ``recurrence`` times to ``(B, channels, H, W)``."""
        for _ in range(self.recurrence):
            x = self.cca(x)
        return x
