"""What all models that write sentences share: the loss, one decoding step, beam search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.nn import functional as F

from mmattn.language.text.data_preprocessor import padding_mask
from mmattn.language.text.vocabulary import EOS
from mmattn.utils.checks import check_count, check_number

from .beam_search import Hypothesis, LengthPenalty, beam_search
from .embedding import TokenEmbedding
from .loss import SequenceModel, label_smoothed_loss
from .transformer import DecodingState


class SentenceGenerator(SequenceModel):
    """A model with an embedding and a decoder, which writes sentences about encoded inputs.

    A subclass sets ``embedding`` and ``decoder``. Its encoder returns (memory, padding mask): the arguments ``memory``
    and ``memory_padding_mask`` of the decoder. The token before the first one is ``</s>``.

    Args:
        label_smoothing (float): ε of the loss, in [0, 1].
        defaults (dict): the options of the beam search and their default values: ``beam``, ``length_penalty``,
            ``penalty_kind``, ``max_length`` and, optionally, ``banned``; see :func:`mmattn.language.beam_search` and
            :class:`mmattn.language.LengthPenalty`.
        test_cfg (dict, optional): replaces some of them.
        data_preprocessor (dict): config of the data preprocessor.
        init_cfg (dict, optional): as in mmengine's ``BaseModule``.

    Raises:
        TypeError, ValueError: ``label_smoothing`` is out of range, or an option of ``test_cfg`` is unknown or invalid.
    """

    embedding: TokenEmbedding
    decoder: Any  # an nn.Module with the interface of SequenceDecoder

    def __init__(
        self,
        label_smoothing: float,
        defaults: dict,
        test_cfg: dict | None,
        data_preprocessor: dict,
        init_cfg: dict | None,
    ) -> None:
        super().__init__(data_preprocessor, init_cfg)
        check_number('label_smoothing', label_smoothing, 0, 1)
        self.label_smoothing = label_smoothing
        unknown = set(test_cfg or {}) - set(defaults)
        if unknown:
            raise ValueError(f'test_cfg has unknown options: {", ".join(sorted(unknown))}')
        self.test_cfg = {**defaults, **(test_cfg or {})}
        check_count('test_cfg.beam', self.test_cfg['beam'])
        if EOS in self.test_cfg.get('banned', ()):
            raise ValueError(f'test_cfg.banned must not contain the end token {EOS}: no sentence could end')
        LengthPenalty(self.test_cfg['length_penalty'], self.test_cfg['penalty_kind'])

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of all symbols, ``(*, V)``, for the output of the decoder, ``(*, E)``."""
        return self.embedding.logits(x)

    def decode(self, memory: Any, memory_mask: Any, target: Tensor) -> Tensor:
        """Return the output of the decoder, ``(B, L, E)``, which predicts ``target``, int64 ``(B, L)``."""
        previous = F.pad(target[:, :-1], (1, 0), value=EOS)
        return self.decoder(self.embedding(previous), memory, padding_mask(target), memory_mask)

    def label_smoothed(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return the loss, see :func:`mmattn.language.label_smoothed_loss`, of the output of :meth:`decode`."""
        mask = padding_mask(target)
        x, target = (x.flatten(0, 1), target.flatten()) if mask is None else (x[~mask], target[~mask])
        return label_smoothed_loss(self.logits(x), target, self.label_smoothing)

    def search(self, state: Any, max_length: int | Sequence[int], **options: Any) -> list[list[Hypothesis]]:
        """Write sentences by beam search.

        Args:
            state: the state before the first token, of one hypothesis per sentence, such as ``decoder.start`` returns.
            max_length (int or sequence of int): the largest number of tokens, for all or for each sentence.
            **options: replace those of ``test_cfg``.

        Returns:
            list[list[Hypothesis]]: for each sentence up to ``beam`` hypotheses, the best first.
        """
        found = {**self.test_cfg, **options}
        return beam_search(
            self.step,
            state,
            state.count,
            beam=found['beam'],
            max_length=max_length,
            length_penalty=LengthPenalty(found['length_penalty'], found['penalty_kind']),
            banned=found.get('banned', ()),
            first=EOS,
            device=next(self.parameters()).device,
        )

    def step(self, tokens: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """Return the log-probabilities of the next token, ``(n, V)``, at least float32, and the next state.

        Args:
            tokens (Tensor): int64 ``(n)``, the last token of each hypothesis.
            state (DecodingState): from ``decoder.start`` or the last step.
        """
        x, state = self.decoder.step(self.embedding(tokens[:, None], start=state.position), state)
        logits = self.logits(x[:, 0])
        return F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32)), state


def predictions(
    found: list[list[Hypothesis]], data_samples: list[BaseDataElement] | None = None
) -> list[BaseDataElement]:
    """Return data samples with ``pred_tokens``, ``pred_score`` and ``n_best``, for the hypotheses of each sentence."""
    data_samples = [BaseDataElement() for _ in found] if data_samples is None else data_samples
    for sample, hypotheses in zip(data_samples, found):
        sample.n_best = hypotheses
        sample.pred_tokens, sample.pred_score = hypotheses[0]
    return data_samples
