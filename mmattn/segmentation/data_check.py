"""What training would stumble over in the files of mmseg's data sets."""

import copy
import textwrap
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import DATASETS
from mmseg.datasets import BaseSegDataset
from mmseg.datasets.transforms import LoadAnnotations

from .image_facts import MISSING, Facts, ImageFile, look_at_all


class EmptyError(Exception):
    """A data set without images or masks."""


class Sample(NamedTuple):
    """An image and its mask, None where the pipeline reads none, and the labels that the mask may have."""

    image: ImageFile | None
    mask: ImageFile | None
    labels: frozenset[int]


def accepted_labels(dataset: BaseSegDataset) -> frozenset[int]:
    """Return the labels in a file that ``LoadAnnotations`` turns into a class or an ignored label."""
    classes = dataset.metainfo.get('classes')
    wanted = {*range(256 if classes is None else len(classes)), 255, dataset.ignore_index}

    def loaded(label: int) -> int:
        if dataset.reduce_zero_label:
            label = 255 if label in (0, 255) else label - 1
        return (dataset.label_map or {}).get(label, label)

    return frozenset(label for label in range(256) if loaded(label) in wanted)


def find_faults(cfg: Config, work_dir: Path) -> dict[str, list[str]]:
    """Look at all files of the data sets in ``train_dataloader`` and ``val_dataloader`` of a config.

    Args:
        cfg (Config): the whole config; its default scope is in force.
        work_dir (Path): folder for the cache, ``data_check.json``.

    Returns:
        dict: paths, or places in the config, and what is wrong with each.
    """
    start = time.monotonic()
    faults: defaultdict[str, list[str]] = defaultdict(list)
    samples: dict[Sample, None] = {}
    for loader in ('train_dataloader', 'val_dataloader'):
        for where, dataset in _data_set_configs(cfg.get(loader), loader):
            try:
                samples.update(dict.fromkeys(_samples(where, dataset)))
            except (OSError, AssertionError, EmptyError) as error:
                faults[where].append(str(error) or f'{dataset["type"]} raises {error!r}')
    files = dict.fromkeys(file for sample in samples for file in sample[:2] if file is not None)
    facts, looked = look_at_all(files, work_dir / 'data_check.json')
    for sample in samples:
        for path, reason in _objections(sample, facts):
            if reason not in faults[path]:
                faults[path].append(reason)
    print_log(
        f'Data check: {len(files)} files, {len(files) - looked} of them known from the last time, '
        f'{time.monotonic() - start:.1f} s',
        'current',
    )
    return dict(faults)


def _data_set_configs(cfg: object, where: str) -> Iterator[tuple[str, dict]]:
    """Find the configs of mmseg's data sets in that of a data loader, in wrappers, too, and say where they are."""
    if isinstance(cfg, list | tuple):
        for i, part in enumerate(cfg):
            yield from _data_set_configs(part, f'{where}.{i}')
    elif isinstance(cfg, dict):
        kind = cfg.get('type')
        if isinstance(kind, str):
            with DATASETS.switch_scope_and_registry(cfg.get('_scope_')) as registry:
                kind = registry.get(kind)
        if isinstance(kind, type) and issubclass(kind, BaseSegDataset):
            yield where, cfg
            return
        for key in ('dataset', 'datasets'):
            yield from _data_set_configs(cfg.get(key), f'{where}.{key}')


def _samples(where: str, cfg: dict) -> Iterator[Sample]:
    """Yield what a data set's pipeline reads.

    Raises:
        EmptyError: there is nothing to read.
        OSError, AssertionError: raised by the data set, for a folder or a list that is not there.
    """
    cfg = copy.deepcopy(cfg)
    try:  # mmengine cannot serialize an empty list
        dataset = DATASETS.build({**cfg, 'lazy_init': True, 'serialize_data': False})
    except TypeError:  # a class of the user's own without these, or else an unknown argument, which is raised again
        dataset = DATASETS.build(cfg)
    transforms = dataset.pipeline.transforms
    image_loader = next(
        (t for t in transforms if getattr(type(t), 'transform', None) is LoadImageFromFile.transform), None
    )
    mask_loader = next(
        (t for t in transforms if getattr(type(t), '_load_seg_map', None) is LoadAnnotations._load_seg_map), None
    )
    if not (image_loader or mask_loader):
        print_log(f'Data check: {where} is left out, its files are read by other transforms', 'current')
        return
    if not all(map(_is_local, (dataset, image_loader, mask_loader))):
        print_log(f'Data check: {where} is left out, its files are not on a local disk', 'current')
        return
    dataset.full_init()
    if len(dataset) == 0:
        listed = dataset.ann_file and Path(dataset.ann_file).is_file()
        raise EmptyError(
            f'{dataset.ann_file} lists no image'
            if listed
            else f'no image *{dataset.img_suffix} in {dataset.data_prefix.get("img_path")}'
        )
    labels = accepted_labels(dataset)
    for i in range(len(dataset)):
        info = dataset.get_data_info(i)
        if mask_loader and 'seg_map_path' not in info:
            raise EmptyError('LoadAnnotations is in its pipeline, but data_prefix has no seg_map_path')
        yield Sample(
            image_loader and ImageFile(info['img_path'], image_loader.imdecode_backend, image_loader.color_type),
            mask_loader and ImageFile(info['seg_map_path'], mask_loader.imdecode_backend, 'unchanged', is_mask=True),
            labels,
        )


def _is_local(reader: object) -> bool:
    """Whether a data set or a transform, or None, reads from a local disk."""
    arguments = getattr(reader, 'backend_args', None) or getattr(reader, 'file_client_args', None) or {}
    folders = getattr(reader, 'data_prefix', {}).values()
    return arguments.get('backend', 'local') in ('local', 'disk') and not any(
        '://' in folder for folder in folders if folder
    )


def _objections(sample: Sample, facts: dict[ImageFile, Facts]) -> Iterator[tuple[str, str]]:
    """Yield paths and what is wrong with them."""
    image = facts[sample.image] if sample.image else Facts()
    if sample.image and image.fault:
        yield sample.image.path, image.fault
    if not sample.mask:
        return
    mask = facts[sample.mask]
    if sample.image and mask.fault == MISSING:
        yield sample.image.path, f'no mask {sample.mask.path}'
    elif mask.fault:
        yield sample.mask.path, mask.fault
    unknown = set(mask.labels) - sample.labels
    if unknown:
        yield sample.mask.path, f'labels {_spans(unknown)} are not among {_spans(sample.labels)}'
    if sample.image and image.size and mask.size and tuple(image.size) != tuple(mask.size):
        yield sample.mask.path, '{}×{}, but its image {} {}×{}'.format(*mask.size, sample.image.path, *image.size)


def _spans(numbers: Collection[float]) -> str:
    """Write numbers as '0…10, 255'."""
    runs = [list(run) for _, run in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])]
    text = ', '.join(f'{run[0][1]}' if len(run) == 1 else f'{run[0][1]}…{run[-1][1]}' for run in runs)
    return textwrap.shorten(text, 80, placeholder=' …')
