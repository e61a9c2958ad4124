"""labelme, also as X-AnyLabeling writes it: a JSON file per image, beside it."""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmattn.utils.faults import Faults

from .shapes import UNKNOWN, Picture, Shape, Size, class_name, masks, polygons, rectangle

POLYGONS = 'polygon', 'rectangle', 'rotation', 'oriented_rectangle'  # the last three of four corners


def read(content: dict[str, Any], path: Path, faults: Faults) -> tuple[list[Picture], list[str]]:
    """Return the picture of a file. The path in it is relative to the file."""
    width, height = content.get('imageWidth'), content.get('imageHeight')
    entries = [(f'shapes[{number}]', entry) for number, entry in enumerate(content['shapes'])]
    size = (int(width), int(height)) if width and height else UNKNOWN
    return [Picture([content['imagePath']], path, entries, _shape, size)], []


def _shape(entry: dict[str, Any], size: Size) -> Shape:
    label, kind, points = class_name(entry['label']), entry.get('shape_type', 'polygon'), entry['points']
    if kind == 'mask':
        return _mask(label, entry, size)
    if kind == 'rectangle' and len(points) == 2:
        (x1, y1), (x2, y2) = points
        return rectangle(label, min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
    if kind == 'circle':
        (x, y), edge = points
        angles = np.linspace(0, 2 * np.pi, 90, endpoint=False)
        radius = float(np.hypot(edge[0] - x, edge[1] - y))
        points = np.stack([x + radius * np.cos(angles), y + radius * np.sin(angles)], -1).tolist()
    elif kind not in POLYGONS:
        return Shape(label, left_out=f'a {kind} has no area')
    if len(points) < 3:
        return Shape(label, left_out='fewer than three points')
    group = None if entry.get('group_id') is None else (label, entry['group_id'])
    return Shape(label, polygons([[number for x, y in points for number in (x, y)]]), group=group)


def _mask(label: str, entry: dict[str, Any], size: Size) -> Shape:
    (left, top), _ = np.round(entry['points']).astype(int)
    with Image.open(io.BytesIO(base64.b64decode(entry['mask']))) as image:
        drawn = np.array(image).astype(bool)
    whole = np.zeros(size[::-1], np.uint8, order='F')
    drawn = drawn[max(-top, 0) :, max(-left, 0) :]
    inside = whole[max(top, 0) :, max(left, 0) :][: drawn.shape[0], : drawn.shape[1]]
    inside[:] = drawn[: inside.shape[0], : inside.shape[1]]
    return Shape(label, masks.encode(whole))
