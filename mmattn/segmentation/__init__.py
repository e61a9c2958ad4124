"""Components for mmseg: decode heads, backbones, stored features, and a hook that checks the data before training."""

from .attention_head import AttentionHead
from .bi_cc_head import BiCCHead
from .bi_nl_head import BiNLHead
from .cached_features import CachedBackbone, CachedFeaturesDataset, CachedFeaturesPreprocessor
from .data_check_hook import SegDataCheckHook
from .deeplabv3_plus_ba_head import DeepLabV3PlusBAHead
from .frozen_backbone import FrozenBackbone
from .mobilenet_v2_stride8 import MobileNetV2Stride8
from .resnet_stem import ResNetStem
from .unet_ba_head import UNetBAHead

__all__ = [
    'AttentionHead',
    'BiCCHead',
    'BiNLHead',
    'CachedBackbone',
    'CachedFeaturesDataset',
    'CachedFeaturesPreprocessor',
    'DeepLabV3PlusBAHead',
    'FrozenBackbone',
    'MobileNetV2Stride8',
    'ResNetStem',
    'SegDataCheckHook',
    'UNetBAHead',
]
