"""Phrase grounding: the regions of an image that the phrases of a caption describe."""

from .datasets import EntitiesDataset
from .inferencer import GroundingInferencer
from .phrase_grounder import PhraseDataPreprocessor, PhraseGrounder
from .phrase_recall import PhraseRecall

__all__ = ['EntitiesDataset', 'GroundingInferencer', 'PhraseDataPreprocessor', 'PhraseGrounder', 'PhraseRecall']
