"""Checks of image files: masks must not have lossy compression, pictures must not have more than 8 bits per channel."""

from PIL import Image

# Names as in PIL. WebP and JPEG 2000 can be lossless, but files do not record whether the encoder changed the pixels.
LOSSY_FORMATS = frozenset(('AVIF', 'BLP', 'DDS', 'FTEX', 'HEIF', 'JPEG', 'JPEG2000', 'MPO', 'WEBP'))
LOSSY_COMPRESSIONS = frozenset(('jpeg', 'tiff_jpeg', 'webp'))  # within TIFF


def lossy_mask_fault(image: Image.Image) -> str:
    """Return a fault if the compression of a mask may have changed its pixels, else ''.

    Compression artefacts would become labels.

    Args:
        image (PIL.Image.Image): as returned by ``Image.open``, which only reads the header. The content determines the
            format, not the suffix.
    """
    compression = image.info.get('compression', '') if image.format == 'TIFF' else ''
    if image.format in LOSSY_FORMATS or compression in LOSSY_COMPRESSIONS:
        name = f'{image.format} ({compression})' if compression else image.format
        return f'masks must be lossless, such as PNG; {name} may change labels at edges'
    return ''


def deep_picture_fault(image: Image.Image) -> str:
    """Return a fault if a channel has more than 8 bits, which PIL clips at 255 when it converts, else ''.

    Args:
        image (PIL.Image.Image): as returned by ``Image.open``.
    """
    if image.mode.startswith(('I', 'F')):
        return f'pictures must have 8 bits per channel; this one is of mode {image.mode} (16 or 32 bits)'
    return ''
