"""Attention of SST on the frames of a clip, and the voxels that reach a query through several layers (Fig. 5.4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmattn.visualization.attention_maps import attention_layers
from mmattn.visualization.panels import Panel, arrange, colour_bar, draw_dot, overlay, resized

from .masks import draw_overlay
from .session import ClipSession, Frame
from .sst import SST

Query = tuple[int, float, float]
WIDTH = 170  # pixels of a frame


@dataclass
class ClipAttention:
    """Attention of a query to the voxels of a clip: T frames of H×W positions.

    Attributes:
        layer (str): name of the layer in the model.
        weights (dict[str, Tensor]): kind → float ``(T, H, W)`` on the CPU, the mean over heads.
        reached (list[Tensor]): bool ``(T, H, W)`` each. Entry n − 1 marks the voxels whose information reaches the
            query through n such layers. The last entry is the first that further layers do not change.
        ids (list[np.ndarray]): predicted objects in each frame, uint8.
        extent (tuple[float, float]): width and height of a map relative to the frame: more than 1 if it was padded.
    """

    layer: str
    weights: dict[str, Tensor]
    reached: list[Tensor]
    ids: list[np.ndarray]
    extent: tuple[float, float]


def clip_attention(
    model: SST, frames: Sequence[Frame], query: Query, layer: str | None = None, kinds: Sequence[str] | None = None
) -> ClipAttention:
    """Follow the objects of the first frame through a clip, and compute the attention of one query of a layer.

    The model processes all frames at once. In the decoder, the attention is that of the first object.

    Args:
        model (SST): in evaluation mode.
        frames (sequence of Frame): at least two. The first one, and no other, has a mask.
        query (tuple[int, float, float]): index in ``frames``, and x and y in [0, 1), relative to the frame.
        layer (str, optional): name of the attention layer. Defaults to the last one.
        kinds (sequence of str, optional): kinds of weights. Defaults to 'bilateral' if the layer has it, otherwise to
            all kinds of the layer.
    """
    name, module = [*attention_layers(model, layer, kinds, clips=True).items()][-1]
    existing: Sequence[str] = module.attention_kinds  # type: ignore[assignment]
    shown = kinds or [kind for kind in ('bilateral',) if kind in existing] or existing
    session = ClipSession(model, scale=model.test_cfg.get('scale'))  # type: ignore[union-attr, operator]
    height, width = session.resize(frames[0].image).shape[:2]
    pad = model.data_preprocessor.pad_size_divisor
    extent = (width + -width % pad) / width, (height + -height % pad) / height
    time, x, y = query
    results: list[ClipAttention] = []

    def before(module: Any, args: tuple[Tensor, ...], kwargs: dict) -> None:
        if results:  # of the first object
            return
        size = args[0].shape[1:4]
        at = time, int(y / extent[1] * size[1]), int(x / extent[0] * size[2])
        weights = {}
        for kind in shown:
            row = module.attention_weights(*args, **kwargs, queries=torch.tensor([at]), kind=kind)[0, :, 0].mean(0)
            weights[kind] = row[: size[0], : size[1], : size[2]].float().cpu()  # without the padding to whole cubes
        voxels = torch.zeros(size, dtype=torch.bool)
        voxels[at] = True
        reached = [module.reach(voxels)]
        while not torch.equal(further := module.reach(reached[-1]), reached[-1]):
            reached.append(further)
        results.append(ClipAttention(name, weights, reached, [], extent))

    handle = module.register_forward_pre_hook(before, with_kwargs=True)
    try:
        ids = [ids for _, ids in session.segment(frames)]
    finally:
        handle.remove()
    results[0].ids = ids
    return results[0]


def draw_clip_attention(
    frames: Sequence[Frame], query: Query, attention: ClipAttention, threshold: float = 0.02
) -> np.ndarray:
    """Draw a column per frame: the objects with the query as a red dot, the weights, and what reaches the query.

    Weights below ``threshold`` of the largest weight are hidden. The largest weight of each kind, over all frames, is
    printed at its left. Arguments are as in :func:`clip_attention`. Returns uint8 ``(height, width, 3)``, RGB.
    """
    time, x, y = query
    largest = {kind: weights.max() for kind, weights in attention.weights.items()}
    maps = {
        f'{kind} weights\nlargest {largest[kind]:.2g}': weights / largest[kind]
        for kind, weights in attention.weights.items()
    }
    for count, step in enumerate(attention.reached, 1):
        maps[f'can reach the dot\nin {count} layer{"s" if count > 1 else ""}'] = torch.where(step, 1.0, torch.nan)
    rows: list[list[Panel]] = [[] for _ in range(1 + len(maps))]
    for t, frame in enumerate(frames):
        objects = draw_overlay(frame.image, attention.ids[t], 0.5)
        small, objects = (resized(picture[..., ::-1], WIDTH) for picture in (frame.image, objects))
        shares = [part[t].numpy() for part in maps.values()]
        column = [objects, *(overlay(small, share, threshold, attention.extent) for share in shares)]
        for row, picture, label in zip(rows, column, ('objects', *maps)):
            panel = Panel(draw_dot(picture, x * WIDTH, y * small.shape[0]) if t == time else picture)
            if t == 0:
                panel.rows = [label]
            if picture is objects:
                panel.title = f'frame {frame.number}' + (', given' if frame.mask is not None else '')
            row.append(panel)
    bar = colour_bar(f'share of the largest weight (below {threshold:g} hidden)', height=300)
    return arrange([[f'attention of the red dot, {attention.layer}'], [rows, bar]], margin=10)
