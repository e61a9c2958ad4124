"""Faults in the files of mmseg's data sets that would stop training, or that it would silently ignore."""

import os
import textwrap
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from logging import WARNING
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log

from mmattn.data_check.images import MISSING, Facts, ImageFile, inspect_files

from .agreement import disagreements
from .class_check import IGNORED, class_faults, classes_of_labels
from .data_parts import EmptyError, Part, build, data_set_configs, is_local, read, reads_whole_folders
from .unread_files import unread_files

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')


def find_faults(
    cfg: Config,
    work_dir: Path,
    loaders: Sequence[str] = LOADERS[:2],
    allow_absent: Collection[str] = (),
    allow_ignored: bool = False,
) -> dict[str, list[str]]:
    """Check all files of the data sets of a config, and compare their classes with those of the model.

    Args:
        cfg (Config): the whole config. Its default scope must be active.
        work_dir (Path): folder of the cache, ``data_check.json``.
        loaders (sequence of str): some of ``train_dataloader``, ``val_dataloader`` and ``test_dataloader``.
        allow_absent (collection of str): classes that may be missing from all masks.
        allow_ignored (bool): whether all pixels of a mask may be ignored.

    Returns:
        dict: path, or place in the config → its faults.
    """
    start = time.monotonic()
    faults: defaultdict[str, list[str]] = defaultdict(list)
    parts: list[Part] = []
    for loader in loaders:
        for where, dataset in data_set_configs(cfg.get(loader), loader):
            try:
                parts.append(read(where, dataset))
            except (OSError, AssertionError, EmptyError) as error:
                faults[where].append(str(error) or f'{dataset["type"]} raises {error!r}')
    incomplete = {where.partition('.')[0] for where in faults}
    files = dict.fromkeys(file for part in parts for sample in part.samples for file in sample if file is not None)
    facts, looked = inspect_files(files, work_dir / 'data_check.json')
    for path, reason in (
        *disagreements(cfg, parts),
        *class_faults(cfg.get('model'), parts, facts, incomplete, allow_absent),
        *_unread(cfg, parts),
        *(fault for part in parts for fault in _file_faults(part, facts, allow_ignored)),
    ):
        if reason not in faults[path]:
            faults[path].append(reason)
    print_log(
        f'Data check: {len(files)} files, {len(files) - looked} of them unchanged since the last check, '
        f'{time.monotonic() - start:.1f} s',
        'current',
    )
    return dict(faults)


def _unread(cfg: Config, parts: Sequence[Part]) -> Iterator[tuple[str, str]]:
    """Yield files in the folders of data sets that no data set reads, and the reason."""
    folders = {
        (part.dataset.data_prefix.get(key), suffix): key == 'seg_map_path'
        for part in parts
        if part.samples and reads_whole_folders(part.dataset)
        for key, suffix in (('img_path', part.dataset.img_suffix), ('seg_map_path', part.dataset.seg_map_suffix))
        if key == 'img_path' or part.masks
    }
    known: set[str] = set()
    for loader in LOADERS:  # loaders that are not checked may read from the same folders
        for _, data_set in data_set_configs(cfg.get(loader), loader):
            with suppress(Exception):  # already reported if it matters
                dataset = build(data_set)
                if is_local(dataset):
                    listed = dataset.load_data_list()
                    known.update(info[key] for info in listed for key in ('img_path', 'seg_map_path') if key in info)
    for (folder, suffix), is_mask in folders.items():
        for path, reason in unread_files(folder, suffix, known):
            yield path, 'a mask without an image' if is_mask and reason == 'not read' else reason


def _file_faults(part: Part, facts: dict[ImageFile, Facts], allow_ignored: bool) -> Iterator[tuple[str, str]]:
    """Yield ``(path, fault)`` for the files of a data set."""
    classes = classes_of_labels(part.dataset)
    ignored = []
    for sample in part.samples:
        image = facts[sample.image] if sample.image else Facts()
        if sample.image and image.fault:
            yield sample.image.path, image.fault + (_listed(part, sample.image.path) if image.fault == MISSING else '')
        if not sample.mask:
            continue
        mask = facts[sample.mask]
        if sample.image and mask.fault == MISSING:
            yield sample.image.path, f'no mask {sample.mask.path}'
        elif mask.fault:
            yield sample.mask.path, mask.fault
        unknown = set(mask.labels) - set(classes)
        if unknown:
            yield sample.mask.path, f'labels {_spans(unknown)} are not among {_spans(classes)}'
        elif mask.labels and all(classes[label] is IGNORED for label in mask.labels):
            ignored.append((sample.mask.path, f'all its pixels are ignored (label {_spans(mask.labels)})'))
        if sample.image and image.size and mask.size and tuple(image.size) != tuple(mask.size):
            reason = '{}×{}, but its image {} {}×{}'.format(*mask.size, sample.image.path, *image.size)
            turned = mask.size == image.size[::-1]
            yield sample.mask.path, f'{reason}, after rotation by its EXIF orientation, if any' if turned else reason
    if allow_ignored or part.loader == 'test_dataloader':  # the ground truth may be held by an evaluation server
        if ignored:
            text = f'Data check: {len(ignored)} masks of {part.where} have only ignored pixels'
            print_log(text, 'current', WARNING)
    else:
        yield from ignored


def _listed(part: Part, path: str) -> str:
    """Quote the line of ``ann_file`` for an image that does not exist, so that unusual characters are visible."""
    if not part.dataset.ann_file or reads_whole_folders(part.dataset):
        return ''
    suffix = part.dataset.img_suffix
    line = os.path.relpath(path, part.dataset.data_prefix.get('img_path') or '.').removesuffix(suffix)
    return f', but {part.dataset.ann_file} lists {line!r} (a line is a name in data_prefix.img_path without {suffix})'


def _spans(numbers: Collection[float]) -> str:
    """Format numbers as ranges, such as '0…10, 255'."""
    runs = [list(run) for _, run in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])]
    text = ', '.join(f'{run[0][1]}' if len(run) == 1 else f'{run[0][1]}…{run[-1][1]}' for run in runs)
    return textwrap.shorten(text, 80, placeholder=' …')
