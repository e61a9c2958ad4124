"""Components for mmseg: decode heads and backbones.

Configs name the components below, which load on first use. Imports ``layers``, ``engine``, ``visualization``
and ``utils``, and no other task. Start with ``bi_cc_head.py``, a head with one layer; ``inferencer.py`` segments image
files with ``tiles.py``, and ``result_files.py`` writes them. ``face_parsing`` has two data sets and their metric.
"""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'attention_head': 'AttentionHead',
        'bi_cc_head': 'BiCCHead',
        'bi_nl_head': 'BiNLHead',
        'channels': 'ChannelsPreprocessor FirstLayerHook',
        'deeplabv3_plus_ba_head': 'DeepLabV3PlusBAHead',
        'inferencer': 'SegmentationInferencer',
        'foreground_iou': 'ForegroundIoUMetric',
        'load_channels': 'LoadChannels',
        'resnet_stem': 'ResNetStem',
        'tiled_encoder_decoder': 'TiledEncoderDecoder',
        'unet_ba_head': 'UNetBAHead',
    },
)
