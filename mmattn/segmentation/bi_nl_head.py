"""Decode head with bilateral non-local attention (Bi-NL)."""

from mmseg.models.decode_heads import FCNHead, NLHead

from mmattn.layers import BilateralNonLocal2d
from mmattn.registry import MODELS

from .blocks import take_position_options


@MODELS.register_module()
class BiNLHead(NLHead):
    """mmseg's ``NLHead`` with bilateral non-local attention (Bi-NL) in place of the non-local block.

    The layers are conv → Bi-NL → conv → classifier, as in chapter 3 of *The Attention Mechanism in Vision and Language
    Analysis* (PhD thesis, University of Technology Sydney, 2021). With ``position='none'`` it is the stock head: same
    ``state_dict`` keys, same output.

    Args:
        reduction, use_scale, mode: as in mmseg's ``NLHead``.
        window_size, position, padding, smoothing, max_offset, content_smoothing: as in
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
        **kwargs,
    ) -> None:
        options = take_position_options(kwargs)
        FCNHead.__init__(self, num_convs=2, **kwargs)  # NLHead's builds the stock block
        self.reduction = reduction
        self.use_scale = use_scale
        self.mode = mode
        self.nl_block = BilateralNonLocal2d(
            self.channels,
            reduction=reduction,
            conv_cfg=self.conv_cfg,
            norm_cfg=self.norm_cfg,
            mode=mode,
            use_scale=use_scale,
            **options,
        )
