"""A legend of class colours below a picture."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.font_manager import findfont
from PIL import Image, ImageDraw, ImageFont

SIZE, SQUARE, GAP, ROW = 12, 10, 5, 18  # of the font, the coloured squares, spaces and rows, in pixels


def add_legend(picture: np.ndarray, colours: Mapping[str, Sequence[int]]) -> np.ndarray:
    """Add names and their colours in rows below a picture, which is made wider if a name requires it.

    Args:
        picture (np.ndarray): uint8 ``(H, W, 3)``, RGB.
        colours (mapping of str to sequence of int): red, green and blue of each name, 0 to 255.

    Returns:
        np.ndarray: uint8 ``(height, width, 3)``, RGB, with the picture in its upper left corner.
    """
    height, width = picture.shape[:2]
    font = ImageFont.truetype(findfont('DejaVu Sans'), SIZE)
    widths = {name: SQUARE + 4 * GAP + int(font.getlength(name)) for name in colours}
    width = max(width, *widths.values()) if widths else width
    places, x, row = {}, 0, 0
    for name, taken in widths.items():
        if x + taken > width:
            x, row = 0, row + 1
        places[name] = x + GAP, height + row * ROW + GAP
        x += taken
    canvas = Image.new('RGB', (width, height + (row + 1) * ROW + GAP if widths else height), 'white')
    canvas.paste(Image.fromarray(picture))
    draw = ImageDraw.Draw(canvas)
    for name, (x, y) in places.items():
        draw.rectangle((x, y, x + SQUARE, y + SQUARE), (*map(int, colours[name]),), 'black')
        draw.text((x + SQUARE + GAP, y + SQUARE // 2), name, 'black', font, 'lm')
    return np.asarray(canvas)


def class_colours(meta: Mapping[str, Any], labels: np.ndarray) -> dict[str, Sequence[int]]:
    """Map the names of the classes that occur in ``labels`` to their colours. ``meta`` is that of the data set."""
    classes, palette = meta['classes'], meta['palette']
    return {classes[label]: palette[label] for label in np.unique(labels).tolist() if label < len(classes)}
