"""Faults in annotations and images that would stop the training of a detector, or that it would silently ignore."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from filecmp import cmp
from logging import WARNING
from math import isfinite
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from mmdet.datasets import BaseDetDataset, CocoDataset, XMLDataset
from mmengine.config import Config
from mmengine.fileio import list_from_file, load
from mmengine.logging import print_log
from mmengine.registry import DATASETS

from mmattn.data_check.hook import data_set_configs
from mmattn.data_check.images import Facts, ImageFile, inspect_files
from mmattn.utils.component_type import type_name

CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')


class Part(NamedTuple):
    """A data set, its place in the config, and the samples that its ``filter_cfg`` keeps."""

    where: str
    dataset: BaseDetDataset
    kept: list[dict]

    @property
    def loader(self) -> str:
        """The data loader, such as 'train_dataloader'."""
        return self.where.partition('.')[0]

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes. Empty if the data set does not define them."""
        return tuple(self.dataset.metainfo.get('classes') or ())


def find_faults(
    cfg: Config, work_dir: Path, loaders: Sequence[str], allow_absent: Collection[str] = ()
) -> dict[str, list[str]]:
    """Check the annotations and images of the data sets of a config, and that each class has a box.

    Args:
        cfg (Config): the whole config. Its default scope must be active.
        work_dir (Path): folder of the cache, ``data_check.json``.
        loaders (sequence of str): some of ``train_dataloader``, ``val_dataloader`` and ``test_dataloader``.
        allow_absent (collection of str): classes that may have no box.

    Returns:
        dict: path, or place in the config → its faults.
    """
    faults: defaultdict[str, list[str]] = defaultdict(list)
    parts: list[Part] = []
    for loader in loaders:
        for where, dataset in data_set_configs(cfg.get(loader), loader, BaseDetDataset):
            for path, reason in _read(where, dataset, parts):
                faults[path].append(reason)
    for part in parts:
        for path, reason in _order_faults(part):
            faults[path].append(reason)
    for path, reason in _evaluator_faults(cfg, parts):
        faults[path].append(reason)
    incomplete = {where.partition('.')[0] for where in faults}
    files = dict.fromkeys(file for part in parts for file in _image_files(part).values())
    facts, _ = inspect_files(files, work_dir / 'data_check.json')
    for path, reason in (
        *(fault for part in parts for fault in _image_faults(part, facts)),
        *_absent(parts, incomplete, allow_absent),
    ):
        if reason not in faults[path]:
            faults[path].append(reason)
    print_log(f'Data check: {sum(len(part.kept) for part in parts)} images with their boxes', 'current')
    return dict(faults)


def _read(where: str, cfg: dict, parts: list[Part]) -> Iterator[tuple[str, str]]:
    """Append a data set to ``parts``, or yield the faults that prevent it."""
    dataset = None
    try:
        dataset = DATASETS.build({**cfg, 'lazy_init': True, 'serialize_data': False})
        missing = list(_missing_annotations(dataset))
        if missing:
            yield from ((where, f'no annotation file {path}') for path in missing)
            return
        if isinstance(dataset, CocoDataset) and (faults := [*_coco_faults(dataset.ann_file)]):
            yield from ((dataset.ann_file, fault) for fault in faults)
            return
        listed = dataset.load_data_list()
        dataset.data_list = listed
        kept = dataset.filter_data()
    except (ElementTree.ParseError, AttributeError, ValueError) as error:
        broken = [*_broken_annotations(dataset)] if isinstance(dataset, XMLDataset) and _is_local(dataset) else []
        yield from broken or [(where, str(error) or f'{cfg["type"]} raises {error!r}')]
    except KeyError as error:
        yield where, f'the annotations {cfg.get("ann_file")} have no {error}'
    except (TypeError, IndexError) as error:
        yield where, f'the annotations {cfg.get("ann_file")} are not in the format of {type_name(cfg)}: {error}'
    except (OSError, AssertionError) as error:
        yield where, str(error) or f'{cfg["type"]} raises {error!r}'
    else:
        unused, beyond = _box_counts(dataset, listed)
        if unused:
            print_log(f'Data check: {where}: boxes are not used: {unused}', 'current', WARNING)
        if beyond:
            print_log(f'Data check: {where}: {beyond} boxes reach beyond their images', 'current', WARNING)
        if kept:
            parts.append(Part(where, dataset, kept))
        else:
            yield (
                where,
                (
                    f'of {len(listed)} images in {dataset.ann_file}, none is left after '
                    f'filter_cfg={dataset.filter_cfg}; the classes are {_names(dataset.metainfo.get("classes") or ())}'
                    f'{"; boxes are not used: " if unused else ""}{unused}'
                ),
            )


def _coco_faults(path: str) -> Iterator[str]:
    """Yield what mmdet would drop or misread in a COCO file without a message, with the number of cases."""
    content = load_json(path)
    images: dict[object, dict] = {}
    repeated = []
    for image in content['images']:
        if image['id'] in images:
            repeated.append(f'{image["id"]} ({images[image["id"]]["file_name"]}, {image["file_name"]})')
        images.setdefault(image['id'], image)
    if repeated:
        yield (
            f'{len(repeated)} image ids are repeated, such as {repeated[0]}; only one image of an id is read, with the '
            'boxes of all: give each image an id of its own'
        )
    boxes = content.get('annotations', ())
    if lost := [box for box in boxes if box['image_id'] not in images]:
        yield (
            f'{len(lost)} of {len(boxes)} boxes belong to no image, such as box {lost[0].get("id")} with image_id '
            f'{lost[0]["image_id"]!r}'
        )
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
            yield (
                f'{len(wrong)} of {len(boxes)} boxes {reason}: such as {wrong[0]["bbox"]} in {image["file_name"]} of '
                f'{image.get("width")}×{image.get("height")} pixels'
            )


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
    'are given in 0…1, but boxes are in pixels': lambda box, image: (
        max(box['bbox']) <= 1 < min(image['width'], image['height']) and any(x % 1 for x in box['bbox'])
    ),
    CORNERS_GIVEN: _leaves_image,
}


def load_json(path: str) -> dict:
    """Return the content of a COCO file.

    Raises:
        ValueError: the file is not JSON, or not in COCO's format; the message names the file.
    """
    try:
        content = load(path)
    except ValueError as error:
        raise ValueError(f'{path} is not JSON: {error}') from error
    if not isinstance(content, dict) or not isinstance(content.get('images'), list):
        raise ValueError(f"{path} is not in COCO's format: it is {_kind(content)}, not an object with a list 'images'")
    return content


def _kind(content: object) -> str:
    return f'an object with {_names(content)}' if isinstance(content, dict) else f'of type {type(content).__name__}'


def _evaluator_faults(cfg: Config, parts: Sequence[Part]) -> Iterator[tuple[str, str]]:
    """Yield metrics that compare with another annotation file than their data set reads."""
    for split in ('val', 'test'):
        files = {part.dataset.ann_file for part in parts if part.loader == f'{split}_dataloader'}
        metrics = cfg.get(f'{split}_evaluator')
        for metric in metrics if isinstance(metrics, list | tuple) else [metrics or {}]:
            path = metric.get('ann_file')
            if path and files and os.path.isfile(path) and not any(cmp(path, file, False) for file in files):
                yield (
                    f'{split}_evaluator.ann_file',
                    f'{type_name(metric)} compares with {path}, but {split}_dataloader reads {_names(files)}',
                )


def _annotations(dataset: XMLDataset) -> Iterator[str]:
    """Yield the XML files that ``ann_file`` lists."""
    for name in list_from_file(dataset.ann_file):
        yield os.path.join(dataset.sub_data_root, dataset.ann_subdir, f'{name}.xml')


def _missing_annotations(dataset: BaseDetDataset) -> Iterator[str]:
    """Yield XML files that ``ann_file`` lists but that do not exist."""
    if isinstance(dataset, XMLDataset) and _is_local(dataset) and os.path.isfile(dataset.ann_file):
        yield from (path for path in _annotations(dataset) if not os.path.isfile(path))


def _broken_annotations(dataset: XMLDataset) -> Iterator[tuple[str, str]]:
    """Yield XML files that are not well-formed, or that lack an element or a number, with the reason."""
    for path in _annotations(dataset):
        try:
            root = ElementTree.parse(path).getroot()
        except ElementTree.ParseError as error:
            yield path, f'cannot be parsed: {error}'
            continue
        wanted: list[tuple[ElementTree.Element, str, Callable[[str], object]]] = []
        if root.find('size') is not None:
            wanted += [(root, f'size/{side}', int) for side in ('width', 'height')]
        for thing in root.findall('object'):
            wanted += [(thing, 'name', str), *((thing, f'bndbox/{corner}', float) for corner in CORNERS)]
            wanted += [(thing, 'difficult', int)] if thing.find('difficult') is not None else []
        if reason := next(filter(None, (_fault_of(*each) for each in wanted)), ''):
            yield path, reason


def _fault_of(element: ElementTree.Element, tag: str, parse: Callable[[str], object]) -> str:
    """Return what is wrong with the text of an element, or ''."""
    text = element.findtext(tag)
    if not text:
        return f'{element.tag} without {tag}'
    try:
        parse(text)
    except ValueError:
        return f'{tag} must be a number; got {text!r}'
    return ''


def _box_counts(dataset: BaseDetDataset, listed: Sequence[dict]) -> tuple[str, int]:
    """Return the number of unused boxes for each reason, and that of boxes which leave their images by over a pixel."""
    reasons: Counter[str] = Counter()
    beyond = 0
    others: Counter[str] = Counter()  # names that are not classes
    for name, size, (left, top, right, bottom) in _boxes(dataset, listed):
        if name not in (dataset.metainfo.get('classes') or ()):
            others[name] += 1
        elif right <= left or bottom <= top:
            reasons['without an area'] += 1
        elif size is not None and (right <= 0 or bottom <= 0 or left >= size[0] or top >= size[1]):
            reasons['outside the image'] += 1
        elif size is not None and (min(left, top) < -1 or right > size[0] + 1 or bottom > size[1] + 1):
            beyond += 1
    unused = [f'{count} {reason}' for reason, count in reasons.items()]
    if others:
        unused.append(f'{sum(others.values())} of names that are not among the classes: {_names(others)}')
    return '; '.join(unused), beyond


def _boxes(
    dataset: BaseDetDataset, listed: Sequence[dict]
) -> Iterator[tuple[str, tuple[int, int] | None, list[float]]]:
    """Yield class name, image size and corners of each box in COCO or XML files, including unused boxes."""
    if isinstance(dataset, CocoDataset):
        content = load(dataset.ann_file)
        names = {category['id']: category['name'] for category in content.get('categories', ())}
        sizes = {image['id']: (image['width'], image['height']) for image in content['images']}
        for box in content.get('annotations', ()):
            left, top, width, height = box['bbox']
            name = names.get(box['category_id'], f'category {box["category_id"]}')
            yield name, sizes.get(box['image_id']), [left, top, left + width, top + height]
    elif isinstance(dataset, XMLDataset):
        for info in listed:
            for box in ElementTree.parse(info['xml_path']).getroot().findall('object'):
                corners = [float(box.findtext(f'bndbox/{key}') or 'nan') for key in ('xmin', 'ymin', 'xmax', 'ymax')]
                yield box.findtext('name') or '', (info['width'], info['height']), corners


def _order_faults(part: Part) -> Iterator[tuple[str, str]]:
    """Yield COCO data sets whose categories have another order than ``metainfo['classes']``."""
    dataset = part.dataset
    labels: dict[int, int] = getattr(dataset, 'cat2label', {})
    if not isinstance(dataset, CocoDataset) or not labels:
        return
    names = {category['id']: category['name'] for category in load(dataset.ann_file)['categories']}
    order = [names[category] for category in labels]
    if tuple(order) != part.classes[: len(order)]:
        yield (
            f'{part.where}.metainfo.classes',
            f"mmdet numbers labels in the order of the file's categories, which is {order} in {dataset.ann_file}; "
            f'the classes are {list(part.classes)}',
        )


def _image_files(part: Part) -> dict[str, ImageFile]:
    """Return the local images of a data set by path, and how its pipeline decodes them."""
    if not _is_local(part.dataset):
        return {}
    loader = next((step for step in part.dataset.pipeline.transforms if hasattr(step, 'imdecode_backend')), None)
    backend, flag = (loader.imdecode_backend, loader.color_type) if loader is not None else ('cv2', 'color')
    return {info['img_path']: ImageFile(info['img_path'], backend, flag) for info in part.kept}


def _image_faults(part: Part, facts: dict[ImageFile, Facts]) -> Iterator[tuple[str, str]]:
    """Yield images that are missing, unreadable, or of another size than in their annotations."""
    sizes = {info['img_path']: (info.get('width'), info.get('height')) for info in part.kept}
    for path, file in _image_files(part).items():
        size, image = sizes[path], facts[file]
        if image.fault:
            yield path, image.fault
        elif None not in size and tuple(image.size) != size:
            yield path, f'{image.size[0]}×{image.size[1]}; its annotations have {size[0]}×{size[1]} (width×height)'


def _absent(
    parts: Sequence[Part], incomplete: Collection[str], allow_absent: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the training set if a class has no box in it. Missing classes of validation and test are logged."""
    for loader in dict.fromkeys(part.loader for part in parts):
        of_loader = [part for part in parts if part.loader == loader]
        present = {
            part.classes[box['bbox_label']]
            for part in of_loader
            for info in part.kept
            for box in info.get('instances', ())
            if box['bbox_label'] < len(part.classes) and not box.get('ignore_flag') and _has_area(box)
        }
        names = dict.fromkeys(name for part in of_loader for name in part.classes)
        absent = ', '.join(name for name in names if name not in present and name not in allow_absent)
        if not absent or loader in incomplete:
            continue
        if loader == 'train_dataloader':
            yield (
                loader,
                f'no box of {absent}; if the subset lacks these classes on purpose, run with --cfg-options '
                f"default_hooks.data_check.allow_absent='[{absent.replace(', ', ',')}]'",
            )
        elif any(info.get('instances') for part in of_loader for info in part.kept):  # a test set may have no boxes
            print_log(f'Data check: no box of {absent} in {loader}', 'current', WARNING)


def _has_area(box: dict) -> bool:
    left, top, right, bottom = box.get('bbox', (0, 0, 1, 1))
    return right > left and bottom > top


def _names(names: Iterable[str]) -> str:
    """Join names, at most ten."""
    listed = list(names)
    return ', '.join(
        [*map(repr, listed[:10]), f'… and {len(listed) - 10} more'] if len(listed) > 10 else map(repr, listed)
    )


def _is_local(dataset: BaseDetDataset) -> bool:
    """Return whether a data set reads from a local disk."""
    folders = [dataset.ann_file, *dataset.data_prefix.values()]
    backend = (getattr(dataset, 'backend_args', None) or {}).get('backend', 'local')
    return backend in ('local', 'disk') and not any('://' in folder for folder in folders if folder)
