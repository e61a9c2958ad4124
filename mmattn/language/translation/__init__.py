"""Translation: Transformers with bilateral self-attention, parallel text and BLEU."""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'bleu': 'BLEU',
        'datasets': 'ParallelTextDataset',
        'inferencer': 'TranslationInferencer',
        'transformer': 'TranslationTransformer',
    },
)
