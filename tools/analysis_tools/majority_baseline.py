"""Score the constant prediction of the training set's most frequent class; compare it with results of models.

    python tools/analysis_tools/majority_baseline.py CONFIG [--result NAME=METRICS.json …] [--out TABLE.md]

The scores are computed with the config's data sets and evaluator. ``--result`` reads a metrics file that
``tools/test.py`` has written to its work dir. The table is printed, and with ``--out`` written as Markdown.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.registry import init_default_scope
from mmengine.structures import PixelData
from mmseg.registry import DATASETS
from mmseg.structures import SegDataSample

from mmattn.engine import load_config
from mmattn.utils.command import run
from mmattn.utils.component_type import inner_data_sets
from mmattn.utils.files import check_not_input, check_writable, write_text


def annotations(dataloader: dict, pipeline: list[dict]) -> tuple[Iterator[np.ndarray], dict]:
    """Return the label maps of a config's data sets, ``(H, W)``, read one by one, and their meta information."""
    data_sets = [DATASETS.build({**cfg, 'pipeline': pipeline}) for cfg in inner_data_sets(dataloader['dataset'])]
    maps = (dataset[i]['gt_seg_map'] for dataset in data_sets for i in range(len(dataset)))
    return maps, data_sets[0].metainfo


def majority_metrics(cfg: Config) -> dict[str, float]:
    """Return the metrics of the constant prediction of the training set's most frequent class."""
    load = [dict(type='LoadAnnotations')]
    train, meta = annotations(cfg.train_dataloader, load)
    counts = sum(np.bincount(labels.ravel(), minlength=256) for labels in train)
    majority = int(np.argmax(counts[: len(meta['classes'])]))
    evaluator = Evaluator(cfg.test_evaluator)
    evaluator.dataset_meta = meta
    test, _ = annotations(cfg.test_dataloader, load)
    count = 0
    for labels in test:
        count += 1
        truth = torch.from_numpy(labels.astype(np.int64))[None]
        sample = SegDataSample(
            gt_sem_seg=PixelData(data=truth), pred_sem_seg=PixelData(data=torch.full_like(truth, majority))
        )
        evaluator.process(data_samples=[sample], data_batch=None)
    return evaluator.evaluate(count)


def table(rows: dict[str, dict]) -> str:
    """Return Markdown: one row per predictor, one column per metric that all of them have."""
    columns = [key for key in next(iter(rows.values())) if all(key in row for row in rows.values())]
    lines = ['| |' + ''.join(f' {column} |' for column in columns), '|---' * (len(columns) + 1) + '|']
    lines += [f'| {name} |' + ''.join(f' {row[column]:.2f} |' for column in columns) for name, row in rows.items()]
    return '\n'.join(lines) + '\n'


def main() -> None:
    parser = argparse.ArgumentParser(description='Score the prediction of the majority class')
    parser.add_argument('config', help='path of the config')
    parser.add_argument('--result', action='append', default=[], help='NAME=METRICS.json: a row for a model')
    parser.add_argument('--out', type=Path, help='also write the table to this file')
    args = parser.parse_args()
    results = [result.partition('=')[::2] for result in args.result]
    for name, path in results:
        if not (name and path):
            parser.error('--result must be NAME=METRICS.json')
    if args.out:
        check_not_input('--out', args.out, [args.config, *(path for _, path in results)])
        check_writable(args.out.parent)
    cfg = load_config(args.config)
    init_default_scope(cfg.get('default_scope', 'mmseg'))
    rows = {}
    for name, path in results:
        try:
            rows[name] = json.loads(Path(path).read_text(encoding='utf-8'))
        except ValueError as error:
            raise ValueError(f'--result: {path} is not JSON: {error}') from error
    rows['majority class'] = majority_metrics(cfg)
    text = table(rows)
    print(text)
    if args.out:
        write_text(args.out, text)


if __name__ == '__main__':
    run(main)
