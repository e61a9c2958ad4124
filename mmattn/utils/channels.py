"""Images with all their channels and values: 1 to N channels, of 8 or 16 bits, or floats, of TIFF, PNG or ``.npy``."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .images import decoding, deep_picture_fault, open_header, tiff_bands, tiff_tags

TIFF = '.tif', '.tiff'
GDAL_NODATA = 42113  # the tag of a TIFF that has the number of pixels without data


def read_channels(path: str | Path, channels: int | None = None) -> np.ndarray:
    """Read an image as it is stored: ``(H, W, C)``, the channels in the order of the file, the values unchanged.

    ``.npy`` has ``(H, W)``, ``(H, W, C)`` or ``(C, H, W)``. TIFF requires the package tifffile, because OpenCV mixes up
    planes or drops channels. Its pixels :func:`without_data` are 0. An EXIF orientation is not applied.

    Args:
        path (str or Path): the file.
        channels (int, optional): the number of channels that it must have. Defaults to None, any.

    Raises:
        ValueError: it has another number of channels, or values that are NaN or infinite.
        ImportError: a TIFF, without tifffile, or without imagecodecs if its compression requires it.
    """
    suffix = Path(path).suffix.lower()
    if suffix == '.npy':
        pixels = np.load(path, allow_pickle=False)
        if pixels.ndim == 3 and pixels.shape[2] != channels:
            first, *sides = pixels.shape
            if first == channels or (channels is None and first < min(sides)):
                pixels = np.moveaxis(pixels, 0, -1)
    elif suffix in TIFF:
        pixels = _read_tiff(path)
        if (without := without_data(path)) is not None:
            pixels[without] = 0
    else:
        import mmcv  # lazy: attention maps are drawn without it

        pixels = mmcv.imread(str(path), flag='unchanged', backend='cv2')
        if pixels is None:
            raise ValueError(f'{path}: cv2 cannot decode it')
        if pixels.ndim == 3:
            pixels = pixels[..., [2, 1, 0, *range(3, pixels.shape[2])]]  # OpenCV has blue first
    if pixels.ndim not in (2, 3) or not pixels.size or pixels.dtype.kind not in 'buif':
        raise ValueError(f'{path}: an image has shape (H, W) or (H, W, C); got {pixels.shape} of {pixels.dtype}')
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if channels is not None and pixels.shape[2] != channels:
        raise ValueError(f'{path}: {pixels.shape[2]} channels; the config has {channels}')
    if pixels.dtype.kind == 'f' and not np.isfinite(pixels).all():
        raise ValueError(f'{path}: {(~np.isfinite(pixels)).sum()} values are NaN or infinite; replace them')
    return pixels


def _read_tiff(path: str | Path) -> np.ndarray:
    try:
        import tifffile  # lazy: for TIFFs alone
    except ImportError:
        raise ImportError(f'{path}: all channels of a TIFF require tifffile: pip install tifffile') from None
    with tifffile.TiffFile(path) as file:
        series = file.series[0]  # further ones are small copies
        try:
            axes, pixels = series.axes, series.asarray()
        except ValueError as error:
            if 'imagecodecs' not in str(error):
                raise
            raise ImportError(f'{path}: its compression requires imagecodecs: pip install imagecodecs') from error
    others = [axis for axis in axes if axis not in 'YX']
    if 'Y' not in axes or 'X' not in axes or len(others) > 1:
        raise ValueError(f'{path}: a TIFF must have height, width and channels; its axes are {axes} of {pixels.shape}')
    return np.moveaxis(pixels, axes.index(others[0]), -1) if others else pixels


def without_data(path: str | Path) -> np.ndarray | None:
    """Mark the pixels of a GeoTIFF that have no data, bool ``(H, W)``, or return None if it does not say so.

    All channels of such a pixel have the number in GDAL's tag.
    """
    if Path(path).suffix.lower() not in TIFF:
        return None
    with open(path, 'rb') as stream:
        tags = tiff_tags(stream)
    text = None if tags is None else tags.get(GDAL_NODATA)
    if text is None:
        return None
    number = float(text.strip('\0 '))
    pixels = np.atleast_3d(np.array(Image.open(path)) if is_plain_picture(path) else _read_tiff(path))
    return (np.isnan(pixels) if np.isnan(number) else pixels == number).all(-1)


def is_plain_picture(path: str | Path) -> bool:
    """Whether a file is grey or RGB of 8 bits, perhaps with transparency, which all loaders read alike.

    A format that PIL does not know is, except for TIFF, left to the decoder.

    Raises:
        FaultsError: the header of the file is damaged, or has more than 2^30 pixels.
    """
    if Path(path).suffix.lower() == '.npy':
        return False
    with decoding(path), open(path, 'rb') as stream, suppress(Image.UnidentifiedImageError):
        if tiff_bands(stream) is not None:
            return False
        stream.seek(0)
        image = open_header(stream)
        tiles: Any = getattr(image, 'tile', None)
        raw = tiles[0][3] if tiles else ''
        mode = raw[0] if isinstance(raw, tuple) else raw  # further arguments of the decoder are numbers
        return not deep_picture_fault(image) and '16' not in str(mode)
    return Path(path).suffix.lower() not in TIFF


def loaded_picture(pixels: np.ndarray) -> np.ndarray:
    """Return what ``LoadImageFromFile`` of mmcv returns as an image to look at, see :func:`as_picture`.

    Args:
        pixels: ``(H, W)``, or ``(H, W, C)`` with blue first, and maybe alpha last. Floats that are all whole and at
            most 255 are those of 8 bits, by ``to_float32``.
    """
    pixels = np.atleast_3d(pixels)
    if pixels.dtype.kind == 'f':
        with np.errstate(invalid='ignore'):  # NaN
            bytes_ = pixels.astype(np.uint8)
        pixels = bytes_ if np.array_equal(bytes_, pixels) else pixels
    return as_picture(pixels[..., 2::-1] if pixels.shape[2] >= 3 else pixels)


def as_picture(pixels: np.ndarray) -> np.ndarray:
    """Return an image to look at, uint8 ``(H, W, 3)``, RGB: the first three channels, or the first one as grey.

    Each channel is stretched from its 2nd to its 98th percentile, except 8-bit images, which are shown as they are.
    """
    shown = pixels[..., :3] if pixels.shape[2] >= 3 else pixels[..., :1].repeat(3, -1)
    if shown.dtype == bool:
        shown = shown * np.uint8(255)
    if shown.dtype == np.uint8:
        return np.ascontiguousarray(shown)
    low, high = np.percentile(shown, (2, 98), (0, 1))
    return np.rint(255 * np.clip((shown - low) / np.where(high > low, high - low, 1), 0, 1)).astype(np.uint8)
