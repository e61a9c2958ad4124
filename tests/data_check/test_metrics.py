"""Metrics that no evaluator computes, by the config alone."""

import re

import pytest
from mmengine.config import Config

from mmattn.data_check.metrics import metric_faults, monitor_faults

IOU, PLATEAU = dict(type='IoUMetric'), dict(type='ReduceOnPlateauLR')


@pytest.mark.parametrize(
    ('evaluator', 'save_best', 'settings', 'names'),
    [
        (dict(type='CocoMetric', metric='bbox'), 'pascal_voc/AP50', {}, "'pascal_voc/AP50' .*coco/bbox_mAP, "),
        (dict(type='CocoMetric', prefix='cells'), 'coco/bbox_mAP', {}, "'coco/bbox_mAP' .*cells/bbox_mAP, "),
        (dict(type='CocoMetric', prefix='cells'), 'cells/bbox_mAP', {}, None),
        (dict(IOU, prefix='roofs'), 'mIoU', {}, "'mIoU' .*'roofs/mIoU'"),
        (dict(IOU, prefix='roofs'), 'roofs/mIoU', {}, None),
        (dict(type='mmattn.FaceParsingMetric', prefix='faces'), 'faces/overall', {}, None),
        (dict(type='VOCMetric'), 'pascal_voc/AP5', {}, "'pascal_voc/AP5' .*'pascal_voc/AP50'"),
        (dict(type='mmseg.IoUMetric'), 'mIOU', {}, "'mIOU' .*'mIoU'.* aAcc, mAcc, mIoU"),
        (dict(IOU, iou_metrics=['mFscore']), 'mIoU', {}, "'mIoU' .*aAcc, mFscore"),
        (dict(IOU, iou_metrics='mIOU'), 'auto', {}, "val_evaluator.iou_metrics: 'mIOU' .*'mIoU'"),
        (dict(type='mmattn.ForegroundIoUMetric', background='a', prefix='roofs'), 'roofs/mIoU_foreground', {}, None),
        (
            dict(IOU, background='other'),
            'mIoU_foreground',
            {},
            "'mIoU_foreground' .*aAcc, mAcc, mIoU:",
        ),  # mmseg ignores it
        (dict(type='mmattn.VOSMetric'), 'J&F', {}, "'J&F' .*JF"),
        (dict(type='mmattn.FaceParsingMetric', prefix='faces'), 'overall', {}, "'overall' .*'faces/overall'"),
        (IOU, 'mIoU', dict(custom_hooks=[dict(type='EarlyStoppingHook', monitor='a')]), "custom_hooks.0.monitor: 'a'"),
        (IOU, 'mIoU', dict(param_scheduler=PLATEAU), "param_scheduler.monitor: 'loss'"),
        (IOU, 'mIoU', dict(param_scheduler=dict(g=[dict(PLATEAU, monitor='a')])), "param_scheduler.g.0.monitor: 'a'"),
        (dict(type='Evaluator', metrics=[IOU]), 'mDice', {}, "'mDice' .*mIoU"),
        (IOU, 'mIoU', dict(param_scheduler=dict(PLATEAU, monitor='mIoU')), "param_scheduler.rule: 'less' .*mIoU"),
        (IOU, 'mIoU', dict(custom_hooks=[dict(type='EarlyStoppingHook', monitor='mIoU', rule='less')]), '0.rule: '),
        (dict(type='CocoMetric', metric=['bbox', 'segm']), ['coco/segm_mAP', 'coco/bbox_mAP_50'], {}, None),
        (dict(type='VOCMetric', iou_thrs=[0.5, 0.75], prefix='cells'), 'cells/AP75', {}, None),
        ([dict(type='VOCMetric'), dict(type='SomebodysMetric')], 'anything', {}, None),
        (dict(type='mmattn.FaceParsingMetric'), ['overall', 'F1.skin'], {}, None),
        (dict(type='CocoMetric', classwise=True), 'coco/box_mAP', {}, "'coco/box_mAP' .*'coco/bbox_mAP'"),
        (dict(type='CocoMetric', classwise=True), ['coco/bbox_mAP', 'coco/left [eye]_precision'], {}, None),
        (dict(type='CocoMetric', metric_items=['mAP']), 'coco/bbox_mAP_50', {}, 'coco/bbox_mAP:'),
        (dict(type='CocoMetric', metric=['proposal_fast', 'segm']), ['coco/AR@100', 'coco/segm_mAP'], {}, None),
        (dict(type='CocoMetric', metric='proposal'), 'coco/bbox_mAP', {}, r"'coco/bbox_mAP' .*coco/AR\*@\*"),
        (dict(type='VOCMetric'), 'auto', {}, None),
        (None, 'mIoU', {}, None),  # a warning
    ],
)
def test_metrics_that_cannot_be_computed_are_found_before_training(evaluator, save_best, settings, names, warned):
    hooks = dict(checkpoint=dict(type='CheckpointHook', save_best=save_best))
    cfg = Config(dict(val_evaluator=evaluator, default_hooks=hooks, **settings))
    found = [*metric_faults(cfg), *monitor_faults(cfg)]
    assert len(found) == (names is not None)
    assert all(re.search(names, ': '.join(fault)) for fault in found)
    assert ['default_hooks.checkpoint.save_best: ' in text for _, text in warned] == [True] * (evaluator is None)


@pytest.mark.parametrize(
    ('evaluator', 'save_best', 'rule', 'wrong'),
    [
        (IOU, ['mIoU', 'mAcc'], 'less', ['mIoU', 'mAcc']),
        (IOU, ['mIoU', 'mAcc'], 'greater', []),
        (IOU, ['mIoU', 'mAcc'], ['greater', 'less'], ['mAcc']),
        (IOU, ['mIoU', 'mAcc'], None, []),
        (IOU, 'auto', 'less', ['aAcc']),  # the first metric
        (IOU, 'auto', 'greater', []),
        (dict(type='CocoMetric', classwise=True), 'coco/bbox_mAP', 'less', ['coco/bbox_mAP']),
        (dict(type='CocoMetric', classwise=True), 'coco/cell_precision', 'less', ['coco/cell_precision']),
        ([dict(type='SomebodysMetric'), IOU], ['mIoU', 'anything', 'auto'], 'less', ['mIoU']),
        (dict(type='mmattn.VOSMetric'), ['J_decay', 'F_decay', 'J'], 'less', ['J']),
        (dict(type='mmattn.VOSMetric', prefix='vos'), ['vos/J_decay', 'vos/J'], 'greater', ['vos/J_decay']),
    ],
)
def test_the_worst_is_not_the_best(evaluator, save_best, rule, wrong):
    hook = dict(type='CheckpointHook', save_best=save_best, rule=rule)
    faults = [*monitor_faults(Config(dict(val_evaluator=evaluator, default_hooks=dict(checkpoint=hook))))]
    assert {where for where, _ in faults} == ({'default_hooks.checkpoint.rule'} if wrong else set())
    assert [re.search("worst (.+), of .* set rule='(.*)'", text).groups() for _, text in faults] == [
        (name, 'less' if 'decay' in name else 'greater') for name in wrong
    ]


def test_a_scheduler_may_wait_for_less_of_a_decay():
    schedulers = [dict(PLATEAU, monitor=name) for name in ('J_decay', 'J')]
    cfg = Config(dict(val_evaluator=dict(type='mmattn.VOSMetric'), param_scheduler=schedulers))
    assert [where for where, _ in monitor_faults(cfg)] == ['param_scheduler.1.rule']
