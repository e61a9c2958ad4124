"""Visual question answering."""

from .answers import frequent_answers, normalize_answer, official_score
from .datasets import VQADataset
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
    'CoAttentionHead',
    'ConcatHead',
    'ConvImageEncoder',
    'EncodedQuestion',
    'FusionHead',
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
    'VQAModel',
    'WordVectorHook',
    'frequent_answers',
    'normalize_answer',
    'official_score',
    'read_questions',
    'read_word_vectors',
    'write_questions',
]
