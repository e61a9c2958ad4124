"""Visual question answering."""

from .answers import frequent_answers, normalize_answer, official_score
from .bilinear_map_hook import BilinearMapHook
from .datasets import VQADataset
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
from .questions import Question, QuestionTokenizer, read_questions, write_questions
from .vqa_accuracy import VQAAccuracy
from .vqa_model import VQAModel
from .word_vector_hook import WordVectorHook
from .word_vectors import read_word_vectors

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
    'Question',
    'QuestionGRU',
    'QuestionOnlyHead',
    'QuestionTokenizer',
    'SkipThoughtEncoder',
    'UnitaryHead',
    'VQAAccuracy',
    'VQADataset',
    'VQAInferencer',
    'VQAModel',
    'WordVectorHook',
    'frequent_answers',
    'normalize_answer',
    'official_score',
    'read_questions',
    'read_word_vectors',
    'write_questions',
]
