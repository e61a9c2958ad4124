"""Visual question answering and phrase grounding."""

from .grounding_dataset import EntitiesDataset
from .mcan import MCAN, AttentionPooling, GuidedEncoder
from .phrase_grounder import PhraseDataPreprocessor, PhraseGrounder
from .phrase_recall import PhraseRecall

__all__ = [
    'MCAN',
    'AttentionPooling',
    'EntitiesDataset',
    'GuidedEncoder',
    'PhraseDataPreprocessor',
    'PhraseGrounder',
    'PhraseRecall',
]
