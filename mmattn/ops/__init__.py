"""Attention operators: exact, differentiable, with extra memory linear in the number of positions.

The names below are functions of tensors. Imports torch and ``utils``; everything else may import it. An operator is one
file: a named tuple of its arguments, the function, both passes in PyTorch, and an
:class:`~mmattn.ops.operator.Operator` that declares them. ``csrc`` and ``triton`` have kernels under the same name.
Start with ``grid_attention.py``, then ``operator.py`` (the declaration), ``dispatch.py`` (what runs where) and
``autograd.py``.
"""

from functools import partial

from mmattn.utils.lazy import lazy_names

from . import export  # noqa: F401 (it adds compositions for ONNX)
from .attention_rows import attention_rows
from .dynamic_conv import dynamic_conv
from .global_attention import global_attention
from .grid_attention import grid_attention
from .local_attention import local_attention
from .patterns import grid_support, strided_offsets, strided_support
from .projection import projection
from .reports import explain
from .strided_attention import strided_attention
from .zscore import unit_variance

# The names of `attention_rows` up to 0.3.0
global_attention_weights = partial(attention_rows, global_attention)
grid_attention_weights = partial(attention_rows, grid_attention)
local_attention_weights = partial(attention_rows, local_attention)
strided_attention_weights = partial(attention_rows, strided_attention)

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
    'attention_rows',
    'dynamic_conv',
    'explain',
    'global_attention',
    'grid_attention',
    'grid_support',
    'local_attention',
    'projection',
    'strided_attention',
    'strided_offsets',
    'strided_support',
    'unit_variance',
]
