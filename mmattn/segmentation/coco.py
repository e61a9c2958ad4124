"""Label maps as COCO annotations: a polygon for each connected area of a class."""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import cv2
import numpy as np

from mmattn.annotations.shapes import run_lengths

# Of a pixel: the neighbour, y and x, the corner from which the edge starts clockwise, and its direction, x and y.
SIDES = (-1, 0, (0, 0), (1, 0)), (0, 1, (1, 0), (0, 1)), (1, 0, (1, 1), (-1, 0)), (0, -1, (0, 1), (0, -1))


class ConnectedArea(NamedTuple):
    """Pixels of a label that are connected by their sides. Outlines follow the edges of pixels, ``(x, y)``."""

    label: int
    box: tuple[int, int, int, int]  # left, top, width, height
    pixels: np.ndarray  # bool (height, width)
    outlines: list[list[tuple[int, int]]]


def connected_areas(labels: np.ndarray, skipped: Collection[int] = ()) -> Iterator[ConnectedArea]:
    """Yield the connected areas of all labels that are not ``skipped``."""
    for label in np.unique(labels).tolist():
        if label in skipped:
            continue
        count, areas, stats, _ = cv2.connectedComponentsWithStats((labels == label).astype(np.uint8), connectivity=4)
        for number in range(1, count):
            left, top, width, height, _ = stats[number].tolist()
            pixels = areas[top : top + height, left : left + width] == number
            outlines = [[(x + left, y + top) for x, y in outline] for outline in _outlines(pixels)]
            yield ConnectedArea(label, (left, top, width, height), pixels, outlines)


def coco_annotations(labels: np.ndarray, skipped: Collection[int] = ()) -> Iterator[dict]:
    """Yield an annotation for each connected area of a label: category, box, area and segmentation.

    The segmentation is a polygon along the edges of pixels, or, of an area with holes, COCO's run lengths: columns from
    top to bottom, first of pixels outside.

    Args:
        labels (np.ndarray): uint8 ``(H, W)``. The category of label c is c + 1.
        skipped (collection of int): labels without annotations. Defaults to none.

    Example:
        >>> (area,) = coco_annotations(np.pad(np.ones((2, 3), np.uint8), 1), skipped=[0])
        >>> area['category_id'], area['bbox'], area['area'], area['segmentation']
        (2, [1, 1, 3, 2], 6, [[1, 1, 4, 1, 4, 3, 1, 3]])
    """
    for label, box, pixels, outlines in connected_areas(labels, skipped):
        segmentation: Any = [[value for point in outlines[0] for value in point]]
        if len(outlines) > 1:
            segmentation = dict(size=[*labels.shape], counts=_counts(labels.shape, box, pixels))
        yield dict(category_id=label + 1, bbox=[*box], area=int(pixels.sum()), iscrowd=0, segmentation=segmentation)


def _counts(shape: tuple[int, ...], box: tuple[int, int, int, int], pixels: np.ndarray) -> list[int]:
    """Return the run lengths of an area in an image of the ``shape``, from its own columns alone."""
    left, top, width, height = box
    columns = np.zeros((shape[0], width), bool)
    columns[top : top + height] = pixels
    counts = run_lengths(columns)['counts']
    counts[0] += left * shape[0]
    if after := (shape[1] - left - width) * shape[0]:
        if len(counts) % 2:  # the last run is outside
            counts[-1] += after
        else:
            counts.append(after)
    return counts


def _outlines(area: np.ndarray) -> list[list[tuple[int, int]]]:
    """Follow the edges between an area and what is outside, clockwise, from corner to corner: ``(x, y)`` of loops."""
    padded = np.pad(area, 1)
    after: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for dy, dx, start, step in SIDES:
        outside = ~padded[1 + dy : padded.shape[0] - 1 + dy, 1 + dx : padded.shape[1] - 1 + dx]
        for y, x in np.argwhere(area & outside).tolist():
            after.setdefault((x + start[0], y + start[1]), []).append(step)
    loops = []
    while after:
        point = first = next(iter(after))
        corners, last = [], (0, 0)
        while point in after:
            steps = after[point]
            # where two pixels meet at a corner, turn right: the loop stays at its pixel
            step = max((last[0] * y - last[1] * x, (x, y)) for x, y in steps)[1]
            steps.remove(step)
            if not steps:
                del after[point]
            if step != last:
                corners.append(point)
            point, last = (point[0] + step[0], point[1] + step[1]), step
            if point == first:
                break
        loops.append(corners)
    return loops
