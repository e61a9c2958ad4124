"""Components for mmseg: decode heads, a backbone, and a hook that checks the data before training."""

from .attention_head import AttentionHead
from .bi_cc_head import BiCCHead
from .bi_nl_head import BiNLHead
from .data_check_hook import SegDataCheckHook
from .deeplabv3_plus_ba_head import DeepLabV3PlusBAHead
from .resnet_stem import ResNetStem
from .unet_ba_head import UNetBAHead

__all__ = [
    'AttentionHead',
    'BiCCHead',
    'BiNLHead',
    'DeepLabV3PlusBAHead',
    'ResNetStem',
    'SegDataCheckHook',
    'UNetBAHead',
]
