"""Similarity of two masks of an object: J and F of a frame, and their statistics over a clip."""

from math import ceil, hypot, nan

import cv2
import numpy as np

BOUNDARY_TOLERANCE = 0.008  # relative to the diagonal of the image


def region_similarity(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Compute J, the intersection over union of two bool ``(H, W)`` masks: 0…1, and 1 if both are empty."""
    union = np.count_nonzero(predicted | truth)
    return np.count_nonzero(predicted & truth) / union if union else 1.0


def boundary_similarity(predicted: np.ndarray, truth: np.ndarray) -> float:
    """Compute F, the harmonic mean of precision and recall of the boundary pixels of two bool ``(H, W)`` masks: 0…1.

    As defined by DAVIS, a pixel is correct if the other boundary has a pixel within ``ceil(0.008 · diagonal of the
    image)`` pixels. F is 1 if neither mask has a boundary, because it is empty or covers the whole image.
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


def summarize(values: np.ndarray) -> tuple[float, float, float]:
    """Compute mean, recall and decay of an object's J or F, float ``(frames, )``. They are nan without frames.

    Recall is the share of frames above 0.5, decay the mean of the first quarter of the clip minus that of the last.
    Quarters are defined as by DAVIS: adjacent quarters share a frame.
    """
    if not len(values):
        return nan, nan, nan
    bounds = np.round(np.linspace(1, len(values), 5) + 1e-10).astype(int) - 1  # rounds halves up
    first, last = (values[bounds[i] : bounds[i + 1] + 1].mean() for i in (0, 3))
    return float(values.mean()), float((values > 0.5).mean()), float(first - last)


def _boundary(mask: np.ndarray) -> np.ndarray:
    return cv2.morphologyEx(
        mask.astype(np.uint8),
        cv2.MORPH_GRADIENT,
        np.ones((2, 2), np.uint8),
        anchor=(0, 0),
        borderType=cv2.BORDER_REPLICATE,
    )


def _disk(radius: int) -> np.ndarray:
    squares = np.arange(-radius, radius + 1) ** 2
    return (squares[:, None] + squares <= radius**2).astype(np.uint8)
