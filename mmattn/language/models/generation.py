"""Generate sentences: beam search, one decoding step, and the base class of all models that write."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.nn import functional as F

from mmattn.language.text.batching import padding_mask
from mmattn.language.text.vocabulary import BOS, EOS, PAD
from mmattn.utils.checks import check_choice, check_count, check_fraction, check_number

from .embedding import TokenEmbedding
from .training import SequenceModel, label_smoothed_loss
from .transformer import DecodingState

MOST = 10.0  # a larger exponent makes all scores equal, and then infinite


@dataclass(frozen=True)
class LengthPenalty:
    """Divisor for the log-probability of a sentence, which depends on its length.

    Args:
        alpha (float): exponent α in [−10, 10]. Larger values prefer longer sentences, 0 has no effect. Defaults to 1.
        kind (str): 'power' for length^α, as in fairseq, or 'gnmt' for ((5 + length) / 6)^α (Vaswani et al., 2017). An α
            of one kind does not suit the other. Defaults to 'power'.

    Example:
        >>> LengthPenalty(0.5)(9)
        3.0
    """

    alpha: float = 1.0
    kind: str = 'power'

    def __post_init__(self) -> None:
        check_number('alpha', self.alpha, -MOST, MOST)
        check_choice('kind', self.kind, ('power', 'gnmt'))

    def __call__(self, length: int) -> float:
        """Compute the divisor for ``length`` tokens, including the end token."""
        return (length if self.kind == 'power' else (5 + length) / 6) ** self.alpha


class Hypothesis(NamedTuple):
    """A finished sentence."""

    tokens: list[int]  # without the first token and the end token
    score: float  # log-probability, with the end token, divided by the length penalty


def largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the ``k`` largest entries per row in descending order, and their indices, both ``(B, k)``.

    Of equal entries, the first come first. In :func:`torch.topk`, the choice depends on the device and the shape.
    """
    # One entry more shows whether the last chosen entry is equal to an entry that is not chosen.
    top, index = values.topk(min(k + 1, values.shape[1]))
    ties = top[:, k - 1] == top[:, -1] if top.shape[1] > k else top.new_zeros(len(top), dtype=torch.bool)
    ties &= top[:, k - 1] > -math.inf
    index = index[:, :k].sort(1).values
    top = values.gather(1, index)
    if ties.any():
        rows = ties.nonzero().squeeze(1)
        top[rows], index[rows] = (x[:, :k] for x in values[rows].sort(dim=1, descending=True, stable=True))
    top, order = top.sort(dim=1, descending=True, stable=True)
    return top, index.gather(1, order)


@torch.no_grad()
def beam_search(
    step: Callable[[Tensor, Any], tuple[Tensor, Any]],
    state: Any,
    batch: int,
    *,
    beam: int,
    max_length: int | Sequence[int] | Tensor,
    length_penalty: Callable[[int], float] | None = None,
    banned: Sequence[int] = (),
    first: int = BOS,
    device: torch.device | str = 'cpu',
) -> list[list[Hypothesis]]:
    """Search for the sentences with the largest scores log p / length penalty.

    The search starts with one hypothesis per sentence. Every step keeps the best 2·beam continuations of a sentence. A
    continuation that ends is finished if it is among the first ``beam``. The best ``beam`` that do not end continue. A
    hypothesis with ``max_length`` tokens can only end. The search of a sentence stops when ``beam`` hypotheses have
    finished, and its tensors are removed from the batch. Of equal scores, the lower index wins. With ``beam=1`` the
    search is greedy.

    Returns a list of 1 to ``beam`` hypotheses for each sentence, the best first.

    Args:
        step (callable): ``step(tokens, state)`` gets the last tokens ``(n)`` of n hypotheses. Hypotheses of a sentence
            are adjacent. It returns log-probabilities of the next tokens, float ``(n, V)``, and the next state.
        state: the state before the first token, of ``batch`` hypotheses. ``state.reorder(index)`` returns the state of
            the hypotheses ``index``, int64 ``(n')``.
        batch (int): number of sentences.
        beam (int): number of hypotheses per sentence, at least 1.
        max_length (int or sequence of int): bound on the tokens before the end token, for all or per sentence.
        length_penalty (callable, optional): divisor of the log-probability for a length that includes the end token.
            Defaults to ``LengthPenalty()``, the length itself.
        banned (sequence of int): tokens that are never written, in addition to padding. Defaults to empty.
        first (int): the token before the first one. Defaults to ``<s>``.
        device (torch.device or str): device of the tokens. Defaults to 'cpu'.

    Example:
        >>> class Constant:
        ...     def reorder(self, index):
        ...         return self
        >>> log_p = torch.tensor([0.0, 0.0, 0.2, 0.0, 0.5, 0.3]).log()
        >>> step = lambda tokens, state: (log_p.expand(len(tokens), -1), state)
        >>> [hypotheses] = beam_search(step, Constant(), 1, beam=2, max_length=2)
        >>> [hypothesis.tokens for hypothesis in hypotheses]
        [[4, 4], [4, 5]]
    """
    check_count('beam', beam)
    penalty = LengthPenalty() if length_penalty is None else length_penalty
    limits = [max_length] * batch if isinstance(max_length, int) else [int(length) for length in max_length]
    if len(limits) != batch:
        raise ValueError(f'max_length must be one integer, or one per sentence: {batch}; got {len(limits)}')
    if EOS in banned:
        raise ValueError(f'banned must not contain the end token {EOS}: no sentence could end')
    finished: list[list[Hypothesis]] = [[] for _ in range(batch)]
    active = list(range(batch))  # sentences that are not finished
    tokens = torch.full((batch,), first, dtype=torch.long, device=device)
    written = tokens.new_empty((batch, 1, 0))  # (S, hypotheses, t)
    scores = torch.zeros(batch, 1, device=device)  # log-probability of each hypothesis; -inf: there is none
    banned = [PAD, *banned]
    length = 0
    while active:
        log_p, state = step(tokens, state)
        width = scores.shape[1]
        vocabulary = log_p.shape[-1]
        scores = scores.to(log_p.dtype)[..., None] + log_p.view(len(active), width, vocabulary)
        scores[..., banned] = -math.inf
        full = [row for row, sentence in enumerate(active) if limits[sentence] <= length]
        if full:
            ends = scores[full, :, EOS]
            scores[full] = -math.inf
            scores[full, :, EOS] = ends
        scores = scores.flatten(1)
        values, index = largest(scores, min(2 * beam, scores.shape[1]))
        length += 1
        parent, token = index // vocabulary, index % vocabulary
        ended = (token == EOS) & (values > -math.inf)
        for row, rank in ended[:, :beam].nonzero().tolist():
            sentence = finished[active[row]]
            if len(sentence) < beam:
                words = written[row, parent[row, rank]].tolist()
                sentence.append(Hypothesis(words, values[row, rank].item() / penalty(length)))
        # The best that do not end continue, in their order.
        values = values.masked_fill(token == EOS, -math.inf)
        order = (token == EOS).sort(dim=1, stable=True).indices[:, :beam]
        values, parent, token = (x.gather(1, order) for x in (values, parent, token))
        alive = values[:, 0] > -math.inf
        kept = [row for row, sentence in enumerate(active) if len(finished[sentence]) < beam and alive[row]]
        if not kept:
            break
        rows = torch.tensor(kept, device=device)
        state = state.reorder((rows[:, None] * width + parent[rows]).flatten())
        written = torch.cat([written[rows[:, None], parent[rows]], token[rows, :, None]], 2)
        scores, tokens = values[rows], token[rows].flatten()
        active = [active[row] for row in kept]
    if not all(finished):
        raise FloatingPointError(
            'step must return log-probabilities with which every sentence can end; got NaN or -inf'
        )
    return [sorted(hypotheses, key=lambda hypothesis: -hypothesis.score) for hypotheses in finished]


class SentenceGenerator(SequenceModel):
    """A model with an embedding and a decoder, which writes sentences about encoded inputs.

    A subclass sets ``embedding`` and ``decoder``. Its encoder returns the arguments ``memory`` and
    ``memory_padding_mask`` of the decoder. The token before the first one is ``</s>``.

    Args:
        label_smoothing (float): ε of the loss, in [0, 1].
        defaults (dict): default options of the beam search: ``beam``, ``length_penalty``, ``penalty_kind``,
            ``max_length`` and, optionally, ``banned``. See :func:`mmattn.language.beam_search` and
            :class:`mmattn.language.LengthPenalty`.
        test_cfg (dict, optional): options that replace the defaults.
        data_preprocessor, init_cfg: as in mmengine's ``BaseModel``.
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
        check_fraction('label_smoothing', label_smoothing)
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
        """Compute the logits of all symbols, ``(*, V)``, from the output of the decoder, ``(*, E)``."""
        return self.embedding.logits(x)

    def decode(self, memory: Any, memory_mask: Any, target: Tensor) -> Tensor:
        """Compute the output of the decoder, ``(B, L, E)``, which predicts ``target``, int64 ``(B, L)``."""
        previous = F.pad(target[:, :-1], (1, 0), value=EOS)
        return self.decoder(self.embedding(previous), memory, padding_mask(target), memory_mask)

    def label_smoothed(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Compute :func:`mmattn.language.label_smoothed_loss` for the output of :meth:`decode`."""
        mask = padding_mask(target)
        x, target = (x.flatten(0, 1), target.flatten()) if mask is None else (x[~mask], target[~mask])
        return label_smoothed_loss(self.logits(x), target, self.label_smoothing)

    def search(self, state: Any, max_length: int | Sequence[int], **options: Any) -> list[list[Hypothesis]]:
        """Write sentences by beam search. Returns up to ``beam`` hypotheses per sentence, the best first.

        ``state`` comes from ``decoder.start``, ``max_length`` is as in :func:`mmattn.language.beam_search`. Other
        options replace values of ``test_cfg``.
        """
        options = {**self.test_cfg, **options}
        return beam_search(
            self.step,
            state,
            state.count,
            beam=options['beam'],
            max_length=max_length,
            length_penalty=LengthPenalty(options['length_penalty'], options['penalty_kind']),
            banned=options.get('banned', ()),
            first=EOS,
            device=next(self.parameters()).device,
        )

    def step(self, tokens: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """Compute the log-probabilities of the next token, ``(n, V)``, at least float32, and the next state."""
        x, state = self.decoder.step(self.embedding(tokens[:, None], start=state.position), state)
        logits = self.logits(x[:, 0])
        return F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32)), state


def predictions(
    n_best: list[list[Hypothesis]], data_samples: list[BaseDataElement] | None = None
) -> list[BaseDataElement]:
    """Set ``pred_tokens``, ``pred_score`` and ``n_best`` of data samples from the hypotheses of their sentences."""
    data_samples = [BaseDataElement() for _ in n_best] if data_samples is None else data_samples
    for sample, hypotheses in zip(data_samples, n_best):
        sample.n_best = hypotheses
        sample.pred_tokens, sample.pred_score = hypotheses[0]
    return data_samples
