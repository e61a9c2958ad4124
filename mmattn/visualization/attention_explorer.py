"""A self-contained web page with the attention maps of a grid of queries."""

import json
import math
import zlib
from base64 import b64encode
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.progress import Progress
from torch import Tensor

from mmattn.ops.chunks import chunks

from .attention_maps import AttentionRun
from .panels import coloured

TEMPLATE = Path(__file__).with_suffix('.html')
LEVELS = 255
MAX_BYTES = 4 * 2**20
IMAGE_SIDE = 1024
SAMPLE = 4  # queries along the longer side of the trial page that estimates the size per query


def attention_explorer(
    image: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    palette: Sequence[Sequence[int]],
    runs: Sequence[AttentionRun],
    title: str = '',
    grid: int = 24,
    max_bytes: int = MAX_BYTES,
    show_progress: bool = False,
) -> str:
    """Build an HTML page that shows the attention maps of the query nearest to the pointer.

    The page contains the maps of a grid of queries, of each head and their mean, in 8 bits relative to the map's
    largest weight. It requires a browser of 2023 or later, which decompresses the maps. The image is reduced to at most
    1024 pixels per side.

    Args:
        image (np.ndarray): uint8 ``(H, W, 3)``, RGB.
        labels (np.ndarray): integer ``(H, W)``, 0 to 255, the predicted class of each pixel.
        classes (sequence of str): names of the classes.
        palette (sequence of sequences of int): red, green and blue of each class, 0 to 255.
        runs (sequence of AttentionRun): runs for this image, from :func:`~mmattn.visualization.attention_runs`.
        title (str): text above the image. Defaults to ''.
        grid (int): maximum number of queries along the longer side, at least 1. It is reduced if the page would exceed
            ``max_bytes``. Defaults to 24.
        max_bytes (int): maximum size of the page in bytes. Defaults to 4 MiB.
        show_progress (bool): show a progress bar. Defaults to False.

    Returns:
        str: the page. Write it as UTF-8.

    Raises:
        ValueError: weights are not finite, or even a page with one query is larger than ``max_bytes``.
    """
    height, width = image.shape[:2]
    if grid < 1:
        raise ValueError(f'grid must be at least 1; got {grid}')
    if labels.shape != (height, width):
        raise ValueError(f'labels must have shape {(height, width)}, as the image; got {labels.shape}')
    scene = dict(
        title=title,
        width=width,
        height=height,
        image=_image_url(Image.fromarray(np.ascontiguousarray(image)), 'JPEG', Image.Resampling.LANCZOS),
        prediction=_prediction_url(labels, palette),
        classes={label: [classes[label], *map(int, palette[label])] for label in np.unique(labels).tolist()},
        colours=_base64(coloured(np.arange(LEVELS + 1) / LEVELS).tobytes()),
    )
    template = TEMPLATE.read_text(encoding='utf-8')

    with Progress(disable=not show_progress) as progress:

        def page(side: int) -> str:
            columns, rows = (max(1, round(side * length / max(width, height))) for length in (width, height))
            points = [((x + 0.5) / columns, (y + 0.5) / rows) for y in range(rows) for x in range(columns)]
            total = len(points) * sum(len(run.kinds) for run in runs)
            task = progress.add_task(f'{columns}×{rows} queries', total=total)
            data = dict(
                scene,
                columns=columns,
                rows=rows,
                labels=[int(labels[int(y * height), int(x * width)]) for x, y in points],
                runs=[_encode(run, points, lambda count: progress.advance(task, count)) for run in runs],
            )
            return template.replace('$data', json.dumps(data, separators=(',', ':')).replace('<', r'\u003c'))

        sample = min(grid, SAMPLE)
        fixed = len(template) + len(json.dumps(scene))
        room = max(0, max_bytes - fixed) / (len(page(sample)) - fixed)
        for side in range(min(grid, int(sample * math.sqrt(room))), 0, -1):
            html = page(side)
            if len(html.encode()) <= max_bytes:
                return html
    raise ValueError(f'a page with one query is larger than {max_bytes} bytes; select one layer, or increase max_bytes')


def _encode(run: AttentionRun, points: Sequence[tuple[float, float]], advance: Callable[[int], None]) -> dict:
    maps = {}
    for kind in run.kinds:
        levels, largest = [], []
        bytes_each = _with_mean(run.weights(points[:1], kind)).nbytes
        for part in chunks(len(points), bytes_each):
            weights = _with_mean(run.weights(points[part], kind))
            most = weights.amax((2, 3), keepdim=True)
            if not most.isfinite().all():
                raise ValueError(f'the {kind} weights of {run.layer} are not finite')
            levels.append((weights / most * LEVELS).round().to(torch.uint8))
            largest.append(most[..., 0, 0])
            advance(most.shape[1])
        maps[kind] = [
            dict(largest=[float(f'{weight:.6g}') for weight in most], levels=_base64(zlib.compress(level.numpy(), 9)))
            for level, most in zip(torch.cat(levels, 1), torch.cat(largest, 1).tolist())
        ]
    height, width = run.feature.shape[-2:]
    name = run.layer + (f', pass {run.run}' if run.run > 1 else '')
    return dict(name=name, width=width, height=height, extent=run.extent, maps=maps)


def _with_mean(weights: Tensor) -> Tensor:
    return weights if len(weights) == 1 else torch.cat([weights.mean(0, keepdim=True), weights])


def _prediction_url(labels: np.ndarray, palette: Sequence[Sequence[int]]) -> str:
    colours = Image.fromarray(labels.astype(np.uint8))
    colours.putpalette(np.array(palette, np.uint8).tobytes())
    return _image_url(colours, 'PNG', Image.Resampling.NEAREST)


def _image_url(image: Image.Image, form: str, resampling: Image.Resampling) -> str:
    image.thumbnail((IMAGE_SIDE, IMAGE_SIDE), resampling)
    file = BytesIO()
    image.save(file, form, quality=85, optimize=True)
    return f'data:image/{form.lower()};base64,{_base64(file.getvalue())}'


def _base64(content: bytes) -> str:
    return b64encode(content).decode()
