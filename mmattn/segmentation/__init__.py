"""Components for mmseg: decode heads, backbones, stored features, and a hook that checks the data before training."""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'attention_head': 'AttentionHead',
        'bi_cc_head': 'BiCCHead',
        'bi_nl_head': 'BiNLHead',
        'cached_features': 'CachedBackbone CachedFeaturesDataset CachedFeaturesPreprocessor',
        'mmattn.data_check.masks': 'SegDataCheckHook',
        'deeplabv3_plus_ba_head': 'DeepLabV3PlusBAHead',
        'frozen_backbone': 'FrozenBackbone',
        'mobilenet_v2_stride8': 'MobileNetV2Stride8',
        'resnet_stem': 'ResNetStem',
        'unet_ba_head': 'UNetBAHead',
    },
)
