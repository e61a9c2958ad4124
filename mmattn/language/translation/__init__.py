"""Translation: Transformers with bilateral self-attention, parallel text and BLEU.

Configs name the components, which load on first use. Imports ``language``'s ``models`` and ``text``, and no other task.
Start with ``transformer.py``, the model, then ``datasets.py``: the shortest way from a text file to a decoded sentence.
"""

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
