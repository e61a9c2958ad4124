"""Several captioning models that write one caption together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from mmattn.language.models.beam_search import Hypothesis
from mmattn.language.models.generation import SentenceGenerator, predictions
from mmattn.registry import MODELS


@dataclass
class _States:
    """The decoding states of all models, for the same hypotheses."""

    states: list[Any]

    @property
    def count(self) -> int:
        return self.states[0].count

    def reorder(self, index: Tensor) -> _States:
        return _States([state.reorder(index) for state in self.states])


@MODELS.register_module()
class CaptionEnsemble(SentenceGenerator):
    """Captioning models with one vocabulary; a word has the mean of the probabilities that the models assign to it.

    It is for tests only. ``tools/misc/ensemble_checkpoints.py`` makes its checkpoint from those of the models.

    Args:
        members (sequence of dict): configs of the models: captioners that read the same inputs.
        test_cfg (dict, optional): options of the beam search. Defaults to that of the first model.
        data_preprocessor (dict, optional): config of the data preprocessor. Defaults to
            ``mmattn.RegionDataPreprocessor``.
        init_cfg (dict, optional): as in mmengine's ``BaseModule``.

    Raises:
        ValueError: there is no model, or the models have vocabularies of different sizes.

    Example:
        >>> member = dict(type='mmattn.SANCaptioner', vocab_size=100, num_features=32, num_layers=1, embed_dim=16,
        ...               num_heads=4, feedforward_dim=32)
        >>> found = CaptionEnsemble([member] * 2).eval().describe(dict(features=torch.randn(1, 9, 32)), beam=2)
        >>> len(found[0])
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
        """Return the data samples with the captions; see :meth:`Captioner.forward`.

        Raises:
            ValueError: ``mode`` is not 'predict'.
        """
        if mode != 'predict':
            raise ValueError(f"mode must be 'predict': the models of an ensemble are trained one by one; got {mode!r}")
        return predictions(self.describe(inputs), data_samples)

    def describe(self, inputs: dict[str, Tensor], **options: Any) -> list[list[Hypothesis]]:
        """Caption a batch of images by beam search; see :meth:`Captioner.describe`."""
        limit = options.pop('max_length', self.test_cfg['max_length'])
        states = _States([member.decoder.start(*member.encode(inputs)) for member in self.members])
        return self.search(states, limit, **options)

    def step(self, tokens: Tensor, state: _States) -> tuple[Tensor, _States]:  # type: ignore[override]
        """Return the logarithms of the mean probabilities of the next token, ``(n, V)``, and the next state."""
        found = [member.step(tokens, own) for member, own in zip(self.members, state.states)]
        log_p = torch.stack([log_p for log_p, _ in found])
        return log_p.logsumexp(0) - torch.log(log_p.new_tensor(len(found))), _States([own for _, own in found])
