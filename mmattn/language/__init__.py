"""Attention that reads and writes sentences. Importing it imports no tokenizer and no metric's package."""

from .batching import TokenBatchSampler, token_batches
from .beam_search import Hypothesis, LengthPenalty, beam_search
from .data_check_hook import TextDataCheckHook
from .data_preprocessor import RegionDataPreprocessor, TextDataPreprocessor, pad_collate
from .embedding import TokenEmbedding, sinusoids
from .loss import (
    AmpTokenOptimWrapper,
    CPUAmpTokenOptimWrapper,
    SequenceModel,
    TokenOptimWrapper,
    label_smoothed_loss,
)
from .region_writer import RegionWriter
from .regions import Regions, RegionStore
from .schedule import InverseRootLR
from .torch_transformer import TorchDecoder, TorchEncoder
from .transformer import (
    DecodingState,
    SequenceDecoder,
    SequenceEncoder,
    TransformerDecoderLayer,
    TransformerEncoderLayer,
)
from .vocabulary import Vocabulary

__all__ = [
    'AmpTokenOptimWrapper',
    'CPUAmpTokenOptimWrapper',
    'DecodingState',
    'Hypothesis',
    'InverseRootLR',
    'LengthPenalty',
    'RegionDataPreprocessor',
    'RegionStore',
    'RegionWriter',
    'Regions',
    'SequenceDecoder',
    'SequenceEncoder',
    'SequenceModel',
    'TextDataCheckHook',
    'TextDataPreprocessor',
    'TokenBatchSampler',
    'TokenEmbedding',
    'TokenOptimWrapper',
    'TorchDecoder',
    'TorchEncoder',
    'TransformerDecoderLayer',
    'TransformerEncoderLayer',
    'Vocabulary',
    'beam_search',
    'label_smoothed_loss',
    'pad_collate',
    'sinusoids',
    'token_batches',
]
