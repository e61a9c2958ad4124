"""Attention that reads and writes sentences. Importing it imports no tokenizer and no metric's package."""

from mmattn.utils.lazy import lazy_names

__getattr__, __all__ = lazy_names(
    __name__,
    {
        'models.beam_search': 'Hypothesis LengthPenalty beam_search',
        'models.embedding': 'TokenEmbedding sinusoids',
        'models.loss': (
            'AmpTokenOptimWrapper CPUAmpTokenOptimWrapper SequenceModel TokenOptimWrapper label_smoothed_loss'
        ),
        'models.schedule': 'InverseRootLR',
        'models.torch_transformer': 'TorchDecoder TorchEncoder',
        'models.transformer': (
            'DecodingState SequenceDecoder SequenceEncoder TransformerDecoderLayer TransformerEncoderLayer'
        ),
        'regions.region_store': 'RegionStore Regions',
        'regions.region_writer': 'RegionWriter',
        'text.batching': 'TokenBatchSampler token_batches',
        'text.data_check_hook': 'TextDataCheckHook',
        'text.data_preprocessor': 'RegionDataPreprocessor TextDataPreprocessor pad_collate',
        'text.vocabulary': 'Vocabulary',
    },
)
