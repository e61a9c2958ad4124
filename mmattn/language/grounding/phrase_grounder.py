"""Model of phrase grounding: which region does a phrase of a caption describe?"""

from __future__ import annotations

from typing import Any

import torch
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from mmattn.language.regions.data_preprocessor import RegionDataPreprocessor
from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_counts

GEOMETRY = 5  # left, top, right and bottom, relative to the image, and the area


@MODELS.register_module()
class PhraseDataPreprocessor(RegionDataPreprocessor):
    """Pad captions and regions as :class:`RegionDataPreprocessor` does, and the phrases of each caption.

    The inputs ``phrases``, ``(B, P)``, and in training ``targets``, ``(B, P, N)``, are padded with 0. ``phrase_mask``,
    bool ``(B, P)``, is added.

    Example:
        >>> inputs = dict(features=[torch.ones(2, 8), torch.ones(1, 8)],
        ...               phrases=[torch.tensor([1, 4]), torch.tensor([2])],
        ...               targets=[torch.ones(2, 2), torch.ones(1, 1)])
        >>> inputs = PhraseDataPreprocessor()(dict(inputs=inputs))['inputs']
        >>> inputs['phrase_mask'], inputs['targets'][1]
        (tensor([[False, False],
                [False,  True]]), tensor([[1., 0.],
                [0., 0.]]))
    """

    def forward(self, data: dict, training: bool = False) -> dict:
        """Pad the batch."""
        if 'phrase_mask' in data['inputs']:  # padded by pad_collate
            return super().forward(data, training)
        inputs = {**data['inputs']}
        phrases, targets = list(inputs.pop('phrases')), inputs.pop('targets', None)
        result = super().forward({**data, 'inputs': inputs}, training)
        counts = torch.tensor([len(x) for x in phrases])
        mask = torch.arange(int(counts.max())) >= counts[:, None]
        padded = dict(phrases=pad_sequence(phrases, batch_first=True), phrase_mask=mask)
        if targets is not None:
            regions = result['inputs']['region_mask'].shape[1]
            size = len(targets), mask.shape[1], regions
            padded['targets'] = targets[0].new_zeros(size)
            for row, x in zip(padded['targets'], targets):
                row[: x.shape[0], : x.shape[1]] = x
        result['inputs'].update(self.cast_data(padded))
        return result


@MODELS.register_module()
class PhraseGrounder(BaseModel):
    """Model that scores the regions of an image for each phrase of a caption.

    An encoder of the caption, such as a GRU, represents a phrase by its output at the last word. The scores are the
    logits L of one glimpse, for all pairs of a phrase and a region (Eq. 13). Several regions may be correct. So the
    loss is the binary cross-entropy of sigmoid(L), summed over the pairs and divided by the number of captions.

    Source: "Bilinear Attention Networks", 2018, section 5, and its published code.

    Args:
        vocab_size (int): number of symbols, including the four special symbols.
        num_features (int): channels M of the region features. Defaults to 2048.
        embed_dim (int): channels N of the phrases. Defaults to 1280.
        question_encoder (dict): config of the encoder, without ``vocab_size`` and ``embed_dim``. It returns ``words``,
            ``(B, L, N)``. Defaults to ``mmattn.QuestionGRU``.
        scorer (dict): config of the layer that returns the logits ``(B, 1, P, K)``, without ``word_dim`` and
            ``region_dim``. Its ``embed_dim`` defaults to 3·N. Defaults to ``mmattn.BilinearLogits``.
        reads (str): input of the scorer for a region. 'features' (default) are the region features. 'boxes' are 5
            numbers for position and size, relative to the image.
        data_preprocessor (dict, optional): as in mmengine. Defaults to ``mmattn.PhraseDataPreprocessor``.
        init_cfg (dict, optional): as in mmengine. Defaults to None.

    Example:
        >>> model = PhraseGrounder(100, num_features=32, embed_dim=16)
        >>> inputs = dict(caption=torch.tensor([[7, 9, 50]]), phrases=torch.tensor([[0, 2]]),
        ...               phrase_mask=torch.tensor([[False, False]]), features=torch.randn(1, 6, 32),
        ...               region_mask=torch.zeros(1, 6, dtype=torch.bool))
        >>> model(inputs).shape
        torch.Size([1, 2, 6])
    """

    def __init__(
        self,
        vocab_size: int,
        num_features: int = 2048,
        embed_dim: int = 1280,
        question_encoder: dict = dict(type='mmattn.QuestionGRU'),
        scorer: dict = dict(type='mmattn.BilinearLogits'),
        reads: str = 'features',
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor or dict(type='mmattn.PhraseDataPreprocessor'), init_cfg)
        check_counts(vocab_size=vocab_size, num_features=num_features, embed_dim=embed_dim)
        check_choice('reads', reads, ('features', 'boxes'))
        self.num_features, self.reads = num_features, reads
        region_dim = num_features if reads == 'features' else GEOMETRY
        self.question_encoder = MODELS.build(dict(question_encoder, vocab_size=vocab_size, embed_dim=embed_dim))
        self.scorer = MODELS.build(
            dict(dict(embed_dim=3 * embed_dim), **scorer, word_dim=embed_dim, region_dim=region_dim)
        )

    def forward(
        self, inputs: dict[str, Tensor], data_samples: list[BaseDataElement] | None = None, mode: str = 'tensor'
    ) -> Any:
        """Run the model on a batch of captions.

        Args:
            inputs (dict[str, Tensor]): 'caption', int64 ``(B, L)``, padded, 'phrases', int64 ``(B, P)``, the position
                of the last word of each phrase, 'phrase_mask', bool ``(B, P)``, 'features', float ``(B, N, M)``, and
                'region_mask', bool ``(B, N)``. Masks are True where padded. ``reads='boxes'`` needs 'boxes', float
                ``(B, N, 4)``, and 'sizes', width and height ``(B, 2)``. Mode 'loss' needs 'targets', ``(B, P, N)``, 1
                for the correct regions of a phrase, otherwise 0.
            data_samples (list[BaseDataElement], optional): one per caption, to which predictions are added.
            mode (str): 'tensor' returns the logits ``(B, P, N)``, arbitrary where padded, and 'loss' a dict. 'predict'
                returns the data samples with ``pred_scores``, float ``(P, N)``, the logits without padding.
        """
        logits = self.logits(inputs)
        if mode == 'tensor':
            return logits
        phrases, regions = ~inputs['phrase_mask'], ~inputs['region_mask']
        if mode == 'loss':
            # Drop padded pairs. Their logits have no meaning, but are never −∞.
            pairs = phrases[:, :, None] & regions[:, None]
            targets = inputs['targets'].to(logits.dtype)
            loss = F.binary_cross_entropy_with_logits(logits[pairs], targets[pairs], reduction='sum')
            return dict(loss=loss / len(logits))
        samples = [BaseDataElement() for _ in logits] if data_samples is None else data_samples
        for sample, scores, some, valid in zip(samples, logits, phrases, regions):
            sample.pred_scores = scores[some][:, valid]
        return samples

    def logits(self, inputs: dict[str, Tensor]) -> Tensor:
        """Compute the logits of all pairs of a phrase and a region, ``(B, P, N)``. Inputs: see :meth:`forward`."""
        words = self.question_encoder(inputs['caption']).words
        last = inputs['phrases'][..., None].expand(-1, -1, words.shape[-1])
        regions = inputs['features'] if self.reads == 'features' else geometry(inputs['boxes'], inputs['sizes'])
        return self.scorer(words.gather(1, last), regions.to(words.dtype), inputs.get('region_mask')).squeeze(1)


def geometry(boxes: Tensor, sizes: Tensor) -> Tensor:
    """Compute left, top, right, bottom and area of boxes, relative to the image: float ``(B, N, 5)``.

    ``boxes`` are ``(B, N, 4)`` in pixels. ``sizes`` are width and height of the images, ``(B, 2)``.
    """
    corners = boxes / torch.cat([sizes, sizes], 1)[:, None].to(boxes.dtype)
    area = (corners[..., 2:] - corners[..., :2]).prod(-1, keepdim=True)
    return torch.cat([corners, area], -1)
