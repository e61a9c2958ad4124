"""Phrase grounding: the regions of an image that the phrases of a caption describe.

Configs name the components, which load on first use. Imports ``language``'s ``text``, ``regions`` and ``layers``, and
no other task. Start with ``phrase_grounder.py``, the model; ``entities.py`` reads the phrases of Flickr30k Entities.
"""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'datasets': 'EntitiesDataset',
        'inferencer': 'GroundingInferencer',
        'phrase_grounder': 'PhraseDataPreprocessor PhraseGrounder',
        'phrase_recall': 'PhraseRecall',
        'transforms': 'EncodePhrases PhraseTargets',
    },
)
