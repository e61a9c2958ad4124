"""Attention and fusion for sentences and regions: ``nn.Module`` classes, most of which need torch alone."""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'bilateral_multihead': 'BilateralMultiheadAttention',
        'bilinear_attention_network': 'BilinearAttentionNetwork BilinearLogits',
        'concat_fusion': 'ConcatFusion',
        'concat_logits': 'ConcatLogits',
        'deform_conv1d': 'DeformConv1d',
        'dynamic_conv1d': 'DynamicConv1d',
        'entangled_attention': 'EntangledAttention',
        'gated_bilateral_control': 'GatedBilateralController',
        'hadamard_fusion': 'HadamardFusion',
        'mcb_fusion': 'MCBFusion',
        'object_counter': 'ObjectCounter',
        'region_attention': 'RegionAttention',
        'transformer_attention_1d': 'TransformerAttention1d',
        'unitary_attention': 'CoAttention UnitaryAttention',
    },
)
