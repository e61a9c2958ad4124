"""Visual question answering."""

from .answers import frequent_answers, normalize_answer, official_score
from .datasets import VQADataset
from .mcan import MCAN, AttentionPooling, GuidedEncoder
from .questions import Question, QuestionTokenizer, read_questions, write_questions
from .vqa_accuracy import VQAAccuracy

__all__ = [
    'MCAN',
    'AttentionPooling',
    'GuidedEncoder',
    'Question',
    'QuestionTokenizer',
    'VQAAccuracy',
    'VQADataset',
    'frequent_answers',
    'normalize_answer',
    'official_score',
    'read_questions',
    'write_questions',
]
