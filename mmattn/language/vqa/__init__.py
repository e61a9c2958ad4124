"""Visual question answering and phrase grounding."""

from .answers import frequent_answers, normalize_answer, official_score
from .bilinear_map_hook import BilinearMapHook
from .datasets import VQADataset
from .glimpse_entropy_hook import GlimpseEntropyHook
from .grounding_dataset import EntitiesDataset
from .grounding_inferencer import GroundingInferencer
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
from .phrase_grounder import PhraseDataPreprocessor, PhraseGrounder
from .phrase_recall import PhraseRecall
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
    'EntitiesDataset',
    'FusionHead',
    'GlimpseEntropyHook',
    'GroundingInferencer',
    'GuidedEncoder',
    'ImageOnlyHead',
    'PhraseDataPreprocessor',
    'PhraseGrounder',
    'PhraseRecall',
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
