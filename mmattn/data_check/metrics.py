"""Metrics of a config that its evaluators cannot compute, found before training."""

import difflib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
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
    ``metric_names`` are known. These are the names of their results, which may go on after a slash or a dot. More of a
    result is better, less of those in ``less_is_better``. Beside an evaluator that is not known, a metric may have any
    other name. What never acts because there is no validation is logged as a warning.
    """
    metrics = _metrics(cfg, 'val_evaluator')
    computed = [_computed(metric) for metric in metrics]
    names = {name: better for rules in computed for name, better in rules.items()}
    for where, key, rule in _monitored(cfg):
        if not metrics:
            log(f'{where}: there is no validation (val_evaluator), so {key!r} is never computed', WARNING)
            continue
        found = next(iter(computed[0] if key == 'auto' else filter(partial(_is_called, key), names)), None)
        if found is None:
            if all(computed):
                evaluators = ' and '.join(type_name(metric) for metric in metrics)
                yield where, f'{_unknown(key, names)}: the metrics of val_evaluator ({evaluators})'
        elif {rule, names[found]} == {'less', 'greater'}:
            name, more = (found if key == 'auto' else key), dict(less='less', greater='more')[names[found]]
            yield (
                f'{where.rpartition(".")[0]}.rule',
                f'{rule!r} would prefer the worst {name}, of which {more} is better: set rule={names[found]!r}',
            )


def _is_called(key: str, name: str) -> bool:
    return key == name or key.startswith((f'{name}/', f'{name}.')) or fnmatchcase(key, name)


def _computed(metric: dict) -> dict[str, str]:
    """Map the names of a metric's results, or patterns, to the rule of the better one. Empty if they are not known."""
    kind, less_is_better = type_name(metric), ()
    keys: list[str] = []
    if kind in IOU_KINDS:
        means = [key for name in _list(metric.get('iou_metrics', ['mIoU'])) for key in IOU_METRICS.get(name, ())]
        keys = ['aAcc', *means]
        if kind == 'ForegroundIoUMetric':
            keys += [f'{key}_foreground' for key in means]
        prefix = metric.get('prefix')
    elif kind == 'VOCMetric' and metric.get('metric', 'mAP') == 'mAP':
        keys = ['mAP', *(f'AP{int(iou * 100):02d}' for iou in _list(metric.get('iou_thrs', 0.5)))]
        prefix = metric.get('prefix') or 'pascal_voc'
    elif kind == 'CocoMetric':
        items = metric.get('metric_items')
        for name in _list(metric.get('metric', 'bbox')):
            if name.startswith('proposal'):
                keys += ['AR*@*'] if name == 'proposal_fast' or items is None else items
            else:
                keys += ['*_precision'] * bool(metric.get('classwise'))
                keys += [f'{name}_{item}' for item in (BOX_RESULTS if items is None else items)]
        prefix = metric.get('prefix') or 'coco'
    else:
        metric_class = component_class(metric, METRICS)
        keys = [*getattr(metric_class, 'metric_names', ())]
        less_is_better = getattr(metric_class, 'less_is_better', ())
        prefix = metric.get('prefix') or getattr(metric_class, 'default_prefix', None)
    return {f'{prefix}/{key}' if prefix else key: 'less' if key in less_is_better else 'greater' for key in keys}


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
