"""YOLO: a text file per image, with boxes or polygons in fractions of the image, and a file of names."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import yaml

from mmattn.utils.faults import Faults, FaultsError

from .images import Images
from .shapes import Picture, Shape, Size, checked, class_name, polygons, rectangle

# Ultralytics and Roboflow, CVAT's YOLO 1.1, Label Studio, Roboflow's Darknet
NAMES = ('data.yaml', 'obj.names', 'classes.txt', '_darknet.labels')


def read(files: Sequence[Path], images: Images, faults: Faults) -> tuple[list[Picture], list[str]]:
    """Return the pictures of all files, and the classes. Lists of images and texts for people are passed over."""
    classes: list[str] = []
    for path in reversed([path for path in files if path.name in NAMES]):
        with checked(faults, path, 'names', path.name):
            classes = _names(path)
    pictures = []
    for path in (path for path in files if path.suffix == '.txt' and path.name not in NAMES and classes):
        lines = path.read_text(encoding='utf-8-sig', errors='replace').splitlines()
        image = images.of_labels(path)
        if image is not None:
            entries = [(f'line {number}', line) for number, line in enumerate(lines, 1) if line.strip()]
            pictures.append(Picture([str(image)], path, entries, partial(_shape, classes)))
        elif all(re.fullmatch(r'\d+(\s+[-+.\de]+){4,}\s*', line) for line in lines):
            faults.add(path, 'no image of this name')
    return pictures, classes


def _names(path: Path) -> list[str]:
    """Read the classes in the order of their numbers."""
    text = path.read_text(encoding='utf-8-sig')
    if path.suffix != '.yaml':
        return text.removesuffix('\n').split('\n')
    content = yaml.load(text, yaml.BaseLoader)  # texts, lists and dicts alone: a class may be called 7 or no
    if 'kpt_shape' in content:  # they would read as outlines
        raise FaultsError('key points are not read: export boxes or polygons')
    classes = content['names']
    if isinstance(classes, dict):
        if sorted(map(int, classes)) != [*range(len(classes))]:
            raise FaultsError(f'they must be numbered from 0; got {", ".join(sorted(classes))}')
        classes = [classes[number] for number in sorted(classes, key=int)]
    if not isinstance(classes, list):
        raise FaultsError('they must be a list')
    return [*map(class_name, classes)]


def _shape(classes: list[str], entry: str, size: Size) -> Shape:
    label, *rest = map(float, entry.split())
    if not label.is_integer() or not 0 <= label < len(classes):
        raise FaultsError(f'class {label:g}, but there are {len(classes)} names')
    if len(rest) < 4 or (len(rest) % 2 and len(rest) != 5):
        raise FaultsError(f'{len(rest)} numbers after the class; a box has 4, a polygon 6, 8, …')
    name, scaled = class_name(classes[int(label)]), [number * side for number, side in zip(rest, size * len(rest))]
    if len(rest) > 5:
        return Shape(name, polygons([scaled]))
    x, y, width, height = numbers = scaled[:4]
    change = 'without its confidence' if len(rest) == 5 else ''
    box = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    return rectangle(name, *box, corners=numbers, change=change)
