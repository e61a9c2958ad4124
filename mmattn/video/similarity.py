"""How alike two masks of an object are, frame by frame, and what is said of a whole clip: J, F and their statistics."""

from math import ceil, hypot, nan
from typing import NamedTuple

import cv2
import numpy as np

BOUNDARY_TOLERANCE = 0.008  # of the diagonal


class Statistics(NamedTuple):
    """Mean, share of frames above 0.5, and how much worse the last quarter of a clip is than the first."""

    mean: float
    recall: float
    decay: float


def region_similarity(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Return J, intersection over union, of two bool ``(H, W)`` masks: 0…1, and 1 if both are empty."""
    union = np.count_nonzero(predicted | truth)
    return np.count_nonzero(predicted & truth) / union if union else 1.0


def boundary_similarity(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Return F, the harmonic mean of precision and recall of the boundary's pixels, as DAVIS counts them.

    A pixel is right if the other boundary has one in ``ceil(0.008 · diagonal of the image)`` pixels or less.

    Args:
        predicted (np.ndarray): bool ``(H, W)``.
        truth (np.ndarray): bool ``(H, W)``.

    Returns:
        float: 0…1, and 1 if neither mask has a boundary: it is empty, or the whole image.
    """
    radius = ceil(BOUNDARY_TOLERANCE * hypot(*truth.shape))
    boundaries = [_boundary(predicted), _boundary(truth)]
    x, y, w, h = cv2.boundingRect(boundaries[0] | boundaries[1])
    boundaries = [boundary[y : y + h, x : x + w] for boundary in boundaries]
    counts = [cv2.countNonZero(boundary) for boundary in boundaries]
    if not all(counts):
        return float(counts[0] == counts[1])
    precision, recall = (
        cv2.countNonZero(boundary & cv2.dilate(other, _disk(radius))) / count
        for boundary, other, count in zip(boundaries, boundaries[::-1], counts)
    )
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def summarize(values: np.ndarray) -> Statistics:
    """Return mean, recall and decay of an object's J or F, float ``(frames, )``; nan without frames.

    The quarters are DAVIS's, which share a frame with the next.
    """
    if not len(values):
        return Statistics(nan, nan, nan)
    bounds = np.round(np.linspace(1, len(values), 5) + 1e-10).astype(int) - 1  # halves go up
    first, last = (values[bounds[i] : bounds[i + 1] + 1].mean() for i in (0, 3))
    return Statistics(float(values.mean()), float((values > 0.5).mean()), float(first - last))


def _boundary(mask: np.ndarray) -> np.ndarray:
    """Return 1 where a pixel, those to the right and below, and that between them are not all alike."""
    return cv2.morphologyEx(
        mask.astype(np.uint8),
        cv2.MORPH_GRADIENT,
        np.ones((2, 2), np.uint8),
        anchor=(0, 0),
        borderType=cv2.BORDER_REPLICATE,
    )


def _disk(radius: int) -> np.ndarray:
    """Return the pixels within ``radius`` of the middle one: uint8, ``2·radius + 1`` a side."""
    squares = np.arange(-radius, radius + 1) ** 2
    return (squares[:, None] + squares <= radius**2).astype(np.uint8)
