"""Metric of phrase grounding: R@k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmattn.language.layers.object_counter import box_iou
from mmattn.language.unique_metric import UniqueMetric
from mmattn.registry import METRICS

TOP = (1, 5, 10)


@METRICS.register_module()
class PhraseRecall(UniqueMetric):
    """R@1, R@5 and R@10 of phrase grounding: how often one of the k best regions of a phrase is correct.

    A region is correct if its IoU with any box of the phrase's entity is at least 0.5. 'upper bound' is the recall of
    all regions, and 'whole image' the recall of the box of the whole image. All figures are in percent of the phrases
    with a box. If regions have equal scores, the first is better.

    Some papers use the smallest box around all boxes of an entity, as 'R@1 union', 'upper bound union' and so on do.
    'R@1/people' and so on are figures for one type of phrases. A phrase of several types counts in each type.

    Source: "Bilinear Attention Networks", 2018, section 5.

    Args:
        output_dir (str, optional): folder for ``scores.json``, which has scores by caption id and number of the phrase,
            ``{"scores": {"42#0/1": {"R@1": 100.0, …}}}``. ``tools/test.py --out`` sets it. Defaults to None, no file.
        **kwargs: as in :class:`mmattn.language.unique_metric.UniqueMetric`.

    Example:
        >>> regions = torch.tensor([[0.0, 0.0, 50.0, 40.0], [0.0, 0.0, 9.0, 8.0]])
        >>> phrase = dict(text='a man', types=['people'], boxes=torch.tensor([[0.0, 0.0, 9.0, 9.0]]))
        >>> metric = PhraseRecall()
        >>> metric.process({}, [dict(caption_id='42#0', size=(50, 40), regions=regions, phrases=[phrase],
        ...                          pred_scores=torch.tensor([[0.7, 0.1]]))])
        >>> figures = metric.evaluate(1)
        >>> figures['R@1'], figures['R@5'], figures['upper bound']
        (0.0, 100.0, 100.0)
    """

    metric_names = tuple(
        f'{name}{rule}' for name in (*(f'R@{k}' for k in TOP), 'upper bound', 'whole image') for rule in ('', ' union')
    )
    key = 'caption_id'

    def process(self, data_batch: dict, data_samples: Sequence[dict]) -> None:
        """Score the phrases of a batch.

        Samples are as in :class:`EntitiesDataset`, with ``pred_scores``, float ``(P, N)``, without NaN.
        """
        for sample in data_samples:
            regions, scores, phrases = sample['regions'].cpu(), sample['pred_scores'].cpu(), sample['phrases']
            if scores.shape != (len(phrases), len(regions)) or scores.isnan().any():
                raise ValueError(
                    f'caption {sample["caption_id"]}: pred_scores must be {(len(phrases), len(regions))} numbers, '
                    f'phrases and regions; got {tuple(scores.shape)}, {int(scores.isnan().sum())} of them NaN'
                )
            phrase_figures = [phrase_scores(regions, *pair, sample['size']) for pair in zip(phrases, scores)]
            self.results.append(
                dict(
                    caption_id=sample['caption_id'],
                    types=[list(phrase['types']) for phrase in phrases],
                    scores=phrase_figures,
                )
            )

    def compute_metrics(self, results: list[dict]) -> dict[str, float]:
        """Compute the figures by name, in percent, and write ``scores.json`` if requested."""
        phrases = [
            (f'{result["caption_id"]}/{number}', types, scores)
            for result in results
            for number, (types, scores) in enumerate(zip(result['types'], result['scores']))
        ]
        self.write('scores.json', dict(scores={name: scores for name, _, scores in phrases}))
        every = [scores for *_, scores in phrases]
        figures = {name: _mean(every, name) for name in every[0]}
        for kind in sorted({kind for _, types, _ in phrases for kind in types}):
            kind_scores = [scores for _, types, scores in phrases if kind in types]
            figures.update((f'{name}/{kind}', _mean(kind_scores, name)) for name in every[0])
        return figures


def phrase_scores(regions: Tensor, phrase: dict[str, Any], scores: Tensor, size: tuple[int, int]) -> dict[str, float]:
    """Score a phrase with 'boxes', ``(M, 4)``, by 0 or 100 for each figure of :class:`PhraseRecall`.

    ``regions`` are boxes ``(N, 4)`` with ``scores`` ``(N)``.
    """
    order = scores.sort(descending=True, stable=True).indices
    boxes = phrase['boxes']
    union = torch.cat([boxes[:, :2].amin(0), boxes[:, 2:].amax(0)])[None]
    image = boxes.new_tensor([[0, 0, *size]])
    figures = {}
    for rule, targets in (('', boxes), (' union', union)):
        correct = (box_iou(regions.to(targets), targets) >= 0.5).any(1)
        ranked = correct[order]
        hits = {f'R@{k}': ranked[:k] for k in TOP}
        hits.update({'upper bound': correct, 'whole image': box_iou(image, targets) >= 0.5})
        figures.update({f'{name}{rule}': 100.0 * bool(hit.any()) for name, hit in hits.items()})
    return figures


def _mean(scores: Sequence[dict[str, float]], name: str) -> float:
    return math.fsum(figures[name] for figures in scores) / len(scores)
