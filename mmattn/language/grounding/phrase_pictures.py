"""Draw numbered boxes of phrases with a legend."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from mmattn.language.layers.object_counter import box_iou
from mmattn.language.regions.box_pictures import BOX_COLOURS, draw_boxes
from mmattn.visualization.figure import rendered

PANEL = 5.0  # inches: the largest side of the picture
MARGIN, LINE = 0.15, 0.22  # inches
COLUMNS = 60  # characters of a line


def draw_phrases(
    phrases: Sequence[tuple[str, float]],
    boxes: Sequence[Sequence[float]],
    size: tuple[int, int],
    picture: np.ndarray | None = None,
    caption: str = '',
    true_boxes: Sequence[Sequence[Sequence[float]]] = (),
) -> np.ndarray:
    """Draw a numbered box per phrase, and list the phrases below the image: uint8 ``(height, width, 3)``, RGB.

    ``phrases`` have their scores, ``boxes`` are left, top, right and bottom in pixels of the image, and ``size`` is its
    width and height. ``caption`` is the heading. ``picture`` and ``true_boxes`` are as in
    :meth:`GroundingInferencer.visualize`.
    """
    if len(phrases) != len(boxes):
        raise ValueError(f'boxes must have one box per phrase, {len(phrases)}; got {len(boxes)}')
    heading = textwrap.wrap(caption, COLUMNS)
    scale = PANEL / max(size)
    wide, high = size[0] * scale, size[1] * scale
    top = MARGIN + LINE * len(heading)
    width, height = max(wide, PANEL) + 2 * MARGIN, top + high + LINE * (len(phrases) + 1) + MARGIN
    figure = Figure((width, height), dpi=110)
    axis = figure.add_axes((MARGIN / width, 1 - (top + high) / height, wide / width, high / height))
    draw_boxes(axis, picture, size, boxes)
    for box, annotated, colour in zip(boxes, true_boxes, cycle(BOX_COLOURS)):
        if annotated:
            x, y, right, bottom = closest_box(box, annotated)
            style: dict[str, Any] = dict(fill=False, edgecolor=colour, linewidth=2.0, linestyle='--')
            axis.add_patch(Rectangle((x, y), right - x, bottom - y, **style))
    figure.text(MARGIN / width, 1 - MARGIN / 2 / height, '\n'.join(heading), fontsize=11, va='top', parse_math=False)
    for number, ((text, score), colour) in enumerate(zip(phrases, cycle(BOX_COLOURS)), 1):
        y = 1 - (top + high + LINE * number) / height
        line = textwrap.shorten(f'{number}  {score:.3f}  {text}', COLUMNS, placeholder=' …')
        figure.text(MARGIN / width, y, line, fontsize=10, va='center', color=colour, parse_math=False)
    return rendered(figure)


def closest_box(box: Sequence[float], boxes: Sequence[Sequence[float]]) -> Sequence[float]:
    """Select the box with the largest IoU with ``box``. Without an overlap, select the one whose centre is closest."""
    ours, others = torch.tensor([box], dtype=torch.float64), torch.tensor(boxes, dtype=torch.float64)
    overlaps = box_iou(ours, others)[0].tolist()
    distances = (ours[:, :2] + ours[:, 2:] - others[:, :2] - others[:, 2:]).norm(dim=-1).tolist()
    return boxes[max(range(len(boxes)), key=lambda i: (overlaps[i], -distances[i]))]
