"""Attention layers for maps and clips: ``nn.Module`` classes built on the operators, which know no task."""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'attended_residual': 'AttendedResidual',
        'ba_conv2d': 'BAConv2d',
        'bilateral_criss_cross': 'BilateralCrissCrossAttention',
        'bilateral_non_local': 'BilateralNonLocal2d',
        'dynamic_conv2d': 'DynamicConv2d',
        'grid_attention_3d': 'GridAttention3d',
        'local_bilateral_attention': 'LocalBilateralAttention',
        'strided_attention_3d': 'StridedAttention3d',
        'transformer_attention': 'TransformerAttention2d',
        'video_transformer': 'VideoTransformerLayer',
        # Layers for sentences and regions had these names, too, before they moved.
        'mmattn.language.layers.bilateral_multihead': 'BilateralMultiheadAttention',
        'mmattn.language.layers.bilinear_attention_network': 'BilinearAttentionNetwork BilinearLogits',
        'mmattn.language.layers.concat_fusion': 'ConcatFusion',
        'mmattn.language.layers.concat_logits': 'ConcatLogits',
        'mmattn.language.layers.deform_conv1d': 'DeformConv1d',
        'mmattn.language.layers.dynamic_conv1d': 'DynamicConv1d',
        'mmattn.language.layers.entangled_attention': 'EntangledAttention',
        'mmattn.language.layers.gated_bilateral_control': 'GatedBilateralController',
        'mmattn.language.layers.hadamard_fusion': 'HadamardFusion',
        'mmattn.language.layers.mcb_fusion': 'MCBFusion',
        'mmattn.language.layers.object_counter': 'ObjectCounter',
        'mmattn.language.layers.region_attention': 'RegionAttention',
        'mmattn.language.layers.transformer_attention_1d': 'TransformerAttention1d',
        'mmattn.language.layers.unitary_attention': 'CoAttention UnitaryAttention',
    },
)
