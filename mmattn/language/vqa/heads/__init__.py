"""Heads that answer a question from its encoded words and the regions of an image."""

from .ban_head import BANHead
from .co_attention_head import CoAttentionHead
from .concat_head import ConcatHead
from .fusion_head import FusionHead
from .image_only_head import ImageOnlyHead
from .question_only_head import QuestionOnlyHead
from .unitary_head import UnitaryHead

__all__ = [
    'BANHead',
    'CoAttentionHead',
    'ConcatHead',
    'FusionHead',
    'ImageOnlyHead',
    'QuestionOnlyHead',
    'UnitaryHead',
]
