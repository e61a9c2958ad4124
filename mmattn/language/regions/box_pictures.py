"""Boxes with numbers on a picture."""

from collections.abc import Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

BOX_COLOURS = ('#d4002a', '#00752f', '#1f4fd8', '#a05a00', '#8e1fb3', '#00707a')  # dark enough for white numbers


def draw_boxes(axis: Axes, picture: np.ndarray | None, size: tuple[int, int], boxes: Sequence[Sequence[float]]) -> None:
    """Draw a picture, and boxes with numbers that do not cover each other."""
    width, height = size
    white = np.full((1, 1, 3), 255, np.uint8)
    axis.imshow(white if picture is None else picture, extent=(0, width, height, 0), aspect='auto')
    unit = max(size) / 20  # side of a number
    edge = max(size) / 150
    placed: list[tuple[float, float]] = []
    for number, (box, colour) in reversed([*enumerate(zip(boxes, cycle(BOX_COLOURS)), 1)]):  # the strongest is on top
        x, y, right, bottom = box
        for line, tone in ((3.6, 'white'), (2.0, colour)):
            axis.add_patch(Rectangle((x, y), right - x, bottom - y, fill=False, edgecolor=tone, linewidth=line))
        corner = _free_place(box, size, unit, placed)
        placed.append(corner)
        axis.text(
            corner[0] + unit / 2,
            corner[1] + unit / 2,
            str(number),
            color='white',
            fontsize=8,
            fontweight='bold',
            ha='center',
            va='center_baseline',
            bbox=dict(boxstyle='square,pad=0.2', facecolor=colour, edgecolor='white', linewidth=0.6),
        )
    axis.set(xticks=[], yticks=[], xlim=(-edge, width + edge), ylim=(height + edge, -edge))
    for spine in axis.spines.values():
        spine.set_color('0.6')


def _free_place(
    box: Sequence[float], size: tuple[int, int], unit: float, placed: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    left, top = max(box[0], 0.0), max(box[1] - 1.2 * unit, 0.0)
    right, bottom = max(left, min(box[2], size[0]) - unit), max(top, min(box[3], size[1]) - unit)
    along = np.linspace(0, 1, 12)
    sides = [
        *((left + t * (right - left), top) for t in along),
        *((left, top + t * (bottom - top)) for t in along),
        *((right, top + t * (bottom - top)) for t in along),
        *((left + t * (right - left), bottom) for t in along),
    ]
    # the first place where the number covers no other number, or the first of all
    places = [(min(x, size[0] - unit), min(y, size[1] - unit)) for x, y in sides]
    return next(
        ((x, y) for x, y in places if all(max(abs(x - a), abs(y - b)) > 1.15 * unit for a, b in placed)), places[0]
    )
