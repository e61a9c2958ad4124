"""Checks that data sets and model have the same classes, and that the masks contain each class."""

import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from logging import WARNING

from mmengine.logging import print_log
from mmseg.datasets import BaseSegDataset

from mmattn.data_check.images import CONVERTER, Facts, ImageFile

from .data_parts import Part

HEADS = ('decode_head', 'auxiliary_head')
IGNORED = None  # instead of a class index


def classes_of_labels(dataset: BaseSegDataset) -> dict[float, int | None]:
    """Return the class index to which ``LoadAnnotations`` maps each label of a file.

    Returns:
        dict: label → class index, or None for an ignored label. Invalid labels are absent. A data set without
        ``classes`` has 255 of them.
    """
    classes = dataset.metainfo.get('classes')
    indices = range(255 if classes is None else len(classes))

    def loaded(label: int) -> int:
        if dataset.reduce_zero_label:
            label = 255 if label in (0, 255) else label - 1
        return (dataset.label_map or {}).get(label, label)

    found = {label: loaded(label) for label in range(256)}
    return {
        label: index if index in indices else IGNORED
        for label, index in found.items()
        if index in indices or index in (255, dataset.ignore_index)
    }


def class_faults(
    model: object,
    parts: Sequence[Part],
    facts: dict[ImageFile, Facts],
    incomplete: Collection[str],
    allow_absent: Collection[str],
) -> Iterator[tuple[str, str]]:
    """Yield ``(place in the config, fault)``. Classes missing in validation or test are logged, not yielded.

    Args:
        model (dict, optional): config of the model.
        parts (sequence of Part): the data sets.
        facts (dict): size and labels of their masks.
        incomplete (collection of str): data loaders with a data set that could not be read.
        allow_absent (collection of str): classes that may be missing from all masks.
    """
    names = dict.fromkeys(name for part in parts for name in part.classes)
    unknown = [name for name in allow_absent if name not in names]
    if unknown and parts:
        yield 'allow_absent', f'{_names(unknown)}: not among the classes {_names(names)}'
    yield from _wrong_heads(model, parts)
    binary = [part for part in parts if _looks_binary(part, facts, allow_absent)]
    for part in binary:
        yield part.where, _binary_reason(part, binary)
    lacking = {}
    for loader, found in groupby(parts, lambda part: part.loader):
        group = list(found)
        if loader not in incomplete and all(_labels(part, facts) and part not in binary for part in group):
            present = {name for part in group for name in _present(part, facts)}
            wanted = dict.fromkeys(name for part in group for name in part.classes)
            lacking[loader] = [name for name in wanted if name not in present and name not in allow_absent]
    untrained = lacking.pop('train_dataloader', [])
    if untrained:
        shifted = any(part.dataset.reduce_zero_label for part in parts if part.loader == 'train_dataloader')
        hint = 'reduce_zero_label=True ignores label 0 and makes label 1 the first class; ' if shifted else ''
        reason = (
            f'no mask has a pixel of {_names(untrained)}; {hint}{CONVERTER} converts masks that are coded by '
            'colours into labels; if the subset lacks these classes on purpose, run with '
            f"--cfg-options default_hooks.data_check.allow_absent='[{','.join(untrained)}]'"
        )
        yield 'train_dataloader', reason
    for loader, absent in lacking.items():
        if absent := [name for name in absent if name not in untrained]:
            print_log(f'Data check: no mask of {loader} has a pixel of {_names(absent)}', 'current', WARNING)


def _wrong_heads(model: object, parts: Sequence[Part]) -> Iterator[tuple[str, str]]:
    """Yield the heads whose ``num_classes`` differs from the number of classes of the data."""
    by_count = {len(part.classes): part for part in reversed(parts) if part.classes}
    for where, head in heads(model, 'model'):
        for count, part in by_count.items():
            if head['num_classes'] != count:
                names = _names(part.classes)
                yield f'{where}.num_classes', f'{head["num_classes"]}, but {part.where} has {count} classes: {names}'


def heads(cfg: object, where: str, in_head: bool = False) -> Iterator[tuple[str, dict]]:
    """Yield ``(place, config)`` of all heads with ``num_classes`` in a model's config, including nested heads."""
    if isinstance(cfg, list | tuple):
        for i, part in enumerate(cfg):
            yield from heads(part, f'{where}.{i}', in_head)
    elif isinstance(cfg, dict):
        if in_head and isinstance(cfg.get('num_classes'), int):
            yield where, cfg
        for key, part in cfg.items():
            yield from heads(part, f'{where}.{key}', in_head or key in HEADS)


def _labels(part: Part, facts: dict[ImageFile, Facts]) -> set[float]:
    """Return the labels in all masks of a data set."""
    return {label for mask in part.masks for label in facts[mask].labels}


def _present(part: Part, facts: dict[ImageFile, Facts]) -> list[str]:
    """Return the names of the classes that occur in the masks of a data set."""
    classes = classes_of_labels(part.dataset)
    present = {classes.get(label) for label in _labels(part, facts)}
    return [name for i, name in enumerate(part.classes) if i in present]


def _looks_binary(part: Part, facts: dict[ImageFile, Facts], allow_absent: Collection[str]) -> bool:
    """Return whether the masks contain only 0 and 255, where 255 probably means foreground, not ignored."""
    absent = set(part.classes) - set(_present(part, facts))
    return _labels(part, facts) == {0, 255} and not (absent and absent.issubset(allow_absent))


def _binary_reason(part: Part, binary: Sequence[Part]) -> str:
    """Describe the fault of binary masks; for the first data set of a ``data_root``, with the conversion command."""
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
    """Join the names of classes, at most ten."""
    names = [*map(str, classes)]
    return ', '.join([*names[:10], '…'] if len(names) > 10 else names)
