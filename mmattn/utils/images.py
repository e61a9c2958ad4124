"""Checks of image files: truncation, lossy masks, pictures with more bits than PIL keeps."""

import os
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import (
    EXTRASAMPLES,
    PHOTOMETRIC_INTERPRETATION,
    SAMPLESPERPIXEL,
    ImageFileDirectory_v2,
)

from .faults import one_line, reading

# The last bytes of complete files, and the marker before a JPEG's pixels.
ENDS = {'JPEG': b'\xff\xd9', 'PNG': b'IEND\xaeB`\x82'}
JPEG_SCAN = b'\xff\xda'
# Names as in PIL. WebP and JPEG 2000 can be lossless, but files do not record whether the encoder changed the pixels.
LOSSY_FORMATS = frozenset(('AVIF', 'BLP', 'DDS', 'FTEX', 'HEIF', 'JPEG', 'JPEG2000', 'MPO', 'WEBP'))
CLASS_INDICES = dict(Labels='class indices from 0')  # in the PNG of a prediction: reduce_zero_label must not shift it
MAX_PIXELS = 2**30  # that OpenCV decodes
ORIENTATION = 0x0112  # EXIF tag; values of 5 and more swap width and height
ALPHA = {1, 2}  # values of ExtraSamples in a TIFF: transparency
LIMIT = Lock()  # PIL's limit of pixels is global
LOSSY_COMPRESSIONS = frozenset(('jpeg', 'tiff_jpeg', 'webp'))  # within TIFF


def lossy_mask_fault(image: Image.Image) -> str:
    """Describe the fault if a mask's compression may have changed its pixels, and thereby its labels. Else return ''.

    ``image`` comes from ``Image.open``, which reads only the header. The content, not the suffix, determines the
    format.
    """
    compression = image.info.get('compression', '') if image.format == 'TIFF' else ''
    if image.format in LOSSY_FORMATS or compression in LOSSY_COMPRESSIONS:
        name = f'{image.format} ({compression})' if compression else image.format
        return f'masks must be lossless, such as PNG; {name} may change labels at edges'
    return ''


def deep_picture_fault(image: Image.Image) -> str:
    """Describe the fault if a channel has more than 8 bits, which PIL clips at 255 when it converts. Else return ''."""
    if image.mode.startswith(('I', 'F')):
        return f'pictures must have 8 bits per channel; this one is of mode {image.mode} (16 or 32 bits)'
    return ''


def open_header(stream: BinaryIO) -> Image.Image:
    """Open an image with PIL, which reads only the header, up to OpenCV's limit of 2^30 pixels."""
    try:
        return Image.open(stream)
    except Image.DecompressionBombError:
        with LIMIT:
            limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, MAX_PIXELS // 2  # an error above twice as many
            try:
                return Image.open(stream)
            finally:
                Image.MAX_IMAGE_PIXELS = limit


def tiff_tags(stream: BinaryIO) -> ImageFileDirectory_v2 | None:
    """Return the tags of the first picture in a TIFF or BigTIFF, which PIL may not open. None for another format."""
    header = stream.read(8)
    if header[:4] in (b'II+\0', b'MM\0+'):
        # PIL knows a BigTIFF by the first of these bytes, in either order
        tags = ImageFileDirectory_v2(b'II+\0' + header[4:] + stream.read(8), prefix=header[:2])
    elif header[:4] in (b'II*\0', b'MM\0*'):
        tags = ImageFileDirectory_v2(header)
    else:
        return None
    stream.seek(tags.next)
    tags.load(stream)
    return tags


def tiff_bands(stream: BinaryIO) -> tuple[int, int] | None:
    """Return the bands of a TIFF, and how many loading keeps, if it is grey or RGB with further bands. Else None."""
    tags = tiff_tags(stream)
    if tags is None:
        return None
    bands, colours = tags.get(SAMPLESPERPIXEL, 1), {0: 1, 1: 1, 2: 3}.get(tags.get(PHOTOMETRIC_INTERPRETATION, -1))
    has_alpha = bool(ALPHA.intersection(tags.get(EXTRASAMPLES, ())))
    return None if colours is None or bands == colours + has_alpha else (bands, colours)


def open_whole(stream: BinaryIO, checksums: bool = True) -> Image.Image:
    """Open an image with PIL, and decode it only if the end marker of its format is missing.

    ``stream`` must stay open while the image is used. An unknown format, a file that is truncated or ends in zeros, or
    a PNG whose pixels have bytes that its ``checksums`` do not fit, is an OSError.
    """
    stream.seek(max(0, stream.seek(0, os.SEEK_END) - 8))
    end = stream.read()
    image = open_header(stream)  # PIL begins at the start
    if not end.endswith(ENDS.get(image.format or '', b'')):
        image.load()
        if image.format == 'JPEG' and not any(end):  # decoders accept it
            stream.seek(0)
            content = stream.read()
            if content.rfind(ENDS['JPEG']) < content.rfind(JPEG_SCAN):
                raise OSError('it ends in zeros')
    elif checksums and image.format == 'PNG':
        try:
            image.verify()  # it has no pixels afterwards
        except Exception as error:  # PIL raises a SyntaxError for a checksum, and others
            stream.seek(0)
            if cv2.imdecode(np.frombuffer(stream.read(), np.uint8), cv2.IMREAD_UNCHANGED) is None:
                raise OSError(one_line(error) if isinstance(error, SyntaxError) else 'broken PNG file') from error
        return open_header(stream)
    return image


def check_picture(path: str | Path) -> None:
    """Raise an error for a picture that decoders accept, but whose pixels are lost: truncated, or floating point.

    A format that PIL does not know is left to the decoder.
    """
    with open(path, 'rb') as stream, suppress(UnidentifiedImageError):
        if open_whole(stream).mode == 'F':
            raise ValueError('32-bit floating point, which loading does not convert; save it with 8 bits')


def unreadable(error: Exception) -> str:
    """Describe in one line what the decoder of an image raised."""
    if isinstance(error, UnidentifiedImageError):  # its message contains only the address of an object
        return 'unreadable: PIL does not recognise the image format'
    if isinstance(error, Image.DecompressionBombError):  # its message goes on with an attack
        return f'unreadable: {str(error).partition(",")[0]}; crop it'
    return f'unreadable: {one_line(error)}'


def decoding(path: object) -> AbstractContextManager[None]:
    """Turn what decoders raise in the block into a FaultsError that names the image. A missing file raises as it is."""
    return reading(path, describe=unreadable)


def tile_positions(length: int, size: int, stride: int) -> list[int]:
    """List where the tiles of an axis begin, as mmseg's ``mode='slide'`` places them: the last one ends at the edge.

    Example:
        >>> tile_positions(10, 4, 3), tile_positions(11, 4, 3), tile_positions(3, 4, 3)
        ([0, 3, 6], [0, 3, 6, 7], [0])
    """
    count = max(length - size + stride - 1, 0) // stride + 1
    return [max(min(i * stride + size, length) - size, 0) for i in range(count)]
