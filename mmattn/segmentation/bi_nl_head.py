"""Decode head with bilateral non-local attention (Bi-NL)."""

from mmattn.layers import BilateralNonLocal2d
from mmattn.registry import MODELS

from .attention_head import AttentionHead


@MODELS.register_module()
class BiNLHead(AttentionHead):
    """mmseg's ``NLHead`` with bilateral non-local attention (Bi-NL) in place of the non-local block.

    The layers are conv → Bi-NL → conv → classifier, as in chapter 3 of *The Attention Mechanism in Vision and Language
    Analysis* (PhD thesis, University of Technology Sydney, 2021). With ``position='none'`` it is the stock head: same
    ``state_dict`` keys, same output.

    Args:
        **kwargs: as in mmseg's ``FCNHead``, except ``num_convs``, which is 2, and options of
            :class:`~mmattn.layers.BilateralNonLocal2d`, such as ``window_size``, ``reduction``, ``use_scale`` and
            ``mode``, the last three as in mmseg's ``NLHead``.

    Example:
        >>> head = BiNLHead(in_channels=16, channels=8, num_classes=3, window_size=5)
        >>> head([torch.randn(2, 16, 6, 9)]).shape
        torch.Size([2, 3, 6, 9])
    """

    layer = BilateralNonLocal2d
    attribute = 'nl_block'
