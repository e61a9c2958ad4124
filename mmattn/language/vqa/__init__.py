"""Visual question answering."""

from .heads import (
    BANHead,
    CoAttentionHead,
    ConcatHead,
    FusionHead,
    ImageOnlyHead,
    QuestionOnlyHead,
    UnitaryHead,
)
from .image_encoder import ConvImageEncoder
from .mcan import MCAN, AttentionPooling, GuidedEncoder
from .question_encoder import Question, QuestionGRU, SkipThoughtEncoder
from .vqa_model import VQAModel

__all__ = [
    'MCAN',
    'AttentionPooling',
    'BANHead',
    'CoAttentionHead',
    'ConcatHead',
    'ConvImageEncoder',
    'FusionHead',
    'GuidedEncoder',
    'ImageOnlyHead',
    'Question',
    'QuestionGRU',
    'QuestionOnlyHead',
    'SkipThoughtEncoder',
    'UnitaryHead',
    'VQAModel',
]
