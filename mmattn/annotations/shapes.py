"""What a tool's user has drawn: shapes with a label, and the mask and the box of a shape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mmattn.utils.faults import FaultsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

CORNERS_OF_ELLIPSE = 90
MARGIN = 1  # of an image on each side: tools let shapes reach beyond the edge
Size = tuple[int, int]  # width, height


@dataclass
class Shape:
    """One object: polygons, a mask or a box, in pixels of the upright image.

    Args:
        label (str): name of the class.
        polygons (list[np.ndarray]): the parts of the object, which are united; each of shape (N, 2), x and y, N ≥ 3. A
            pixel is inside by the even-odd rule, so that a part may have a hole.
        run_lengths (dict, optional): ``size`` (height, width) and ``counts`` of COCO, in place of polygons.
        box (tuple, optional): left, top, right and bottom, in place of polygons.
        crowd (bool): whether the shape covers several objects.
    """

    label: str
    polygons: list[np.ndarray] = field(default_factory=list)
    run_lengths: dict | None = None
    box: tuple[float, float, float, float] | None = None
    crowd: bool = False

    @property
    def has_area(self) -> bool:
        """Whether the outline is known, and not only a box."""
        return bool(self.polygons) or self.run_lengths is not None

    def check(self, size: Size) -> None:
        """Raise a ValueError if the shape does not fit an image of ``size``, where drawing it might not end."""
        width, height = size
        points = np.concatenate(self.polygons or [corners(*self.box or (0, 0, 0, 0))]) / size
        if not (np.abs(points - 0.5) <= MARGIN + 0.5).all():
            x, y = points[np.abs(points - 0.5).max(1).argmax()] * size
            raise ValueError(f'{self.label}: a point at {x:g}, {y:g} is far outside of an image of {width}×{height}')
        if self.run_lengths is not None:
            counts = self.run_lengths['counts']
            if isinstance(counts, str | bytes):
                counts = _uncompressed(counts)
            whole = all(isinstance(count, int) and count >= 0 for count in counts)
            if [*self.run_lengths['size']] != [height, width] or not whole or sum(counts) != width * height:
                raise ValueError(f'{self.label}: run lengths are not of an image of {width}×{height}')

    def encoded(self, size: Size) -> dict:
        """Return the mask as COCO's compressed run lengths, for an image of ``size`` (width, height)."""
        mask = masks()
        if self.run_lengths is not None:
            lengths = self.run_lengths
            if isinstance(lengths['counts'], list):
                lengths = mask.frPyObjects(lengths, *lengths['size'])
            return lengths
        polygons = [corners(*self.box)] if self.box is not None else self.polygons
        return mask.merge(mask.frPyObjects([polygon.reshape(-1).tolist() for polygon in polygons], size[1], size[0]))

    def mask(self, size: Size) -> np.ndarray:
        """Return the pixels of the shape, bool of shape (height, width); a pixel counts if its centre is inside."""
        return masks().decode(self.encoded(size)).astype(bool)

    def bounds(self, size: Size) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom, within an image of ``size``."""
        if self.box is not None:
            left, top, right, bottom = self.box
        elif self.polygons:
            points = np.concatenate(self.polygons)
            (left, top), (right, bottom) = points.min(0).tolist(), points.max(0).tolist()
        else:
            left, top, width, height = masks().toBbox(self.encoded(size)).tolist()
            right, bottom = left + width, top + height
        width, height = size
        return max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height))

    def is_empty(self, size: Size) -> bool:
        """Whether there is nothing of the shape within an image of ``size``."""
        left, top, right, bottom = self.bounds(size)
        return right <= left or bottom <= top


@dataclass
class Picture:
    """An image with its shapes, in the order in which they were drawn.

    Args:
        name (str): path of the image as the tool wrote it, or as it is most probable.
        shapes (list[Shape]): may be empty, for an image without an object.
        source (str): the file of the annotations, for messages.
        size (tuple, optional): width and height that the tool saw.
        split (str): ``'train'``, ``'val'``, ``'test'``, or empty if the export has no splits.
        skipped (list[str]): labels of shapes without an area in the image, such as points, lines and boxes of no size.
        other_name (str): path of the image if there is none of ``name``.
    """

    name: str
    shapes: list[Shape]
    source: str
    size: Size | None = None
    split: str = ''
    skipped: list[str] = field(default_factory=list)
    other_name: str = ''


def masks() -> ModuleType:
    """Return the module of pycocotools that draws masks."""
    try:
        from pycocotools import mask
    except ModuleNotFoundError as error:
        raise FaultsError("pycocotools draws the shapes, and is not installed: pip install 'pycocotools'") from error
    return mask


def corners(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    """Return a rectangle as a polygon, of shape (4, 2)."""
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)], float)


def ellipse(x: float, y: float, radius_x: float, radius_y: float) -> np.ndarray:
    """Return an ellipse around (x, y) as a polygon, of shape (90, 2)."""
    angles = np.linspace(0, 2 * np.pi, CORNERS_OF_ELLIPSE, endpoint=False)
    return np.stack([x + radius_x * np.cos(angles), y + radius_y * np.sin(angles)], -1)


def turned(polygon: np.ndarray, x: float, y: float, degrees: float) -> np.ndarray:
    """Turn a polygon clockwise, as seen, around (x, y)."""
    angle = np.deg2rad(degrees)
    rotation = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return (polygon - (x, y)) @ rotation + (x, y)


def polygons(listed: Sequence[Sequence]) -> list[np.ndarray]:
    """Return lists of points, or of alternating x and y, as polygons; those of fewer than three points have no area."""
    found = [np.asarray(points, float).reshape(-1, 2) for points in listed]
    if not all(np.isfinite(points).all() for points in found):
        raise ValueError('a point is not finite')
    return [points for points in found if len(points) >= 3]


def run_lengths(mask: np.ndarray) -> dict:
    """Return a mask, bool of shape (height, width), as COCO's run lengths: columns, first of pixels outside.

    Example:
        >>> run_lengths(np.array([[False, True, True]]))
        {'size': [1, 3], 'counts': [1, 2]}
    """
    flat = mask.ravel(order='F')
    stops = np.flatnonzero(np.diff(flat, prepend=False, append=not flat[-1]))
    return dict(size=list(mask.shape), counts=np.diff(stops, prepend=0).tolist())


def _uncompressed(text: str | bytes) -> list[int]:
    """Decode COCO's compressed run lengths: five bits a character; from the fourth on, differences two before."""
    counts: list[int] = []
    value = shift = 0
    for code in text.encode() if isinstance(text, str) else text:
        bits = code - 48
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            if bits & 16:
                value -= 1 << shift
            counts.append(value + counts[-2] if len(counts) > 2 else value)
            value = shift = 0
    return counts
