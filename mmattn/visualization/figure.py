"""The figure of attention maps, as in Fig. 3.4 of the bilateral-attention thesis: one row per query."""

import os
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from mmengine.fileio import get

from mmattn.utils.channels import as_picture, is_plain_picture, loaded_picture, read_channels

from .attention_maps import AttentionMaps
from .panels import Panel, arrange, colour_bar, draw_boxes, draw_dot, overlay, resized

WIDTH = 220  # pixels of a map


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
    small = resized(image, WIDTH)
    rows: list[list[Panel]] = []
    for (x, y), *of_query in zip(points, *maps.weights.values()):
        at = x * small.shape[1], y * small.shape[0]
        pixel = f'({int(x * image.shape[1])}, {int(y * image.shape[0])})'
        row = [Panel(draw_dot(small, *at), '' if rows else 'query', pixel)]
        for kind, weights in zip(maps.weights, of_query):
            largest = weights.max().item()
            picture = overlay(small, weights.numpy() / largest, threshold, maps.extent)
            picture = draw_boxes(picture, boxes, image.shape[1::-1], ['yellow'], dashed=True)
            picture = draw_dot(picture, *at, filled=False)
            row.append(Panel(picture, '' if rows else kind, f'largest weight {largest:.2g}'))
        rows.append(row)
    title = maps.layer + (f', pass {maps.run}' if maps.run > 1 else '')
    bar = colour_bar(f'share of the largest weight\n(below {threshold:g} hidden)')
    return arrange([[title], [rows, bar]], margin=10)


def image_loader(source: Any) -> Any:
    """Find the transform that loads the images of a data set, of one in a wrapper, or of a pipeline, for a network.

    None if they are loaded by a transform other than ``LoadImageFromFile`` and ``LoadChannels``, which may require more
    than the path.
    """
    if hasattr(source, 'color_type'):
        from mmcv.transforms import LoadImageFromFile  # lazy: attention maps are drawn without it

        known = hasattr(source, 'picture') or getattr(type(source), 'transform', None) is LoadImageFromFile.transform
        return source if known else None
    if isinstance(source, list | tuple):
        parts = source
    else:
        parts = [getattr(source, name, None) for name in ('datasets', 'dataset', 'pipeline', 'transforms')]
    return next((loader for part in parts if part is not None and (loader := image_loader(part)) is not None), None)


def read_image(path: str, backend_args: dict | None = None, loader: Any = None) -> np.ndarray:
    """Read an image as uint8 ``(H, W, 3)``, RGB.

    Args:
        path (str): path or URL of the file.
        backend_args (dict, optional): arguments of mmengine's file client, without a ``loader``. Defaults to None.
        loader (LoadImageFromFile, optional): the transform that loads it for a network, see :func:`image_loader`: the
            picture has the same orientation. Defaults to None: it is turned by its EXIF orientation.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: OpenCV cannot decode the file. The message names it.
    """
    if hasattr(loader, 'picture'):
        return loader.picture(path)
    if loader is not None:
        return loaded_picture(loader(dict(img_path=path))['img'])
    if backend_args is None and os.path.isfile(path) and not is_plain_picture(path):
        return as_picture(read_channels(path))
    image = cv2.imdecode(np.frombuffer(get(path, backend_args=backend_args), np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise ValueError(f'{path} is not an image, or is truncated')
    return image[..., ::-1]
