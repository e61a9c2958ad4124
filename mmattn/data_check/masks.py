"""Faults in the files of mmseg's data sets that would stop training, or that training would silently ignore."""

import copy
import os
import textwrap
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from logging import WARNING
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config
from mmengine.registry import DATASETS
from mmengine.runner import Runner
from mmseg.datasets import BaseSegDataset
from mmseg.datasets.transforms import LoadAnnotations

from mmattn._compat import loads_masks_as
from mmattn.registry import HOOKS, TRANSFORMS
from mmattn.utils.faults import Faults
from mmattn.utils.files import hidden_folder_fault
from mmattn.utils.model_wrappers import unwrapped

from .batches import batch_faults
from .classes import IGNORED, class_faults, classes_of_labels
from .colours import colour_faults
from .data_sets import (
    CACHE,
    LOADERS,
    Fault,
    Part,
    data_sets,
    image_paths,
    is_local,
    loader_name,
    log,
    log_doubts,
    repeated_images,
)
from .hook import DataCheckHook
from .images import CHANNELS, MISSING, PREDICTED, Facts, ImageFile, inspect_files, unread_files

LoadChannels: Any = TRANSFORMS.get('mmattn.LoadChannels')  # by its name: it is of a floor above
UNEQUAL = 10  # from this ratio of shares on, the log has weights


class EmptyError(Exception):
    """A data set without images or masks."""


class Sample(NamedTuple):
    """An image and its mask. None if the pipeline does not read it."""

    image: ImageFile | None
    mask: ImageFile | None


@HOOKS.register_module()
class SegDataCheckHook(DataCheckHook):
    """Checks images and masks of mmseg's data sets before the first iteration, and lists all faults in one error.

    The hook checks data sets that derive from mmseg's ``BaseSegDataset``, also within wrappers. It checks
    ``train_dataloader`` and ``val_dataloader`` before training, and ``test_dataloader`` before testing. Faults are:

    * Files: an empty data set, an image without a mask, an unreadable file, an image and a mask of different sizes, a
      mask in a lossy format or with more than one value per pixel, a prediction of ``image_demo.py`` or
      ``run_onnx.py`` as a mask with ``reduce_zero_label``, a 16-bit image with values of 12 bits or fewer, a
      TIFF with bands or pages that loading drops.
    * Labels: a label that is, after ``reduce_zero_label`` and ``label_map``, neither a class nor ignored, a mask with
      only ignored pixels, masks that contain only 0 and 255, a class without a pixel in the training masks.
    * Files in the folders that are not read: images with another suffix, broken links, folders named like images, masks
      without an image. This is not checked with ``ann_file``, which selects images.
    * Images of validation or test whose bytes are those of a training image, under any name.
    * Config: ``num_classes`` of a head that differs from the number of classes of the data, ``class_weight`` of another
      length, different values of ``ignore_index`` in heads, metrics and data, duplicate class names, validation classes
      in another order than the training classes.
    * What would fail in the first batch or validation: images of different sizes in a batch, a crop beside another
      ``size`` of the data preprocessor, ``LoadAnnotations`` before a ``Resize`` in validation, a batch norm behind a
      global pooling with one image, a softmax over one logit, ``reduce_zero_label`` in one place only.

    The hook logs a warning for a class without a pixel in validation or test, for test masks with only ignored pixels,
    for masks that were scaled, blurred, compressed or dithered after painting (see
    :func:`~mmattn.utils.mask_edges.altered_labels`) or that a model has predicted, for images that are listed twice,
    are copies of others or are in both training and validation, and for images that a person sees otherwise than the
    network: with an EXIF orientation, transparent pixels, several frames, or 16 bits of which only the lower ones are
    used.

    Masks are decoded. Of a PNG image, the checksums are compared. Of a JPEG, only the header and the last bytes are
    read: this detects truncation, but not damage in the middle. Images of other formats are decoded. Data sets that are
    not read by ``LoadImageFromFile`` and mmseg's ``LoadAnnotations``, or not from a local disk, are skipped, and the
    log names them.

    Results for files without faults are cached in ``data_check.json`` in the work dir: later runs check a file again
    only if its size or modification time has changed. :class:`~mmattn.data_check.hook.DataCheckHook` describes the
    report, when the check runs, and in which process.

    Args:
        enabled (bool): whether to check. In the shipped configs,
            ``--cfg-options default_hooks.data_check.enabled=False`` turns the check off. Defaults to True.
        allow_absent (sequence of str): classes that may be missing from all training masks, for a subset that lacks
            them. An unknown class is a fault. Defaults to none.
        allow_ignored (bool): whether all pixels of a mask may be ignored. Defaults to False.
        allow_copies (bool): whether validation and test may have copies of training images. Defaults to False.

    Example:
        >>> from mmattn.registry import HOOKS
        >>> hook = HOOKS.build(dict(type='SegDataCheckHook', allow_absent=['train']))
        >>> hook.allow_absent
        ['train']
        >>> default_hooks = dict(data_check=dict(type='mmattn.SegDataCheckHook'))  # in a config
    """

    def __init__(
        self,
        enabled: bool = True,
        allow_absent: Sequence[str] = (),
        allow_ignored: bool = False,
        allow_copies: bool = False,
    ) -> None:
        super().__init__(enabled)
        self.allow_copies = allow_copies
        self.allow_absent = [allow_absent] if isinstance(allow_absent, str) else list(allow_absent)
        self.allow_ignored = allow_ignored

    def check_data(self, runner: Runner, loaders: tuple[str, ...], faults: Faults) -> None:
        """Check all files of the data loaders, and compare their classes with the model."""
        start = time.monotonic()
        cfg = runner.cfg
        parts: list[Part] = []
        incomplete = set()
        for where, dataset in data_sets(cfg, loaders, BaseSegDataset):
            try:
                parts.append(_read(where, dataset))
            except (OSError, AssertionError, EmptyError) as error:
                incomplete.add(loader_name(where))
                faults.add(where, str(error) or f'{dataset["type"]} raises {error!r}')
        images = {part.where: [sample.image for sample in part.samples if sample.image] for part in parts}
        masks = {part.where: [sample.mask for sample in part.samples if sample.mask] for part in parts}
        if 'train_dataloader' in loaders:
            paths = image_paths(cfg, ('test_dataloader',), BaseSegDataset)
            images |= {where: [ImageFile(path, 'cv2', 'color') for path in listed] for where, listed in paths.items()}
        files = dict.fromkeys(file for part in (images, masks) for listed in part.values() for file in listed)
        facts, inspected = inspect_files(files, Path(runner.work_dir) / CACHE)
        labels = {
            part.where: {label for sample in part.samples if sample.mask for label in facts[sample.mask].labels}
            for part in parts
        }
        faults.extend(class_faults(cfg, parts, labels, incomplete, self.allow_absent))
        if 'train_dataloader' in loaders:
            _log_shares([part for part in parts if part.loader == 'train_dataloader'], facts)
        sizes = {
            part.where: [tuple(facts[sample.image].size) if sample.image else () for sample in part.samples]
            for part in parts
        }
        faults.extend(batch_faults(cfg, unwrapped(getattr(runner, 'model', None)), parts, sizes))
        faults.extend(colour_faults(parts))
        faults.extend(_unread(cfg, parts))
        for part in parts:
            faults.extend(_file_faults(part, facts, self.allow_ignored))
            log_doubts(part.where, images[part.where], facts, 'images')
            log_doubts(part.where, masks[part.where], facts, 'masks')
        faults.extend(repeated_images(images, facts, self.allow_copies))
        seconds = time.monotonic() - start
        log(f'{len(files)} files, {len(files) - inspected} of them unchanged since the last check, {seconds:.1f} s')


def _log_shares(parts: Sequence[Part], facts: dict[ImageFile, Facts]) -> None:
    """Log the share of each class in the pixels of the training masks, and, if they are unequal, weights."""
    pixels: Counter[str] = Counter()
    for part in parts:
        indices = classes_of_labels(part.dataset)
        names = {label: part.classes[i] for label, i in indices.items() if i is not IGNORED and part.classes}
        for mask in (facts[sample.mask] for sample in part.samples if sample.mask):
            for label, count in zip(mask.labels, mask.counts):
                if label in names:
                    pixels[names[label]] += count
    classes = list(dict.fromkeys(name for part in parts for name in part.classes))
    shares = [pixels[name] / max(1, pixels.total()) for name in classes]
    if not pixels or max(shares) < UNEQUAL * min(shares):
        return
    log('pixels of the training masks: ' + ', '.join(f'{name} {share:.2%}' for name, share in zip(classes, shares)))
    log(f'to weigh rare classes more (docs/custom_data.md): class_weight={class_weights(shares)}')


def class_weights(shares: Sequence[float]) -> list[float]:
    """Return a weight for each class: the root of median share / share, so that a rare class does not drown others.

    A class without pixels gets 1.

    Example:
        >>> class_weights([0.9, 0.09, 0.01])
        [0.316, 1.0, 3.0]
    """
    middle = median(share for share in shares if share)
    return [round((middle / share) ** 0.5, 3) if share else 1.0 for share in shares]


def _read(where: str, cfg: dict) -> Part:
    dataset = _build(cfg)
    transforms = list(_flat(dataset.pipeline))
    read = LoadImageFromFile.transform, LoadChannels.transform
    image_loader = next((t for t in transforms if getattr(type(t), 'transform', None) in read), None)
    mask_loader = next((t for t in transforms if loads_masks_as(t, LoadAnnotations)), None)
    if not (image_loader or mask_loader):
        log(f'{where} is skipped: its files are read by other transforms')
        return Part(where, dataset, [])
    if not all(map(is_local, (dataset, image_loader, mask_loader))):
        log(f'{where} is skipped: its files are not on a local disk')
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
                image_loader and image_file(info['img_path'], image_loader),
                mask_loader
                and ImageFile(info['seg_map_path'], mask_loader.imdecode_backend, 'unchanged', is_mask=True),
            )
        )
    return Part(where, dataset, samples)


def image_file(path: str, loader: LoadImageFromFile) -> ImageFile:
    """Return an image with what a loader of a pipeline reads it with."""
    if isinstance(loader, LoadChannels):
        return ImageFile(path, CHANNELS, str(loader.channels))
    return ImageFile(path, loader.imdecode_backend, loader.color_type)


def _build(cfg: dict) -> BaseSegDataset:
    cfg = copy.deepcopy(cfg)
    try:  # mmengine cannot serialize an empty list
        return DATASETS.build({**cfg, 'lazy_init': True, 'serialize_data': False})
    except TypeError:  # a custom class without these arguments; an unknown argument raises again
        return DATASETS.build(cfg)


def _flat(transforms: object) -> Iterator[Any]:
    if isinstance(transforms, list | tuple):
        for transform in transforms:
            yield from _flat(transform)
    else:
        yield transforms
        for name in ('transforms', 'subroutines'):
            yield from _flat(getattr(transforms, name, ()))


def _why_empty(dataset: BaseSegDataset) -> str:
    if dataset.ann_file and os.path.isfile(dataset.ann_file):
        return f'{dataset.ann_file} lists no image'
    folder = dataset.data_prefix.get('img_path')
    suffixes = Counter(os.path.splitext(path)[1] for path, _ in unread_files(folder, dataset.img_suffix, ()))
    content = ' and '.join(f'{count} *{suffix}' for suffix, count in suffixes.most_common())
    hint = f'; it contains {content}: set img_suffix' if content else ''
    return f'no image *{dataset.img_suffix} in {folder}{hint}'


def _reads_whole_folders(dataset: BaseSegDataset) -> bool:
    stock = type(dataset).load_data_list is BaseSegDataset.load_data_list
    return stock and (not dataset.ann_file or os.path.isdir(dataset.ann_file))


def _unread(cfg: Config, parts: Sequence[Part]) -> Iterator[Fault]:
    folders = {
        (part.dataset.data_prefix.get(key), suffix): key == 'seg_map_path'
        for part in parts
        if part.samples and _reads_whole_folders(part.dataset)
        for key, suffix in (('img_path', part.dataset.img_suffix), ('seg_map_path', part.dataset.seg_map_suffix))
        if key == 'img_path' or any(sample.mask for sample in part.samples)
    }
    listed: set[str] = set()
    for _, data_set in data_sets(cfg, LOADERS, BaseSegDataset):  # also of loaders that are not checked
        with suppress(Exception):  # already reported if it matters
            dataset = _build(data_set)
            if is_local(dataset):
                infos = dataset.load_data_list()
                listed.update(info[key] for info in infos for key in ('img_path', 'seg_map_path') if key in info)
    for part in parts:
        if _reads_whole_folders(part.dataset):
            images = (sample.image.path for sample in part.samples if sample.image)
            folder = part.dataset.data_prefix.get('img_path') or '.'
            for image in images:
                if fault := hidden_folder_fault(image, folder):
                    yield image, fault
    for (folder, suffix), is_mask in folders.items():
        for path, reason in unread_files(folder, suffix, listed):
            yield path, 'a mask without an image' if is_mask and reason == 'not read' else reason


def _file_faults(part: Part, facts: dict[ImageFile, Facts], allow_ignored: bool) -> Iterator[Fault]:
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
        elif PREDICTED in mask.doubts and part.dataset.reduce_zero_label:
            yield sample.mask.path, f'{PREDICTED}, which reduce_zero_label would shift: store class c as c + 1'
        unknown = set(mask.labels) - set(classes)
        if unknown:
            yield sample.mask.path, f'labels {_spans(unknown)} are not among {_spans(classes)}'
        elif mask.labels and all(classes[label] is IGNORED for label in mask.labels):
            ignored.append((sample.mask.path, f'all its pixels are ignored (label {_spans(mask.labels)})'))
        if sample.image and image.size and mask.size and tuple(image.size) != tuple(mask.size):
            reason = '{}×{}, but its image {} {}×{}'.format(*mask.size, sample.image.path, *image.size)
            turned = mask.size == image.size[::-1]
            yield sample.mask.path, f'{reason}, after rotation by its EXIF orientation, if any' if turned else reason
    if not allow_ignored and part.loader != 'test_dataloader':
        yield from ignored
    elif ignored:  # the ground truth of a test may be held by an evaluation server
        log(f'{len(ignored)} masks of {part.where} have only ignored pixels', WARNING)


def _listed(part: Part, path: str) -> str:
    if not part.dataset.ann_file or _reads_whole_folders(part.dataset):
        return ''
    suffix = part.dataset.img_suffix
    line = os.path.relpath(path, part.dataset.data_prefix.get('img_path') or '.').removesuffix(suffix)
    # quoted, so that unusual characters are visible
    return f', but {part.dataset.ann_file} lists {line!r} (a line is a name in data_prefix.img_path without {suffix})'


def _spans(numbers: Collection[float]) -> str:
    """Format numbers as ranges, such as '0…10, 255'."""
    runs = [list(run) for _, run in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])]
    text = ', '.join(f'{run[0][1]}' if len(run) == 1 else f'{run[0][1]}…{run[-1][1]}' for run in runs)
    return textwrap.shorten(text, 80, placeholder=' …')
