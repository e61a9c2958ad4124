"""Attention operators: exact, differentiable, with extra memory linear in the number of positions."""

from mmattn.utils.lazy import lazy_names

from .dispatch import explain
from .dynamic_conv import dynamic_conv
from .global_attention import global_attention, global_attention_weights
from .grid_attention import grid_attention, grid_attention_weights
from .local_attention import local_attention, local_attention_weights
from .patterns import grid_support, strided_offsets, strided_support
from .projection import projection
from .strided_attention import strided_attention, strided_attention_weights
from .zscore import window_zscore

# These serve language alone, and are imported when they are first used.
__getattr__, _names_of_language = lazy_names(
    __name__,
    {
        'mmattn.language.layers.bilinear_attention': (
            'bilinear_attention bilinear_logits bilinear_pooling bilinear_softmax'
        ),
        'mmattn.language.layers.count_sketch': 'count_sketch',
    },
)
__all__ = [
    *_names_of_language,
    'dynamic_conv',
    'explain',
    'global_attention',
    'global_attention_weights',
    'grid_attention',
    'grid_attention_weights',
    'grid_support',
    'local_attention',
    'local_attention_weights',
    'projection',
    'strided_attention',
    'strided_attention_weights',
    'strided_offsets',
    'strided_support',
    'window_zscore',
]
