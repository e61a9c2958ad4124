"""Masks as people paint them: colours or grey on black or on a transparent background, with smoothed edges."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageColor

from mmattn.utils.images import lossy_mask_fault

from .masks import PALETTE, is_between, open_mask, read_mask

OPAQUE = 128  # alpha from which a pixel is painted
NEAR = 40  # largest distance in RGB of a painted colour from a listed one
MANY_COLOURS = 12  # named in a message


def parse_colours(names: Sequence[str]) -> list[tuple[int, int, int]]:
    """Parse colours, each once, as names or as hexadecimal RGB.

    Example:
        >>> parse_colours(['red', '00ff00', '#0000ff'])
        [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    """
    colours = []
    for name in names:
        try:
            colours.append(ImageColor.getrgb(name if name.startswith('#') or not _is_hex(name) else f'#{name}')[:3])
        except ValueError:
            raise ValueError(
                f'colours must be names such as red, or hexadecimal such as ff0000; got {name!r}'
            ) from None
    if len({*colours}) < len(colours):
        raise ValueError(f'colours must differ; got {", ".join(names)}')
    return colours


def colour_palette(colours: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Continue listed colours, of ids from 1 on, by the colours of DAVIS: uint8 ``(256, 3)``, RGB."""
    palette = PALETTE.copy()
    palette[1 : 1 + len(colours)] = np.reshape(colours, (-1, 3))
    return palette


def read_single_object(path: str | Path) -> np.ndarray:
    """Read a mask of one object: uint8 ``(H, W)``, 1 where the image is painted.

    In an image with transparent pixels, opaque pixels are painted. Otherwise, pixels that are not black, and indices
    and 16-bit values except 0. Smoothed edges end at half of the strength inside.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be decoded, has a lossy format, or is a photograph. The message begins with the
            path.

    Example:
        >>> mask = Image.new('RGBA', (20, 20))
        >>> mask.paste('red', (5, 5, 15, 15))
        >>> mask.save('mask.png')
        >>> read_single_object('mask.png').sum()
        np.uint64(100)
    """
    image = open_mask(path, lossy_mask_fault)
    if image.mode not in ('L', 'LA', 'RGB', 'RGBA'):
        return read_mask(path, single_object=True)
    pixels = np.array(image.convert('RGBA'))
    alpha = pixels[..., 3]
    strength = np.where(alpha.min() < 255, alpha, pixels[..., :3].max(-1))
    if _flat(strength).mean() < 0.5:
        raise ValueError(
            f'{path}: most of it has no even colour, as in a photograph; save the painted layer alone, on black or '
            'transparent'
        )
    parts = np.asarray(cv2.connectedComponents((strength > 0).astype(np.uint8))[1], np.int64)
    largest = np.zeros(parts.max() + 1, np.uint8)
    np.maximum.at(largest, parts, strength)
    is_edge = is_between(strength) & (strength < largest[parts] / 2)
    return ((strength > 0) & ~is_edge).astype(np.uint8)


def read_colours(path: str | Path, colours: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Read a mask of colours: uint8 ``(H, W)``, the position of the nearest of ``colours``, from 1, and 0 on black.

    In an image with transparent pixels, these are the background, and black is a colour.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be decoded, has a lossy format, or has areas of another colour. The message begins
            with the path, and lists the colours.
    """
    pixels = np.array(open_mask(path, lossy_mask_fault).convert('RGBA'))
    is_painted = pixels[..., 3] >= OPAQUE
    has_alpha = not is_painted.all()
    candidates = np.array([(0, 0, 0)] * (not has_alpha) + [*colours])
    rgb = pixels[..., :3].astype(int)
    distances = np.stack([np.linalg.norm(rgb - colour, axis=-1) for colour in candidates])
    others = _count_colours(pixels[..., :3][_flat(pixels) & is_painted & (distances.min(0) > NEAR)])
    if others:
        raise ValueError(f'{path}: has areas of colours that are not listed: {others}')
    return np.where(is_painted, distances.argmin(0) + has_alpha, 0).astype(np.uint8)


def describe_colours(path: str | Path) -> str:
    """List the colours of an image's areas, except black, with numbers of pixels. '' for an image of one channel."""
    image = open_mask(path, lossy_mask_fault)
    if Image.getmodebands(image.mode) == 1:
        return ''
    pixels = np.array(image.convert('RGBA'))
    rgb = pixels[..., :3]
    return _count_colours(rgb[_flat(pixels) & (pixels[..., 3] >= OPAQUE) & rgb.any(-1)])


def _count_colours(rgb: np.ndarray) -> str:
    values, counts = np.unique(rgb @ np.array([1 << 16, 1 << 8, 1]), return_counts=True)
    order = np.argsort(-counts, kind='stable')
    names = [f'{values[i]:06x} ({counts[i]} pixels)' for i in order[:MANY_COLOURS]]
    return ', '.join([*names, f'{len(order) - len(names)} more'] if len(order) > len(names) else names)


def _flat(pixels: np.ndarray) -> np.ndarray:
    """Mark the pixels that equal all of their eight neighbours."""
    around = np.ones((3, 3), np.uint8)
    equal = cv2.erode(pixels, around) == cv2.dilate(pixels, around)
    return equal.all(-1) if equal.ndim == 3 else equal


def _is_hex(name: str) -> bool:
    return len(name) in (3, 6) and all(digit in '0123456789abcdefABCDEF' for digit in name)
