"""The ETA-Transformer: entangled attention to regions and attributes, with gated bilateral control."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mmattn.language.models.transformer import SequenceDecoder, TransformerDecoderLayer
from mmattn.language.text.batching import padding_mask
from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_count

from .captioner import Captioner

ENTANGLED = dict(type='mmattn.EntangledAttention')


class EntangledDecoderLayer(TransformerDecoderLayer):
    """Decoder layer whose memory and mask are pairs (regions, attributes).

    ``cross_attention`` has its own residuals and norms. Further arguments: see
    :class:`mmattn.language.TransformerDecoderLayer`.
    """

    def __init__(
        self, *, dropout: float = 0.1, norm_first: bool = False, cross_attention: dict = ENTANGLED, **kwargs: Any
    ) -> None:
        if norm_first:
            raise ValueError('norm_first must be False: entangled attention has norms after its parts')
        cross_attention = {**ENTANGLED, **cross_attention, 'dropout': dropout}
        super().__init__(dropout=dropout, cross_attention=cross_attention, **kwargs)
        del self.cross_attention_norm

    def _crossed(self, x: Tensor, memory: Any, memory_padding_mask: Any) -> Tensor:
        return self.cross_attention(x, *memory, *memory_padding_mask)

    def start(self, memory: Any, memory_padding_mask: Any) -> dict[str, Tensor]:
        """Project both memories for ``step``. The first dimension of every tensor is S."""
        return self.cross_attention.start(*memory, *memory_padding_mask)

    def _crossed_step(self, x: Tensor, memory: dict[str, Tensor], position: int) -> Tensor:
        return self.cross_attention.step(x, memory, position)[0]


@MODELS.register_module()
class EntangledDecoder(SequenceDecoder):
    """Stack of decoder layers with entangled attention. Memory and mask are pairs (regions, attributes).

    Args:
        num_layers (int): number of layers.
        layer (dict or sequence of dict): arguments of each layer, as in :class:`mmattn.language.SequenceDecoder`.

    Example:
        >>> decoder = EntangledDecoder(2, dict(embed_dim=16, num_heads=4, feedforward_dim=32))
        >>> regions, attributes = torch.randn(3, 9, 16), torch.randn(3, 4, 16)
        >>> decoder(torch.randn(3, 5, 16), (regions, attributes), None, (None, None)).shape
        torch.Size([3, 5, 16])
    """

    layer_type = EntangledDecoderLayer


@MODELS.register_module()
class ETACaptioner(Captioner):
    """Transformer that describes an image by its regions and by attributes (predicted words).

    One encoder with plain attention reads the regions after a linear layer. Another reads the attributes, which are
    embedded as the words of the captions, without positions. Each decoder layer attends to both by
    ``mmattn.EntangledAttention``, in both orders, and merges them by ``mmattn.GatedBilateralController``.

    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, University of Technology Sydney,
    2021, chapter 2.

    Args:
        vocab_size, embed_dim, dropout, label_smoothing, test_cfg, ``**kwargs``: as in :class:`Captioner`. ``embed_dim``
            defaults to 512, ``dropout`` and ``label_smoothing`` to 0.1, and ``beam`` of ``test_cfg`` to 5.
        num_features (int): channels D of the region features. Defaults to 2048.
        num_layers, num_heads (int): layers of encoders and decoder, and heads of each layer. Default to 6 and 8.
        feedforward_dim (int): channels of the feed-forward networks. Defaults to 2048.
        sources (str): 'both' (default). 'visual', regions only (T_v), and 'semantic', attributes only (T_s), have a
            plain decoder.
        encoders (bool): if False, the decoder attends to the embeddings themselves (Table 2.4). Defaults to True.
        entangled (dict): config of the attention to both, without ``embed_dim``, ``num_heads`` and ``dropout``. Its
            ``mode`` and ``controller`` select rows of Tables 2.5 and 2.6. Its ``type`` defaults to
            ``mmattn.EntangledAttention``.

    Example:
        >>> model = ETACaptioner(100, num_features=32, num_layers=1, embed_dim=16, num_heads=4, feedforward_dim=32)
        >>> inputs = dict(features=torch.randn(1, 9, 32), attributes=torch.tensor([[7, 9, 50]]))
        >>> captions = model.eval().describe(inputs)
        >>> len(captions[0][0].tokens) <= 20
        True
    """

    def __init__(
        self,
        vocab_size: int,
        num_features: int = 2048,
        num_layers: int = 6,
        embed_dim: int = 512,
        num_heads: int = 8,
        feedforward_dim: int = 2048,
        sources: str = 'both',
        encoders: bool = True,
        entangled: dict = ENTANGLED,
        dropout: float = 0.1,
        label_smoothing: float = 0.1,
        test_cfg: dict | None = None,
        **kwargs: Any,
    ) -> None:
        test_cfg = {'beam': 5, **(test_cfg or {})}
        super().__init__(vocab_size, embed_dim, dropout, label_smoothing, test_cfg=test_cfg, **kwargs)
        check_count('num_features', num_features)
        check_choice('sources', sources, ('both', 'visual', 'semantic'))
        self.sources = sources
        self.num_features = None if sources == 'semantic' else num_features
        self.reads_attributes = sources != 'visual'
        layer = dict(embed_dim=embed_dim, num_heads=num_heads, feedforward_dim=feedforward_dim, dropout=dropout)
        encoder = dict(type='mmattn.SequenceEncoder', num_layers=num_layers, layer=layer)
        if sources != 'semantic':
            self.region_embedding = nn.Linear(num_features, embed_dim)
            self.visual_encoder = MODELS.build(encoder) if encoders else None
        if sources != 'visual':
            self.semantic_encoder = MODELS.build(encoder) if encoders else None
        decoder, options = 'Sequence', {}
        if sources == 'both':
            decoder, options = 'Entangled', dict(cross_attention=entangled)
        self.decoder = MODELS.build(
            dict(type=f'mmattn.{decoder}Decoder', num_layers=num_layers, layer=dict(layer, **options))
        )

    def encode(self, inputs: dict[str, Tensor]) -> tuple[Any, Any]:
        """Encode regions and attributes. Memories and padding masks are pairs if the model reads both."""
        # For an image without attributes, attention to them is the bias of the output layer.
        encoded = []
        if self.sources != 'semantic':
            mask = inputs.get('region_mask')
            x = self.region_embedding(inputs['features'])
            encoded.append((x if self.visual_encoder is None else self.visual_encoder(x, mask), mask))
        if self.sources != 'visual':
            attributes = inputs['attributes']
            mask = padding_mask(attributes)
            x = self.embedding.vectors(attributes)
            encoded.append((x if self.semantic_encoder is None else self.semantic_encoder(x, mask), mask))
        if len(encoded) == 1:
            return encoded[0]
        memories, masks = zip(*encoded)
        return memories, masks
