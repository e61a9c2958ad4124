"""Which format an export has, by the content of its files, and its pictures with their images and splits."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from mmattn.utils.conversion import files_below
from mmattn.utils.faults import Faults, FaultsError, reading, shorten

from . import coco, cvat, label_studio, labelme, voc, yolo
from .layout import Images, ends, split_named, splits_of_lists
from .shapes import Picture


class Format(NamedTuple):
    """A format of one file for one or all images: its name, how to recognise its content, and how to read it."""

    name: str
    recognises: Callable[[Any], bool]
    pictures: Callable[[Any, str], list[Picture]]
    classes: Callable[[Any], list[str]] = lambda _: []


FORMATS = (
    Format('labelme', lambda data: isinstance(data, dict) and {'shapes', 'imagePath'} <= data.keys(), labelme.pictures),
    Format(
        'COCO',
        lambda data: isinstance(data, dict) and {'images', 'annotations', 'categories'} <= data.keys(),
        coco.pictures,
        coco.classes,
    ),
    Format(
        'Label Studio',
        lambda data: isinstance(data, list) and all(isinstance(each, dict) and 'annotations' in each for each in data),
        label_studio.pictures,
    ),
    Format('CVAT', lambda data: _tag(data) == 'annotations', cvat.pictures, cvat.classes),
    Format('Pascal VOC', lambda data: _tag(data) == 'annotation', voc.pictures),
)


@dataclass
class Export:
    """What :func:`read` found.

    Args:
        format (str): name of the format.
        pictures (dict[Path, Picture]): image file → its picture, with its size; ``split`` is empty if there is one.
        classes (list[str]): labels in the order of the export, then those that only shapes have, by name.
        unlabelled (list[Path]): images that the annotations do not mention.
    """

    format: str
    pictures: dict[Path, Picture]
    classes: list[str]
    unlabelled: list[Path]


def read(folder: Path, images: Path | None = None) -> Export:
    """Read an export.

    Args:
        folder (Path): an unpacked export, or one file of it.
        images (Path, optional): folder of the images. Default: ``folder``.

    Raises:
        FaultsError: there are no annotations, or of several formats; or a file is malformed, or its image is missing,
            is in two files, or has another size. All faults are listed together.

    Example:
        >>> from PIL import Image
        >>> Image.new('RGB', (8, 6)).save('a.png')
        >>> shape = dict(label='car', points=[[1, 1], [5, 1], [5, 4]])
        >>> _ = Path('a.json').write_text(json.dumps(dict(shapes=[shape], imagePath='a.png')))
        >>> export = read(Path())
        >>> export.format, export.classes, [picture.size for picture in export.pictures.values()]
        ('labelme', ['car'], [(8, 6)])
    """
    files = files_below(folder) if folder.is_dir() else [folder]
    index = Images(images or (folder if folder.is_dir() else folder.parent))
    faults = Faults()
    by_format = _recognised(files, faults)
    listed = [path for path in files if path.name in yolo.NAMES]
    name = ''
    pictures: list[Picture] = []
    classes: list[str] = []
    if listed and not by_format:
        name, (pictures, classes) = 'YOLO', _read_yolo(listed, files, folder, index, faults)
    elif len(by_format) == 1:
        [(form, contents)] = by_format.items()
        name = form.name
        for path, content in _of_objects(contents):
            with _malformed(path, form.name, faults):
                pictures += form.pictures(content, str(path))
                classes += form.classes(content)
    elif by_format:
        kinds = ', '.join(f'{len(contents)} of {form.name}' for form, contents in by_format.items())
        raise FaultsError(folder, f'annotations of several formats ({kinds}); give the folder or the file of one')
    else:
        faults.add(folder, 'no annotations of labelme, CVAT, Label Studio, Roboflow, COCO, YOLO or Pascal VOC in it')
    found = index.assign(pictures, faults)
    _set_splits(found, splits_of_lists(files, index, faults), (folder, index.folder), faults)
    if not faults and not any(picture.shapes for picture in pictures):
        faults.add(folder, f'{name}, {len(pictures)} images, but no shape with an area or a box')
    faults.check()
    drawn = {shape.label for picture in pictures for shape in picture.shapes}
    classes = [label for label in dict.fromkeys(classes) if label]
    return Export(name, found, [*classes, *sorted(drawn - {*classes})], index.others(found))


def _recognised(files: Sequence[Path], faults: Faults) -> dict[Format, list[tuple[Path, Any]]]:
    by_format, others = defaultdict(list), []
    for path in files:
        if path.suffix.lower() not in ('.json', '.xml'):
            continue
        with _malformed(path, path.suffix[1:].upper(), faults):
            if path.suffix.lower() == '.json':
                content = json.loads(path.read_text(encoding='utf-8-sig'))
            else:
                content = ElementTree.parse(path).getroot()
            form = next((form for form in FORMATS if form.recognises(content)), None)
            if form is None:
                others.append(path.name)
            else:
                by_format[form].append((path, content))
    if others:
        print(f'warning: not annotations of a known format: {", ".join(shorten(others, 5))}')
    return by_format


def _of_objects(contents: list[tuple[Path, Any]]) -> list[tuple[Path, Any]]:
    """Leave out what COCO has beside the objects of its images, such as ``image_info_…`` and ``captions_…``."""
    objects = [each for each in contents if each[0].name.startswith('instances')]
    return objects or contents


def _read_yolo(
    names: Sequence[Path], files: Sequence[Path], folder: Path, index: Images, faults: Faults
) -> tuple[list[Picture], list[str]]:
    pictures: list[Picture] = []
    classes: list[str] = []
    keypoints = 0
    with _malformed(names[0], 'YOLO', faults):
        classes, keypoints = yolo.classes(names[0]), max(map(yolo.keypoint_numbers, names))
    for path in files:
        if path.suffix != '.txt' or path.name in yolo.NAMES or classes == []:
            continue
        image = index.beside(path)
        if image is None:  # a list of images, or a text for people
            if 'labels' in path.relative_to(folder.parent).parts:
                faults.add(path, 'no image of this name')
            continue
        with _malformed(path, 'YOLO', faults):
            size = index.size(image)
            pictures.append(Picture(str(image), yolo.shapes(path, classes, size, keypoints), str(path), size))
    return pictures, classes


def _set_splits(found: dict[Path, Picture], listed: dict[str, str], folders: tuple[Path, Path], faults: Faults) -> None:
    """Set the splits of pictures: as the annotations, lists of names, or the folders say. One split alone is none.

    The names of image files say nothing: ``train_1.jpg`` may show a train.
    """
    for image, picture in found.items():
        source = Path(picture.source)
        names = [
            part
            for path, folder in ((source, folders[0]), (image, folders[1]))
            if folder in path.parents
            for part in path.parent.relative_to(folder).parts
        ]
        names += [source.stem] * (source.stem != image.stem)
        picture.split = (
            split_named(picture.split)
            or next((listed[end] for end in ends(image) if listed.get(end)), '')
            or next(filter(None, map(split_named, names)), '')
        )
    counts = Counter(picture.split for picture in found.values())
    if '' in counts and len(counts) > 1:
        first = next(picture.name for picture in found.values() if not picture.split)
        faults.add(folders[0], f'{counts[""]} of {len(found)} images are in no split, such as {first}, the others are')
    if {*counts} == {''} and listed and not any(end in listed for image in found for end in ends(image)) and not faults:
        faults.add(
            folders[0],
            f'its lists of images (train.txt, val.txt, …) have none of the images, but {next(iter(listed))!r}, for '
            'example: correct them, or remove them for a random split',
        )
    if len(counts) == 1:
        for picture in found.values():
            picture.split = ''


@contextmanager
def _malformed(path: Path, form: str, faults: Faults) -> Iterator[None]:
    """Add what malformed content raises to the faults."""
    with faults.catch(path), reading(path, f'not as {form} is written'):
        yield


def _tag(content: Any) -> str:
    return content.tag if isinstance(content, ElementTree.Element) else ''
