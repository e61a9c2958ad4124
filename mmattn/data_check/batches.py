"""Settings of mmseg's pipelines, batches and heads that would fail in the first batch or the first validation."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from logging import WARNING
from typing import Any, NamedTuple

import mmcv.transforms as mmcv_transforms
import mmseg.datasets.transforms as mmseg_transforms
from mmcv import rescale_size
from mmengine.config import Config
from mmengine.dist import get_world_size
from mmengine.registry import DATASETS, MODELS
from mmseg.datasets import BaseSegDataset
from mmseg.models.decode_heads.decode_head import BaseDecodeHead
from torch import nn

from mmattn._compat import loads_masks_as
from mmattn.utils.component_type import component_class, type_name

from .classes import heads
from .data_sets import LOADERS, Fault, Part, data_sets, dicts, log

KEEP_SIZE = (
    mmcv_transforms.LoadImageFromFile,
    mmcv_transforms.RandomFlip,
    mmseg_transforms.LoadAnnotations,
    mmseg_transforms.PackSegInputs,
    mmseg_transforms.PhotoMetricDistortion,
    mmseg_transforms.RandomRotate,
)
Size = tuple[int, ...]  # width and height, as in mmcv's scale; () if it is not known


class Sizes(NamedTuple):
    """The smallest and the largest size that a pipeline makes of an image."""

    least: Size
    most: Size


def batch_faults(
    cfg: Config, model: Any, parts: Sequence[Part], images: Mapping[str, Sequence[Size]]
) -> Iterator[Fault]:
    """Yield ``(place in the config, fault)``. Crops with more padding than image are logged as a warning.

    Args:
        cfg (Config): the whole config.
        model (nn.Module, optional): the model, without a wrapper.
        parts (sequence of Part): the data sets.
        images (mapping): place of a data set in the config → sizes of its images.
    """
    yield from _one_logit(cfg)
    yield from _reduced_labels(cfg, parts)
    for part in parts:
        if part.loader != 'train_dataloader':
            yield from _resized_masks(part, images[part.where])
    for loader in dict.fromkeys(part.loader for part in parts):
        sizes = _sizes_of_batches(cfg, [part for part in parts if part.loader == loader], images)
        if loader == 'train_dataloader':
            yield from _training_sizes(cfg, sizes)
            count = sum(len(part.samples) for part in parts if part.loader == loader)
            yield from _single_values(cfg, model, count)
        else:
            yield from _mixed_sizes(cfg, loader, sizes)


def sizes_after(transforms: Sequence[Any], size: Size) -> Sizes | None:
    """Predict the sizes that a pipeline makes of an image. None if it has a transform that is not known.

    Example:
        >>> resize, crop = mmcv_transforms.Resize((64, 48), keep_ratio=True), mmseg_transforms.RandomCrop((32, 40))
        >>> sizes_after([resize, crop], (128, 60)).most
        (40, 30)
    """
    least = most = size
    for transform in transforms:
        if _is_stock_resize(transform):
            scales = [transform.scale] * 2
        elif type(transform) is mmcv_transforms.RandomResize and _is_stock_resize(transform.resize):
            ratios = transform.ratio_range
            if ratios is None:
                return None
            scales = [tuple(int(side * ratio) for side in transform.scale) for ratio in (min(ratios), max(ratios))]
            transform = transform.resize
        elif type(transform) is mmseg_transforms.RandomCrop:
            height, width = transform.crop_size
            least, most = ((min(w, width), min(h, height)) for w, h in (least, most))
            continue
        elif isinstance(transform, KEEP_SIZE) or type(transform).__name__ == 'SeedAugmentation':
            continue
        else:
            return None
        least, most = (_resized(old, transform, scale) for old, scale in zip((least, most), scales))
    return Sizes(least, most)


def _is_stock_resize(transform: Any) -> bool:
    stock = mmcv_transforms.Resize
    return all(getattr(type(transform), name, None) is getattr(stock, name) for name in ('transform', '_resize_img'))


def _resized(size: Size, transform: Any, scale: Any) -> Size:
    if scale is None:
        scale = tuple(int(side * factor + 0.5) for side, factor in zip(size, transform.scale_factor))
    return rescale_size(size, scale) if transform.keep_ratio else scale


def _sizes_of_batches(cfg: Config, parts: Sequence[Part], images: Mapping[str, Sequence[Size]]) -> list[Sizes | None]:
    dataset = cfg[parts[0].loader].get('dataset') or {}
    if 'pipeline' in dataset and ('dataset' in dataset or 'datasets' in dataset):  # of a wrapper that mixes images
        return [None]
    return [
        sizes_after(part.dataset.pipeline.transforms, size) if size else None
        for part in parts
        for size in images[part.where] or [()]
    ]


def _preprocessor(cfg: Config) -> dict:
    preprocessor = (cfg.get('model') or {}).get('data_preprocessor') or {}
    return preprocessor if type_name(preprocessor) == 'SegDataPreProcessor' else {}


def _training_sizes(cfg: Config, sizes: Sequence[Sizes | None]) -> Iterator[Fault]:
    preprocessor, where = _preprocessor(cfg), 'model.data_preprocessor.size'
    if not preprocessor:
        return
    padded, divisor = preprocessor.get('size'), preprocessor.get('size_divisor')
    if (padded is None) == (divisor is None):
        yield where, f'{padded}, and size_divisor is {divisor}: set one of them, for example size to the crop_size'
        return
    if padded is None or None in sizes:
        return
    known = [size for size in sizes if size is not None]
    shapes = {(max(w, padded[-1]), max(h, padded[-2])): size for size in known for w, h in (size.least, size.most)}
    if len(shapes) > 1 and cfg.train_dataloader.get('batch_size', 1) > 1:
        small, large = min(shapes), max(shapes)
        yield (
            where,
            f'{tuple(padded)} (height, width): the training pipeline makes images of {small[0]}×{small[1]} to '
            f'{large[0]}×{large[1]} pixels, and smaller images are padded to this size only, so that they would not '
            'fit into one batch. Set it to the crop_size of the pipeline',
        )
    elif len(shapes) == 1:
        width, height = known[0].most
        if width * height * 2 < padded[-1] * padded[-2]:
            log(
                f'{where}: {tuple(padded)} (height, width), but the training pipeline makes images of {width}×{height} '
                'pixels: most of each image is padding. Set it to the crop_size of the pipeline',
                WARNING,
            )


def _mixed_sizes(cfg: Config, loader: str, sizes: Sequence[Sizes | None]) -> Iterator[Fault]:
    batch_size, processes = cfg[loader].get('batch_size', 1), get_world_size()
    if batch_size == 1 or None in sizes or not _preprocessor(cfg):
        return
    for rank in range(processes):
        own = sizes[rank::processes]
        for start in range(0, len(own), batch_size):
            if len(mixed := {size.most for size in own[start : start + batch_size] if size}) > 1:
                examples = ' and '.join(f'{width}×{height}' for width, height in sorted(mixed)[:2])
                yield (
                    f'{loader}.batch_size',
                    f'{batch_size}, but its pipeline makes images of different sizes, such as {examples}, which mmseg '
                    'does not put into one batch. Set it to 1',
                )
                return


def _resized_masks(part: Part, images: Sequence[Size]) -> Iterator[Fault]:
    transforms = part.dataset.pipeline.transforms
    start = next((i for i, t in enumerate(transforms) if loads_masks_as(t, mmseg_transforms.LoadAnnotations)), None)
    if start is None:
        return
    for size in dict.fromkeys(images):
        before = sizes_after(transforms[:start], size) if size else None
        after = sizes_after(transforms[start:], before.most) if before else None
        if before and after and after.most != before.most:
            yield (
                f'{part.where}.pipeline',
                f'LoadAnnotations comes before a transform that resizes: a mask of {size[0]}×{size[1]} pixels becomes '
                f'{after.most[0]}×{after.most[1]}, but predictions have the size of the file. Move LoadAnnotations '
                'behind it',
            )
            return


def _reduced_labels(cfg: Config, parts: Sequence[Part]) -> Iterator[Fault]:
    for part in parts:
        reduced = part.dataset.reduce_zero_label
        for transform in part.dataset.pipeline.transforms:
            if loads_masks_as(transform, mmseg_transforms.LoadAnnotations):
                loaded = getattr(transform, 'reduce_zero_label', None)
                if loaded is not None and loaded != reduced:
                    yield (
                        f'{part.where}.reduce_zero_label',
                        f'{reduced}, but LoadAnnotations in its pipeline has {loaded}. Set it here, and leave it out '
                        'in LoadAnnotations',
                    )
    for where, dataset in data_sets(cfg, LOADERS, BaseSegDataset):  # also those that are not checked now
        with suppress(Exception):  # another check tells why it cannot be built
            other = DATASETS.build({**dataset, 'pipeline': [], 'lazy_init': True})
            first = parts[0].dataset
            same = type(other) is type(first) and other.data_root and other.data_root == first.data_root
            if same and other.reduce_zero_label != first.reduce_zero_label:
                yield (
                    f'{where}.reduce_zero_label',
                    f'{other.reduce_zero_label}, but {parts[0].where}.reduce_zero_label is {first.reduce_zero_label}, '
                    f'and both read {first.data_root}',
                )


def _one_logit(cfg: Config) -> Iterator[Fault]:
    for where, head in heads(cfg.get('model'), 'model'):
        channels = head.get('out_channels') or head['num_classes']
        if channels != 1 or any(key.startswith('loss_') and key != 'loss_decode' for key in head):
            continue
        for loss in dicts(head.get('loss_decode', dict(type='CrossEntropyLoss'))):
            kind = component_class(head, MODELS, 'mmseg')
            is_stock = getattr(kind, 'loss_by_feat', None) is BaseDecodeHead.loss_by_feat
            if type_name(loss) == 'CrossEntropyLoss' and is_stock:
                log(
                    f'{where} has one logit: a batch whose pixels are all ignored ends the training of its '
                    f"{type_name(head)}. Heads of mmattn count 0, such as type='mmattn.AttentionHead' for FCNHead",
                    WARNING,
                )
            sigmoid = loss.get('use_sigmoid', type_name(loss) != 'CrossEntropyLoss')
            if not sigmoid or (type_name(loss) == 'LovaszLoss' and loss.get('loss_type') != 'binary'):
                yield (
                    f'{where}.loss_decode',
                    f'{type_name(loss)} with a softmax over one logit, which is always 1: nothing would be learned. '
                    f'Set use_sigmoid=True, or {where}.out_channels to the number of classes',
                )


def _single_values(cfg: Config, model: Any, images: int) -> Iterator[Fault]:
    loader = cfg.train_dataloader
    processes, batch_size = get_world_size(), loader.get('batch_size', 1)
    sampler = type_name(loader.get('sampler') or {})
    last = -(-images // processes) % batch_size if sampler == 'DefaultSampler' and not loader.get('drop_last') else 0
    if batch_size > 1 and last != 1:
        return
    for name, norm in _pooled_norms(model):
        if isinstance(norm, nn.SyncBatchNorm) and processes > 1:
            continue
        if batch_size == 1:
            setting, remedy = 'train_dataloader.batch_size', 'Set it to 2 or more'
        else:
            setting, remedy = 'train_dataloader.drop_last', 'Set it to True'
        yield (
            setting,
            f'{"1" if batch_size == 1 else f"False, and the last batch of {images} images has one"}: the batch norm of '
            f'model.{name} sees one value per channel, since its input is pooled to 1×1, and fails. {remedy}',
        )
        return


def _pooled_norms(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield the batch norms behind a global pooling, and their names."""
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if not isinstance(module, nn.Sequential):
            continue
        for (_, pool), (key, block) in pairwise(module.named_children()):
            if isinstance(pool, nn.AdaptiveAvgPool2d | nn.AdaptiveMaxPool2d) and pool.output_size in (1, (1, 1)):
                for inner, norm in block.named_modules():
                    if isinstance(norm, nn.BatchNorm2d | nn.SyncBatchNorm):
                        yield '.'.join(filter(None, (name, key, inner))), norm
