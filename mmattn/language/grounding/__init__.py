"""Phrase grounding: the regions of an image that the phrases of a caption describe."""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'datasets': 'EntitiesDataset',
        'inferencer': 'GroundingInferencer',
        'phrase_grounder': 'PhraseDataPreprocessor PhraseGrounder',
        'phrase_recall': 'PhraseRecall',
    },
)
