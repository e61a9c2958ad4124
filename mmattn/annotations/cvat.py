"""CVAT for images 1.1: one XML file."""

from xml.etree.ElementTree import Element

import numpy as np

from mmattn.utils.images import MAX_PIXELS

from .shapes import Picture, Shape, corners, ellipse, polygons, run_lengths, turned


def pictures(root: Element, source: str) -> list[Picture]:
    """Read the shapes of every image, the lowest ``z_order`` first."""
    if root.find('track') is not None:
        raise ValueError('it is "CVAT for video", whose shapes are between frames; export "CVAT for images 1.1"')
    found = []
    for image in root.iter('image'):
        size = int(image.get('width', 0)), int(image.get('height', 0))
        shapes, skipped = [], []
        for element in sorted(image, key=lambda element: int(element.get('z_order', 0))):
            if element.get('label') is None:
                continue
            shape = _shape(element, size)
            if shape is None:
                skipped.append(element.attrib['label'])
            else:
                shapes.append(shape)
        found.append(
            Picture(image.attrib['name'], shapes, source, size if all(size) else None, image.get('subset', ''), skipped)
        )
    return found


def classes(root: Element) -> list[str]:
    """Return the labels of the task or the project, in its order."""
    return [element.text or '' for element in root.findall('meta//labels/label/name')]


def _shape(element: Element, size: tuple[int, int]) -> Shape | None:
    label = element.attrib['label']
    number = {name: float(text) for name, text in element.items() if name in NUMBERS}
    angle = number.get('rotation', 0)
    if element.tag == 'box':
        box = number['xtl'], number['ytl'], number['xbr'], number['ybr']
        if not angle:
            return Shape(label, box=box)
        return Shape(label, [turned(corners(*box), (box[0] + box[2]) / 2, (box[1] + box[3]) / 2, angle)])
    if element.tag == 'ellipse':
        centre = number['cx'], number['cy']
        return Shape(label, [turned(ellipse(*centre, number['rx'], number['ry']), *centre, angle)])
    if element.tag == 'mask':
        left, top, width, height = (int(number[name]) for name in ('left', 'top', 'width', 'height'))
        lengths = [int(text) for text in element.attrib['rle'].split(',')]
        if not 0 < size[0] * size[1] <= MAX_PIXELS or sum(lengths) != width * height or min(lengths) < 0:
            raise ValueError(f'the run lengths of {label} are not of a mask of {width}×{height}')
        drawn = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths).reshape(height, width)
        whole = np.zeros((size[1], size[0]), bool)
        whole[top : top + height, left : left + width] = drawn
        return Shape(label, run_lengths=run_lengths(whole))
    if element.tag == 'polygon':
        points = [[float(text) for text in point.split(',')] for point in element.attrib['points'].split(';')]
        parts = polygons([points])
        return Shape(label, parts) if parts else None
    return None


NUMBERS = frozenset(('xtl', 'ytl', 'xbr', 'ybr', 'rotation', 'cx', 'cy', 'rx', 'ry', 'left', 'top', 'width', 'height'))
