"""Scores of each sample of a test, whose sums give the metric: for intervals over images, clips and sentences."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.evaluator import BaseMetric

from mmattn.registry import METRICS
from mmattn.utils.component_type import type_name
from mmattn.utils.files import write_text

from .backbone import add_import
from .task import ProtocolError

# The statistic of a metric's scores, see `reproduction.results.STATISTICS`.
STATISTIC_OF = {'IoUMetric': 'mIoU', 'FaceParsingMetric': 'mean', 'VOSMetric': 'mean', 'BLEU': 'BLEU'}


def score_sample(metric: BaseMetric, result: Any) -> list[float]:
    """Return the numbers of a sample that add up to the first metric of a test.

    Args:
        metric (BaseMetric): a metric of :data:`STATISTIC_OF`.
        result: its result of one sample.

    Returns:
        list[float]: intersections and unions of all classes; 100 · 2TP and 2TP + FP + FN of all components; J&F summed
        over the objects of a clip, and their number; n-grams and lengths of a sentence.
    """
    kind = type(metric).__name__
    if kind == 'IoUMetric':
        intersections, unions, *_ = result
        return [*intersections.tolist(), *unions.tolist()]
    if kind == 'FaceParsingMetric':
        part, whole = metric.count_pixels(result)['overall']
        return [100 * int(part), int(whole)]
    if kind == 'VOSMetric':
        rows = [50 * float(values.mean(1).sum()) for values in result['objects'].values() if values.size]
        return [sum(rows), len(rows)]
    from mmattn.language.translation.bleu import tokenized_bleu  # lazy: the other tasks do without language

    score = tokenized_bleu(*metric.tokenized_pairs([result]))
    return [*score.counts, *score.totals, score.sys_len, score.ref_len]


@METRICS.register_module()
class ByUnit(BaseMetric):
    """Another metric, and the scores of its samples in ``scores.json``.

    Args:
        metric (dict): config of a metric of :data:`STATISTIC_OF`.
        output_dir (str): folder for ``scores.json``; ``tools/test.py --out`` sets it.
        keep_results (bool): no effect; ``tools/test.py --out`` sets it.
    """

    def __init__(self, metric: dict, output_dir: str, keep_results: bool = False) -> None:
        super().__init__()
        self.metric = METRICS.build(metric)
        self.output_dir = output_dir

    @property
    def dataset_meta(self) -> dict | None:
        """Meta information of the data set, which the metric has, too."""
        return self.metric.dataset_meta

    @dataset_meta.setter
    def dataset_meta(self, dataset_meta: dict | None) -> None:
        self.metric.dataset_meta = dataset_meta

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Keep the name and the metric's result of each sample."""
        for sample in data_samples:
            self.metric.process(data_batch, [sample])
            name = sample.get('clip') or (Path(sample['img_path']).stem if 'img_path' in sample else sample['line'])
            self.results.append((str(name), self.metric.results[-1]))

    def compute_metrics(self, results: list[tuple[str, Any]]) -> dict[str, float]:
        """Compute the metric, and write the scores of all samples."""
        scores = {name: score_sample(self.metric, result) for name, result in results}
        write_text(Path(self.output_dir, 'scores.json'), json.dumps(scores))
        return self.metric.compute_metrics([result for _, result in results])


def check_units(cfg: Config) -> None:
    """Check that the test of a config can be scored by sample.

    Raises:
        ProtocolError: its metric is not a sum over samples.
    """
    if type_name(cfg.test_evaluator) not in STATISTIC_OF:
        raise ProtocolError(
            f'--units is for {", ".join(STATISTIC_OF)}; {type_name(cfg.test_evaluator)} is not a sum over samples'
        )


def score_by_unit(cfg: Config) -> str:
    """Let the test of a config write the scores of its samples, and return the name of their statistic."""
    statistic = STATISTIC_OF[type_name(cfg.test_evaluator)]
    cfg.test_evaluator = dict(type='mmattn.ByUnit', metric=cfg.test_evaluator)
    add_import(cfg, __name__)
    return statistic
