"""Attention layers built on the operators: task-independent ``nn.Module`` classes."""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'attended_residual': 'AttendedResidual',
        'ba_conv2d': 'BAConv2d',
        'bilateral_criss_cross': 'BilateralCrissCrossAttention',
        'bilateral_multihead': 'BilateralMultiheadAttention',
        'bilateral_non_local': 'BilateralNonLocal2d',
        'bilinear_attention_network': 'BilinearAttentionNetwork BilinearLogits',
        'concat_fusion': 'ConcatFusion',
        'concat_logits': 'ConcatLogits',
        'deform_conv1d': 'DeformConv1d',
        'dynamic_conv1d': 'DynamicConv1d',
        'dynamic_conv2d': 'DynamicConv2d',
        'entangled_attention': 'EntangledAttention',
        'gated_bilateral_control': 'GatedBilateralController',
        'grid_attention_3d': 'GridAttention3d',
        'hadamard_fusion': 'HadamardFusion',
        'local_bilateral_attention': 'LocalBilateralAttention',
        'mcb_fusion': 'MCBFusion',
        'object_counter': 'ObjectCounter',
        'region_attention': 'RegionAttention',
        'strided_attention_3d': 'StridedAttention3d',
        'transformer_attention': 'TransformerAttention2d',
        'transformer_attention_1d': 'TransformerAttention1d',
        'unitary_attention': 'CoAttention UnitaryAttention',
        'video_transformer': 'VideoTransformerLayer',
    },
)
