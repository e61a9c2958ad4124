"""Semantic segmentation on top of mmseg: decode heads."""
from .bi_cc_head import BiCCHead
from .bi_nl_head import BiNLHead

__all__ = ['BiCCHead', 'BiNLHead']
