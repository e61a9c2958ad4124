"""Geometric weights φ¹ over the place and the size of a second box, as in Fig. 3 and 4 of the paper on NG-SAN."""

import numpy as np
import torch
from torch import Tensor, nn

from mmattn.language.layers.position_encodings import MIN_DISTANCE
from mmattn.language.layers.region_attention import RegionAttention
from mmattn.visualization.panels import Panel, arrange, colour_bar, coloured, draw_boxes, stretched

RATIOS = (4.0, 1.0, 0.25)  # w_i/w_j and h_i/h_j of the upper panels: a smaller, an equal and a larger second box
DISTANCES = (0.0, 1.0, 3.0)  # |x_i − x_j|/w_i and |y_i − y_j|/h_i of the lower panels
FARTHEST = 3.0
SPREAD = 8.0  # largest ratio of the lower panels
CELLS = 61  # odd: one cell is the middle
SIDE = 244  # pixels of a panel
PLACES, SIZES = (-FARTHEST, 0, FARTHEST), (1 / SPREAD, 1, SPREAD)  # ticks of the panels


def geometry_layers(model: nn.Module, name: str | None = None) -> dict[str, RegionAttention]:
    """Map names to the layers of a model with ``geometry='content_independent'``: to all, or only to ``name``.

    If there is no such layer, or none of this name, a ValueError says so.
    """
    modules = model.named_modules()
    layers = {
        key: layer
        for key, layer in modules
        if isinstance(layer, RegionAttention) and 'content_independent' in layer.geometry
    }
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no mmattn.RegionAttention with geometry='content_independent': only its "
            'geometric weights depend on the boxes alone'
        )
    if name is not None and name not in layers:
        raise ValueError(f'layer must be one of {", ".join(layers)}; got {name}')
    return layers if name is None else {name: layers[name]}


@torch.no_grad()
def geometric_weights(layer: RegionAttention, distance: Tensor, size_ratio: Tensor) -> Tensor:
    """Compute φ¹ (Eq. 11) for pairs of boxes i and j, before its division by √d: ``(heads, *S)``, at least 0.

    ``distance`` is float ``(*S, 2)``, (x_j − x_i)/w_i and (y_j − y_i)/h_i of the centres. Signs do not matter, and
    absolute values below 1e-3 count as 1e-3. ``size_ratio`` is positive float ``(*S, 2)``, w_i/w_j and h_i/h_j.
    """
    features = torch.cat([distance.abs().clamp(min=MIN_DISTANCE), size_ratio], -1).log()
    logits = layer.geometry_logits('content_independent', features.to(layer.geometry_proj.weight).view(1, 1, -1, 4))
    return logits[0, :, 0].unflatten(-1, features.shape[:-1])


def draw_geometric_weights(layers: dict[str, RegionAttention]) -> np.ndarray:
    """Draw φ¹ of the last of these layers, the mean over its heads, as uint8 ``(height, width, 3)``, RGB.

    Upper panels: over the place of the centre of box j around box i, for three sizes of j. Lower panels: over the
    ratios of the sides, in log scale, for three distances.
    """
    name, layer = [*layers.items()][-1]
    offsets = torch.linspace(-FARTHEST, FARTHEST, CELLS)
    ratios = SPREAD ** torch.linspace(-1, 1, CELLS)
    place = torch.stack(torch.meshgrid(offsets, offsets, indexing='xy'), -1)
    shape = torch.stack(torch.meshgrid(ratios, ratios, indexing='xy'), -1)
    upper = [geometric_weights(layer, place, torch.full_like(place, ratio)).mean(0).cpu() for ratio in RATIOS]
    lower = [geometric_weights(layer, torch.full_like(shape, far), shape).mean(0).cpu() for far in DISTANCES]
    largest = max(x.max().item() for x in upper + lower) or 1.0

    def panel(values: Tensor, title: str, x: str, y: str, ticks: tuple[float, float, float], turn: int) -> Panel:
        picture = stretched(coloured(values.numpy() / largest), SIDE, SIDE)
        if ticks == PLACES:  # box i, in units of its sides
            size = 2 * FARTHEST * CELLS / (CELLS - 1)  # a cell is around its value
            picture = draw_boxes(
                picture, [[size / 2 + x for x in (-0.5, -0.5, 0.5, 0.5)]], (size,) * 2, ['white'], dashed=True
            )
        labels = [''] * CELLS
        labels[:: CELLS // 2] = [f'{tick:g}' for tick in ticks]
        return Panel(picture[::turn], title, x, labels[::turn], labels, side=y)

    offsets_names = '(x_j − x_i) / w_i', '(y_j − y_i) / h_i'
    rows = [
        [panel(values, f'box j {_size(ratio)}', *offsets_names, PLACES, 1) for values, ratio in zip(upper, RATIOS)],
        [panel(values, _distance(far), 'w_i / w_j', 'h_i / h_j', SIZES, -1) for values, far in zip(lower, DISTANCES)],
    ]
    ticks = {n / 4: f'{largest * n / 4:.2g}' for n in range(5)}
    bar = colour_bar('geometric weight φ¹, mean over heads', ticks, 2 * SIDE)
    title = f'{name}: weight of box j for box i (dashed, width w_i and height h_i)'
    return arrange([[title], [rows, bar]], margin=10)


def _size(ratio: float) -> str:
    if ratio == 1:
        return 'as large as box i'
    return f'{ratio:g} times smaller, each side' if ratio > 1 else f'{1 / ratio:g} times larger, each side'


def _distance(far: float) -> str:
    return 'centres coincide' if far == 0 else f'centres {far:g} w_i and {far:g} h_i apart'
