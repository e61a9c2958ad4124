"""Semantic segmentation on top of mmseg: decode heads, and a check of the data before training."""
from .bi_cc_head import BiCCHead
from .bi_nl_head import BiNLHead
from .data_check_hook import SegDataCheckHook

__all__ = ['BiCCHead', 'BiNLHead', 'SegDataCheckHook']
