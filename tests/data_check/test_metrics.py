"""Metrics that no evaluator computes, by the config alone."""

import re

import pytest
from mmengine.config import Config

from mmattn.data_check.metrics import metric_faults


@pytest.mark.parametrize(
    ('evaluator', 'save_best', 'names'),
    [
        (dict(type='CocoMetric', metric='bbox'), 'pascal_voc/AP50', "'pascal_voc/AP50' .*coco/bbox_mAP, "),
        (dict(type='VOCMetric'), 'pascal_voc/AP5', "'pascal_voc/AP5' .*'pascal_voc/AP50'"),
        (dict(type='mmseg.IoUMetric'), 'mIOU', "'mIOU' .*'mIoU'.* aAcc, mAcc, mIoU"),
        (dict(type='IoUMetric', iou_metrics=['mFscore']), 'mIoU', "'mIoU' .*aAcc, mFscore"),
        (dict(type='IoUMetric', iou_metrics='mIOU'), 'auto', "val_evaluator.iou_metrics: 'mIOU' .*'mIoU'"),
        (dict(type='CocoMetric', metric=['bbox', 'segm']), ['coco/segm_mAP', 'coco/bbox_mAP_50'], None),
        (dict(type='VOCMetric', iou_thrs=[0.5, 0.75], prefix='cells'), 'cells/AP75', None),
        ([dict(type='VOCMetric'), dict(type='SomebodysMetric')], 'anything', None),
        (dict(type='VOCMetric'), 'auto', None),
    ],
)
def test_metrics_that_cannot_be_computed_are_found_before_training(evaluator, save_best, names):
    hooks = dict(checkpoint=dict(type='CheckpointHook', save_best=save_best))
    found = list(metric_faults(Config(dict(val_evaluator=evaluator, default_hooks=hooks))))
    assert len(found) == (names is not None)
    assert all(re.search(names, ': '.join(fault)) for fault in found)
