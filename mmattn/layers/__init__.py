"""Attention layers for maps and clips: ``nn.Module`` classes built on the operators, which know no task.

Configs name them as mmcv's plugins, and tasks import the names below, which load on first use. Imports ``ops``,
``registry.py``, ``_compat.py`` and ``utils``. Start with ``bilateral_criss_cross.py``, the shortest whole layer:
``operands`` computes the arguments of one operator, and ``forward`` calls it. ``window_position.py`` and
``relative_position.py`` are positions that layers share, and ``attention_weights.py`` their weights for pictures.
"""

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
