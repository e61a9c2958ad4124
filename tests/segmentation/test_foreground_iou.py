"""Means over the foreground, from the pixels."""

import numpy as np
import pytest
import torch
from mmengine.evaluator import Evaluator

from mmattn.segmentation import ForegroundIoUMetric


def evaluate(truth, predicted, classes, **options):
    evaluator = Evaluator(ForegroundIoUMetric(**options))
    evaluator.dataset_meta = dict(classes=classes)
    for labels in zip(truth, predicted):
        maps = (dict(data=torch.from_numpy(x)[None]) for x in labels)
        evaluator.process([dict(zip(('gt_sem_seg', 'pred_sem_seg'), maps))])
    return evaluator.evaluate(len(truth))


@pytest.mark.parametrize('background', ['wall', ['wall', 'never'], ['door']])
def test_the_mean_of_the_other_classes(background):
    """A class that is nowhere is not in the mean, and background that is predicted as another counts as an error."""
    classes, rng = ('wall', 'door', 'never', 'floor'), np.random.default_rng(0)
    truth, predicted = (rng.choice(np.array([0, 0, 1, 3, 255]), (3, 9, 7)) for _ in range(2))
    predicted[predicted == 255] = 3
    found = evaluate(truth, predicted, classes, background=background, iou_metrics=['mIoU', 'mDice'], prefix='house')
    counted = truth != 255
    ratios = {'IoU': [], 'Dice': [], 'Acc': []}
    for label in (0, 1, 3):
        if classes[label] in background:
            continue
        real, said = counted & (truth == label), counted & (predicted == label)
        both, sizes = (real & said).sum(), real.sum() + said.sum()
        ratios['IoU'].append(both / (sizes - both))
        ratios['Dice'].append(2 * both / sizes)
        ratios['Acc'].append(both / real.sum())
    for name, values in ratios.items():
        assert found[f'house/m{name}_foreground'] == pytest.approx(np.round(100 * np.mean(values), 2), abs=1e-5)
    assert found['house/mIoU'] != found['house/mIoU_foreground']


@pytest.mark.parametrize('background', ['sky', ('wall', 'door')])
def test_classes_that_cannot_be_left_out(background):
    with pytest.raises(ValueError, match='background must name some of the classes wall, door'):
        ForegroundIoUMetric(background=background).dataset_meta = dict(classes=('wall', 'door'))
