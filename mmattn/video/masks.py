"""Read and write index masks, which store one 8-bit object id per pixel, and draw them over frames."""

from collections.abc import Callable, Iterable
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from mmattn.utils.faults import shorten
from mmattn.utils.files import atomic_write
from mmattn.utils.images import decoding, lossy_mask_fault

VOID = 255  # void label: background when read from a file, ignored in training targets
SHOWN = 8  # values in a message


def _davis_palette() -> np.ndarray:
    """Compute the DAVIS colours of ids 0…21, and continue their bit pattern to 255: uint8 ``(256, 3)``, RGB."""
    ids = np.arange(256)[:, None]
    bits = sum((ids >> 3 * bit + np.arange(3) & 1) << 7 - bit for bit in range(8))
    return np.where(bits == 192, 191, bits).astype(np.uint8)


PALETTE = _davis_palette()


def read_mask(path: str | Path, single_object: bool = False) -> np.ndarray:
    """Read the ids of a mask exactly as stored: palette indices, or the values of a grey image.

    Args:
        path (str or Path): an image with a palette, or with one channel.
        single_object (bool): make all values except 0 object 1, including 255, as in DAVIS 2016. Defaults to False: 255
            is void and becomes background.

    Returns:
        np.ndarray: uint8 ``(H, W)``, 0…254.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be decoded, has a lossy format, holds colours instead of ids, or has ids above 255.
            The message begins with the path.

    Example:
        >>> write_mask('mask.png', np.array([[0, 3], [255, 1]]))
        >>> read_mask('mask.png')
        array([[0, 3],
               [0, 1]], dtype=uint8)
    """
    ids = np.array(open_mask(path, mask_fault))
    if single_object:
        return (ids != 0).astype(np.uint8)
    if not 0 <= ids.min() <= ids.max() <= VOID:
        raise ValueError(f'{path}: ids must be of 0…{VOID}; the file has {ids.min()}…{ids.max()}')
    ids = ids.astype(np.uint8)
    ids[ids == VOID] = 0
    return ids


def read_single_object(path: str | Path) -> np.ndarray:
    """Read a mask of one object in any two values: uint8 ``(H, W)``, 1 where the higher value is.

    Values are palette indices, grey levels, or colours, of which black is the lowest. In an image with transparent
    pixels, they are the opacities.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be decoded, has a lossy format, or has more than two values. The message begins with
            the path, and lists the values.

    Example:
        >>> mask = Image.new('RGBA', (20, 20))
        >>> mask.paste('red', (5, 5, 15, 15))
        >>> mask.save('mask.png')
        >>> read_single_object('mask.png').sum()
        np.uint64(100)
    """
    image, digits = open_mask(path, lossy_mask_fault), 'd'
    pixels = np.array(image)
    if Image.getmodebands(image.mode) > 1:
        *colours, opacities = np.moveaxis(np.array(image.convert('RGBA')).astype(int), 2, 0)
        pixels = opacities
        if opacities.min() == opacities.max():
            pixels, digits = np.tensordot((1 << 16, 1 << 8, 1), colours, 1), '06x'
    values = np.unique(pixels).tolist()
    if len(values) > 2:
        names = ', '.join(shorten((f'{value:{digits}}' for value in values), SHOWN))
        raise ValueError(
            f'{path}: has {len(values)} values, {names}; a mask of one object has two: paint it without soft edges, or '
            'give each object an index of a palette'
        )
    return (pixels > (values[0] if len(values) == 2 else 0)).astype(np.uint8)


def open_mask(path: str | Path, find_fault: Callable[[Image.Image], str]) -> Image.Image:
    """Decode an image in which ``find_fault`` finds no fault. The message of a ``ValueError`` begins with the path."""
    with decoding(path), Image.open(path) as image:
        fault = find_fault(image)
        image.load()
    if fault:
        raise ValueError(f'{path}: {fault}')
    return image


def mask_fault(image: Image.Image) -> str:
    """Say why an image from ``Image.open`` cannot be an index mask, judging by its header, or return ''."""
    fault = lossy_mask_fault(image)
    if not fault and (Image.getmodebands(image.mode) > 1 or image.mode == 'F'):
        fault = (
            f'an image of mode {image.mode}, whose colours are not ids; save it with a palette (mode P) whose indices '
            'are the ids, or as a grey image of ids; or, for one object in two colours, set single_object=True '
            '(--single-object)'
        )
    return fault


def write_mask(path: str | Path, ids: np.ndarray, palette: np.ndarray = PALETTE) -> None:
    """Write ids as a palette PNG. The write is atomic, and an ``OSError`` names the file.

    Args:
        path (str or Path): path of the PNG. Its folder is created.
        ids (np.ndarray): ``(H, W)`` of any integer type, 0…255.
        palette (np.ndarray): uint8 ``(256, 3)``, RGB. Defaults to the colours of DAVIS.

    Example:
        >>> write_mask('masks/00000.png', np.array([[0, 1], [2, 2]]))
        >>> Image.open('masks/00000.png').mode
        'P'
    """
    path = Path(path)
    image = Image.fromarray(to_ids(ids, str(path)))
    image.putpalette(palette.tobytes())
    with atomic_write(path) as temporary:
        image.save(temporary, 'PNG')


def to_ids(ids: np.ndarray, where: str) -> np.ndarray:
    """Copy a mask of any integer type to uint8. If ``ids`` is no mask, the error message begins with ``where``."""
    ids = np.asarray(ids)
    if ids.ndim != 2 or not ids.size or ids.dtype.kind not in 'biu' or not 0 <= ids.min() <= ids.max() <= 255:
        values = f', of {ids.min()}…{ids.max()}' if ids.size and ids.dtype.kind in 'biuf' else ''
        raise ValueError(
            f'{where}: ids must be integers of 0…255 of shape (H, W); got {ids.dtype} of shape {ids.shape}{values}'
        )
    return ids.astype(np.uint8)


def object_ids(mask: np.ndarray) -> list[int]:
    """List the ids in a uint8 mask, ascending, without background and void."""
    present = np.bincount(mask.ravel(), minlength=256)
    return [int(i) for i in np.flatnonzero(present) if i not in (0, VOID)]


def read_palette(path: str | Path) -> np.ndarray:
    """Read the colours of a mask file: uint8 ``(256, 3)``, RGB. Without a palette, they are those of DAVIS."""
    with Image.open(path) as image:
        colours = np.reshape(image.getpalette('RGB') or [], (-1, 3)) if image.mode == 'P' else PALETTE
    return np.concatenate([colours, PALETTE[len(colours) :]]).astype(np.uint8)


def black_objects(path: str | Path) -> list[int]:
    """List the ids in a mask file whose palette colour is black, if id 0, the background, has another colour."""
    with Image.open(path) as image:  # programs that convert colours to a palette number them in an arbitrary order
        ids = object_ids(np.array(image)) if image.mode == 'P' else []
    colours = read_palette(path)
    return [i for i in ids if colours[0].any() and not colours[i].any()]


def doubtful_ids(path: str | Path) -> tuple[str, str]:
    """Look for values of a mask file that are no ids: smoothed edges, and an object of 255, the void label.

    Returns a fault and a warning, '' if there is none. Smoothing and scaling put values between those of the objects:
    an id of such an edge is one or two pixels wide, so that its pixels have a lower and a higher value near them.
    """
    with Image.open(path) as image:
        ids = np.array(image)
    if ids.max() > VOID or ids.min() < 0:
        return '', ''
    ids = ids.astype(np.uint8)
    pixels, between = (np.bincount(values, minlength=256) for values in (ids.ravel(), ids[is_between(ids)]))
    edges = [i for i in object_ids(ids) if between[i] >= 0.9 * pixels[i]]
    count = int((pixels[1:] > 0).sum())
    if 2 * len(edges) > count:
        return (
            f'{len(edges)} of its {count} values besides 0 are edges, one or two pixels wide, between lower and higher '
            'values, as smoothing and scaling make them; save the ids themselves'
        ), ''
    if edges:
        names = ', '.join(map(str, edges))
        return '', f'{names}: one or two pixels wide between a lower and a higher id, as on smoothed edges; check them'
    if count > 1 and cv2.erode((ids == VOID).astype(np.uint8), np.ones((9, 9), np.uint8)).any():
        return '', f'{VOID} beside other ids is void, not an object; to follow it, give it another id'
    return '', ''


def is_between(values: np.ndarray) -> np.ndarray:
    """Mark pixels of a uint8 image that have a lower and a higher value at most two pixels away."""
    around = np.ones((5, 5), np.uint8)
    return (cv2.erode(values, around) < values) & (values < cv2.dilate(values, around))


def keep_objects(mask: np.ndarray, ids: Iterable[int]) -> np.ndarray:
    """Set all values of a uint8 mask, except ``ids`` and void, to background."""
    table = np.zeros(256, np.uint8)
    kept = [*ids, VOID]
    table[kept] = kept
    return table[mask]


def draw_overlay(image: np.ndarray, ids: np.ndarray, opacity: float, palette: np.ndarray = PALETTE) -> np.ndarray:
    """Draw each object in the colour of its id. An opaque contour, two pixels wide, keeps small objects visible.

    Args:
        image (np.ndarray): uint8 ``(H, W, 3)``, BGR, as the result.
        ids (np.ndarray): uint8 ``(H, W)``. 0 is background.
        opacity (float): opacity inside the contours, 0 to 1.
        palette (np.ndarray): uint8 ``(256, 3)``, RGB. Defaults to the colours of DAVIS.

    Example:
        >>> ids = np.zeros((30, 44), np.uint8)
        >>> ids[10:20, 10:20] = 1
        >>> draw_overlay(np.zeros((30, 44, 3), np.uint8), ids, 0.5)[15, 15]
        array([ 0,  0, 64], dtype=uint8)
    """
    around = np.ones((3, 3), np.uint8)
    grown = cv2.dilate(ids, around)
    shares = np.where(ids > 0, np.float32(opacity), np.float32(0))
    shares[grown != cv2.erode(ids, around)] = 1
    colours = palette[np.where(ids > 0, ids, grown)][..., ::-1]
    shares = shares[..., None]
    return np.rint(image * (1 - shares) + colours * shares).astype(np.uint8)
