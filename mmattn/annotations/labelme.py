"""labelme: a JSON file per image, beside it."""

import base64
import io
from collections import defaultdict
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from PIL import Image

from mmattn.utils.images import MAX_PIXELS

from .shapes import Picture, Shape, Size, ellipse, polygons, run_lengths


def pictures(content: dict[str, Any], source: str) -> list[Picture]:
    """Read one file. Polygons of a label with the same ``group_id`` are parts of one object."""
    sides = content.get('imageWidth'), content.get('imageHeight')
    size = (int(sides[0]), int(sides[1])) if sides[0] and sides[1] else None
    shapes, skipped = [], []
    groups: dict[tuple, list[Shape]] = defaultdict(list)
    for entry in content['shapes']:
        shape = _shape(entry, size)
        if shape is None:
            skipped.append(str(entry['label']))
            continue
        group = entry.get('group_id')
        parts = groups[shape.label, group]
        if group is not None and shape.polygons and parts:
            parts[0].polygons += shape.polygons
            continue
        shapes.append(shape)
        if shape.polygons:
            parts.append(shape)
    name = str(content['imagePath']).replace('\\', '/')
    # relative to the file; labelme moves images neither with it nor after it
    return [Picture(str(PurePosixPath(name)), shapes, source, size, skipped=skipped)]


def _shape(entry: dict[str, Any], size: Size | None) -> Shape | None:
    label, points, kind = str(entry['label']), entry['points'], entry.get('shape_type', 'polygon')
    if kind == 'rectangle':
        (x1, y1), (x2, y2) = points
        return Shape(label, box=(min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)))
    if kind == 'circle':
        (x, y), edge = points
        radius = float(np.hypot(edge[0] - x, edge[1] - y))
        return Shape(label, [ellipse(x, y, radius, radius)])
    if kind == 'mask':
        (left, top), _ = np.round(points).astype(int)
        with Image.open(io.BytesIO(base64.b64decode(entry['mask']))) as image:
            drawn = np.array(image).astype(bool)
        if size is None or not 0 < size[0] * size[1] <= MAX_PIXELS:
            raise ValueError(f'a mask requires the size of the image, imageWidth and imageHeight; got {size}')
        whole = np.zeros(size[::-1], bool)
        inside = whole[top : top + drawn.shape[0], left : left + drawn.shape[1]]
        inside[:] = drawn[: inside.shape[0], : inside.shape[1]]
        return Shape(label, run_lengths=run_lengths(whole))
    parts = polygons([points]) if kind in ('polygon', 'oriented_rectangle') else []
    return Shape(label, parts) if parts else None
