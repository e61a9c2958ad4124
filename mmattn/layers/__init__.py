"""Attention layers for maps and clips: ``nn.Module`` classes built on the operators, which know no task."""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'attended_residual': 'AttendedResidual',
        'ba_conv2d': 'BAConv2d',
        'bilateral_criss_cross': 'BilateralCrissCrossAttention',
        'bilateral_non_local': 'BilateralNonLocal2d',
        'dense_attention_3d': 'DenseAttention3d',
        'dynamic_conv2d': 'DynamicConv2d',
        'grid_attention_3d': 'GridAttention3d',
        'local_bilateral_attention': 'LocalBilateralAttention',
        'strided_attention_3d': 'StridedAttention3d',
        'transformer_attention': 'TransformerAttention2d',
        'video_transformer': 'VideoTransformerLayer',
    },
)
