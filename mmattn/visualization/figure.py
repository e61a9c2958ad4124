"""The figure of attention maps, as in Fig. 3.4 of the bilateral-attention thesis: one row per query."""

import os
import warnings
from collections.abc import Sequence

import cv2
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from mmengine.fileio import get

from mmattn.utils.channels import as_picture, is_plain_picture, read_channels

from .attention_maps import AttentionMaps

COLOURS = 'plasma'


def draw_attention_maps(
    image: np.ndarray,
    points: Sequence[tuple[float, float]],
    maps: AttentionMaps,
    threshold: float = 0.02,
    boxes: Sequence[tuple[int, int, int, int]] = (),
) -> np.ndarray:
    """Draw the image with a red dot at each query, next to the query's maps, overlaid on the image.

    There is one row per query and one column per kind of map. Each map is divided by its largest weight, which is
    printed below it. Weights below ``threshold`` of the largest weight are hidden. The thesis hides "values smaller
    than 0.02" without stating the unit. It cannot mean the weights themselves: they sum to 1, so at most 50 positions
    of thousands would remain, while its text describes maps that attend to the whole image.

    Args:
        image (np.ndarray): uint8 ``(H, W, 3)``, RGB.
        points (sequence of tuple[float, float]): (x, y) of each query, in [0, 1), relative to the image.
        maps (AttentionMaps): the maps of these queries.
        threshold (float): 0 (hides nothing) to 1. Defaults to 0.02.
        boxes (sequence of tuple[int, int, int, int]): left, top, right and bottom pixel edges of areas to mark on the
            maps by a dashed yellow line, as in Fig. 3.4. Defaults to none.

    Returns:
        np.ndarray: uint8 ``(height, width, 3)``, RGB, of the figure's own size.
    """
    height, width = image.shape[:2]
    columns = 1 + len(maps.weights)
    figure = Figure((2.2 * columns + 0.8, (2.2 * height / width + 0.25) * len(points) + 0.5), layout='constrained')
    axes = figure.subplots(len(points), columns, squeeze=False)
    whole = (0, width, height, 0)
    covered = (0, width * maps.extent[0], height * maps.extent[1], 0)
    colours = ScalarMappable(Normalize(0, 1), COLOURS)
    for (x, y), row, *of_query in zip(points, axes, *maps.weights.values()):
        x, y = x * width, y * height
        row[0].imshow(image, extent=whole)
        row[0].plot(x, y, 'o', color='red', markersize=8, markeredgecolor='white')
        row[0].set_xlabel(f'({int(x)}, {int(y)})', fontsize=8)
        for axis, weights in zip(row[1:], of_query):
            largest = weights.max().item()
            axis.imshow(image.mean(-1), extent=whole, cmap='gray', vmin=0, vmax=320)  # vmax above 255: slightly darker
            axis.imshow(
                np.ma.masked_less(weights.numpy() / largest, threshold),
                extent=covered,
                cmap=colours.cmap,
                norm=colours.norm,
                alpha=0.65,
                interpolation='nearest',
            )
            axis.plot(x, y, 'o', color='none', markersize=8, markeredgecolor='red')
            for left, top, right, bottom in boxes:
                size = right - left, bottom - top
                axis.add_patch(Rectangle((left, top), *size, fill=False, edgecolor='yellow', linestyle='--'))
            axis.set_xlabel(f'largest weight {largest:.2g}', fontsize=8)
    for axis, title in zip(axes[0], ('query', *maps.weights)):
        axis.set_title(title, fontsize=10)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[], xlim=(0, width), ylim=(height, 0))
    bar = figure.colorbar(colours, ax=axes, fraction=0.03, pad=0.01)
    bar.set_label(f'share of the largest weight\n(below {threshold:g} hidden)', fontsize=8)
    bar.ax.tick_params(labelsize=8)
    figure.suptitle(maps.layer + (f', pass {maps.run}' if maps.run > 1 else ''), fontsize=10)
    return rendered(figure)


def rendered(figure: Figure) -> np.ndarray:
    """Render a figure as uint8 ``(height, width, 3)``, RGB."""
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', r'Glyph .* missing from')  # drawn as a box
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def read_image(path: str, backend_args: dict | None = None) -> np.ndarray:
    """Read an image through mmengine's file client as uint8 ``(H, W, 3)``, RGB.

    Args:
        path (str): path or URL of the file.
        backend_args (dict, optional): arguments of the file client. Defaults to None.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: OpenCV cannot decode the file. The message names it.
    """
    if backend_args is None and os.path.isfile(path) and not is_plain_picture(path):
        return as_picture(read_channels(path))
    image = cv2.imdecode(np.frombuffer(get(path, backend_args=backend_args), np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise ValueError(f'{path} is not an image, or is truncated')
    return image[..., ::-1]
