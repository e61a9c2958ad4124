"""Attention that reads and writes sentences. Importing this package imports no tokenizer and no metric's package.

A task (``translation``, ``captioning``, ``vqa``, ``grounding``) has data sets, models, a metric and an inferencer. They
share ``text`` (sentences), ``regions`` (features of images), ``layers`` and ``models`` (stacks, generation, training)
and the names below, and no task imports another. Imports ``ops``, ``layers``, ``engine``,
``visualization`` and ``utils``. Nothing outside imports it, except that some names of ``mmattn.ops`` load it on first
use. Start with ``translation``, the smallest task.
"""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'layers.position_encodings': 'sinusoids',
        'models.embedding': 'TokenEmbedding',
        'models.generation': 'Hypothesis LengthPenalty beam_search',
        'models.torch_transformer': 'TorchDecoder TorchEncoder',
        'models.training': (
            'AmpTokenOptimWrapper CPUAmpTokenOptimWrapper InverseRootLR SequenceModel TokenOptimWrapper '
            'label_smoothed_loss'
        ),
        'models.transformer': (
            'DecodingState SequenceDecoder SequenceEncoder TransformerDecoderLayer TransformerEncoderLayer'
        ),
        'regions.data_preprocessor': 'RegionDataPreprocessor',
        'regions.image_regions': 'Regions',
        'regions.loading': 'LoadRegions PackText',
        'regions.region_store': 'RegionStore',
        'regions.region_writer': 'RegionWriter',
        'text.batching': 'TextDataPreprocessor TokenBatchSampler pad_collate token_batches',
        'text.vocabulary': 'Vocabulary',
    },
)
