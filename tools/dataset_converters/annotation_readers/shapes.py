"""What readers make of an export: pictures, and their objects as polygons or run lengths of COCO."""

import re
import reprlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mmattn.utils.faults import Faults, FaultsError

try:
    from pycocotools import mask as masks
except ModuleNotFoundError as error:
    message = "annotations.py: error: pycocotools draws the shapes, and is not installed: pip install 'pycocotools'"
    raise SystemExit(message) from error

Size = tuple[int, int]  # width, height
UNKNOWN = (0, 0)
CUT = 'cut at the edge of the image'
MARGIN = 1  # of an image on each side: tools let shapes reach beyond the edge


@dataclass
class Shape:
    """One object in pixels of the upright image."""

    label: str
    outline: Any = field(default_factory=list)  # polygons [[x, y, x, y, …], …], or compressed run lengths
    is_box: bool = False  # the outline is only a rectangle around the object
    crowd: bool = False  # several objects
    group: Hashable = None  # polygons of one group are parts of one object
    corners: Sequence[float] = ()  # the numbers of a box, which may be corners by mistake
    bounds: list[float] = field(default_factory=list)  # left, top, right and bottom within the image
    place: str = ''  # the entry in the file
    change: str = ''  # how the shape differs from its entry
    left_out: str = ''  # why it cannot be written

    def settle(self, size: Size) -> None:
        """Set the bounds, or why nothing of the shape is in an image of ``size``."""
        edges = np.array((*size, *size), float)
        if isinstance(self.outline, dict):
            bounds = masks.toBbox(self.outline)
            bounds[2:] += bounds[:2]
        else:
            points = np.concatenate(self.outline).reshape(-1, 2)
            bounds = np.concatenate([points.min(0), points.max(0)])
        if not (np.abs(bounds / edges - 0.5) <= MARGIN + 0.5).all():
            raise FaultsError(f'{bounds.round(2).tolist()} is far outside of an image of {size[0]}×{size[1]}')
        self.bounds = bounds.clip(0, edges).tolist()
        if (bounds[2:] <= bounds[:2]).any():
            self.left_out = 'no width or height'
        elif self.bounds[0] >= self.bounds[2] or self.bounds[1] >= self.bounds[3]:
            self.left_out = 'beside the image'
        elif not self.is_box and not masks.area(self.encoded(size)):
            self.left_out = 'no pixel inside'
        elif np.abs(bounds - self.bounds).max() > 0.5:
            self.change = CUT

    def encoded(self, size: Size) -> dict:
        """Return the mask as compressed run lengths."""
        if isinstance(self.outline, dict):
            return self.outline
        return masks.merge(masks.frPyObjects(self.outline, size[1], size[0]))


@dataclass
class Picture:
    """An image and its entries. They are parsed when the size of the upright image is known."""

    names: list[str]  # paths of the image, the most probable first
    source: Path  # the file of the annotations
    entries: list[tuple[str, Any]]  # place and content, in the order of drawing
    parse: Callable[[Any, Size], Shape]
    size: Size = UNKNOWN  # that the tool saw, then of the upright image
    place: str = 'image'
    split: str = ''
    target: Path = Path()  # of the image, below the output's folder
    shapes: list[Shape] = field(default_factory=list)


def rectangle(label: str, left: float, top: float, right: float, bottom: float, **more: Any) -> Shape:
    """Make a shape of a box."""
    box = map(float, (left, top, right, top, right, bottom, left, bottom))
    return Shape(label, [[*box]], is_box=True, **more)


def polygons(parts: list) -> list[list[float]]:
    """Check polygons, each ``[x, y, x, y, …]``. Parts of fewer than three points have no area, and are left out."""
    if not all(isinstance(part, list) and len(part) % 2 == 0 for part in parts):
        raise FaultsError(f'an outline must be polygons [[x, y, x, y, …], …]; got {reprlib.repr(parts)}')
    return [[float(number) for number in part] for part in parts if len(part) >= 6]


def run_lengths(coded: dict, size: Size) -> dict:
    """Check run lengths of COCO, and compress them."""
    counts = coded['counts']
    if isinstance(counts, str):  # five bits a character; from the fourth number on, differences to the last but one
        numbers, counts = re.findall('[P-o]*[0-O]', counts), []
        for bits in ([ord(character) - 48 & 31 for character in number] for number in numbers):
            value = sum(part << 5 * i for i, part in enumerate(bits)) - ((bits[-1] & 16) << 5 * len(bits) - 4)
            counts.append(value + counts[-2] if len(counts) > 2 else value)
    if [*coded['size']] != [size[1], size[0]] or min(counts) < 0 or sum(counts) != size[0] * size[1]:
        raise FaultsError(f'the run lengths are not of an image of {size[0]}×{size[1]}')
    return masks.frPyObjects(dict(size=coded['size'], counts=counts), size[1], size[0])


def class_name(value: object) -> str:
    """Return the name of a class, which is a text or a number."""
    if not isinstance(value, str | int | float) or value == '':
        raise FaultsError(f'the name of a class must be a text, and not empty; got {type(value).__name__}')
    return str(value)


@contextmanager
def checked(faults: Faults, source: Path, place: str, entry: object) -> Iterator[None]:
    """Add what is wrong with an entry to the faults, in words of ours: parsers and decoders raise many types."""
    try:
        yield
    except FaultsError as error:
        faults.add(source, f'{place}: {error}')
    except KeyError as error:
        faults.add(source, f'{place}: no {error} in {reprlib.repr(entry)}')
    except Exception:
        faults.add(source, f'{place}: not as tools write it: {reprlib.repr(entry)}')
