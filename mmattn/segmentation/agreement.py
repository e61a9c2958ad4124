"""Consistency of a config: classes, colours, class weights and ignored label of data sets, heads and metrics."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from logging import WARNING
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log

from mmattn.utils.component_type import type_name

from .class_check import heads
from .data_parts import Part

IGNORED = 255  # default ``ignore_index`` of mmseg's heads, data sets and metrics
METRICS = ('IoUMetric', 'FaceParsingMetric')


def disagreements(cfg: Config, parts: Sequence[Part]) -> Iterator[tuple[str, str]]:
    """Yield ``(place in the config, fault)`` for each inconsistency. Duplicate images are logged, not yielded.

    Args:
        cfg (Config): the whole config.
        parts (sequence of Part): the data sets.
    """
    first = next((part for part in parts if part.classes), None)
    for part in parts:
        yield from _wrong_names(part)
        metrics = map(type_name, _dicts(cfg.get(part.loader.replace('dataloader', 'evaluator'))))
        if not part.classes and (metric := next((name for name in metrics if name in METRICS), None)):
            yield f'{part.where}.metainfo', f'no classes, which {metric} requires'
        if first and part.classes and sorted(part.classes) == sorted(first.classes) and part.classes != first.classes:
            yield part.where, f'its classes are those of {first.where} in another order: {", ".join(part.classes)}'
        elif first and part.classes and len(part.classes) == len(first.classes) and part.classes != first.classes:
            names = [f'{b} in place of {a}' for a, b in zip(first.classes, part.classes) if a != b]
            _warn(f'{part.where} names classes otherwise than {first.where}: {", ".join(names)}')
    for where, head in heads(cfg.get('model'), 'model'):
        yield from _wrong_weights(where, head)
    yield from _wrong_ignored(cfg, parts)
    _warn_of_repetitions(parts)


def _wrong_names(part: Part) -> Iterator[tuple[str, str]]:
    """Yield faults in the class names and the palette of a data set."""
    meta = part.dataset.metainfo
    if isinstance(meta.get('classes'), str):
        yield part.where, f'classes must be a list of names; got {meta["classes"]!r}'
        return
    if twice := [name for name, count in Counter(part.classes).items() if count > 1]:
        yield part.where, f'classes must have distinct names; duplicates: {", ".join(twice)}'
    for colour in meta.get('palette') or ():
        if len(colour) != 3 or not all(0 <= value <= 255 for value in colour):
            yield part.where, f'colours of the palette must be three values from 0 to 255; got {list(colour)}'


def _wrong_weights(where: str, head: dict) -> Iterator[tuple[str, str]]:
    """Yield the losses of a head whose ``class_weight`` does not have one weight per class."""
    for loss in _dicts(head.get('loss_decode')):
        weights, count = loss.get('class_weight'), head.get('out_channels') or head.get('num_classes')
        if isinstance(weights, list | tuple) and count is not None and len(weights) != count:
            yield f'{where}.loss_decode.class_weight', f'{len(weights)} weights, but the head has {count} classes'


def _wrong_ignored(cfg: Config, parts: Sequence[Part]) -> Iterator[tuple[str, str]]:
    """Yield heads, metrics and data sets whose ``ignore_index`` differs from the first one's.

    The default value of a data set is not compared: it only permits that label in the masks.
    """
    ignored = {
        f'{where}.ignore_index': head.get('ignore_index', IGNORED) for where, head in heads(cfg.get('model'), 'model')
    }
    for loader in dict.fromkeys(part.loader for part in parts):
        name = loader.replace('dataloader', 'evaluator')
        metrics = [metric for metric in _dicts(cfg.get(name)) if type_name(metric) in METRICS]
        ignored.update({f'{name}.ignore_index': metric.get('ignore_index', IGNORED) for metric in metrics})
    own = {f'{part.where}.ignore_index': getattr(part.dataset, 'ignore_index', IGNORED) for part in parts}
    ignored.update({where: label for where, label in own.items() if label != IGNORED})
    for i, (where, label) in enumerate(ignored.items()):
        if i == 0:
            first = where, label
        elif label != first[1]:
            yield where, f'{label}, but {first[0]} is {first[1]}'


def _warn_of_repetitions(parts: Sequence[Part]) -> None:
    """Log images that a data set lists more than once, and training images that are also in validation or test."""
    training: set[str] = set()
    for part in parts:
        listed = Counter(sample.image.path for sample in part.samples if sample.image)
        if repeated := [path for path, count in listed.items() if count > 1]:
            _warn(f'{part.where} lists {len(repeated)} images more than once, such as {repeated[0]}')
        if part.loader == 'train_dataloader':
            training.update(listed)
        elif shared := training.intersection(listed):
            _warn(
                f'{len(shared)} of the {len(listed)} images of {part.where} are training images, such as {min(shared)}'
            )


def _warn(text: str) -> None:
    print_log(f'Data check: {text}', 'current', WARNING)


def _dicts(cfg: Any) -> Iterable[dict]:
    """Return the dictionaries in a list, or a single dictionary as a list."""
    return [part for part in (cfg if isinstance(cfg, list | tuple) else [cfg]) if isinstance(part, dict)]
