"""Attention layers over the operators: nn.Modules that know of no task and fit mmcv's plugin slots."""
from .bilateral_criss_cross import BilateralCrissCrossAttention
from .bilateral_multihead import BilateralMultiheadAttention
from .bilateral_non_local import BilateralNonLocal2d

__all__ = ['BilateralCrissCrossAttention', 'BilateralMultiheadAttention', 'BilateralNonLocal2d']
