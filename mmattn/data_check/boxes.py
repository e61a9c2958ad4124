"""Faults in annotations and images that would stop the training of a detector, or that it would silently ignore."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from filecmp import cmp
from itertools import chain
from logging import INFO, WARNING
from math import isfinite
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from mmdet.datasets import BaseDetDataset, CocoDataset, XMLDataset
from mmengine.config import Config
from mmengine.fileio import list_from_file, load
from mmengine.registry import DATASETS
from mmengine.runner import Runner

from mmattn.registry import HOOKS
from mmattn.utils.component_type import type_name
from mmattn.utils.faults import Faults, one_line, shorten

from .data_sets import (
    CACHE,
    Fault,
    Part,
    absent_classes,
    allow_absent_hint,
    data_sets,
    dicts,
    image_paths,
    is_local,
    loader_name,
    log,
    log_doubts,
    repeated_images,
)
from .hook import DataCheckHook
from .images import Facts, ImageFile, inspect_files

CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')
MARKS = ('iscrowd', 'ignore')  # of a box in a COCO file
NUMBERS = {'images': ('width', 'height'), 'annotations': ('area', 'category_id', *MARKS)}  # in a COCO file


class _Box(NamedTuple):
    file: str  # image of a COCO file, or XML file
    name: str  # of the class
    size: tuple[int, int] | None  # width and height of the image
    corners: list[float]
    mark: str  # why training ignores it, or ''


@HOOKS.register_module()
class DetDataCheckHook(DataCheckHook):
    """Checks annotations and images of mmdet's data sets before the first iteration, and lists all faults in one error.

    The hook checks data sets that derive from mmdet's ``BaseDetDataset``, also within wrappers. It checks
    ``train_dataloader`` and ``val_dataloader`` before training, and ``test_dataloader`` before testing. Faults are:

    * An annotation file that is missing or cannot be parsed, or a data set whose ``filter_cfg`` leaves no image.
    * In a COCO file: repeated image ids or categories, boxes that are not four finite numbers, boxes given as corners,
      text or null in place of a number, also as ``iscrowd``.
    * Most boxes in 0…1, or, in a COCO file, with an area of 0 or of no image. A warning if they are at most half, or
      of no image while most images have boxes: the file of a part of a data set often keeps the boxes of all images.
    * A metric that compares with another annotation file than the data set reads. Boxes and segments of the same images
      may be in two files.
    * An image that is missing, truncated or unreadable, or whose size differs from the size in its annotations.
    * Images of validation or test whose bytes are those of a training image, under any name.
    * Categories of a COCO file in another order than ``metainfo['classes']``: mmdet numbers labels in the file's order.
    * A class without a box in the training set that is not in ``allow_absent``. Ignored boxes do not count.

    The hook logs a warning for unused boxes (no area, smaller than a pixel, outside the image, a class that is not in
    ``metainfo['classes']``, or most of them marked as crowds or difficult), for files that have every box twice, for a
    class without a box in validation or test, for images that are listed twice, are copies of others or are in both
    training and validation, and for images that a person sees otherwise than the network, as ``SegDataCheckHook`` does.
    mmdet's ``NumClassCheckHook`` checks ``num_classes`` of the heads. Images and XML files that are not on a local
    disk are not checked. :class:`~mmattn.data_check.hook.DataCheckHook` describes the report, when the check runs, and
    in which process.

    Args:
        enabled (bool): whether to check. In the shipped configs,
            ``--cfg-options default_hooks.data_check.enabled=False`` turns the check off. Defaults to True.
        allow_absent (sequence of str): classes that may have no box in the training set. Defaults to none.
        allow_copies (bool): whether validation and test may have copies of training images. Defaults to False.

    Example:
        >>> from mmattn.registry import HOOKS
        >>> hook = HOOKS.build(dict(type='DetDataCheckHook', allow_absent=['Platelets']))
        >>> hook.allow_absent
        ['Platelets']
        >>> default_hooks = dict(data_check=dict(type='mmattn.DetDataCheckHook'))  # in a config
    """

    def __init__(self, enabled: bool = True, allow_absent: Sequence[str] = (), allow_copies: bool = False) -> None:
        super().__init__(enabled)
        self.allow_copies = allow_copies
        self.allow_absent = [allow_absent] if isinstance(allow_absent, str) else list(allow_absent)

    def check_data(self, runner: Runner, loaders: tuple[str, ...], faults: Faults) -> None:
        """Check annotations and images of the data loaders, and that every class has a box."""
        parts: list[Part] = []
        of_annotations: list[Fault] = []
        for where, dataset in data_sets(runner.cfg, loaders, BaseDetDataset):
            of_annotations += _read(where, dataset, parts)
        of_annotations += _evaluator_faults(runner.cfg, parts)
        faults.extend(of_annotations)
        files = {part.where: _image_files(part) for part in parts}
        if 'train_dataloader' in loaders:
            paths = image_paths(runner.cfg, ('test_dataloader',), BaseDetDataset)
            files |= {where: [ImageFile(path, 'cv2', 'color') for path in listed] for where, listed in paths.items()}
        facts, _ = inspect_files(dict.fromkeys(chain(*files.values())), Path(runner.work_dir) / CACHE)
        for part in parts:
            faults.extend(_image_faults(part, files[part.where], facts))
            log_doubts(part.where, files[part.where], facts, 'images')
        faults.extend(repeated_images(files, facts, self.allow_copies))
        incomplete = {loader_name(where) for where, _ in of_annotations}
        faults.extend(_absent([part for part in parts if part.loader not in incomplete], self.allow_absent))
        log(f'{sum(len(part.samples) for part in parts)} images with their boxes')


def _read(where: str, cfg: dict, parts: list[Part]) -> Iterator[Fault]:
    dataset = content = None
    try:
        dataset = DATASETS.build({**cfg, 'lazy_init': True, 'serialize_data': False})
        if missing := [path for path in _xml_files(dataset) if not os.path.isfile(path)]:
            yield from ((where, f'no annotation file {path}') for path in missing)
            return
        if isinstance(dataset, CocoDataset):
            content = load_json(dataset.ann_file, dataset.backend_args)
            content['annotations'] = [*_read_annotations(content)]
            if faults := [*_coco_faults(content, where)]:
                yield from ((dataset.ann_file, fault) for fault in faults)
                return
        listed = dataset.load_data_list()
        dataset.data_list = listed
        kept = dataset.filter_data()
    except (OSError, AssertionError) as error:
        yield where, str(error) or f'{cfg["type"]} raises {error!r}'
    except Exception as error:  # parsers of annotations raise many types
        broken: list[Fault] = []
        with suppress(ValueError):  # the list of the files may be damaged
            broken += _broken_annotations(_xml_files(dataset))
        said = f'the annotations {cfg.get("ann_file")} are not in the format of {type_name(cfg)}: {one_line(error)}'
        yield from broken or [(where, str(error) if str(cfg.get('ann_file')) in str(error) else said)]
    else:
        boxes = [*_boxes(dataset, listed, content)]
        if faults := [*_share_faults(boxes)]:
            yield from ((dataset.ann_file, fault) for fault in faults)
            return
        unused, beyond, level = _box_counts(dataset, boxes)
        if unused:
            log(f'{where}: boxes are not used: {unused}', level)
        if beyond:
            log(f'{where}: {beyond} boxes reach beyond their images', WARNING)
        _log_copies(where, boxes)
        if kept:
            parts.append(Part(where, dataset, kept))
            yield from _order_faults(parts[-1], content)
        else:
            classes = _names(dataset.metainfo.get('classes') or ())
            yield (
                where,
                f'of {len(listed)} images in {dataset.ann_file}, none is left after filter_cfg={dataset.filter_cfg}; '
                f'the classes are {classes}{"; boxes are not used: " if unused else ""}{unused}',
            )


def _read_annotations(content: dict) -> Iterator[dict]:
    """Yield the boxes of a COCO file, also of its segments. mmdet skips ignored ones before it looks for a box."""
    for entry in content.get('annotations') or ():
        if 'segments_info' in entry:
            yield from ({**segment, 'image_id': entry['image_id']} for segment in entry['segments_info'])
        elif 'bbox' in entry or not entry.get('ignore'):
            yield entry


def _image_name(image: dict) -> object:
    return image.get('file_name') or image.get('coco_url') or image['id']  # LVIS has addresses


def _coco_faults(content: dict, where: str) -> Iterator[str]:
    texts = []
    categories = [category.get('id') for category in content.get('categories') or ()]
    for kind, key in ((kind, key) for kind, keys in NUMBERS.items() for key in keys):
        entries = content.get(kind, ())
        if wrong := [entry for entry in entries if not _is_read(key, entry.get(key, 0), categories)]:
            first = f'{key} {wrong[0][key]!r} of id {wrong[0].get("id")}'
            texts.append(f'{len(wrong)} of {len(entries)} {kind} have no number as {key}, such as {first}')
    yield from texts
    if texts:
        return
    images: dict[object, dict] = {}
    repeated = []
    for image in content['images']:
        if image['id'] in images:
            repeated.append(f'{image["id"]} ({_image_name(images[image["id"]])}, {_image_name(image)})')
        images.setdefault(image['id'], image)
    if repeated:
        yield (
            f'{len(repeated)} image ids are repeated, such as {repeated[0]}; only one image of an id is read, with the '
            'boxes of all: give each image an id of its own'
        )
    boxes = content.get('annotations', ())
    if lost := [box for box in boxes if box['image_id'] not in images]:
        text = f'belong to no image, such as box {lost[0].get("id")} with image_id {lost[0]["image_id"]!r}'
        with_boxes = images.keys() & {box['image_id'] for box in boxes}
        is_part = 2 * len(with_boxes) > len(images)  # of a larger set, whose boxes were kept
        yield from _if_most(lost, boxes, text, where, is_part)
    if malformed := [box for box in boxes if not _is_box(box['bbox'])]:
        yield (
            f'{len(malformed)} of {len(boxes)} boxes are not four finite numbers, such as {malformed[0]["bbox"]} of '
            f'box {malformed[0].get("id")}'
        )
        return
    boxes = [box for box in boxes if box['image_id'] in images and box['bbox'][2] > 0 and box['bbox'][3] > 0]
    for reason, is_fault in BOX_FAULTS.items():
        wrong = [box for box in boxes if is_fault(box, images[box['image_id']])]
        if wrong and (reason is not CORNERS_GIVEN or all(_reads_as_corners(box, images) for box in boxes)):
            image = images[wrong[0]['image_id']]
            size = f'{image.get("width")}×{image.get("height")} pixels'
            text = f'{reason}: such as {wrong[0]["bbox"]} in {_image_name(image)} of {size}'
            if reason is CORNERS_GIVEN:
                yield f'{len(wrong)} of {len(boxes)} boxes {text}'
            else:
                yield from _if_most(wrong, boxes, text, where)


def _if_most(
    wrong: Sequence[dict], boxes: Sequence[dict], text: str, where: str, only_warn: bool = False
) -> Iterator[str]:
    text = f'{len(wrong)} of {len(boxes)} boxes {text}'
    if 2 * len(wrong) > len(boxes) and not only_warn:
        yield text
    else:  # mmdet trains with the others
        log(f'{where}: {text}', WARNING)


def _is_read(key: str, value: object, categories: Sequence[object]) -> bool:
    if key == 'category_id':
        return not isinstance(value, str) or value in categories
    return isinstance(value, int | float) or (key in MARKS and not value)  # mmdet marks a box by any text but ''


def _is_box(box: object) -> bool:
    return isinstance(box, list) and len(box) == 4 and all(isinstance(x, int | float) and isfinite(x) for x in box)


def _leaves_image(box: dict, image: dict) -> bool:
    left, top, width, height = box['bbox']
    return left + width > image['width'] + 1 or top + height > image['height'] + 1


def _reads_as_corners(box: dict, images: dict) -> bool:
    left, top, right, bottom = box['bbox']
    image = images[box['image_id']]
    return left < right <= image['width'] + 1 and top < bottom <= image['height'] + 1


CORNERS_GIVEN = "reach beyond their images, and all boxes read as corners; COCO's are [left, top, width, height]"
BOX_FAULTS: dict[str, Callable[[dict, dict], bool]] = {
    'have an area of 0 in the file, so that mmdet drops them': lambda box, _: box.get('area', 1) <= 0,
    CORNERS_GIVEN: _leaves_image,
}


def load_json(path: str, backend_args: dict | None = None) -> dict:
    """Read a COCO file. The ValueError for a file that is not JSON, or not in COCO's format, names the file."""
    try:
        content = load(path, backend_args=backend_args)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{path} is not JSON: {error}') from error
    if not isinstance(content, dict) or not isinstance(content.get('images'), list):
        raise ValueError(f"{path} is not in COCO's format: it is {_kind(content)}, not an object with a list 'images'")
    for kind in ('images', 'annotations', 'categories'):
        entries = content.get(kind) or []
        if not isinstance(entries, list):
            raise ValueError(f'{path}: {kind} must be a list; got {type(entries).__name__}')
        for number, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise ValueError(f'{path}: {kind}[{number}] must be an object; got {entry!r:.80}')
            if kind == 'categories' and not isinstance(entry.get('name', ''), str):
                raise ValueError(f'{path}: categories[{number}].name must be a text; got {entry["name"]!r:.80}')
    return content


def _kind(content: object) -> str:
    return f'an object with {_names(content)}' if isinstance(content, dict) else f'of type {type(content).__name__}'


def _evaluator_faults(cfg: Config, parts: Sequence[Part]) -> Iterator[Fault]:
    for split in ('val', 'test'):
        files = {part.dataset.ann_file for part in parts if part.loader == f'{split}_dataloader'}
        files = {file for file in files if os.path.isfile(file)}
        for metric in dicts(cfg.get(f'{split}_evaluator')):
            path = metric.get('ann_file')
            if path and files and os.path.isfile(path) and not any(_fit(path, file) for file in files):
                yield (
                    f'{split}_evaluator.ann_file',
                    f'{type_name(metric)} compares with {path}, but {split}_dataloader reads {_names(files)}',
                )


def _fit(path: str, other: str) -> bool:
    """Tell whether two files are the same, or have segments and boxes of the same images, as for panoptic metrics."""
    if cmp(path, other, False):
        return True
    segments, images = zip(*(_segments_and_images(file) for file in (path, other)))
    return segments[0] != segments[1] and images[0] == images[1]


def _segments_and_images(path: str) -> tuple[bool, set[tuple[object, object]]]:
    with suppress(ValueError, TypeError, KeyError):  # the file of a metric may be in any format
        content = load_json(path)
        segments = any('segments_info' in entry for entry in content.get('annotations') or ())
        return segments, {(image['id'], _image_name(image)) for image in content['images']}
    return False, set()


def _xml_files(dataset: BaseDetDataset | None) -> list[str]:
    if not isinstance(dataset, XMLDataset) or not is_local(dataset, dataset.ann_file):
        return []
    kind = type(dataset)
    if kind.load_data_list != XMLDataset.load_data_list or kind.parse_data_info != XMLDataset.parse_data_info:
        return []  # files may be elsewhere
    names = list_from_file(dataset.ann_file) if os.path.isfile(dataset.ann_file) else []
    return [os.path.join(dataset.sub_data_root, dataset.ann_subdir, f'{name}.xml') for name in names]


def _broken_annotations(paths: Iterable[str]) -> Iterator[Fault]:
    for path in paths:
        try:
            root = ElementTree.parse(path).getroot()
        except ElementTree.ParseError as error:
            yield path, f'cannot be parsed: {error}'
            continue
        required: list[tuple[ElementTree.Element, str, Callable[[str], object]]] = []
        if root.find('size') is not None:
            required += [(root, f'size/{side}', int) for side in ('width', 'height')]
        for thing in root.findall('object'):
            required += [(thing, 'name', str), *((thing, f'bndbox/{corner}', _whole) for corner in CORNERS)]
            required += [(thing, 'difficult', int)] if thing.find('difficult') is not None else []
        if reason := next(filter(None, (_text_fault(*field) for field in required)), ''):
            yield path, reason


def _text_fault(element: ElementTree.Element, tag: str, parse: Callable[[str], object]) -> str:
    text = element.findtext(tag)
    if not text:
        return f'{element.tag} without {tag}'
    try:
        parse(text)
    except (ValueError, OverflowError):
        return f'{tag} must be a number; got {text!r}'
    return ''


def _whole(text: str) -> int:
    return int(float(text))  # as mmdet, which fails for infinity


def _box_counts(dataset: BaseDetDataset, boxes: Sequence[_Box]) -> tuple[str, int, int]:
    """Describe the unused boxes by reason, count boxes that leave their images by more than a pixel, rate the former.

    Some crowds in COCO and difficult boxes in VOC are worth a line in the log, most boxes a warning.
    """
    reasons: Counter[str] = Counter()
    beyond = 0
    foreign: Counter[str] = Counter()  # names that are not classes
    for _, name, size, (left, top, right, bottom), mark in boxes:
        if name not in (dataset.metainfo.get('classes') or ()):
            foreign[name] += 1
        elif mark:
            reasons[f'marked {mark}'] += 1
        elif right <= left or bottom <= top:
            reasons['without an area'] += 1
        elif size is not None and (right <= 0 or bottom <= 0 or left >= size[0] or top >= size[1]):
            reasons['outside the image'] += 1
        elif min(right - left, bottom - top) < 1 - 1e-6:  # a sum may be rounded
            reasons['smaller than a pixel, as boxes in 0…1 are'] += 1
        elif size is not None and (min(left, top) < -1 or right > size[0] + 1 or bottom > size[1] + 1):
            beyond += 1
    unused = [f'{count} {reason}' for reason, count in reasons.items()]
    if foreign:
        unused.append(f'{sum(foreign.values())} of names that are not among the classes: {_names(foreign)}')
    marked = sum(count for reason, count in reasons.items() if reason.startswith('marked'))
    is_usual = 2 * marked < len(boxes) and marked == reasons.total() and not foreign
    return '; '.join(unused), beyond, INFO if is_usual else WARNING


def _log_copies(where: str, boxes: Sequence[_Box]) -> None:
    copies = Counter((box.file, box.name, *box.corners) for box in boxes)
    for (file, name, *corners), count in copies.most_common(1) if len(copies) < len(boxes) else ():
        text = f'{len(boxes) - len(copies)} of {len(boxes)} boxes repeat another one of the same image and class'
        level = WARNING if 2 * len(copies) <= len(boxes) else INFO  # COCO itself has a few
        log(f'{where}: {text}, such as {corners} of {name} in {file}, which is there {count} times', level)


def _share_faults(boxes: Sequence[_Box]) -> Iterator[str]:
    shares = [
        box
        for box in boxes
        if box.size and max(box.corners) <= 1 < min(box.size) and any(number % 1 for number in box.corners)
    ]
    if 2 * len(shares) > len(boxes):  # a few are counted as smaller than a pixel
        yield (
            f'{len(shares)} of {len(boxes)} boxes are given in 0…1, but boxes are in pixels: such as '
            f'{shares[0].corners} in {shares[0].file}'
        )


def _boxes(dataset: BaseDetDataset, listed: Sequence[dict], content: dict | None) -> Iterator[_Box]:
    if content is not None:
        names = {category['id']: category['name'] for category in content.get('categories', ())}
        images = {image['id']: image for image in content['images']}
        for box in content.get('annotations', ()):
            if box['image_id'] not in images:
                continue
            left, top, width, height = box['bbox']
            name = names.get(box['category_id'], f'category {box["category_id"]!r}')
            image = images[box['image_id']]
            mark = next((key for key in MARKS if box.get(key)), '')
            corners = [left, top, left + width, top + height]
            yield _Box(str(_image_name(image)), name, (image['width'], image['height']), corners, mark)
    elif isinstance(dataset, XMLDataset) and is_local(dataset, dataset.ann_file):
        for info in listed:
            for box in ElementTree.parse(info['xml_path']).getroot().findall('object'):
                corners = [float(box.findtext(f'bndbox/{key}') or 'nan') for key in CORNERS]
                mark = 'difficult' if int(box.findtext('difficult') or 0) else ''
                name = box.findtext('name') or ''
                yield _Box(info['xml_path'], name, (info['width'], info['height']), corners, mark)


def _order_faults(part: Part, content: dict | None) -> Iterator[Fault]:
    dataset = part.dataset
    labels: dict[int, int] = getattr(dataset, 'cat2label', {})
    if content is None or not labels:
        return
    categories = [(category['id'], category['name']) for category in content['categories']]
    for key, entries in zip(('id', 'name'), zip(*categories)):
        counts = Counter(entries)
        twice = [(i, name) for i, name in categories if name in part.classes and counts[i if key == 'id' else name] > 1]
        if twice:
            given = ', '.join(f'{name!r} with id {i}' for i, name in twice)
            yield part.where, f'{dataset.ann_file} repeats the {key} of categories: {given}'
            return
    names = dict(categories)
    order = [names[category] for category in labels]
    if tuple(order) != part.classes[: len(order)]:
        other = {name.strip().lower(): name for _, name in categories}
        spelt = {name: other.get(name.strip().lower(), name) for name in part.classes}
        hint = ''.join(f'; the file spells {a!r} {b!r}' for a, b in spelt.items() if a != b)
        yield (
            f'{part.where}.metainfo.classes',
            f"mmdet numbers labels in the order of the file's categories, which is {order} in {dataset.ann_file}; "
            f'the classes are {list(part.classes)}{hint}',
        )


def _image_files(part: Part) -> list[ImageFile]:
    if not is_local(part.dataset, part.dataset.ann_file):
        return []
    loader = next((step for step in part.dataset.pipeline.transforms if hasattr(step, 'imdecode_backend')), None)
    backend, flag = (loader.imdecode_backend, loader.color_type) if loader is not None else ('cv2', 'color')
    return [ImageFile(info['img_path'], backend, flag) for info in part.samples]


def _image_faults(part: Part, files: Sequence[ImageFile], facts: dict[ImageFile, Facts]) -> Iterator[Fault]:
    for info, file in zip(part.samples, files):
        size, image = (info.get('width'), info.get('height')), facts[file]
        if image.fault:
            yield file.path, image.fault
        elif None not in size and tuple(image.size) != size:
            expected = f'its annotations have {size[0]}×{size[1]} (width×height)'
            yield file.path, f'{image.size[0]}×{image.size[1]}; {expected}'


def _absent(parts: Sequence[Part], allow_absent: Collection[str]) -> Iterator[Fault]:
    present = {part.where: {part.classes[label] for label in _labels(part)} for part in parts}
    ignored = Counter(
        part.classes[box['bbox_label']]
        for part in parts
        if part.loader == 'train_dataloader'
        for info in part.samples
        for box in info.get('instances', ())
        if box.get('ignore_flag') and box['bbox_label'] < len(part.classes)
    )
    for loader, names in absent_classes(parts, present, allow_absent).items():
        absent = ', '.join(names)
        if loader == 'train_dataloader':
            why = [f'{ignored[name]} of {name}' for name in names if ignored[name]]
            why = [f'; boxes marked iscrowd or difficult do not train: {", ".join(why)}'] if why else []
            trains = {name for part in parts if part.loader == loader for name in part.classes} - {*names}
            leave = 'leave them out of metainfo.classes, as the root category of a Roboflow export, or, '
            hint = leave + allow_absent_hint(names) if trains else 'no class is left to train'
            yield loader, f'no box of {absent}{"".join(why)}; {hint}'
        elif any(info.get('instances') for part in parts if part.loader == loader for info in part.samples):
            log(f'no box of {absent} in {loader}', WARNING)  # a test set may have no boxes


def _labels(part: Part) -> set[int]:
    """Get the labels that train, also of segments, of which mmdet keeps the box for things alone."""
    boxes = (box for info in part.samples for box in info.get('instances', ()))
    labels = {box['bbox_label'] for box in boxes if not box.get('ignore_flag') and _has_area(box)}
    labels.update(segment['category'] for info in part.samples for segment in info.get('segments_info', ()))
    return labels.intersection(range(len(part.classes)))


def _has_area(box: dict) -> bool:
    left, top, right, bottom = box.get('bbox', (0, 0, 1, 1))
    return right > left and bottom > top


def _names(names: Iterable[str]) -> str:
    return ', '.join(shorten(map(repr, names), 10))
