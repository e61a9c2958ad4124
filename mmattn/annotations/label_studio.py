"""Label Studio's JSON: a list of tasks, with regions in per cent of the image."""

from pathlib import PurePosixPath
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from .shapes import Picture, Shape, corners, ellipse, polygons, run_lengths, turned

GEOMETRIES = ('rectangle', 'polygon', 'ellipse', 'brush')  # of regions whose labels are a result of their own
CHANNELS = 4  # of a brush's picture; the last is what was painted


def pictures(content: list[dict[str, Any]], source: str) -> list[Picture]:
    """Read the ground truth of every task, else its first annotation that was not cancelled."""
    found = []
    for task in content:
        annotations = [each for each in task['annotations'] if not each.get('was_cancelled')]
        if not annotations:
            continue  # nobody has looked at the image
        chosen = next((each for each in annotations if each.get('ground_truth')), annotations[0])
        shapes, skipped, size = [], [], None
        kinds = {each.get('id'): each['type'] for each in chosen['result'] if each.get('type') in GEOMETRIES}
        for region in chosen['result']:
            if 'original_width' not in region:
                continue  # a choice or a text for the whole image, or a relation
            size = int(region['original_width']), int(region['original_height'])
            for label, shape in _shapes(region, size, kinds.get(region.get('id'), '')):
                if shape is None:
                    skipped.append(label)
                else:
                    shapes.append(shape)
        name, other_name = _files(task['data'])
        found.append(Picture(name, shapes, source, size, skipped=skipped, other_name=other_name))
    return found


def _files(data: dict[str, Any]) -> tuple[str, str]:
    """Return the path of an image, without its address, and that without what an upload adds to its name, too."""
    address = next((text for text in data.values() if isinstance(text, str) and '.' in text), None)
    if address is None:
        raise ValueError(f'a task names no image: {data!r:.80}')
    parts = urlsplit(address)
    path = PurePosixPath(parse_qs(parts.query).get('d', [unquote(parts.path)])[0])
    original = path
    if 'upload' in path.parts:  # /data/upload/PROJECT/12345678-NAME.jpg
        prefix, _, rest = path.name.partition('-')
        original = path.with_name(rest) if rest and len(prefix) == 8 else path
    return str(path).lstrip('/'), str(original).lstrip('/')


def _shapes(region: dict[str, Any], size: tuple[int, int], geometry: str) -> list[tuple[str, Shape | None]]:
    kind, value = region['type'], region['value']
    labels = value.get(kind) if kind.endswith('labels') else None
    if kind == 'labels':
        kind = f'{geometry}labels'
    return [(str(label), _shape(kind, value, size, str(label))) for label in labels or ()]


def _shape(kind: str, value: dict[str, Any], size: tuple[int, int], label: str) -> Shape | None:
    scale = np.array(size) / 100
    if kind == 'polygonlabels':
        parts = [points * scale for points in polygons([value['points']])]
        return Shape(label, parts) if parts else None
    if kind == 'rectanglelabels':
        left, top = scale * (value['x'], value['y'])
        width, height = scale * (value['width'], value['height'])
        box = float(left), float(top), float(left + width), float(top + height)
        if not value.get('rotation'):
            return Shape(label, box=box)
        return Shape(label, [turned(corners(*box), left, top, value['rotation'])])  # around its first corner
    if kind == 'ellipselabels':
        (x, y), radii = scale * (value['x'], value['y']), scale * (value['radiusX'], value['radiusY'])
        return Shape(label, [turned(ellipse(x, y, *radii), x, y, value.get('rotation', 0))])
    if kind == 'brushlabels':
        numbers = _decode(value['rle'], CHANNELS * size[0] * size[1])
        painted = numbers.reshape(size[1], size[0], CHANNELS)[..., -1] > 0
        return Shape(label, run_lengths=run_lengths(painted))
    return None


def _decode(data: list[int], expected: int) -> np.ndarray:
    """Decode the bytes of a brush: a bit stream of runs and of single words, whose widths its header has.

    ``expected`` is the number of words. Few bytes of a wrong one would fill the memory.
    """
    bits = np.unpackbits(np.array(data, np.uint8))
    at = 0

    def read(count: int) -> int:
        nonlocal at
        if at + count > len(bits):
            raise ValueError('the run lengths of a brush end early')
        at += count
        return int(''.join(map(str, bits[at - count : at])), 2)

    total, word = read(32), read(5) + 1
    widths = [read(4) + 1 for _ in range(4)]
    values: list[np.ndarray] = []
    done = 0
    if total != expected:
        raise ValueError(f'a brush of {total} numbers, for an image of {expected}')
    while done < total:
        repeats = read(1)
        count = read(widths[read(2)]) + 1
        values.append(np.full(count, read(word)) if repeats else np.array([read(word) for _ in range(count)]))
        done += count
    return np.concatenate(values)[:total]
