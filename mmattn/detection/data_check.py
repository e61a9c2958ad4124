"""Faults in annotations and images that would stop the training of a detector, or that it would silently ignore."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from logging import WARNING
from multiprocessing.pool import ThreadPool
from typing import NamedTuple
from xml.etree import ElementTree

from mmdet.datasets import BaseDetDataset, CocoDataset, XMLDataset
from mmengine.config import Config
from mmengine.fileio import list_from_file, load
from mmengine.logging import print_log
from mmengine.registry import DATASETS
from PIL import Image

from mmattn.engine.hooks.data_check import data_set_configs
from mmattn.utils.images import unreadable

CORNERS = ('xmin', 'ymin', 'xmax', 'ymax')
ORIENTATION = 0x0112  # EXIF tag; with values of 5 and more, loading swaps width and height
THREADS = 4  # more threads would wait for the GIL


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


def find_faults(cfg: Config, loaders: Sequence[str], allow_absent: Collection[str] = ()) -> dict[str, list[str]]:
    """Check the annotations and images of the data sets of a config, and that each class has a box.

    Args:
        cfg (Config): the whole config. Its default scope must be active.
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
    incomplete = {where.partition('.')[0] for where in faults}
    for path, reason in (
        *(fault for part in parts for fault in _image_faults(part)),
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
        listed = dataset.load_data_list()
        dataset.data_list = listed
        kept = dataset.filter_data()
    except (ElementTree.ParseError, AttributeError, ValueError) as error:
        broken = [*_broken_annotations(dataset)] if isinstance(dataset, XMLDataset) and _is_local(dataset) else []
        yield from broken or [(where, str(error) or f'{cfg["type"]} raises {error!r}')]
    except KeyError as error:
        yield where, f'the annotations {cfg.get("ann_file")} have no {error}'
    except (OSError, AssertionError) as error:
        yield where, str(error) or f'{cfg["type"]} raises {error!r}'
    else:
        unused = '; '.join(_unused(dataset, listed))
        if unused:
            print_log(f'Data check: {where}: boxes are not used: {unused}', 'current', WARNING)
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


def _unused(dataset: BaseDetDataset, listed: Sequence[dict]) -> Iterator[str]:
    """Yield the number of unused boxes for each reason."""
    reasons: Counter[str] = Counter()
    others: Counter[str] = Counter()  # names that are not classes
    for name, size, (left, top, right, bottom) in _boxes(dataset, listed):
        if name not in (dataset.metainfo.get('classes') or ()):
            others[name] += 1
        elif right <= left or bottom <= top:
            reasons['without an area'] += 1
        elif size is not None and (right <= 0 or bottom <= 0 or left >= size[0] or top >= size[1]):
            reasons['outside the image'] += 1
    yield from (f'{count} {reason}' for reason, count in reasons.items())
    if others:
        yield f'{sum(others.values())} of names that are not among the classes: {_names(others)}'


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


def _image_faults(part: Part) -> Iterator[tuple[str, str]]:
    """Yield images that are missing, unreadable, or of another size than in their annotations."""
    if not _is_local(part.dataset):
        return
    wanted = {info['img_path']: (info.get('width'), info.get('height')) for info in part.kept}
    with ThreadPool(THREADS) as pool:
        for (path, size), found in zip(wanted.items(), pool.imap(_size, wanted)):
            if isinstance(found, str):
                yield path, found
            elif None not in size and found != size:
                yield path, f'{found[0]}×{found[1]}; its annotations have {size[0]}×{size[1]} (width×height)'


def _size(path: str) -> tuple[int, int] | str:
    """Return width and height of an image as loaded, or its fault."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            return (height, width) if image.getexif().get(ORIENTATION, 1) >= 5 else (width, height)
    except FileNotFoundError:
        return 'no such file'
    except Exception as error:  # decoders raise many types
        return unreadable(error)


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
