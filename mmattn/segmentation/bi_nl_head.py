"""Decode head with bilateral non-local attention (Bi-NL)."""

import torch
from mmseg.models.decode_heads import FCNHead
from torch import Tensor

from mmattn.layers import BilateralNonLocal2d
from mmattn.registry import MODELS

from .ignored_batch import IgnoredBatch


@MODELS.register_module()
class BiNLHead(IgnoredBatch, FCNHead):
    """mmseg's ``NLHead`` with bilateral non-local attention (Bi-NL) in place of the non-local block.

    The layers are conv → Bi-NL → conv → classifier, as in chapter 3 of *The Attention Mechanism in Vision and Language
    Analysis* (PhD thesis, University of Technology Sydney, 2021). With ``position='none'`` it is the stock head: same
    ``state_dict`` keys, same output.

    Args:
        reduction, use_scale, mode: as in mmseg's ``NLHead``.
        window_size, position, padding, smoothing, max_offset, content_smoothing, zero_init: as in
            :class:`~mmattn.layers.BilateralNonLocal2d`.
        **kwargs: as in mmseg's ``FCNHead``, except ``num_convs``, which is 2.

    Example:
        >>> head = BiNLHead(in_channels=16, channels=8, num_classes=3, window_size=5)
        >>> head([torch.randn(2, 16, 6, 9)]).shape
        torch.Size([2, 3, 6, 9])
    """

    def __init__(
        self,
        reduction: int = 2,
        use_scale: bool = True,
        mode: str = 'embedded_gaussian',
        window_size: int | tuple[int, int] = 31,
        position: str = 'bilateral',
        padding: str = 'learned',
        smoothing: str | float = 'zscore',
        max_offset: int = 96,
        content_smoothing: float | None = None,
        zero_init: bool = False,
        **kwargs,
    ) -> None:
        super().__init__(num_convs=2, **kwargs)
        self.nl_block = BilateralNonLocal2d(
            self.channels,
            reduction=reduction,
            conv_cfg=self.conv_cfg,
            norm_cfg=self.norm_cfg,
            mode=mode,
            use_scale=use_scale,
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
        y = self.convs[1](self.nl_block(self.convs[0](x)))
        if self.concat_input:
            y = self.conv_cat(torch.cat([x, y], 1))
        return self.cls_seg(y)
