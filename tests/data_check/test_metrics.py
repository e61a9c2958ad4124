"""Metrics that no evaluator computes, by the config alone."""

import re

import pytest
from mmengine.config import Config

from mmattn.data_check.metrics import metric_faults


def faults(evaluator, save_best):
    hooks = dict(checkpoint=dict(type='CheckpointHook', save_best=save_best))
    return list(metric_faults(Config(dict(val_evaluator=evaluator, default_hooks=hooks))))


@pytest.mark.parametrize(
    ('evaluator', 'save_best', 'said'),
    [
        (dict(type='CocoMetric', metric='bbox'), 'pascal_voc/AP50', r"'pascal_voc/AP50' .*is none of coco/bbox_mAP, "),
        (dict(type='VOCMetric'), 'pascal_voc/AP5', r"'pascal_voc/AP5' \(did you mean 'pascal_voc/AP50'\?\) is none of"),
        (dict(type='mmseg.IoUMetric'), 'mIOU', r"'mIOU' \(did you mean 'mIoU'\?\) is none of aAcc, mAcc, mIoU"),
        (dict(type='IoUMetric', iou_metrics=['mFscore']), 'mIoU', "'mIoU' .*is none of aAcc, mFscore"),
        (
            dict(type='IoUMetric', iou_metrics='mIOU'),
            'auto',
            r"val_evaluator.iou_metrics: 'mIOU' \(did you mean 'mIoU'",
        ),
    ],
)
def test_metrics_that_cannot_be_computed_are_found_before_training(evaluator, save_best, said):
    (fault,) = faults(evaluator, save_best)
    assert re.search(said, ': '.join(fault))


@pytest.mark.parametrize(
    ('evaluator', 'save_best'),
    [
        (dict(type='CocoMetric', metric=['bbox', 'segm']), ['coco/segm_mAP', 'coco/bbox_mAP_50']),
        (dict(type='VOCMetric', iou_thrs=[0.5, 0.75], prefix='cells'), 'cells/AP75'),
        ([dict(type='VOCMetric'), dict(type='SomebodysMetric')], 'anything'),
        (dict(type='VOCMetric'), 'auto'),
    ],
)
def test_metrics_that_can_be_computed_pass(evaluator, save_best):
    assert faults(evaluator, save_best) == []
