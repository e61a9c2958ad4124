"""The modular co-attention network (MCAN) for visual questions, optionally with geometry-aware attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.language.layers.position_encodings import relative_geometry
from mmattn.language.models.transformer import ATTENTION, SequenceDecoder, SequenceEncoder, TransformerDecoderLayer
from mmattn.language.text.batching import padding_mask
from mmattn.language.text.vocabulary import PAD
from mmattn.registry import MODELS
from mmattn.utils.checks import check_counts, check_fraction

from .vqa_model import AnswerModel


class GuidedEncoderLayer(TransformerDecoderLayer):
    """Self-attention between regions, not causal, attention to words, and a feed-forward network (SGA)."""

    is_causal = False


class GuidedEncoder(SequenceDecoder):
    """Encode a set of regions by a stack of layers that all attend to the same encoded words. It cannot decode.

    Args:
        num_layers (int): number of layers.
        layer (dict or sequence of dict): arguments of each layer, as in :class:`mmattn.language.SequenceDecoder`.

    Example:
        >>> encoder = GuidedEncoder(2, dict(embed_dim=16, num_heads=4, feedforward_dim=32))
        >>> regions, words = torch.randn(3, 9, 16), torch.randn(3, 7, 16)
        >>> encoder(regions, words).shape
        torch.Size([3, 9, 16])
    """

    layer_type = GuidedEncoderLayer


class AttentionPooling(nn.Module):
    """Sum a set of vectors by learned weights, and project the sum: W Σ_i softmax_i(MLP(x_i)) x_i + b.

    Args:
        embed_dim (int): channels E of the vectors, and of the hidden layer of the MLP.
        out_dim (int): channels O of the output.
        dropout (float): probability after the ReLU of the MLP, in [0, 1). Defaults to 0.1.

    Example:
        >>> AttentionPooling(16, 32)(torch.randn(3, 7, 16)).shape
        torch.Size([3, 32])
    """

    def __init__(self, embed_dim: int, out_dim: int, dropout: float = 0.1) -> None:
        super().__init__()
        hidden = nn.Linear(embed_dim, embed_dim)
        self.score = nn.Sequential(hidden, nn.ReLU(), nn.Dropout(dropout), nn.Linear(embed_dim, 1))
        self.projection = nn.Linear(embed_dim, out_dim)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Pool ``x`` ``(B, N, E)`` to ``(B, O)``.

        ``padding_mask`` is bool ``(B, N)``, True for padding (any finite values). At least one position is valid.
        """
        logits = self.score(x)
        if padding_mask is not None:
            logits = logits.masked_fill(padding_mask[..., None], -torch.inf)
        return self.projection((logits.softmax(1).mT @ x).squeeze(1))


@MODELS.register_module()
class MCAN(AnswerModel):
    """Answer a question about an image, given by the features of its regions (modular co-attention network).

    An LSTM and a Transformer encoder read the embedded words. A second stack encodes the regions, and each of its
    layers also attends to the encoded words. Words and regions are pooled by attention, projected and added. A layer
    norm and a linear classifier return the logits. The loss is the binary cross-entropy, summed over answers and batch.

    ``geometry='query_dependent'`` in ``region_attention`` makes the attention between the regions geometry-aware (GSA).
    Word vectors start as N(0, 1). ``mmattn.WordVectorHook`` loads vectors such as GloVe. With the default options, the
    model has 51,640,891 parameters and 300 per symbol. GSA adds 1,577,856.

    Source: Z. Yu et al.: "Deep Modular Co-Attention Networks for Visual Question Answering", CVPR 2019. GSA:
    "Normalized and Geometry-Aware Self-Attention Network for Image Captioning", 2020, section 6.

    Args:
        vocab_size (int): number of symbols of the questions, with padding.
        num_answers (int): number of answers A. Defaults to 3129.
        num_features (int): channels D of the region features. Defaults to 2048.
        word_dim (int): channels of the word vectors. Defaults to 300, as GloVe.
        num_layers, num_heads (int): layers of each stack, and heads of each layer. Default to 6 and 8.
        embed_dim (int): channels E. Defaults to 512.
        feedforward_dim (int): channels of the feed-forward networks. Defaults to 2048.
        fused_dim (int): channels of the sum of words and regions. Defaults to 1024.
        region_attention (dict): attention between the regions, without ``embed_dim`` and ``num_heads``. Defaults to
            plain ``mmattn.RegionAttention``.
        dropout (float): probability, in [0, 1), also of the weights of all attention but that between the regions,
            whose dropout is an option of ``region_attention``. Defaults to 0.1.
        data_preprocessor, init_cfg (dict, optional): Default to ``mmattn.RegionDataPreprocessor`` and None.

    Example:
        >>> attention = dict(type='mmattn.RegionAttention', geometry='query_dependent')
        >>> model = MCAN(100, num_answers=5, num_features=32, word_dim=8, num_layers=1, embed_dim=16, num_heads=4,
        ...              feedforward_dim=32, fused_dim=24, region_attention=attention)
        >>> boxes = torch.tensor([[[0.0, 0.0, 40.0, 30.0], [5.0, 5.0, 20.0, 20.0]]])
        >>> model(dict(question=torch.tensor([[7, 9, 50]]), features=torch.randn(1, 2, 32), boxes=boxes)).shape
        torch.Size([1, 5])
    """

    def __init__(
        self,
        vocab_size: int,
        num_answers: int = 3129,
        num_features: int = 2048,
        word_dim: int = 300,
        num_layers: int = 6,
        embed_dim: int = 512,
        num_heads: int = 8,
        feedforward_dim: int = 2048,
        fused_dim: int = 1024,
        region_attention: dict = dict(type='mmattn.RegionAttention'),
        dropout: float = 0.1,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor or dict(type='mmattn.RegionDataPreprocessor'), init_cfg)
        check_counts(vocab_size=vocab_size, num_answers=num_answers, num_features=num_features, word_dim=word_dim)
        check_counts(fused_dim=fused_dim)
        check_fraction('dropout', dropout)
        attention = dict(ATTENTION, dropout=dropout)
        layer = dict(embed_dim=embed_dim, num_heads=num_heads, feedforward_dim=feedforward_dim, dropout=dropout)
        region_layer = dict(layer, self_attention=region_attention, cross_attention=attention)
        self.num_features = num_features
        self.num_answers = num_answers
        self.geometry = bool(region_attention.get('geometry'))
        self.embedding = nn.Embedding(vocab_size, word_dim, padding_idx=PAD)
        self.lstm = nn.LSTM(word_dim, embed_dim, batch_first=True)
        self.region_embedding = nn.Linear(num_features, embed_dim)
        self.word_encoder = SequenceEncoder(num_layers, dict(layer, self_attention=attention))
        self.region_encoder = GuidedEncoder(num_layers, region_layer)
        self.word_pooling = AttentionPooling(embed_dim, fused_dim, dropout)
        self.region_pooling = AttentionPooling(embed_dim, fused_dim, dropout)
        self.norm = nn.LayerNorm(fused_dim)
        self.classifier = nn.Linear(fused_dim, num_answers)

    def logits(self, inputs: dict[str, Tensor]) -> Tensor:
        """Compute the logits of the answers, ``(B, A)``, see :meth:`forward`."""
        question, mask = inputs['question'], _with_one(inputs.get('region_mask'))
        word_mask = _with_one(padding_mask(question))
        words = self.word_encoder(self.lstm(self.embedding(question))[0], word_mask)
        context = dict(relative_geometry=relative_geometry(inputs['boxes'], mask)) if self.geometry else {}
        regions = self.region_encoder(self.region_embedding(inputs['features']), words, mask, word_mask, **context)
        fused = self.word_pooling(words, word_mask) + self.region_pooling(regions, mask)
        return self.classifier(self.norm(fused))

    def loss(self, logits: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        """Compute the binary cross-entropy, summed over answers and batch."""
        return F.binary_cross_entropy_with_logits(logits, inputs['targets'].to(logits.dtype), reduction='sum')


def _with_one(mask: Tensor | None) -> Tensor | None:
    if mask is None:
        return None
    # each row gets a valid position, so that no softmax is NaN
    first = torch.arange(mask.shape[1], device=mask.device) == 0
    return mask & ~(mask.all(1, keepdim=True) & first)
