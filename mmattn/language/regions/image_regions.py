"""The regions of an image: features and boxes, the geometry of boxes, and what makes regions unusable."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmattn.utils.faults import shorten


class Regions(NamedTuple):
    """The regions of an image.

    Args:
        features (Tensor): ``(n, D)``, float32.
        boxes (Tensor): left, top, right, bottom ``(n, 4)``, float32, in pixels of the image. Right and bottom are
            exclusive: the whole image is ``(0, 0, width, height)``.
        size (tuple[int, int]): width and height of the image, in pixels.
        classes (Tensor, optional): the detector's classes ``(n,)``, int64. -1 is no class.
        scores (Tensor, optional): ``(n,)``, float32.

    Example:
        >>> Regions(torch.zeros(1, 8), torch.tensor([[0.0, 0.0, 50.0, 40.0]]), (50, 40)).scores is None
        True
    """

    features: Tensor
    boxes: Tensor
    size: tuple[int, int]
    classes: Tensor | None = None
    scores: Tensor | None = None


def grid_boxes(size: tuple[int, int], rows: int, columns: int | None = None) -> Tensor:
    """Divide an image of ``size`` (width, height) into cells, row by row: boxes ``(rows · columns, 4)``, float32."""
    counts = (rows if columns is None else columns), rows
    x, y = (torch.linspace(0, side, count + 1, dtype=torch.float64) for side, count in zip(size, counts))
    top, left = torch.meshgrid(y[:-1], x[:-1], indexing='ij')
    bottom, right = torch.meshgrid(y[1:], x[1:], indexing='ij')
    return torch.stack([left, top, right, bottom], -1).flatten(0, 1).float()


def region_faults(features: Any, boxes: Any, size: tuple[int, int], classes: Any, scores: Any) -> list[str]:
    """List why the regions of an image cannot be used."""
    count = len(features)
    shapes = dict(boxes=(boxes, (count, 4)), classes=(classes, (count,)), scores=(scores, (count,)))
    faults = [
        f'{name} must be {shape}, one per region; got {x.shape}'
        for name, (x, shape) in shapes.items()
        if x is not None and x.shape != shape
    ]
    if features.ndim != 2:
        faults.append(f'features must be (n, D); got {features.shape}')
    if faults:
        return faults
    if not count:
        return ['no regions']
    if min(size) < 1:
        return [f'its size must be positive; got {size[0]}×{size[1]}']
    left, top, right, bottom = boxes.T
    finite = np.isfinite(boxes).all(1)
    wrong = {
        f'features are NaN, infinite or too large for {features.dtype}': ~np.isfinite(features).all(1),
        'boxes are NaN or infinite': ~finite,
        f'boxes are outside the image of {size[0]}×{size[1]}': finite
        & ((left < 0) | (top < 0) | (right > size[0]) | (bottom > size[1])),
        'boxes have a side that is not positive': finite & ((right <= left) | (bottom <= top)),
        'boxes are in 0…1, not in pixels': np.full(count, min(size) > 1 and boxes.max() <= 1),
    }
    if scores is not None:
        wrong['scores are NaN or infinite'] = ~np.isfinite(scores)
    return [
        f'{text}: region{"s" if where.sum() > 1 else ""} {", ".join(shorten(np.flatnonzero(where), 5))}'
        for text, where in wrong.items()
        if where.any()
    ]
