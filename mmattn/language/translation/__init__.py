"""Translation: Transformers with bilateral self-attention, parallel text and BLEU."""

from .bleu import BLEU
from .datasets import ParallelTextDataset
from .inferencer import TranslationInferencer
from .transformer import TranslationTransformer

__all__ = ['BLEU', 'ParallelTextDataset', 'TranslationInferencer', 'TranslationTransformer']
