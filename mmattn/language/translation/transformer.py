"""The Transformer for translation, with the attention that the config chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmengine.structures import BaseDataElement
from torch import Tensor

from mmattn.language.models.embedding import TokenEmbedding
from mmattn.language.models.generation import Hypothesis, SentenceGenerator, predictions
from mmattn.language.models.transformer import ATTENTION, LayerConfig
from mmattn.language.text.batching import padding_mask
from mmattn.language.text.vocabulary import EOS
from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_number

# name: (embed_dim, feedforward_dim, num_heads, layers of the encoder, layers of the decoder)
SIZES = {
    'tiny': (128, 256, 4, 4, 4),
    'iwslt': (512, 1024, 4, 6, 6),
    'base': (512, 2048, 8, 6, 6),
    'big': (1024, 4096, 16, 6, 6),
}


@MODELS.register_module()
class TranslationTransformer(SentenceGenerator):
    """Transformer that translates sentences, with the attention that the config chooses for encoder and decoder.

    ``mmattn.BilateralMultiheadAttention`` is Bi-SA (``position='bilateral'``), attention with relative positions
    (``'relative'``) or without positions (``'none'``). Both embeddings and the output layer share one matrix.

    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, UTS, 2021, sections 3.4.4 and 3.6.

    Args:
        vocab_size (int): number of symbols, with the four special ones.
        size (str): 'tiny' (E 128, FFN 256, 4 heads, 4 + 4 layers), 'iwslt' (512, 1024, 4, 6 + 6), 'base' (512, 2048, 8,
            6 + 6) or 'big' (1024, 4096, 16, 6 + 6). Defaults to 'base'.
        encoder_attention (dict or sequence of dict, optional): self-attention of all encoder layers, see
            :class:`mmattn.language.TransformerEncoderLayer`. A sequence is not one config per layer: its layers follow
            each other in each sub-layer. Defaults to attention by content, to which a dict without type adds options.
        decoder_attention: self-attention of the decoder layers, which make it causal, as ``encoder_attention``.
        cross_attention (dict): attention of the decoder to the encoder. Defaults to attention by content.
        positions (str): absolute positions added to the embeddings, 'sinusoidal' or 'none'. Defaults to 'sinusoidal'.
        dropout (float): probability, in [0, 1). Defaults to 0.1.
        norm_first (bool): the norms precede the sub-layers (pre-norm). Defaults to False.
        label_smoothing (float): ε of the loss, in [0, 1]. Defaults to 0.1.
        stack (str): 'Sequence', the layers of mmattn, or 'Torch', the layers of ``nn.Transformer``, which accept no
            other attention. Defaults to 'Sequence'.
        encoder_layers, decoder_layers (sequence of dict, optional): one dict for each layer of encoder or decoder, with
            the arguments in which it differs, such as ``dict(self_attention=dict(…))``. Their number replaces the
            number of layers of ``size``. Not with ``stack='Torch'``.
        test_cfg (dict, optional): options of the beam search: ``beam`` (default 5), ``length_penalty`` (1) and
            ``penalty_kind`` ('power', see :class:`mmattn.language.LengthPenalty`), and ``max_length`` (a, b): at most a
            · (source length) + b tokens (default (0, 200)).
        data_preprocessor, init_cfg (dict, optional): as in mmengine, by default ``mmattn.TextDataPreprocessor``.

    Example:
        >>> model = TranslationTransformer(vocab_size=100, size='tiny').eval()
        >>> source = torch.tensor([[4, 5, 6, 2]])
        >>> best = model.translate(source, max_length=3)[0][0]
        >>> len(best.tokens) <= 3, best.score < 0
        (True, True)
    """

    def __init__(
        self,
        vocab_size: int,
        size: str = 'base',
        encoder_attention: LayerConfig = ATTENTION,
        decoder_attention: LayerConfig = ATTENTION,
        cross_attention: dict = ATTENTION,
        positions: str = 'sinusoidal',
        dropout: float = 0.1,
        norm_first: bool = False,
        label_smoothing: float = 0.1,
        stack: str = 'Sequence',
        test_cfg: dict | None = None,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
        encoder_layers: Sequence[dict] | None = None,
        decoder_layers: Sequence[dict] | None = None,
    ) -> None:
        super().__init__(
            label_smoothing,
            dict(beam=5, length_penalty=1.0, penalty_kind='power', max_length=(0, 200)),
            test_cfg,
            data_preprocessor or dict(type='mmattn.TextDataPreprocessor'),
            init_cfg,
        )
        check_max_length(self.test_cfg['max_length'])
        check_choice('size', size, SIZES)
        check_choice('stack', stack, ('Sequence', 'Torch'))
        if stack == 'Torch' and not encoder_layers is decoder_layers is None:
            raise ValueError("encoder_layers and decoder_layers must be None with stack='Torch'")
        embed_dim, feedforward_dim, num_heads, *numbers = SIZES[size]
        layer = dict(
            embed_dim=embed_dim,
            num_heads=num_heads,
            feedforward_dim=feedforward_dim,
            dropout=dropout,
            norm_first=norm_first,
        )
        self.embedding = TokenEmbedding(vocab_size, embed_dim, dropout, positions)
        encoder = dict(layer, self_attention=_with_type(encoder_attention))
        decoder = dict(layer, self_attention=_with_type(decoder_attention), cross_attention=_with_type(cross_attention))
        self.encoder, self.decoder = (
            MODELS.build(
                dict(
                    type=f'mmattn.{stack}{part}',
                    num_layers=number if changes is None else len(changes),
                    layer=common if changes is None else [{**common, **change} for change in changes],
                )
            )
            for part, number, common, changes in zip(
                ('Encoder', 'Decoder'), numbers, (encoder, decoder), (encoder_layers, decoder_layers)
            )
        )

    def forward(
        self, inputs: dict[str, Tensor], data_samples: list[BaseDataElement] | None = None, mode: str = 'tensor'
    ) -> Any:
        """Run the model on a batch.

        Args:
            inputs (dict[str, Tensor]): 'source', int64 ``(B, M)``, and 'target' (not in mode 'predict'), int64
                ``(B, L)``, padded sentences with ``</s>``.
            data_samples (list[BaseDataElement], optional): one per sentence, to which predictions are added.
            mode (str): 'tensor', the logits ``(B, L, V)``, 'loss', a dict, or 'predict', the data samples with
                ``pred_tokens`` (list of int), ``pred_score`` and ``n_best`` (list of :class:`Hypothesis`).
        """
        if mode == 'loss':
            return self.loss(inputs['source'], inputs['target'])
        if mode == 'predict':
            return self.predict(inputs['source'], data_samples)
        return self.logits(self.hidden(inputs['source'], inputs['target']))

    def hidden(self, source: Tensor, target: Tensor) -> Tensor:
        """Compute the output of the decoder, ``(B, L, E)``, which predicts ``target``, int64 ``(B, L)``."""
        return self.decode(*self.encode(source), target)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor | None]:
        """Encode the source. Returns ``(B, M, E)`` and its padding mask, bool ``(B, M)``."""
        if source.shape[1] == 0 or bool((source[:, 0] <= EOS).any()):
            raise ValueError('source must have at least one token before the end token in every sentence')
        mask = padding_mask(source)
        return self.encoder(self.embedding(source), mask), mask

    def loss(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Compute the label-smoothed loss, see :func:`mmattn.language.label_smoothed_loss`."""
        return self.label_smoothed(self.hidden(source, target), target)

    def translate(self, source: Tensor, **options: Any) -> list[list[Hypothesis]]:
        """Translate a batch by beam search. Returns up to ``beam`` hypotheses per sentence, the best first.

        ``source`` is int64 ``(B, M)``, sentences with ``</s>``, padded on the right. ``options`` replace ``test_cfg``.
        """
        limit = options.pop('max_length', self.test_cfg['max_length'])
        if not isinstance(limit, int):
            limit = [longest(limit, length) for length in (source > EOS).sum(1).tolist()]
        return self.search(self.decoder.start(*self.encode(source)), limit, **options)

    def predict(self, source: Tensor, data_samples: list[BaseDataElement] | None = None) -> list[BaseDataElement]:
        """Translate each sentence. Returns data samples as :meth:`forward` does."""
        return predictions(self.translate(source), data_samples)


def _with_type(attention: Any) -> Any:
    # --cfg-options model.cross_attention.content_smoothing=… makes a dict with this option alone
    return {**ATTENTION, **attention} if isinstance(attention, dict) and 'type' not in attention else attention


def check_max_length(max_length: Any) -> None:
    """Check 'max_length' of ``test_cfg``, see :func:`longest`."""
    name = 'test_cfg.max_length'
    if isinstance(max_length, list | tuple) and len(max_length) == 2:
        for x in max_length:
            check_number(name, x)
    elif not isinstance(max_length, int) or isinstance(max_length, bool):
        raise TypeError(f'{name} must be an integer, or a factor and a number to add; got {max_length!r}')
    if longest(max_length, 1) < 1:
        raise ValueError(f'{name} must allow at least one piece for a source of one piece; got {max_length!r}')


def longest(max_length: int | Sequence[float], length: int) -> int:
    """Compute the most pieces of a translation of ``length`` pieces, both without ``</s>``.

    ``max_length`` is a number, or a factor and a number to add, as in ``test_cfg``.
    """
    return max_length if isinstance(max_length, int) else int(max_length[0] * length + max_length[1])
