"""Attention and fusion for sentences and regions: ``nn.Module`` classes, which need torch alone.

Models of all language tasks are built from the classes below. Imports ``mmattn.layers``, ``mmattn.ops``,
``registry.py`` and ``utils``, and nothing else of ``language``. Start with ``bilateral_multihead.py``, the attention of
translation. An operator of its own is in ``bilinear_attention.py``, and its layer in ``bilinear_attention_network.py``.
"""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'bilateral_multihead': 'BilateralMultiheadAttention',
        'bilinear_attention_network': 'BilinearAttentionNetwork BilinearLogits ConcatLogits',
        'entangled_attention': 'EntangledAttention GatedBilateralController',
        'fusion': 'ConcatFusion HadamardFusion MCBFusion',
        'object_counter': 'ObjectCounter',
        'region_attention': 'RegionAttention',
        'sequence_convolutions': 'DeformConv1d DynamicConv1d',
        'transformer_attention_1d': 'TransformerAttention1d',
        'unitary_attention': 'CoAttention UnitaryAttention',
    },
)
