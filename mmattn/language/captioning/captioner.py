"""Base class of all captioning models, and ensembles of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from mmattn.language.layers.linear_layers import init_xavier
from mmattn.language.models.embedding import TokenEmbedding
from mmattn.language.models.generation import Hypothesis, SentenceGenerator, predictions
from mmattn.language.text.vocabulary import EOS, PAD, UNK
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count

from .self_critical import CiderReward, end_mask, mean_baseline, self_critical_loss

BASELINES = ('greedy', 'mean')


class Captioner(SentenceGenerator):
    """Base of the models that describe images: word embedding, decoder, output layer, losses and beam search.

    A subclass sets ``decoder``, ``num_features`` (None if it reads no regions) and ``reads_attributes``, and defines
    ``encode(inputs)``, which returns memory and padding mask of the decoder. Both may be tuples. The embedding and the
    output layer do not share weights.

    Args:
        vocab_size (int): number of symbols, including the four special symbols.
        embed_dim (int): channels E.
        dropout (float): dropout probability of the embedded words, in [0, 1).
        label_smoothing (float): ε of the cross-entropy, in [0, 1]. Defaults to 0.
        self_critical (dict, optional): train with the reward CIDEr-D in place of cross-entropy. ``samples`` captions
            are drawn per image (default 5). ``baseline`` is 'greedy' (default), the reward of the model's best caption,
            or 'mean', the mean of the other samples of the image. ``mmattn.SelfCriticalHook`` sets the reward.
        test_cfg (dict, optional): options of the beam search: ``beam`` (default 3), ``length_penalty`` (default 0,
            none), ``penalty_kind`` ('power'), ``max_length`` (20 words) and ``banned`` (``<unk>``).
        data_preprocessor (dict, optional): as in mmengine. Defaults to ``mmattn.RegionDataPreprocessor``.
        init_cfg (dict, optional): as in mmengine. Defaults to None.
    """

    num_features: int | None
    reads_attributes = False
    encode: Callable[[dict[str, Tensor]], tuple[Any, Any]]

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        dropout: float,
        label_smoothing: float = 0.0,
        self_critical: dict | None = None,
        test_cfg: dict | None = None,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(
            label_smoothing,
            dict(beam=3, length_penalty=0.0, penalty_kind='power', max_length=20, banned=(UNK,)),
            test_cfg,
            data_preprocessor or dict(type='mmattn.RegionDataPreprocessor'),
            init_cfg,
        )
        check_count('test_cfg.max_length', self.test_cfg['max_length'])
        self.embedding = TokenEmbedding(vocab_size, embed_dim, dropout)
        self.output = nn.Linear(embed_dim, vocab_size)
        init_xavier(self.output)
        self.self_critical = None if self_critical is None else {**dict(samples=5, baseline='greedy'), **self_critical}
        if self.self_critical is not None:
            unknown = set(self.self_critical) - {'samples', 'baseline'}
            if unknown or self.self_critical['baseline'] not in BASELINES:
                raise ValueError(
                    f'self_critical must have samples and a baseline of {BASELINES}; got {self_critical!r}'
                )
            least = 2 if self.self_critical['baseline'] == 'mean' else 1
            check_count('self_critical.samples', self.self_critical['samples'], least)
        self.reward: CiderReward | None = None

    def logits(self, x: Tensor) -> Tensor:
        """Compute the logits of all symbols, ``(*, V)``, for the output of the decoder, ``(*, E)``."""
        return self.output(x)

    def forward(
        self, inputs: dict[str, Tensor], data_samples: list[BaseDataElement] | None = None, mode: str = 'tensor'
    ) -> Any:
        """Run the model on a batch of images.

        Args:
            inputs (dict[str, Tensor]): 'features', float ``(B, N, D)``, and 'region_mask', bool ``(B, N)``, True where
                padded. Models that use them also read 'boxes', float ``(B, N, 4)``, and 'attributes', int64 ``(B, A)``,
                padded. All modes but 'predict' read 'captions', int64 ``(B, K, L)``, padded, with ``</s>``.
            data_samples (list[BaseDataElement], optional): one per image, to which predictions are added. Self-critical
                training reads ``index``, the number of the image in the data set.
            mode (str): 'tensor' returns the logits ``(B·K, L, V)``, and 'loss' a dict. 'predict' returns the samples
                with ``pred_tokens`` (list of int), ``pred_score`` and ``n_best`` (list of :class:`Hypothesis`).
        """
        if mode == 'predict':
            return predictions(self.describe(inputs), data_samples)
        if mode == 'loss' and self.self_critical is not None:
            return self.self_critical_loss(inputs, data_samples or [])
        captions = inputs['captions']
        memory, mask = repeat(self.encode(inputs), captions.shape[1])
        captions = captions.flatten(0, 1)
        x = self.decode(memory, mask, captions)
        return self.label_smoothed(x, captions) if mode == 'loss' else self.logits(x)

    def describe(self, inputs: dict[str, Tensor], **options: Any) -> list[list[Hypothesis]]:
        """Caption images by beam search, with up to ``beam`` hypotheses per image, the best first.

        The inputs are as in :meth:`forward`, without captions. ``options`` replace entries of ``test_cfg``.
        """
        limit = options.pop('max_length', self.test_cfg['max_length'])
        return self.search(self.decoder.start(*self.encode(inputs)), limit, **options)

    @torch.no_grad()
    def sample(self, memory: Any, mask: Any, count: int) -> Tensor:
        """Draw ``count`` captions per image, word by word: int64 ``(B·count, L)``, with ``<pad>`` after ``</s>``.

        The captions of an image are adjacent. A caption of ``max_length`` + 1 words has no ``</s>``.
        """
        state = self.decoder.start(memory, mask)
        device = self.embedding.weight.device
        state = state.reorder(torch.arange(state.count, device=device).repeat_interleave(count))
        tokens = torch.full((state.count,), EOS, device=device)
        ended = torch.zeros_like(tokens, dtype=torch.bool)
        words = []
        for _ in range(self.test_cfg['max_length'] + 1):
            log_p, state = self.step(tokens, state)
            log_p[:, PAD] = -torch.inf
            tokens = torch.multinomial(log_p.exp(), 1).squeeze(1).masked_fill(ended, PAD)
            ended |= tokens == EOS
            words.append(tokens)
            if ended.all():
                break
        return torch.stack(words, 1)

    def self_critical_loss(self, inputs: dict[str, Tensor], data_samples: list[BaseDataElement]) -> dict[str, Tensor]:
        """Compute :func:`self_critical_loss` of sampled captions. ``reward`` must be set."""
        if self.reward is None or self.self_critical is None:
            raise RuntimeError('self-critical training requires a reward: add dict(type="mmattn.SelfCriticalHook")')
        count = self.self_critical['samples']
        index = torch.tensor([sample.index for sample in data_samples])
        memory, mask = self.encode(inputs)
        sampled = self.sample(memory, mask, count)
        reward = self.reward(sampled, index.repeat_interleave(count))
        if self.self_critical['baseline'] == 'mean':
            baseline = mean_baseline(reward, count)
        else:
            baseline = self.reward(self.greedy(inputs), index).repeat_interleave(count)
        # With gradients, all words at once; positions after the end have no effect.
        memory, mask = repeat((memory, mask), count)
        x = self.decode(memory, mask, sampled)
        keep = end_mask(sampled)
        log_p = x.new_zeros(sampled.shape, dtype=torch.promote_types(x.dtype, torch.float32))
        logits = self.logits(x[keep])
        logits[:, PAD] = -torch.inf  # as in `sample`
        chosen = torch.log_softmax(logits, -1, dtype=log_p.dtype)
        log_p[keep] = chosen.gather(1, sampled[keep][:, None]).squeeze(1)
        return self_critical_loss(log_p, sampled, reward.to(log_p), baseline.to(log_p))

    @torch.no_grad()
    def greedy(self, inputs: dict[str, Tensor]) -> Tensor:
        """Write the most probable words of each image in evaluation mode, int64 ``(B, L)``, each with ``</s>``."""
        training = [module for module in self.modules() if module.training]  # without frozen modules
        self.eval()
        try:
            predictions = self.describe(inputs, beam=1)
        finally:
            for module in training:
                module.training = True
        captions = [torch.tensor([*hypotheses[0].tokens, EOS]) for hypotheses in predictions]
        padded = nn.utils.rnn.pad_sequence(captions, batch_first=True, padding_value=PAD)
        return padded.to(self.embedding.weight.device)


def repeat(x: Any, count: int) -> Any:
    """Repeat each image ``count`` times, in a tensor or in nested tuples of tensors and None."""
    if isinstance(x, tuple):
        return tuple(repeat(part, count) for part in x)
    return None if x is None else x.repeat_interleave(count, 0)


@dataclass
class _States:  # decoding states of all models, for the same hypotheses
    states: list[Any]

    @property
    def count(self) -> int:
        return self.states[0].count

    def reorder(self, index: Tensor) -> _States:
        return _States([state.reorder(index) for state in self.states])


@MODELS.register_module()
class CaptionEnsemble(SentenceGenerator):
    """Average the word probabilities of several captioning models with one vocabulary.

    An ensemble is for tests only. ``tools/misc/ensemble_checkpoints.py`` merges the checkpoints of its models.

    Args:
        members (sequence of dict): configs of captioners that read the same inputs.
        test_cfg (dict, optional): options of the beam search. Defaults to the first model's.
        data_preprocessor, init_cfg (dict, optional): as in :class:`Captioner`.

    Example:
        >>> member = dict(type='mmattn.SANCaptioner', vocab_size=100, num_features=32, num_layers=1, embed_dim=16,
        ...               num_heads=4, feedforward_dim=32)
        >>> captions = CaptionEnsemble([member] * 2).eval().describe(dict(features=torch.randn(1, 9, 32)), beam=2)
        >>> len(captions[0])
        2
    """

    def __init__(
        self,
        members: Sequence[dict],
        test_cfg: dict | None = None,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        if not members:
            raise ValueError('members must be one model or more; got none')
        models = [MODELS.build(member) for member in members]
        preprocessor = data_preprocessor or dict(type='mmattn.RegionDataPreprocessor')
        super().__init__(0.0, models[0].test_cfg, test_cfg, preprocessor, init_cfg)
        self.members: Any = nn.ModuleList(models)
        self.num_features = next((model.num_features for model in models if model.num_features is not None), None)
        self.reads_attributes = any(model.reads_attributes for model in models)
        sizes = [len(model.embedding.weight) for model in models]
        if len(set(sizes)) > 1:
            raise ValueError(f'members must have the same vocabulary; got {sizes} symbols')

    def forward(
        self, inputs: dict[str, Tensor], data_samples: list[BaseDataElement] | None = None, mode: str = 'predict'
    ) -> Any:
        """Caption images, as :meth:`Captioner.forward` does in mode 'predict'. ``mode`` must be 'predict'."""
        if mode != 'predict':
            raise ValueError(f"mode must be 'predict': the models of an ensemble are trained one by one; got {mode!r}")
        return predictions(self.describe(inputs), data_samples)

    def describe(self, inputs: dict[str, Tensor], **options: Any) -> list[list[Hypothesis]]:
        """Caption images by beam search, as :meth:`Captioner.describe` does."""
        limit = options.pop('max_length', self.test_cfg['max_length'])
        states = _States([member.decoder.start(*member.encode(inputs)) for member in self.members])
        return self.search(states, limit, **options)

    def step(self, tokens: Tensor, state: _States) -> tuple[Tensor, _States]:  # type: ignore[override]
        """Average the models' probabilities of the next token. Returns their logarithms ``(n, V)`` and the state."""
        outputs, states = zip(*(member.step(tokens, part) for member, part in zip(self.members, state.states)))
        log_p = torch.stack(outputs)
        return log_p.logsumexp(0) - torch.log(log_p.new_tensor(len(outputs))), _States(list(states))
