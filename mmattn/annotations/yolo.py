"""YOLO: a text file per image, with boxes or polygons in fractions of the image, and a file of names."""

import math
from pathlib import Path

import numpy as np
import yaml

from .shapes import Shape, Size, polygons

# Ultralytics and Roboflow, CVAT's YOLO 1.1, Label Studio, Roboflow's Darknet
NAMES = ('data.yaml', 'obj.names', 'classes.txt', '_darknet.labels')


def classes(path: Path) -> list[str]:
    """Read the names of the classes, in the order of their numbers."""
    text = path.read_text(encoding='utf-8-sig')
    if path.suffix != '.yaml':
        return text.split('\n') if text[-1:] != '\n' else text.splitlines()
    names = yaml.safe_load(text)['names']
    if isinstance(names, dict):
        if sorted(names) != list(range(len(names))):
            raise ValueError(f'names must be numbered from 0; got {sorted(names)}')
        names = [names[number] for number in range(len(names))]
    return [str(name) for name in names]


def keypoint_numbers(path: Path) -> int:
    """Return how many numbers of key points follow each box, by ``kpt_shape`` of a ``data.yaml``; 0 without it."""
    content = yaml.safe_load(path.read_text(encoding='utf-8-sig')) if path.suffix == '.yaml' else None
    return math.prod(map(int, (content or {}).get('kpt_shape') or [0]))


def shapes(path: Path, names: list[str], size: Size, keypoints: int = 0) -> list[Shape]:
    """Read the shapes of an image of ``size``: a class and four numbers are a box, more are a polygon.

    With ``keypoints``, each box is followed by so many numbers, which are left out.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding='utf-8-sig').splitlines(), 1):
        if not line.strip():
            continue
        label, *rest = map(float, line.split())
        if not label.is_integer() or not 0 <= label < len(names):
            raise ValueError(f'line {number}: class {label:g}, but there are {len(names)} names')
        if keypoints:
            if len(rest) != 4 + keypoints:
                raise ValueError(
                    f'line {number}: {len(rest)} numbers after the class; box and key points have 4 + {keypoints}'
                )
            del rest[4:]
        if len(rest) < 4 or (len(rest) % 2 and len(rest) != 5):
            raise ValueError(f'line {number}: {len(rest)} numbers after the class; a box has 4, a polygon 6, 8, …')
        if not all(-0.5 <= value <= 1.5 for value in rest[:4] if len(rest) <= 5) or not np.isfinite(rest).all():
            raise ValueError(f'line {number}: numbers must be fractions of the image; got {line!r:.60}')
        name = names[int(label)]
        if len(rest) <= 5:  # the fifth is a confidence
            x, y, width, height = (float(part) for part in np.array(rest[:4]) * (*size, *size))
            found.append(Shape(name, box=(x - width / 2, y - height / 2, x + width / 2, y + height / 2)))
        else:
            found.append(Shape(name, [points * size for points in polygons([rest])]))
    return found
