"""The data sets of a config, and the files that their pipelines read. The files are not opened."""

import copy
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mmcv.transforms import LoadImageFromFile
from mmengine.logging import print_log
from mmengine.registry import DATASETS
from mmseg.datasets import BaseSegDataset
from mmseg.datasets.transforms import LoadAnnotations

from mmattn._compat import loads_masks_as
from mmattn.data_check import hook
from mmattn.data_check.images import ImageFile

from .unread_files import unread_files


class EmptyError(Exception):
    """A data set without images or masks."""


class Sample(NamedTuple):
    """An image and its mask. None if the pipeline does not read it."""

    image: ImageFile | None
    mask: ImageFile | None


class Part(NamedTuple):
    """A data set, its place in the config, and its samples: empty if they cannot be checked."""

    where: str
    dataset: BaseSegDataset
    samples: Sequence[Sample]

    @property
    def loader(self) -> str:
        """The data loader, such as 'train_dataloader'."""
        return self.where.partition('.')[0]

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes. Empty if the data set does not define them."""
        return tuple(self.dataset.metainfo.get('classes') or ())

    @property
    def masks(self) -> list[ImageFile]:
        """The masks that are read."""
        return [sample.mask for sample in self.samples if sample.mask]


def data_set_configs(cfg: object, where: str) -> Iterator[tuple[str, dict]]:
    """Yield ``(place, config)`` of mmseg's data sets in a data loader's config, also within wrappers."""
    return hook.data_set_configs(cfg, where, BaseSegDataset)


def build(cfg: dict) -> BaseSegDataset:
    """Build a data set with ``lazy_init``, if its class supports it."""
    cfg = copy.deepcopy(cfg)
    try:  # mmengine cannot serialize an empty list
        return DATASETS.build({**cfg, 'lazy_init': True, 'serialize_data': False})
    except TypeError:  # a custom class without these arguments; an unknown argument raises again
        return DATASETS.build(cfg)


def read(where: str, cfg: dict) -> Part:
    """List the files that a data set's pipeline reads.

    Raises:
        EmptyError: the data set is empty.
        OSError, AssertionError: raised by the data set for a missing folder or list.
    """
    dataset = build(cfg)
    transforms = list(_flat(dataset.pipeline))
    image_loader = next(
        (t for t in transforms if getattr(type(t), 'transform', None) is LoadImageFromFile.transform), None
    )
    mask_loader = next((t for t in transforms if loads_masks_as(t, LoadAnnotations)), None)
    if not (image_loader or mask_loader):
        print_log(f'Data check: {where} is skipped: its files are read by other transforms', 'current')
        return Part(where, dataset, [])
    if not all(map(is_local, (dataset, image_loader, mask_loader))):
        print_log(f'Data check: {where} is skipped: its files are not on a local disk', 'current')
        return Part(where, dataset, [])
    dataset.full_init()
    if len(dataset) == 0:
        raise EmptyError(_why_empty(dataset))
    samples = []
    for i in range(len(dataset)):
        info = dataset.get_data_info(i)
        if mask_loader and 'seg_map_path' not in info:
            raise EmptyError('its pipeline has LoadAnnotations, but its data_prefix has no seg_map_path')
        samples.append(
            Sample(
                image_loader and ImageFile(info['img_path'], image_loader.imdecode_backend, image_loader.color_type),
                mask_loader
                and ImageFile(info['seg_map_path'], mask_loader.imdecode_backend, 'unchanged', is_mask=True),
            )
        )
    return Part(where, dataset, samples)


def reads_whole_folders(dataset: BaseSegDataset) -> bool:
    """Return whether a data set reads all images of a folder, not a list of them."""
    stock = type(dataset).load_data_list is BaseSegDataset.load_data_list
    return stock and (not dataset.ann_file or os.path.isdir(dataset.ann_file))


def _flat(transforms: object) -> Iterator[Any]:
    """Yield transforms, including nested ones, such as those of ``TestTimeAug``."""
    if isinstance(transforms, list | tuple):
        for transform in transforms:
            yield from _flat(transform)
    else:
        yield transforms
        for name in ('transforms', 'subroutines'):
            yield from _flat(getattr(transforms, name, ()))


def is_local(reader: object) -> bool:
    """Return whether a data set or a transform reads from a local disk. True for None."""
    arguments = getattr(reader, 'backend_args', None) or getattr(reader, 'file_client_args', None) or {}
    folders = getattr(reader, 'data_prefix', {}).values()
    return arguments.get('backend', 'local') in ('local', 'disk') and not any(
        '://' in folder for folder in folders if folder
    )


def _why_empty(dataset: BaseSegDataset) -> str:
    if dataset.ann_file and os.path.isfile(dataset.ann_file):
        return f'{dataset.ann_file} lists no image'
    folder = dataset.data_prefix.get('img_path')
    others = Counter(os.path.splitext(path)[1] for path, _ in unread_files(folder, dataset.img_suffix, ()))
    found = ' and '.join(f'{count} *{suffix}' for suffix, count in others.most_common())
    return f'no image *{dataset.img_suffix} in {folder}' + (f'; it contains {found}: set img_suffix' if found else '')
