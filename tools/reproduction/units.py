"""Scores of each sample of a test, whose sums give the metric: for intervals over images, clips and sentences."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.evaluator import BaseMetric

from mmattn.registry import METRICS
from mmattn.utils.component_type import type_name
from mmattn.utils.files import common_folder, write_text

from .task import find_metrics

# The statistic of a metric's scores, see `reproduction.results.STATISTICS`.
STATISTIC_NAMES = {
    'IoUMetric': 'mIoU',
    'ForegroundIoUMetric': 'mIoU',
    'FaceParsingMetric': 'mean',
    'VOSMetric': 'mean',
    'BLEU': 'BLEU',
}


def score_sample(metric: BaseMetric, result: Any, key: str) -> list[float]:
    """Return the numbers of a sample that add up to a metric of a test.

    Args:
        metric (BaseMetric): a metric of :data:`STATISTIC_NAMES`.
        result: its result of one sample.
        key (str): name of the metric, such as 'overall' or 'accuracy' for faces.

    Returns:
        list[float]: intersections and unions of all classes; 100 · 2TP and 2TP + FP + FN, or 100 times the number of
        correct pixels and the number of all; J&F summed over the objects of a clip, and their number; n-grams and
        lengths of a sentence.
    """
    kind = type(metric).__name__
    if kind in ('IoUMetric', 'ForegroundIoUMetric'):
        intersections, unions, *_ = result
        return [*intersections.tolist(), *unions.tolist()]
    if kind == 'FaceParsingMetric':
        part, whole = metric.count_pixels(result)[key]
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
        metric (dict): config of a metric of :data:`STATISTIC_NAMES`.
        key (str): name of the metric whose scores are written, see :func:`score_sample`.
        output_dir (str): folder for ``scores.json``; ``tools/test.py --out`` sets it.
        keep_results (bool): no effect; ``tools/test.py --out`` sets it.
    """

    def __init__(self, metric: dict, key: str, output_dir: str, keep_results: bool = False) -> None:
        super().__init__()
        self.metric = METRICS.build(metric)
        self.key = key
        self.output_dir = output_dir

    @property
    def dataset_meta(self) -> dict | None:
        return self.metric.dataset_meta

    @dataset_meta.setter
    def dataset_meta(self, dataset_meta: dict | None) -> None:
        self.metric.dataset_meta = dataset_meta

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        for sample in data_samples:
            self.metric.process(data_batch, [sample])
            name = Path(sample['img_path']) if 'img_path' in sample else str(sample.get('clip', sample.get('line')))
            self.results.append((name, self.metric.results[-1]))

    def compute_metrics(self, results: list[tuple[Path | str, Any]]) -> dict[str, float]:
        """Compute the metric, and write the scores of all samples; the name of an image is its path in their folder."""
        folder = common_folder(name for name, _ in results if isinstance(name, Path))
        scores = {}
        for name, result in results:
            if isinstance(name, Path):
                name = Path(os.path.relpath(name, folder)).with_suffix('').as_posix()
            scores[name] = score_sample(self.metric, result, self.key)
        write_text(Path(self.output_dir, 'scores.json'), json.dumps(scores))
        return self.metric.compute_metrics([result for _, result in results])


def score_by_unit(cfg: Config) -> str:
    """Let the test of a config write the scores of its samples, and return the name of their statistic."""
    statistic, key = STATISTIC_NAMES[type_name(cfg.test_evaluator)], next(iter(find_metrics(cfg)[1]))
    cfg.test_evaluator = dict(type='mmattn.ByUnit', metric=cfg.test_evaluator, key=key)
    imports = cfg.get('custom_imports', {}).get('imports', [])
    cfg.custom_imports = dict(imports=[*imports, __name__])  # which tools/test.py finds beside itself
    return statistic
