"""Attention that reads and writes sentences. Importing this package imports no tokenizer and no metric's package."""

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
        'regions.region_store': 'RegionStore Regions',
        'regions.region_writer': 'RegionWriter',
        'text.batching': 'TextDataPreprocessor TokenBatchSampler pad_collate token_batches',
        'text.data_check_hook': 'TextDataCheckHook',
        'text.vocabulary': 'Vocabulary',
    },
)
