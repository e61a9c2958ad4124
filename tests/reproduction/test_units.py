"""Scores of samples, as the tests of the tasks write them: their sums give the metric."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config

from mmattn.registry import METRICS
from reproduction.results import STATISTICS
from reproduction.units import ByUnit, score_by_unit

pytestmark = pytest.mark.slow

CLASSES = ('background', 'skin', 'eyes')
WORDS = ['ein', 'hund', 'läuft', 'im', 'park', 'und', 'bellt']


def labels():
    return dict(data=torch.from_numpy(np.random.default_rng().integers(0, 3, (1, 9, 7))))


def face(name):
    return dict(img_path=f'folder/{name}.png', pred_sem_seg=labels(), gt_sem_seg=labels())


def sentence(line):
    rng = np.random.default_rng(line)
    target = rng.choice(WORDS, 12)
    tokens = [WORDS.index(word) + 4 for word in target[: 8 + line % 4]]
    return dict(line=line, pred_tokens=tokens, target=' '.join(target))


@pytest.mark.parametrize(
    ('metric', 'key'),
    [
        (dict(type='mmattn.FaceParsingMetric', overall=['skin', 'eyes']), 'overall'),
        (dict(type='mmattn.FaceParsingMetric', columns=['skin', 'accuracy']), 'accuracy'),
        (dict(type='IoUMetric', iou_metrics=['mIoU']), 'mIoU'),
        (dict(type='mmattn.BLEU', detokenized=False), 'BLEU'),
    ],
)
def test_the_metric_is_the_statistic_of_the_sums(metric, key, tmp_path):
    """The metric's own value, to the decimals that it has."""
    cfg = Config(dict(test_evaluator=metric, val_evaluator=metric))
    statistic = score_by_unit(cfg)
    assert cfg.custom_imports.imports == ['reproduction.units']
    scored = METRICS.build({**cfg.test_evaluator, 'output_dir': str(tmp_path)})
    scored.dataset_meta = dict(classes=CLASSES, target='de', lowercase=True, symbols=WORDS)
    for number in range(5):
        scored.process({}, [(sentence if key == 'BLEU' else face)(number)])
    value = scored.evaluate(5)[key]
    scores = json.loads((tmp_path / 'scores.json').read_text())
    assert list(scores) == [*'01234']
    assert 0 < value < 100
    assert STATISTICS[statistic](np.sum([*scores.values()], 0)) == pytest.approx(value, abs=0.006)


def test_images_of_one_name_in_several_folders_are_several(tmp_path):
    scored = ByUnit(dict(type='mmattn.FaceParsingMetric', overall=['skin']), 'overall', str(tmp_path))
    scored.dataset_meta = dict(classes=CLASSES)
    for name in (Path('folder/drive1/0001').absolute(), 'folder/drive2/0001'):  # one data set is given by its full path
        scored.process({}, [dict(face(''), img_path=f'{name}.png')])
    scored.evaluate(2)
    assert list(json.loads((tmp_path / 'scores.json').read_text())) == ['drive1/0001', 'drive2/0001']
