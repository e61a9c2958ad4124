"""Draw numbered boxes of phrases with a legend."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import cycle

import numpy as np
import torch

from mmattn.language.layers.object_counter import box_iou
from mmattn.visualization.panels import BOX_COLOURS, TITLE, arrange, draw_boxes, resized, text

SIDE = 550  # pixels: the largest side of the picture
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
    shown = resized(picture, *(max(3, round(SIDE * side / max(size))) for side in size))
    shown = draw_boxes(shown, boxes, size)
    for box, annotated, colour in zip(boxes, true_boxes, cycle(BOX_COLOURS)):
        if annotated:
            shown = draw_boxes(shown, [closest_box(box, annotated)], size, [colour], dashed=True)
    lines = [f'{number}  {score:.3f}  {phrase}' for number, (phrase, score) in enumerate(phrases, 1)]
    lines = [textwrap.shorten(line, COLUMNS, placeholder=' …') for line in lines]
    parts = [text(caption, 16, width=SIDE), shown, *([text(lines, TITLE, BOX_COLOURS)] if lines else [])]
    return arrange([[part] for part in parts], margin=12)


def closest_box(box: Sequence[float], boxes: Sequence[Sequence[float]]) -> Sequence[float]:
    """Select the box with the largest IoU with ``box``. Without an overlap, select the one whose centre is closest."""
    ours, others = torch.tensor([box], dtype=torch.float64), torch.tensor(boxes, dtype=torch.float64)
    overlaps = box_iou(ours, others)[0].tolist()
    distances = (ours[:, :2] + ours[:, 2:] - others[:, :2] - others[:, 2:]).norm(dim=-1).tolist()
    return boxes[max(range(len(boxes)), key=lambda i: (overlaps[i], -distances[i]))]
