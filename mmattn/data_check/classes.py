"""Classes of mmseg's data sets: compared with each other, with masks, with heads and with metrics."""

import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from logging import WARNING
from typing import Any

from mmengine.config import Config
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from mmseg.models.losses.utils import get_class_weight
from mmseg.registry import MODELS

from mmattn.utils.component_type import component_class, type_name
from mmattn.utils.faults import shorten

from .data_sets import Fault, Part, absent_classes, allow_absent_hint, dicts, log
from .images import CONVERTER

HEADS = ('decode_head', 'auxiliary_head')
METRICS = ('IoUMetric', 'ForegroundIoUMetric', 'FaceParsingMetric')
IGNORE_INDEX = 255  # default of mmseg's heads, data sets and metrics
IGNORED = None  # instead of a class index


def classes_of_labels(dataset: Any) -> dict[float, int | None]:
    """Map labels of files to class indices, as mmseg's ``LoadAnnotations`` does.

    Ignored labels become None. Invalid labels are absent. A data set without ``classes`` has 255 classes.
    """
    classes = dataset.metainfo.get('classes')
    indices = range(255 if classes is None else len(classes))

    def loaded(label: int) -> int:
        if dataset.reduce_zero_label:
            label = 255 if label in (0, 255) else label - 1
        return (dataset.label_map or {}).get(label, label)

    loaded_labels = {label: loaded(label) for label in range(256)}
    return {
        label: index if index in indices else IGNORED
        for label, index in loaded_labels.items()
        if index in indices or index in (255, dataset.ignore_index)
    }


def class_faults(
    cfg: Config,
    parts: Sequence[Part],
    labels: Mapping[str, set[float]],
    incomplete: Collection[str],
    allow_absent: Collection[str],
) -> Iterator[Fault]:
    """Yield ``(place in the config, fault)``. Classes missing in validation or test are logged, not yielded.

    Args:
        cfg (Config): the whole config.
        parts (sequence of Part): the data sets.
        labels (mapping): place of a data set in the config → labels in its masks.
        incomplete (collection of str): data loaders with a data set that could not be read.
        allow_absent (collection of str): classes that may be missing from all masks.
    """
    model_heads = list(heads(cfg.get('model'), 'model'))
    for part in parts:
        yield from _wrong_names(part)
    yield from _differing_names(cfg, parts)
    yield from _wrong_heads(model_heads, parts)
    yield from _wrong_ignored(cfg, model_heads, parts)
    yield from _wrong_masks(parts, labels, incomplete, allow_absent)


def _wrong_names(part: Part) -> Iterator[Fault]:
    meta = part.dataset.metainfo
    if twice := [name for name, count in Counter(part.classes).items() if count > 1]:
        yield part.where, f'classes must have distinct names; duplicates: {", ".join(twice)}'
    for colour in meta.get('palette') or ():
        if len(colour) != 3 or not all(0 <= value <= 255 for value in colour):
            yield part.where, f'colours of the palette must be three values from 0 to 255; got {list(colour)}'


def _differing_names(cfg: Config, parts: Sequence[Part]) -> Iterator[Fault]:
    first = next((part for part in parts if part.classes), None)
    for part in parts:
        metrics = map(type_name, dicts(cfg.get(_evaluator(part.loader))))
        if not part.classes and (metric := next((name for name in metrics if name in METRICS), None)):
            yield f'{part.where}.metainfo', f'no classes, which {metric} requires'
        if first is None or part.classes == first.classes:
            continue
        if sorted(part.classes) == sorted(first.classes):
            yield part.where, f'it has the classes of {first.where} in another order: {", ".join(part.classes)}'
        elif len(part.classes) == len(first.classes):
            names = [f'{b} in place of {a}' for a, b in zip(first.classes, part.classes) if a != b]
            log(f'{part.where} names classes otherwise than {first.where}: {", ".join(names)}', WARNING)


def _wrong_heads(heads: Iterable[tuple[str, dict]], parts: Sequence[Part]) -> Iterator[Fault]:
    by_count = {len(part.classes): part for part in reversed(parts) if part.classes}
    for where, head in heads:
        own = _makes_own_labels(head)
        for count, part in by_count.items():
            if head['num_classes'] != count:
                names = _names(part.classes)
                fault = f'{head["num_classes"]}, but {part.where} has {count} classes: {names}'
                if own:
                    log(f'{where}.num_classes: {fault}. {type_name(head)} may make other labels', WARNING)
                else:
                    yield f'{where}.num_classes', fault
        count = head.get('out_channels') or head['num_classes']
        for loss in dicts(head.get('loss_decode')):
            weights = loss.get('class_weight')
            if isinstance(weights, str):
                try:
                    weights = [*get_class_weight(weights)]
                except Exception as error:  # of many formats
                    yield f'{where}.loss_decode.class_weight', f'{weights} cannot be read as a list: {error!r}'
            if isinstance(weights, list | tuple) and len(weights) != count and not own:
                yield f'{where}.loss_decode.class_weight', f'{len(weights)} weights, but the head has {count} classes'


def _makes_own_labels(head: dict) -> bool:
    """Tell whether a head has a loss of its own, as STDC's for boundaries, or SAN's with a weight for no object."""
    loss = getattr(component_class(head, MODELS, 'mmseg'), 'loss_by_feat', BaseDecodeHead.loss_by_feat)
    return loss is not BaseDecodeHead.loss_by_feat and not loss.__module__.startswith('mmattn.')


def _wrong_ignored(cfg: Config, heads: Iterable[tuple[str, dict]], parts: Sequence[Part]) -> Iterator[Fault]:
    # A data set has a default, too, but it only allows this label in masks.
    ignored = {f'{where}.ignore_index': head.get('ignore_index', IGNORE_INDEX) for where, head in heads}
    for evaluator in dict.fromkeys(_evaluator(part.loader) for part in parts):
        for metric in dicts(cfg.get(evaluator)):
            if type_name(metric) in METRICS:
                ignored[f'{evaluator}.ignore_index'] = metric.get('ignore_index', IGNORE_INDEX)
    for part in parts:
        label = getattr(part.dataset, 'ignore_index', IGNORE_INDEX)
        if label != IGNORE_INDEX:
            ignored[f'{part.where}.ignore_index'] = label
    first = next(iter(ignored), '')
    for where, label in ignored.items():
        if label != ignored[first]:
            yield where, f'{label}, but {first} is {ignored[first]}'
    classes = next((part.classes for part in parts if part.classes), ())
    for label in sorted({label for label in ignored.values() if 0 <= label < len(classes)}):
        # a warning: mmseg's own configs ignore the first class of HSI Drive
        settings = _names(where for where in ignored if ignored[where] == label)
        log(
            f'label {label}, the class {classes[label]}, is ignored ({settings}): it is not trained, and its score, 0 '
            f'or nan, may count in the means. To ignore it, leave it out of the classes and map it to {IGNORE_INDEX}, '
            f'by reduce_zero_label or label_map; to train it, set ignore_index={IGNORE_INDEX}',
            WARNING,
        )


def _wrong_masks(
    parts: Sequence[Part],
    labels: Mapping[str, set[float]],
    incomplete: Collection[str],
    allow_absent: Collection[str],
) -> Iterator[Fault]:
    names = dict.fromkeys(name for part in parts for name in part.classes)
    unknown = [name for name in allow_absent if name not in names]
    if unknown and parts:
        yield 'allow_absent', f'{_names(unknown)}: not among the classes {_names(names)}'
    present = {part.where: _present(part, labels[part.where]) for part in parts}
    binary = []
    for part in parts:
        absent = set(part.classes) - present[part.where]
        if labels[part.where] == {0, 255} and not (absent and absent.issubset(allow_absent)):
            binary.append(part)  # 255 probably means foreground, not ignored
    for part in binary:
        yield part.where, _binary_reason(part, binary)
    unclear = {*incomplete, *(part.loader for part in binary), *(p.loader for p in parts if not labels[p.where])}
    lacking = absent_classes([part for part in parts if part.loader not in unclear], present, allow_absent)
    untrained = lacking.pop('train_dataloader', [])
    if untrained:
        shifted = any(part.dataset.reduce_zero_label for part in parts if part.loader == 'train_dataloader')
        hint = 'reduce_zero_label=True ignores label 0 and makes label 1 the first class; ' if shifted else ''
        yield (
            'train_dataloader',
            f'no mask has a pixel of {_names(untrained)}; {hint}{CONVERTER} converts masks that are coded by '
            f'colours into labels; {allow_absent_hint(untrained)}',
        )
    for loader, classes in lacking.items():
        if absent_names := [name for name in classes if name not in untrained]:
            log(f'no mask of {loader} has a pixel of {_names(absent_names)}', WARNING)


def _evaluator(loader: str) -> str:
    return loader.replace('dataloader', 'evaluator')


def heads(cfg: object, where: str, in_head: bool = False) -> Iterator[tuple[str, dict]]:
    """Yield place and config of the decode and auxiliary heads."""
    if isinstance(cfg, list | tuple):
        for i, part in enumerate(cfg):
            yield from heads(part, f'{where}.{i}', in_head)
    elif isinstance(cfg, dict):
        if in_head and isinstance(cfg.get('num_classes'), int | float):
            yield where, cfg
        for key, part in cfg.items():
            yield from heads(part, f'{where}.{key}', in_head or key in HEADS)


def _present(part: Part, labels: set[float]) -> set[str]:
    classes = classes_of_labels(part.dataset)
    indices = {classes.get(label) for label in labels}
    return {name for i, name in enumerate(part.classes) if i in indices}


def _binary_reason(part: Part, binary: Sequence[Part]) -> str:
    reason = 'its masks contain only 0 and 255, but labels are 0, 1, … and 255 is ignored'
    together = [other for other in binary if other.dataset.data_root == part.dataset.data_root]
    if part is not together[0]:
        return reason
    images, masks = (
        os.path.commonpath([os.path.abspath(other.dataset.data_prefix[key]) for other in together])
        for key in ('img_path', 'seg_map_path')
    )
    out = f'{os.path.abspath(part.dataset.data_root or os.path.dirname(images))}_labels'
    black, white = part.classes[:2] if len(part.classes) > 1 else ('background', *(part.classes or ('object',)))
    command = ['python', CONVERTER, '--images', images, '--masks', masks, '--out-dir', out]
    return f'{reason}; convert them: {shlex.join([*command, "--palette", f"{black}:0,0,0", f"{white}:255,255,255"])}'


def _names(classes: Iterable[str]) -> str:
    return ', '.join(shorten(classes, 10))
