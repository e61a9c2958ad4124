"""Index masks, one 8-bit object id a pixel: exact from file to file, whatever the ids, palettes and gaps."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from mmattn.utils.files import atomic_write
from mmattn.utils.images import lossy_mask_fault, unreadable

VOID = 255  # in files: belongs to nothing, read as background; in training targets: does not count


def _davis_palette() -> np.ndarray:
    """Return DAVIS's colours of ids 0…21, and those that its pattern of bits leads on to: uint8 ``(256, 3)``, RGB."""
    ids = np.arange(256)[:, None]
    bits = sum((ids >> 3 * bit + np.arange(3) & 1) << 7 - bit for bit in range(8))
    return np.where(bits == 192, 191, bits).astype(np.uint8)


PALETTE = _davis_palette()


def read_mask(path: str | Path, single_object: bool = False) -> np.ndarray:
    """Read the ids of a mask as they are in the file: palette indices, or the values of a grey image.

    Args:
        path (str or Path): an image with a palette, or of one channel.
        single_object (bool): everything but 0 is object 1, 255 too, as in DAVIS 2016. Defaults to False: 255 is void
            and becomes background.

    Returns:
        np.ndarray: uint8 ``(H, W)`` of 0…254.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it cannot be decoded, is of a lossy format, has colours in place of ids, or ids above 255; the
            message begins with the path.
    """
    try:
        with Image.open(path) as image:
            fault = mask_fault(image)
            ids = np.array(image)
    except FileNotFoundError:
        raise
    except Exception as error:  # decoders raise all kinds
        raise ValueError(f'{path}: {unreadable(error)}') from error
    if fault:
        raise ValueError(f'{path}: {fault}')
    if single_object:
        return (ids != 0).astype(np.uint8)
    if not 0 <= ids.min() <= ids.max() <= VOID:
        raise ValueError(f'{path}: ids must be of 0…{VOID}; the file has {ids.min()}…{ids.max()}')
    ids = ids.astype(np.uint8)
    ids[ids == VOID] = 0
    return ids


def mask_fault(image: Image.Image) -> str:
    """Return why an image cannot be a mask of ids, as far as its header shows, or ''.

    Args:
        image (PIL.Image.Image): as ``Image.open`` returns it.
    """
    fault = lossy_mask_fault(image)
    if not fault and (Image.getmodebands(image.mode) > 1 or image.mode == 'F'):
        fault = (
            f'an image of mode {image.mode}, whose colours say nothing of ids; save it with a palette (mode P) whose '
            'indices are the ids, or grey'
        )
    return fault


def write_mask(path: str | Path, ids: np.ndarray) -> None:
    """Write ids as a palette PNG in DAVIS's colours.

    The write is atomic: a file of this name is whole, also after the process has been killed.

    Args:
        path (str or Path): the PNG; its folder is created.
        ids (np.ndarray): ``(H, W)`` of any integer type, of 0…255.

    Raises:
        ValueError: ``ids`` are not such; nothing is written.
        OSError: the file cannot be written; the error names it.
    """
    path, ids = Path(path), np.asarray(ids)
    if ids.ndim != 2 or not ids.size or ids.dtype.kind not in 'biu' or not 0 <= ids.min() <= ids.max() <= 255:
        values = f', of {ids.min()}…{ids.max()}' if ids.size else ''
        raise ValueError(
            f'{path}: ids must be integers of 0…255 of shape (H, W); got {ids.dtype} of shape {ids.shape}{values}'
        )
    image = Image.fromarray(ids.astype(np.uint8))
    image.putpalette(PALETTE.tobytes())
    with atomic_write(path) as temporary:
        image.save(temporary, 'PNG')


def object_ids(mask: np.ndarray) -> list[int]:
    """Return the ids in a uint8 mask, ascending, without background and void."""
    present = np.bincount(mask.ravel(), minlength=256)
    return [int(i) for i in np.flatnonzero(present) if i not in (0, VOID)]


def black_objects(path: str | Path) -> list[int]:
    """Return the ids in a mask that its palette shows in black, if it shows id 0, the background, in a colour.

    Programs that make a palette for an image of colours number the colours in any order.
    """
    with Image.open(path) as image:
        if image.mode != 'P':
            return []
        colours: np.ndarray = np.reshape(image.getpalette('RGB') or [], (-1, 3))
        ids = [i for i in object_ids(np.array(image)) if i < len(colours)]
    return [i for i in ids if colours[0].any() and not colours[i].any()]


def keep_objects(mask: np.ndarray, ids: Iterable[int]) -> np.ndarray:
    """Return a uint8 mask with all but ``ids`` and void set to background."""
    table = np.zeros(256, np.uint8)
    kept = [*ids, VOID]
    table[kept] = kept
    return table[mask]
