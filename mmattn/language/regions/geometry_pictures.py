"""Geometric weights φ¹ over the place and the size of a second box, as in Fig. 3 and 4 of the paper on NG-SAN."""

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from mmattn.language.layers.position_encodings import MIN_DISTANCE
from mmattn.language.layers.region_attention import RegionAttention
from mmattn.visualization.figure import rendered

RATIOS = (4.0, 1.0, 0.25)  # w_i/w_j and h_i/h_j of the upper panels: a smaller, an equal and a larger second box
DISTANCES = (0.0, 1.0, 3.0)  # |x_i − x_j|/w_i and |y_i − y_j|/h_i of the lower panels
FARTHEST = 3.0
SPREAD = 8.0  # largest ratio of the lower panels
CELLS = 61  # odd: one cell is the middle


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
    return rendered(geometry_figure(layers))


def geometry_figure(layers: dict[str, RegionAttention]) -> Figure:
    """Build the figure of :func:`draw_geometric_weights`."""
    name, layer = [*layers.items()][-1]
    offsets = torch.linspace(-FARTHEST, FARTHEST, CELLS)
    ratios = SPREAD ** torch.linspace(-1, 1, CELLS)
    place = torch.stack(torch.meshgrid(offsets, offsets, indexing='xy'), -1)
    shape = torch.stack(torch.meshgrid(ratios, ratios, indexing='xy'), -1)
    upper = [geometric_weights(layer, place, torch.full_like(place, ratio)).mean(0).cpu() for ratio in RATIOS]
    lower = [geometric_weights(layer, torch.full_like(shape, far), shape).mean(0).cpu() for far in DISTANCES]
    figure = Figure((9.6, 6.9), layout='constrained')
    axes = figure.subplots(2, 3)
    limits = dict(cmap='viridis', vmin=0, vmax=max(x.max().item() for x in upper + lower) or 1.0)
    for axis, values, ratio in zip(axes[0], upper, RATIOS):
        mesh = axis.pcolormesh(offsets, offsets, values, shading='nearest', **limits)
        axis.add_patch(Rectangle((-0.5, -0.5), 1, 1, fill=False, edgecolor='white', linewidth=1.5))
        axis.set_title(f'box j {_size(ratio)}', fontsize=10)
        axis.set(xlabel='(x_j − x_i) / w_i', ylabel='(y_j − y_i) / h_i', aspect='equal')
        axis.set(xlim=(-FARTHEST, FARTHEST), ylim=(FARTHEST, -FARTHEST))  # y points down, as in images
    for axis, values, far in zip(axes[1], lower, DISTANCES):
        axis.pcolormesh(ratios, ratios, values, shading='nearest', **limits)
        axis.set_title(_distance(far), fontsize=10)
        axis.set(xlabel='w_i / w_j', ylabel='h_i / h_j', xscale='log', yscale='log', aspect='equal')
        ticks = [1 / SPREAD, 1, SPREAD]
        axis.set_xticks(ticks, [f'{tick:g}' for tick in ticks])
        axis.set_yticks(ticks, [f'{tick:g}' for tick in ticks])
        axis.minorticks_off()
    figure.colorbar(mesh, ax=axes, fraction=0.03, pad=0.02).set_label('geometric weight φ¹, mean over heads')
    figure.suptitle(f'{name}: weight of box j for box i (white, width w_i and height h_i)', fontsize=11)
    return figure


def _size(ratio: float) -> str:
    if ratio == 1:
        return 'as large as box i'
    return f'{ratio:g} times smaller, each side' if ratio > 1 else f'{1 / ratio:g} times larger, each side'


def _distance(far: float) -> str:
    return 'centres coincide' if far == 0 else f'centres {far:g} w_i and {far:g} h_i apart'
