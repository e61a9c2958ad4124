"""What an image file must not be: a mask whose compression changes labels, a picture whose bits PIL would cut off."""

from PIL import Image

# By PIL's names. WebP and JPEG 2000 may be lossless, but a file does not say whether its encoder changed the pixels.
LOSSY_FORMATS = frozenset(('AVIF', 'BLP', 'DDS', 'FTEX', 'HEIF', 'JPEG', 'JPEG2000', 'MPO', 'WEBP'))
LOSSY_COMPRESSIONS = frozenset(('jpeg', 'tiff_jpeg', 'webp'))  # within TIFF


def lossy_mask_fault(image: Image.Image) -> str:
    """Return what is wrong if the compression of a mask may have changed its pixels, else ''.

    Artefacts of compression would become labels.

    Args:
        image (PIL.Image.Image): as ``Image.open`` returns it, which reads the header alone. The content decides, not
            the suffix.
    """
    compression = image.info.get('compression', '') if image.format == 'TIFF' else ''
    if image.format in LOSSY_FORMATS or compression in LOSSY_COMPRESSIONS:
        name = f'{image.format} ({compression})' if compression else image.format
        return f'masks must be lossless, such as PNG; {name} may change labels at edges'
    return ''


def deep_picture_fault(image: Image.Image) -> str:
    """Return what is wrong if a channel has more than 8 bits, which PIL cuts off at 255 when it converts, else ''.

    Args:
        image (PIL.Image.Image): as ``Image.open`` returns it.
    """
    if image.mode.startswith(('I', 'F')):
        return f'pictures must have 8 bits per channel; this one is of mode {image.mode} (16 or 32 bits)'
    return ''
