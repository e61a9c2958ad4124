"""Metrics of a config that its evaluators cannot compute, found before training."""

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

from mmengine.config import Config

from mmattn.utils.component_type import type_name

from .data_sets import Fault, dicts

IOU_METRICS = {'mIoU': ('mIoU', 'mAcc'), 'mDice': ('mDice', 'mAcc'), 'mFscore': ('mFscore', 'mPrecision', 'mRecall')}
BOX_RESULTS = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')


def metric_faults(cfg: Config) -> Iterator[Fault]:
    """Yield ``(place in the config, fault)``: a metric with an unknown name, and ``save_best`` of no metric.

    Only mmseg's ``IoUMetric`` and mmdet's ``VOCMetric`` and ``CocoMetric`` are checked.
    """
    for name in ('val_evaluator', 'test_evaluator'):
        for metric in dicts(cfg.get(name)):
            if type_name(metric) == 'IoUMetric':
                for unknown in set(_list(metric.get('iou_metrics', ['mIoU']))) - set(IOU_METRICS):
                    yield f'{name}.iou_metrics', _unknown(unknown, IOU_METRICS)
    metrics = dicts(cfg.get('val_evaluator'))
    computed = [_computed(metric) for metric in metrics]
    if not metrics or None in computed:
        return
    names = {key for keys in computed for key in keys or ()}
    for where, hook in _checkpoint_hooks(cfg):
        for key in _list(hook.get('save_best') or ()):
            if key != 'auto' and key not in names:
                evaluators = ' and '.join(type_name(metric) for metric in metrics)
                yield f'{where}.save_best', f'{_unknown(key, names)}: the metrics of val_evaluator ({evaluators})'


def _computed(metric: dict) -> set[str] | None:
    kind = type_name(metric)
    if kind == 'IoUMetric':
        names = _list(metric.get('iou_metrics', ['mIoU']))
        keys = {'aAcc', *(key for name in names for key in IOU_METRICS.get(name, ()))}
        prefix = metric.get('prefix')
    elif kind == 'VOCMetric' and metric.get('metric', 'mAP') == 'mAP':
        keys = {'mAP', *(f'AP{int(iou * 100):02d}' for iou in _list(metric.get('iou_thrs', 0.5)))}
        prefix = metric.get('prefix') or 'pascal_voc'
    elif kind == 'CocoMetric' and 'proposal_fast' not in _list(metric.get('metric', 'bbox')):
        if metric.get('classwise') or metric.get('metric_items'):
            return None
        keys = {f'{name}_{key}' for name in _list(metric.get('metric', 'bbox')) for key in BOX_RESULTS}
        prefix = metric.get('prefix') or 'coco'
        if 'proposal' in _list(metric.get('metric', 'bbox')):
            return None
    else:
        return None
    return {f'{prefix}/{key}' if prefix else key for key in keys}


def _checkpoint_hooks(cfg: Config) -> Iterator[tuple[str, dict]]:
    hooks = {'default_hooks.checkpoint': (cfg.get('default_hooks') or {}).get('checkpoint')}
    hooks |= {f'custom_hooks.{i}': hook for i, hook in enumerate(cfg.get('custom_hooks') or ())}
    yield from ((where, hook) for where, hook in hooks.items() if isinstance(hook, dict) and 'save_best' in hook)


def _unknown(name: str, names: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, names, 1, 0.5)
    hint = f' (did you mean {nearest[0]!r}?)' if nearest else ''
    return f'{name!r}{hint} is none of {", ".join(sorted(names))}'


def _list(value: Any) -> list:
    return [*value] if isinstance(value, list | tuple) else [value]
