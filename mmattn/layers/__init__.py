"""Attention layers built on the operators: task-independent ``nn.Module`` classes."""

from .attended_residual import AttendedResidual
from .ba_conv2d import BAConv2d
from .bilateral_criss_cross import BilateralCrissCrossAttention
from .bilateral_multihead import BilateralMultiheadAttention
from .bilateral_non_local import BilateralNonLocal2d
from .bilinear_attention_network import BilinearAttentionNetwork, BilinearLogits
from .concat_fusion import ConcatFusion
from .concat_logits import ConcatLogits
from .deform_conv1d import DeformConv1d
from .dynamic_conv1d import DynamicConv1d
from .dynamic_conv2d import DynamicConv2d
from .entangled_attention import EntangledAttention
from .gated_bilateral_control import GatedBilateralController
from .grid_attention_3d import GridAttention3d
from .hadamard_fusion import HadamardFusion
from .local_bilateral_attention import LocalBilateralAttention
from .mcb_fusion import MCBFusion
from .object_counter import ObjectCounter
from .region_attention import RegionAttention
from .strided_attention_3d import StridedAttention3d
from .transformer_attention import TransformerAttention2d
from .transformer_attention_1d import TransformerAttention1d
from .unitary_attention import CoAttention, UnitaryAttention
from .video_transformer import VideoTransformerLayer

__all__ = [
    'AttendedResidual',
    'BAConv2d',
    'BilateralCrissCrossAttention',
    'BilateralMultiheadAttention',
    'BilateralNonLocal2d',
    'BilinearAttentionNetwork',
    'BilinearLogits',
    'CoAttention',
    'ConcatFusion',
    'ConcatLogits',
    'DeformConv1d',
    'DynamicConv1d',
    'DynamicConv2d',
    'EntangledAttention',
    'GatedBilateralController',
    'GridAttention3d',
    'HadamardFusion',
    'LocalBilateralAttention',
    'MCBFusion',
    'ObjectCounter',
    'RegionAttention',
    'StridedAttention3d',
    'TransformerAttention1d',
    'TransformerAttention2d',
    'UnitaryAttention',
    'VideoTransformerLayer',
]
