"""Metrics of a config that its evaluators cannot compute, found before training."""

import difflib
from collections.abc import Iterable, Iterator
from logging import WARNING
from typing import Any

from mmengine.config import Config
from mmengine.registry import METRICS

from mmattn.utils.component_type import component_class, type_name

from .data_sets import Fault, dicts, log

IOU_METRICS = {'mIoU': ('mIoU', 'mAcc'), 'mDice': ('mDice', 'mAcc'), 'mFscore': ('mFscore', 'mPrecision', 'mRecall')}
IOU_KINDS = 'IoUMetric', 'ForegroundIoUMetric'
BOX_RESULTS = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')


def metric_faults(cfg: Config) -> Iterator[Fault]:
    """Yield ``(place in the config, fault)``: a metric of mmseg's ``IoUMetric`` with an unknown name."""
    for name in ('val_evaluator', 'test_evaluator'):
        for metric in _metrics(cfg, name):
            if type_name(metric) in IOU_KINDS:
                for unknown in set(_list(metric.get('iou_metrics', ['mIoU']))) - set(IOU_METRICS):
                    yield f'{name}.iou_metrics', _unknown(unknown, IOU_METRICS)


def monitor_faults(cfg: Config) -> Iterator[Fault]:
    """Yield ``(place in the config, fault)``: hooks and schedulers that wait for a metric that nothing computes.

    mmseg's ``IoUMetric`` and ``ForegroundIoUMetric``, mmdet's ``VOCMetric`` and ``CocoMetric``, and metrics with
    ``metric_names`` are checked. These are the names of their results, which may go on after a slash or a dot. What
    never acts because there is no validation is logged as a warning.
    """
    metrics = _metrics(cfg, 'val_evaluator')
    monitored = list(_monitored(cfg))
    if not metrics:
        for where, key, _ in monitored:
            log(f'{where}: there is no validation (val_evaluator), so {key!r} is never computed', WARNING)
    computed = [_computed(metric) for metric in metrics]
    if not metrics or None in computed:
        return
    names = {key for keys in computed for key in keys or ()}
    for where, key, rule in monitored:
        if key == 'auto':
            continue
        if not any(key == name or key.startswith((f'{name}/', f'{name}.')) for name in names):
            evaluators = ' and '.join(type_name(metric) for metric in metrics)
            yield where, f'{_unknown(key, names)}: the metrics of val_evaluator ({evaluators})'
        elif rule == 'less':  # of all metrics that are known here, more is better
            field = where.rpartition('.')[0]
            yield f'{field}.rule', f"{rule!r} would prefer the worst {key}, of which more is better: set rule='greater'"


def _computed(metric: dict) -> set[str] | None:
    kind = type_name(metric)
    if kind in IOU_KINDS:
        names = _list(metric.get('iou_metrics', ['mIoU']))
        keys = {'aAcc', *(key for name in names for key in IOU_METRICS.get(name, ()))}
        if kind == 'ForegroundIoUMetric':
            keys |= {f'{key}_foreground' for key in keys - {'aAcc'}}
        prefix = metric.get('prefix')
    elif kind == 'VOCMetric' and metric.get('metric', 'mAP') == 'mAP':
        keys = {'mAP', *(f'AP{int(iou * 100):02d}' for iou in _list(metric.get('iou_thrs', 0.5)))}
        prefix = metric.get('prefix') or 'pascal_voc'
    elif kind == 'CocoMetric':
        names = _list(metric.get('metric', 'bbox'))
        if metric.get('classwise') or metric.get('metric_items') or {'proposal', 'proposal_fast'}.intersection(names):
            return None
        keys = {f'{name}_{key}' for name in names for key in BOX_RESULTS}
        prefix = metric.get('prefix') or 'coco'
    else:
        metric_class = component_class(metric, METRICS)
        keys = set(getattr(metric_class, 'metric_names', ()))
        prefix = metric.get('prefix') or getattr(metric_class, 'default_prefix', None)
        if not keys:
            return None
    return {f'{prefix}/{key}' if prefix else key for key in keys}


def _metrics(cfg: Config, name: str) -> list[dict]:
    parts = dicts(cfg.get(name))
    return [metric for x in parts for metric in (dicts(x.get('metrics')) if type_name(x) == 'Evaluator' else [x])]


def _monitored(cfg: Config) -> Iterator[tuple[str, str, str | None]]:
    """Yield the settings of hooks and schedulers that name a metric of the validation, the name, and the rule."""
    for setting in ('default_hooks', 'custom_hooks', 'param_scheduler'):
        for where, part in _components(cfg.get(setting), setting):
            for key in ('save_best', 'monitor'):
                # mmengine's ReduceOnPlateauLR monitors 'loss' by default
                is_plateau = key == 'monitor' and type_name(part).startswith('ReduceOnPlateau')
                names = _list(part.get(key, 'loss' if is_plateau else ()) or ())
                rules = _list(part.get('rule', 'less' if is_plateau else None))
                yield from ((f'{where}.{key}', name, rules[i % len(rules)]) for i, name in enumerate(names))


def _components(cfg: Any, where: str) -> Iterator[tuple[str, dict]]:
    if isinstance(cfg, dict) and 'type' in cfg:
        yield where, cfg
    elif isinstance(cfg, dict | list | tuple):
        for key, part in cfg.items() if isinstance(cfg, dict) else enumerate(cfg):
            yield from _components(part, f'{where}.{key}')


def _unknown(name: str, names: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, names, 1, 0.5)
    hint = f' (did you mean {nearest[0]!r}?)' if nearest else ''
    return f'{name!r}{hint} is none of {", ".join(sorted(names))}'


def _list(value: Any) -> list:
    return [*value] if isinstance(value, list | tuple) else [value]
