"""The rules: each is a generator of what is wrong, as a place and a text.

The name of a rule is that of its function, by which ``check = dict(allow=[…])`` makes its errors warnings. An error is
only what stock would end with an error on, or what makes a result wrong. The rest is a warning, one for each text.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from mmengine.dataset import ConcatDataset
from mmengine.registry import MODELS
from mmengine.runner import IterBasedTrainLoop, Runner

from mmattn.utils.component_type import component_class, dicts
from mmattn.utils.faults import Faults, shorten

from .data_sets import IGNORED, Part, Run, data_sets, walk
from .facts import Facts

SUFFIXES = ('.avif', '.bmp', '.gif', '.jfif', '.jp2', '.jpeg', '.jpg', '.npy', '.png', '.ppm', '.tif', '.tiff', '.webp')
Rule = Iterator[tuple[str, str]]  # a path, or a place in the config, and what is wrong there


def empty(run: Run) -> Rule:
    """A data set that cannot be built, has no image, or masks that are all wholly ignored."""
    for part in run.parts:
        if part.fault:
            yield part.where, part.fault
        elif part.dataset is not None and not part.infos:
            yield part.where, f'no image: it reads {part.dataset.data_prefix} {part.dataset.ann_file}'.rstrip()
        elif part.masks and len(part.ignored) == len(part.masks) and part.loader != 'test_dataloader':
            yield part.where, 'all pixels of all masks are ignored'


def files(run: Run) -> Rule:
    """A file that its own pipeline cannot load, or a mask that is not one lossless label a pixel."""
    for part in run.parts:
        listed = (*part.images.items(), *part.masks.items())
        yield from ((path, facts.fault) for path, facts in listed if facts.fault)


def sizes(run: Run) -> Rule:
    """An image whose size is not that of its mask, or of its annotations."""
    for part in run.parts:
        for info in part.infos:
            size = part.images.get(info.get('img_path', ''), Facts()).size
            other, name = part.masks.get(info.get('seg_map_path') or '', Facts()).size, info.get('seg_map_path')
            if info.get('width') and info.get('height'):
                other, name = f'{info["width"]:.0f}×{info["height"]:.0f}', 'its annotations'
            if size and other and size != other:
                yield info['img_path'], f'{size}, but {name} {other}'


def labels(run: Run) -> Rule:
    """Labels that are, after ``reduce_zero_label`` and ``label_map``, neither classes nor ignored."""
    for part in run.parts:
        count = len(part.classes)
        accepted = {*range(count), IGNORED, getattr(part.dataset, 'ignore_index', IGNORED)}
        for path, mask in part.masks.items() if count else ():
            if wrong := [label for label in mask.labels if label not in accepted]:
                yield path, f'labels {", ".join(shorten(wrong, 10))} are neither in 0…{count - 1} nor ignored'


def binary(run: Run) -> Rule:
    """Masks with only 0 and 255, of which 255 is ignored."""
    for part in run.parts:
        if part.indices == {0, IGNORED}:
            page = 'docs/custom_data.md#colour-coded-and-binary-masks'
            yield part.where, f'its masks have only 0 and 255, which is ignored: convert 255 to 1 ({page})'


def boxes(run: Run) -> Rule:
    """Boxes that are not four finite numbers, are all in 0…1, or are given as corners in COCO's format."""
    for part in run.parts:
        listed = [*_boxes(part)]
        wrong, reason = [x for x in listed if not _is_box(x[0])], 'are not four finite numbers'
        if not wrong and all(0 <= number <= 1 for box, _ in listed for number in box):
            wrong, reason = listed, 'are in 0…1, but boxes are in pixels'
        elif not wrong and part.coco and all(_is_inside(image, *box) for box, image in listed):
            beyond = [x for x in listed if _is_beyond(*x)]
            if 4 * len(beyond) > len(listed):  # a few may be boxes of large objects that were drawn too far
                wrong, reason = beyond, 'are corners: COCO has [left, top, width, height]'
        for box, image in wrong[:1]:
            yield part.dataset.ann_file, f'{len(wrong):,} of {len(listed):,} boxes {reason}, such as {box} in {image}'


def ids(run: Run) -> Rule:
    """Ids of images or categories that are repeated, or boxes of which none has a known one."""
    for part in run.parts:
        for kind in ('images', 'categories'):
            counts = Counter(str(entry.get('id')) for entry in part.coco.get(kind, ()))
            if repeated := [name for name, count in counts.items() if count > 1]:
                yield part.dataset.ann_file, f'{len(repeated):,} ids of {kind} are repeated, such as {repeated[0]}'
        if part.coco.get('annotations') and len(_lost(part)) == len(part.coco['annotations']):
            yield part.dataset.ann_file, f'no box has a known image and category, such as {_lost(part)[0]}'


def classes(run: Run) -> Rule:
    """Classes in another order than those of the first data set, or than the categories of a COCO file."""
    first = next((part for part in run.parts if part.classes), None)
    for part in run.parts:
        if isinstance(getattr(part.dataset, 'metainfo', {}).get('classes'), str):
            yield part.where, f'classes must be a list of names; got the letters {part.classes}'
        elif first and part.classes != first.classes and sorted(part.classes) == sorted(first.classes):
            yield part.where, f'classes in another order than in {first.where}: {", ".join(part.classes)}'
        names = {entry.get('id'): entry.get('name') for entry in part.coco.get('categories', ())}
        order = [names.get(number) for number in getattr(part.dataset, 'cat2label', ())]  # in which mmdet numbers them
        if part.coco and tuple(order) != part.classes[: len(order)]:
            yield part.where, f'classes are {part.classes}, but the categories of its file are {order}, in this order'


def num_classes(run: Run) -> Rule:
    """Heads with another number of classes than the data. One channel is right for two classes."""
    counts = {len(part.classes): part.where for part in run.parts if part.is_segmentation and part.classes}
    for where, head in _heads(run):
        for count, data in counts.items():
            if head['num_classes'] not in (count, count - (count == 2)):
                yield f'{where}.num_classes', f'{head["num_classes"]}, but {data} has {count} classes'


def metainfo(run: Run) -> Rule:
    """Parts of a ``ConcatDataset`` with other meta information than the first. The error of mmengine names no key."""
    for where, kind, cfg in data_sets(run.cfg, run.loaders):
        parts = [part for part in run.parts if part.where.startswith(f'{where}.datasets.') and part.dataset is not None]
        for part in parts[1:] if kind is ConcatDataset else ():
            for key, x in part.dataset.metainfo.items():
                if key not in (cfg.get('ignore_keys') or ()) and repr(x) != repr(parts[0].dataset.metainfo.get(key)):
                    yield part.where, f"its {key} is not that of {parts[0].where}; ignore_keys=['{key}'] if so meant"


def class_weight(run: Run) -> Rule:
    """Losses with weights for another number of classes than the head has."""
    for where, head in _heads(run):
        count = head.get('out_channels') or head['num_classes']
        for weights in (loss.get('class_weight') for loss in dicts(head.get('loss_decode'))):
            if isinstance(weights, list | tuple) and len(weights) != count:
                yield f'{where}.loss_decode.class_weight', f'{len(weights)} weights, but the head has {count} classes'


def vocabulary(run: Run) -> Rule:
    """Data sets with a check of their own that do not fit the model, or the first of them."""
    faults = Faults()
    for dataset in run.checkable:
        dataset.check_for_model(run.model, faults)
    first, *others = [dataset for dataset in run.checkable if hasattr(dataset, 'compare')] or [None]
    for dataset in others:
        dataset.compare(without_length(first.metainfo), first.sources['symbols'], faults)
    yield from ((place, text) for place, texts in faults.by_path.items() for text in texts)


def ignored(run: Run) -> Rule:
    """Masks whose pixels are all ignored."""
    for part in run.parts:
        yield from ((path, f'one of {len(part.masks):,} masks that is wholly ignored') for path in part.ignored)


def absent(run: Run) -> Rule:
    """Classes without a pixel or box."""
    for loader in run.loaders:
        parts = [part for part in run.parts if part.loader == loader and (part.masks or part.coco)]
        present = {part.classes[i] for part in parts for i in part.indices if i < len(part.classes)}
        if missing := [x for x in dict.fromkeys(x for part in parts for x in part.classes) if x not in present]:
            yield loader, f'no pixel or box of {", ".join(shorten(missing, 10))}'


def copies(run: Run) -> Rule:
    """Images of the validation with the bytes or the id of a training image."""
    training = [part for part in run.parts if part.loader == 'train_dataloader']
    digests = {facts.digest for part in training for facts in part.images.values()} - {''}
    for part in (part for part in run.parts if part not in training):
        for path, facts in part.images.items():
            if facts.digest in digests:
                yield path, f'one of {len(part.images):,} images of {part.where} that has the bytes of a training image'
    listed = [dataset for dataset in run.checkable if getattr(dataset, 'image_ids', ())]
    names = {name for dataset in listed if not dataset.test_mode for name in dataset.image_ids}
    for name in names.intersection(name for dataset in listed if dataset.test_mode for name in dataset.image_ids):
        yield name, 'an image of the validation that is also trained'


def beside(run: Run) -> Rule:
    """Files beside the data that no data set lists."""
    listed = {os.path.normpath(path) for part in run.parts for path in (*part.images, *part.masks)}
    whole = [part.dataset for part in run.parts if part.is_segmentation and part.images and not part.dataset.ann_file]
    for folder in {x.data_prefix.get(key) or '' for x in whole for key in ('img_path', 'seg_map_path')}:
        for parent, _, names in os.walk(folder, followlinks=True):
            for path in (os.path.normpath(os.path.join(parent, name)) for name in names if name[0] != '.'):
                if path.lower().endswith(SUFFIXES) and path not in listed:
                    yield path, f'a file in {folder} that no data set lists'


def beyond(run: Run) -> Rule:
    """Boxes that reach beyond their images by more than a pixel."""
    for part in run.parts:
        text = f'one of {len([*_boxes(part)]):,} boxes of {part.where} that reaches beyond its image'
        yield from ((f'{x}', text) for x in _boxes(part) if _is_box(x[0]) and _is_beyond(*x))


def lost(run: Run) -> Rule:
    """Boxes without a known image or category, where others have one, as in the file of a part of a data set."""
    for part in run.parts:
        if boxes := _lost(part):
            text = f'{len(boxes):,} of {len(part.coco["annotations"]):,} boxes have an unknown image or category'
            yield part.dataset.ann_file, f'{text}, such as {boxes[0]}'


def learning_rate(runner: Runner) -> Rule:
    """A learning rate of 0 for all parameters."""
    groups: Any = runner.optim_wrapper.param_groups
    groups = [group for part in groups.values() for group in part] if isinstance(groups, dict) else groups
    if all(group.get('lr') == 0 == group.get('initial_lr', 0) for group in groups):
        yield 'optim_wrapper', 'the learning rate of all parameters is 0, which trains nothing'


def unit(runner: Runner) -> Rule:
    """Schedules in the other unit than the training: epochs or iterations."""
    loop, parts = runner.train_loop, runner.param_schedulers or []
    for scheduler in [x for part in parts.values() for x in part] if isinstance(parts, dict) else parts:
        name, wanted = type(scheduler).__name__, not isinstance(loop, IterBasedTrainLoop)
        if scheduler.by_epoch > wanted or (scheduler.by_epoch < wanted and scheduler.end == loop.max_epochs):
            yield 'param_scheduler', f'{name} needs by_epoch={wanted}, as train_cfg counts'


ERRORS = (empty, files, sizes, labels, binary, boxes, ids, classes, metainfo, num_classes, class_weight, vocabulary)
WARNINGS = (ignored, absent, copies, beside, beyond, lost)
OF_SCHEDULE = (learning_rate, unit)  # of a Runner


def without_length(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out at how many words sentences are cut: data sets of a run may differ in it."""
    return {key: value for key, value in meta.items() if key != 'max_words'}


def _boxes(part: Part) -> Iterator[tuple[Any, dict]]:
    """Yield ``[left, top, width, height]`` and the image of each box."""
    images = {image.get('id'): image for image in part.coco.get('images', ())}
    for entry in part.coco.get('annotations', ()):
        if 'bbox' in entry and entry.get('image_id') in images:
            yield entry['bbox'], images[entry['image_id']]
    for info in part.infos if not part.coco else ():
        for left, top, right, bottom in (box['bbox'] for box in info.get('instances', ()) if 'bbox' in box):
            yield [left, top, right - left, bottom - top], {'file_name': info['img_path'], **info, 'instances': None}


def _is_box(box: Any) -> bool:
    return isinstance(box, list) and len(box) == 4 and all(isinstance(x, int | float) and isfinite(x) for x in box)


def _is_inside(image: dict, left: float, top: float, right: float, bottom: float) -> bool:
    width, height = image.get('width') or right, image.get('height') or bottom
    return -1 <= left < right <= width + 1 and -1 <= top < bottom <= height + 1


def _is_beyond(box: list[float], image: dict) -> bool:
    left, top, width, height = box
    return width > 0 < height and not _is_inside(image, left, top, left + width, top + height)


def _lost(part: Part) -> list[dict]:
    images, categories = ({entry.get('id') for entry in part.coco.get(kind, ())} for kind in ('images', 'categories'))
    boxes = [entry for entry in part.coco.get('annotations', ()) if 'bbox' in entry]
    return [box for box in boxes if box.get('image_id') not in images or box.get('category_id') not in categories]


def _heads(run: Run) -> Iterator[tuple[str, dict]]:
    """Yield place and config of the decode and auxiliary heads whose loss is mmseg's, of one class a pixel."""
    for where, head in walk(run.cfg.get('model'), 'model'):
        if isinstance(head.get('num_classes'), int | float) and {'decode_head', 'auxiliary_head'} & {*where.split('.')}:
            loss = getattr(component_class(head, MODELS, 'mmseg'), 'loss_by_feat', _heads)
            if loss.__module__.startswith(('mmseg.models.decode_heads.decode_head', 'mmattn.')):
                yield where, head
