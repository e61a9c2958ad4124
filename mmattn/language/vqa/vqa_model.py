"""Models that answer questions about images: a question encoder, and a head that fuses question and regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.nn import functional as F

from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_counts


class AnswerModel(BaseModel):
    """Base of models that score answers. A subclass defines ``logits(inputs)`` and ``loss(logits, inputs)``."""

    logits: Callable[[dict[str, Tensor]], Tensor]
    loss: Callable[[Tensor, dict[str, Tensor]], Tensor]

    def scores(self, logits: Tensor) -> Tensor:
        """Convert logits to the probabilities of the answers, ``(B, A)``."""
        return logits.sigmoid()

    def forward(
        self, inputs: dict[str, Tensor], data_samples: list[BaseDataElement] | None = None, mode: str = 'tensor'
    ) -> Any:
        """Run the model on a batch of questions.

        Args:
            inputs (dict[str, Tensor]): 'question', int64 ``(B, L)``, padded after its words. With regions, 'features',
                float ``(B, K, D)``, 'region_mask', bool ``(B, K)``, True where padded, and, if the model reads boxes,
                'boxes', float ``(B, K, 4)``, in pixels for :class:`MCAN`, or in the unit of 'sizes', ``(B, 2)``, width
                and height. With pictures, 'image', float ``(B, 3, H, W)``, in [0, 1]. In mode 'loss', also 'targets',
                float ``(B, A)``, from 0 to 1, or, with ``loss='cross_entropy'``, 'answer', int64 ``(B,)``.
            data_samples (list[BaseDataElement], optional): one per question, to which predictions are added.
            mode (str): 'tensor' returns the logits ``(B, A)``, 'predict' the data samples with ``pred_scores``, float
                ``(A)``, and ``pred_label`` (int), the best answer. 'loss' returns a dict of 'loss' and, with 'targets',
                'score', the mean target of the best answers in percent, which is logged (Fig. 2a of BAN). Defaults to
                'tensor'.
        """
        logits = self.logits(inputs)
        if mode == 'tensor':
            return logits
        if mode == 'loss':
            losses = dict(loss=self.loss(logits, inputs))
            if 'targets' in inputs:  # in percent, for the log
                losses['score'] = 100 * inputs['targets'].gather(1, logits.argmax(1, keepdim=True)).mean()
            return losses
        samples = [BaseDataElement() for _ in logits] if data_samples is None else data_samples
        for sample, scores in zip(samples, self.scores(logits)):
            sample.pred_scores, sample.pred_label = scores, int(scores.argmax())
        return samples


@MODELS.register_module()
class VQAModel(AnswerModel):
    """Answer a question about an image, given by the features of its regions or by its pixels.

    The encoder reads the question, and the head returns one logit per answer. With 'binary', the loss is the binary
    cross-entropy of the targets, summed over the answers, and the scores of the answers are sigmoids. With
    'cross_entropy', there is one answer per question, and the scores are a softmax.

    Args:
        vocab_size (int): number of symbols of the questions, with padding.
        num_answers (int): number of answers A.
        question_encoder (dict): config of the encoder, without ``vocab_size``.
        head (dict): config of the head, without ``question_dim``, ``region_dim`` and ``num_answers``.
        num_features (int): channels D of the region features. Defaults to 2048.
        image_encoder (dict, optional): config of a network that reads images in place of region features, such as
            ``dict(type='mmattn.ConvImageEncoder')``. ``num_features`` is then ignored, and the attribute is None.
            Defaults to None.
        loss (str): 'binary' or 'cross_entropy'. Defaults to 'binary'.
        data_preprocessor, init_cfg (dict, optional): Default to ``mmattn.RegionDataPreprocessor`` and None.

    Example:
        >>> encoder = dict(type='mmattn.QuestionGRU', embed_dim=16)
        >>> head = dict(type='mmattn.BANHead', num_glimpses=2)
        >>> model = VQAModel(100, 5, encoder, head, num_features=32)
        >>> inputs = dict(question=torch.tensor([[7, 9, 50, 1]]), features=torch.randn(1, 36, 32))
        >>> model(inputs).shape, model.attention(inputs)[1].shape
        (torch.Size([1, 5]), torch.Size([1, 2, 4, 36]))
    """

    def __init__(
        self,
        vocab_size: int,
        num_answers: int,
        question_encoder: dict,
        head: dict,
        num_features: int = 2048,
        image_encoder: dict | None = None,
        loss: str = 'binary',
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor or dict(type='mmattn.RegionDataPreprocessor'), init_cfg)
        check_counts(num_answers=num_answers, num_features=num_features)
        check_choice('loss', loss, ('binary', 'cross_entropy'))
        self.loss_type, self.num_answers = loss, num_answers
        self.num_features = num_features if image_encoder is None else None
        self.question_encoder = MODELS.build({**question_encoder, 'vocab_size': vocab_size})
        self.image_encoder = None if image_encoder is None else MODELS.build(image_encoder)
        region_dim = num_features if self.image_encoder is None else self.image_encoder.embed_dim
        channels = dict(question_dim=self.question_encoder.embed_dim, region_dim=region_dim)
        self.head = MODELS.build({**head, **channels, 'num_answers': num_answers})
        if self.image_encoder is not None and self.head.reads_boxes:
            raise ValueError('image_encoder must be None for a head that reads boxes, such as one with a counter')

    def logits(self, inputs: dict[str, Tensor]) -> Tensor:
        """Compute the logits of the answers, ``(B, A)``."""
        return self._answer(inputs, need_weights=False)[0]

    def attention(self, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Compute the scores of the answers, ``(B, A)``, and the attention weights.

        The weights are ``(B, G, L, K)`` for words and regions, ``(B, G, K)`` for regions, or None without attention.
        """
        logits, weights = self._answer(inputs, need_weights=True)
        return self.scores(logits), weights

    def _answer(self, inputs: dict[str, Tensor], need_weights: bool) -> tuple[Tensor, Tensor | None]:
        question = self.question_encoder(_given(inputs, 'question'))
        if self.image_encoder is not None:
            return self.head(question, self.image_encoder(_given(inputs, 'image')), need_weights=need_weights)
        boxes = None
        if self.head.reads_boxes:
            boxes = _given(inputs, 'boxes') / _given(inputs, 'sizes').repeat(1, 2).unsqueeze(1)
        return self.head(question, _given(inputs, 'features'), inputs.get('region_mask'), boxes, need_weights)

    def loss(self, logits: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        """Compute the loss of a batch."""
        if self.loss_type == 'cross_entropy':
            return F.cross_entropy(logits, _given(inputs, 'answer'))
        targets = _given(inputs, 'targets').to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, targets, reduction='sum') / len(logits)

    def scores(self, logits: Tensor) -> Tensor:
        """Convert logits to the probabilities of the answers, ``(B, A)``."""
        return logits.sigmoid() if self.loss_type == 'binary' else logits.softmax(-1)


def _given(inputs: dict[str, Tensor], name: str) -> Tensor:
    if name not in inputs:
        hints = dict(
            targets="; set loss='cross_entropy', or target='soft' of the data set",
            answer="; set loss='binary', or target='sampled' of the data set",
        )
        raise ValueError(f'inputs must contain {name!r}{hints.get(name, "")}; got {", ".join(sorted(inputs))}')
    return inputs[name]
