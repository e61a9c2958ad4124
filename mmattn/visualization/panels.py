"""A picture is rows of panels: images, heat maps, boxes and text, with labels around them.

Every picture is uint8 ``(H, W, 3)``, RGB, and a panel may contain a picture of panels. Pillow draws them in
matplotlib's fonts and colours, because a layout by matplotlib takes ten times as long.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, cycle, product, repeat
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

COLOURS = 'plasma'
BOX_COLOURS = ('#d4002a', '#00752f', '#1f4fd8', '#a05a00', '#8e1fb3', '#00707a')  # dark enough for white numbers
TITLE, LABEL = 13, 11  # pixels of a font
PAD = 4  # pixels between a panel and its labels


@dataclass
class Panel:
    """A picture with labels around it.

    Attributes:
        picture (np.ndarray): uint8 ``(H, W, 3)``, RGB.
        title, caption (str): text above and below it.
        rows (sequence of str): labels of equal parts of the height, at the left. '' is no label.
        columns (sequence of str): labels of equal parts of the width, below. They are turned if they do not fit.
        colours (sequence of str): colours of the first columns' labels. Defaults to black.
        side (str): turned text at the left of the rows' labels.

    Example:
        >>> table = Panel(stretched(coloured(np.eye(2)), 60, 40), 'identity', rows='ab', columns='cd')
        >>> picture = arrange([['a heading'], [table, colour_bar('share', height=80)]])
    """

    picture: np.ndarray
    title: str = ''
    caption: str = ''
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    colours: Sequence[str] = ()
    side: str = ''


Content = Panel | np.ndarray | str | list  # a picture, a title, or rows within a panel
Part = tuple[int, int, np.ndarray]  # left and top pixel of a picture


def arrange(rows: Sequence[Sequence[Content]], gap: int = 10, margin: int = 0) -> np.ndarray:
    """Arrange panels in rows and aligned columns. A row of one panel spans all columns.

    A panel is a :class:`Panel`, a picture without labels, a title, or a list of rows that are arranged within it.
    """
    columns = max(map(len, rows))
    parts = [[_parts(_panel(content)) for content in row] for row in rows]
    boxes = [[_bounds(panel) for panel in row] for row in parts]
    aligned = [row for row in boxes if len(row) > 1]
    before = [max((-row[c][0] for row in aligned if c < len(row)), default=0) for c in range(columns)]
    after = [max((row[c][2] for row in aligned if c < len(row)), default=0) for c in range(columns)]
    placed: list[Part] = []
    bottom = margin
    for row, bounds in zip(parts, boxes):
        top, right = bottom - min(box[1] for box in bounds), margin
        for column, (panel, box) in enumerate(zip(row, bounds)):
            left = right + (before[column] if len(row) > 1 else -box[0])
            placed += [(left + x, top + y, picture) for x, y, picture in panel]
            right = left + after[column] + gap
        bottom = top + max(box[3] for box in bounds) + gap
    _, _, width, height = _bounds(placed)
    canvas = np.full((height + margin, width + margin, 3), 255, np.uint8)
    for x, y, picture in placed:
        area = canvas[y : y + picture.shape[0], x : x + picture.shape[1]]
        np.minimum(area, picture, out=area)  # text may overlap the white around other text
    return canvas


def _panel(content: Content) -> Panel:
    if isinstance(content, Panel):
        return content
    picture = text(content, TITLE) if isinstance(content, str) else content
    return Panel(arrange(picture) if isinstance(picture, list) else picture)


def _bounds(parts: Sequence[Part]) -> tuple[int, int, int, int]:  # left, top, right, bottom
    edges = zip(*((x, y, x + picture.shape[1], y + picture.shape[0]) for x, y, picture in parts))
    return tuple(choose(edge) for choose, edge in zip((min, min, max, max), edges))  # type: ignore[return-value]


def _parts(panel: Panel) -> list[Part]:
    height, width = panel.picture.shape[:2]
    parts: list[Part] = [(0, 0, panel.picture)]

    def add(x: float, y: float, picture: np.ndarray, across: float, down: float) -> None:  # a point of it at (x, y)
        parts.append((round(x - across * picture.shape[1]), round(y - down * picture.shape[0]), picture))

    for y, label in _labels(panel.rows, height):
        add(-PAD, y, label, 1, 0.5)
    if panel.side:
        add(_bounds(parts)[0] - PAD, height / 2, np.rot90(text(panel.side)), 1, 0.5)
    columns = _labels(panel.columns, width, panel.colours)
    turned = sum(label.shape[1] for _, label in columns) > width
    for x, label in columns:
        add(x, height + PAD, np.rot90(label) if turned else label, 0.5, 0)
    if panel.caption:
        add(width / 2, _bounds(parts)[3] + PAD, text(panel.caption, width=width), 0.5, 0)
    if panel.title:
        add(width / 2, -PAD, text(panel.title, TITLE, width=width), 0.5, 1)
    return parts


def _labels(names: Sequence[str], length: int, colours: Sequence[str] = ()) -> list[tuple[float, np.ndarray]]:
    size = min(LABEL, max(4, length // max(1, sum(map(bool, names)))))
    pairs = enumerate(zip(names, chain(colours, repeat('black'))))
    return [((n + 0.5) * length / len(names), text(name, size, colour)) for n, (name, colour) in pairs if name]


@cache
def _font(size: int, style: str) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(Path(matplotlib.get_data_path(), f'fonts/ttf/DejaVuSans{style}.ttf'), size)


def text(
    content: str | Sequence[str],
    size: int = LABEL,
    colours: str | Sequence[str] = 'black',
    width: int | None = None,
    style: str = '',
) -> np.ndarray:
    """Write lines of text.

    Args:
        content (str or sequence of str): text, or lines.
        size (int): of the font, in pixels.
        colours (str or sequence of str): colour of all lines, or of each.
        width (int, optional): break lines that are wider. Defaults to None.
        style (str): '', '-Bold' or 'Mono'. Defaults to ''.
    """
    font = _font(size, style)
    lines = []
    content = content.split('\n') if isinstance(content, str) else content
    for raw, colour in zip(content, cycle([colours] if isinstance(colours, str) else colours)):
        line = ''.join(x if x.isprintable() else ' ' for x in raw)  # Pillow refuses line breaks of every kind
        length = font.getlength(line)
        if width is None or length <= width:
            lines.append((line, colour))
        else:
            lines += [(part, colour) for part in textwrap.wrap(line, max(1, int(len(line) * width / length)))]
    ascent, descent = font.getmetrics()
    longest = max((font.getlength(line) for line, _ in lines), default=0)
    canvas = Image.new('RGB', (int(longest) + 2, len(lines) * (ascent + descent)), 'white')
    draw = ImageDraw.Draw(canvas)
    for number, (line, colour) in enumerate(lines):
        draw.text((1, number * (ascent + descent) + ascent), line, colour, font, 'ls')
    return np.asarray(canvas)


def resized(picture: np.ndarray | None, width: int, height: int | None = None) -> np.ndarray:
    """Scale a picture, ``(H, W, 3)`` or grey ``(H, W, 1)``. None is a white picture with a frame.

    ``height`` defaults to what keeps the shape, and is then at most eight times the width: a strip of an image is drawn
    shorter.
    """
    if picture is None:
        return np.asarray(ImageOps.expand(Image.new('RGB', (width - 2, (height or width) - 2), 'white'), 1, '#999999'))
    picture = np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))
    height = height or min(max(1, round(width * picture.shape[0] / picture.shape[1])), 8 * width)
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.LANCZOS))


def stretched(values: np.ndarray, width: int, height: int, extent: tuple[float, float] = (1.0, 1.0)) -> np.ndarray:
    """Scale a map ``(h, w, …)`` without interpolation: ``(height, width, …)``.

    ``extent`` is the width and height of the map relative to the result, at least 1: what is outside is cut off.
    """
    x = (np.arange(width) + 0.5) / (width * extent[0]) * values.shape[1]
    y = (np.arange(height) + 0.5) / (height * extent[1]) * values.shape[0]
    return values[y.astype(int)[:, None], x.astype(int)]


def coloured(shares: np.ndarray) -> np.ndarray:
    """Colour shares from 0 to 1: uint8 ``(…, 3)``. NaN is grey."""
    colours = matplotlib.colormaps[COLOURS].with_extremes(bad='0.8')
    return colours(np.asarray(shares, float), bytes=True)[..., :3]


def overlay(
    picture: np.ndarray, shares: np.ndarray, threshold: float = 0.0, extent: tuple[float, float] = (1.0, 1.0)
) -> np.ndarray:
    """Draw a map of shares ``(h, w)`` over a picture in grey, except where they are below ``threshold`` or NaN.

    ``extent`` is as in :func:`stretched`.
    """
    height, width = picture.shape[:2]
    shares = stretched(shares, width, height, extent)[..., None]
    grey = 0.8 * picture.mean(-1, keepdims=True)
    opacity = np.where(shares >= threshold, 0.65, 0)
    return np.rint((1 - opacity) * grey + opacity * coloured(shares[..., 0])).astype(np.uint8)


def colour_bar(title: str, ticks: Mapping[float, str] | None = None, height: int = 220) -> Panel:
    """Make a panel of the colours. ``ticks`` maps shares to labels, and defaults to 0, 0.2, … 1."""
    rows = [''] * 101
    for share, label in (ticks or {n / 5: f'{n / 5:g}' for n in range(6)}).items():
        rows[round(100 * (1 - share))] = label
    return Panel(stretched(coloured(np.linspace(1, 0, 101))[:, None], 14, height), rows=rows, side=title)


def draw_dot(picture: np.ndarray, x: float, y: float, *, filled: bool = True) -> np.ndarray:
    """Draw a red dot, or a red ring, at a point in pixels."""
    canvas = Image.fromarray(picture)
    point, edge = ('●', 'white') if filled else ('○', 'red')
    ImageDraw.Draw(canvas).text((x, y), point, 'red', _font(13, ''), 'mm', stroke_width=1, stroke_fill=edge)
    return np.asarray(canvas)


def draw_boxes(
    picture: np.ndarray,
    boxes: Sequence[Sequence[float]],
    size: tuple[float, float],
    colours: Sequence[str] = BOX_COLOURS,
    *,
    dashed: bool = False,
) -> np.ndarray:
    """Draw boxes on a picture, with numbers from 1 that do not cover each other, or dashed and without numbers.

    ``boxes`` are left, top, right and bottom in an image of ``size``, width and height, of which the picture may be a
    reduced one. ``colours`` are repeated if necessary.
    """
    canvas = Image.fromarray(picture)
    draw, unit = ImageDraw.Draw(canvas), max(canvas.size) / 26  # side of a number
    scaled = np.reshape(np.asarray(boxes, float), (-1, 2, 2)) * np.divide(canvas.size, size)
    numbered = [*enumerate(zip(scaled.tolist(), cycle(colours)), 1)][::-1]  # the first is on top
    for _, (corners, colour) in numbered:
        (left, top), (right, bottom) = np.clip(np.round(corners), 0, np.subtract(canvas.size, 1))
        if dashed:
            draw.rectangle((left, top, right, bottom), outline=colour, width=2)
        else:
            draw.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline='white', width=5)
            draw.rectangle((left, top, right, bottom), outline=colour, width=3)
    if dashed:
        diagonals = np.indices(picture.shape[:2]).sum(0)[..., None]
        return np.where(diagonals // 7 % 2, picture, np.asarray(canvas))
    placed: list[tuple[float, float]] = []
    for number, (corners, colour) in numbered:
        x, y = _free_place(corners[0] + corners[1], canvas.size, unit, placed)
        placed.append((x, y))
        draw.rectangle((x, y, x + unit, y + unit), colour, 'white')
        font = _font(max(1, int(0.6 * unit)), '-Bold')
        draw.text((x + unit / 2 + 0.5, y + unit / 2 + 0.5), str(number), 'white', font, 'mm')
    return np.asarray(canvas)


def _free_place(
    box: Sequence[float], size: tuple[int, int], unit: float, placed: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    """Find the first place along the sides where a number covers no other number, or the first of all."""
    left, top = min(max(box[0], 0.0), size[0] - unit), min(max(box[1] - 1.2 * unit, 0.0), size[1] - unit)
    width, height = max(0.0, min(box[2], size[0]) - unit - left), max(0.0, min(box[3], size[1]) - unit - top)
    steps = np.linspace(0, 1, 12).tolist()
    sides = chain(product(steps, [0]), product([0], steps), product([1], steps), product(steps, [1]))
    places = [(left + x * width, top + y * height) for x, y in sides]
    return next(
        ((x, y) for x, y in places if all(max(abs(x - a), abs(y - b)) > 1.15 * unit for a, b in placed)), places[0]
    )


def add_legend(picture: np.ndarray, colours: Mapping[str, Sequence[int]]) -> np.ndarray:
    """Add names and their colours in rows below a picture, which is made wider if a name requires it.

    ``picture`` is uint8 ``(H, W, 3)``, RGB, and stays in the upper left corner. ``colours`` maps a name to red, green
    and blue, 0 to 255.
    """
    rows: list[list[Content]] = [[]]
    room = width = picture.shape[1] - 10  # pixels of a row; and what is left
    for name, colour in colours.items():
        square = np.pad(np.full((9, 9, 3), colour, np.uint8), ((1, 1), (1, 1), (0, 0)))
        entry = arrange([[square, text(name)]], gap=5)
        if width < entry.shape[1] and rows[-1]:
            rows.append([])
            width = room
        rows[-1].append(entry)
        width -= entry.shape[1] + 15
    lines = [[arrange([row], gap=15)] for row in rows if row]
    return arrange([[picture], [arrange(lines, gap=5, margin=5)]], gap=0) if lines else picture


def class_colours(meta: Mapping[str, Any], labels: np.ndarray) -> dict[str, Sequence[int]]:
    """Map the names of the classes that occur in ``labels`` to their colours. ``meta`` is that of the data set."""
    classes, palette = meta['classes'], meta['palette']
    return {classes[label]: palette[label] for label in np.unique(labels).tolist() if label < len(classes)}


def detector_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``meta`` of a data set with a palette that mmdet's visualizer can draw.

    It takes no colours that are lists, and fails at the first object of a class beyond the palette's end: those of
    VOC and COCO, which a data set of more classes inherits, become random ones.

    Example:
        >>> detector_meta(dict(classes=['cat', 'dog'], palette=[[250, 0, 0]]))['palette']
        'random'
    """
    palette = meta.get('palette') or 'random'
    if not isinstance(palette, str):
        palette = [*map(tuple, palette)] if len(palette) >= len(meta['classes']) else 'random'
    return dict(meta, palette=palette)
