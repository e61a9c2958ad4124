"""Labels as annotation tools export them: a reader for each format, and what they share."""

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from common.conversion import files_below
from mmattn.utils.faults import Faults, FaultsError, shorten

from . import coco, labelme, voc, yolo
from .images import Images, upright_size
from .shapes import CUT, Picture, Shape, checked
from .splits import set_splits

READERS: dict[str, Callable] = {'COCO': coco.read, 'labelme': labelme.read, 'Pascal VOC': voc.read}
MANY = 0.1  # a share of entries that is worth a message
KEYS = {  # of a JSON file, or the tag of an XML file
    'COCO': {'images', 'annotations', 'categories'},
    'labelme': {'shapes', 'imagePath'},
    'Pascal VOC': {'annotation'},
}
PARSERS = {
    '.json': lambda path: json.loads(path.read_text(encoding='utf-8-sig')),
    '.xml': lambda path: ElementTree.parse(path).getroot(),
}


@dataclass
class Export:
    """What :func:`read` found."""

    format: str
    pictures: dict[Path, Picture]  # by their images
    classes: list[str]  # in the order of the export, then those that only shapes have, by name
    unlabelled: list[Path]  # images that the annotations do not mention
    fates: Counter[tuple[str, str]]  # how often entries of which class were 'used', 'changed: …' or 'left out: …'


def read(folder: Path, images: Path | None = None) -> Export:
    """Read an unpacked export, or one file of it. ``images`` is the folder of the images, if they are elsewhere.

    Raises:
        FaultsError: what is missing, malformed or contradictory, with the file and the entry of each fault.
    """
    files, faults = files_below(folder) if folder.is_dir() else [folder], Faults()
    index = Images(images or (folder if folder.is_dir() else folder.parent))
    contents = _contents(files, faults)
    faults.check()
    pictures: list[Picture] = []
    classes: list[str] = []
    if not contents and any(path.name in yolo.NAMES for path in files):
        contents = {'YOLO': {}}
        pictures, classes = yolo.read(files, index, faults)
    if len(contents) != 1:
        kinds = ', '.join(f'{len(of_files)} of {form}' for form, of_files in contents.items()) or 'none'
        raise FaultsError(folder, f'annotations must be of one format, COCO, YOLO, Pascal VOC or labelme; got {kinds}')
    [(form, of_files)] = contents.items()
    for path, content in of_files.items():
        with checked(faults, path, form, content):
            of_file, names = READERS[form](content, path, faults)
            pictures += of_file
            classes += names
    found: dict[Path, Picture] = {}
    fates: Counter[tuple[str, str]] = Counter()
    for picture in pictures:
        with checked(faults, picture.source, picture.place, picture.names):
            image = index.find(picture)
            if image in found:
                raise FaultsError(f'{image} also has annotations in {found[image].source}')
            found[image] = picture
            picture.size = upright_size(image, picture.size)
            fates += _parse(picture, faults)
    faults.check()
    drawn = {shape.label for picture in pictures for shape in picture.shapes}
    if not drawn:
        reasons = ', '.join(sorted(fate for fate, _ in fates)) or 'no entries'
        raise FaultsError(folder, f'{form}, {len(found)} images, but no object: {reasons}')
    _check_corners(pictures)
    set_splits(found, files, folder, index)
    classes = [label for label in dict.fromkeys(classes) if label]
    known = {path.resolve() for path in found}
    unlabelled = [path for path in index.paths if path.resolve() not in known]
    return Export(form, found, [*classes, *sorted(drawn - {*classes})], unlabelled, fates)


def _contents(files: list[Path], faults: Faults) -> dict[str, dict[Path, Any]]:
    """Parse the JSON and XML files: format → file → content."""
    contents: dict[str, dict[Path, Any]] = defaultdict(dict)
    for path in (path for path in files if path.suffix.lower() in PARSERS):
        try:
            content = PARSERS[path.suffix.lower()](path)
        except (ValueError, RecursionError, ElementTree.ParseError) as error:
            line = re.search(r'line \d+', str(error))
            faults.add(path, f'not {path.suffix[1:].upper()} in UTF-8{f", {line[0]}" if line else ""}')
            continue
        keys = {*content} if isinstance(content, dict) else {getattr(content, 'tag', None)}
        contents[next((form for form, required in KEYS.items() if required <= keys), '')][path] = content
    # COCO has key points and segments of the same images beside its objects
    objects = {path: content for path, content in contents['COCO'].items() if path.name.startswith('instances')}
    others = {**contents.pop('', {}), **(contents['COCO'] if objects else {})}
    if names := [path.name for path in others if path not in objects]:
        print(f'warning: not read: {", ".join(shorten(names, 5))}', file=sys.stderr)
    contents['COCO'] = objects or contents['COCO']
    return {form: of_files for form, of_files in contents.items() if of_files}


def _parse(picture: Picture, faults: Faults) -> Counter:
    """Make shapes of the entries of a picture, and count what becomes of each entry."""
    shapes: list[Shape] = []
    fates: Counter[tuple[str, str]] = Counter()
    groups: dict[Hashable, Shape] = {}
    for place, entry in picture.entries:
        with checked(faults, picture.source, place, entry):
            shape = picture.parse(entry, picture.size)
            shape.place = place
            first = shape if shape.group is None else groups.setdefault(shape.group, shape)
            if first is shape:
                shapes.append(shape)
            else:
                first.outline += shape.outline
                fates['changed: a part of the object of its group', shape.label] += 1
    for shape in shapes:
        with checked(faults, picture.source, shape.place, shape.label):
            if not shape.left_out:
                shape.settle(picture.size)
            what = 'left out: ' * bool(shape.left_out) or 'changed: ' * bool(shape.change) or 'used'
            fates[what + (shape.left_out or shape.change), shape.label] += 1
    picture.shapes = [shape for shape in shapes if not shape.left_out]
    return fates


def _check_corners(pictures: list[Picture]) -> None:
    """Raise a fault if many boxes leave their images, and the numbers of all read as left, top, right and bottom."""
    boxes = [(shape, picture) for picture in pictures for shape in picture.shapes if shape.corners]
    for (left, top, right, bottom), size in ((shape.corners, picture.size) for shape, picture in boxes):
        if not (left < right <= size[0] + 1 and top < bottom <= size[1] + 1):
            return
    leaving = [(shape, picture) for shape, picture in boxes if shape.change == CUT]
    if len(leaving) > MANY * len(boxes):
        shape, picture = leaving[0]
        text = (
            f'{len(leaving)} of {len(boxes)} boxes leave their images, such as {shape.corners}, and all read as corners'
        )
        raise FaultsError(picture.source, f'{shape.place}: {text}; COCO has left, top, width, height, YOLO the centre')
