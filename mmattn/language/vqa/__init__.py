"""Visual question answering."""

from .bilinear_map_hook import BilinearMapHook
from .glimpse_entropy_hook import GlimpseEntropyHook
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
from .inferencer import VQAInferencer
from .mcan import MCAN, AttentionPooling, GuidedEncoder
from .question_encoder import EncodedQuestion, QuestionGRU, SkipThoughtEncoder
from .vqa_model import VQAModel

__all__ = [
    'MCAN',
    'AttentionPooling',
    'BANHead',
    'BilinearMapHook',
    'CoAttentionHead',
    'ConcatHead',
    'ConvImageEncoder',
    'EncodedQuestion',
    'FusionHead',
    'GlimpseEntropyHook',
    'GuidedEncoder',
    'ImageOnlyHead',
    'QuestionGRU',
    'QuestionOnlyHead',
    'SkipThoughtEncoder',
    'UnitaryHead',
    'VQAInferencer',
    'VQAModel',
]
