"""Draw the attention with which a model reads a sentence and writes its translation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from mmattn.language.inferencer import record_attention
from mmattn.visualization.attention_maps import attention_layers
from mmattn.visualization.figure import COLOURS, rendered

PARTS = ('encoder self-attention', 'decoder self-attention', 'cross-attention')
END = '</s>'
CELL = 0.13  # inches per piece
PANEL = 1.4, 8.0  # inches: the smallest and the largest side of a table
GAP = 0.12  # inches between tables
WIDEST = 120.0  # inches: the largest width of a figure


class SentenceAttention(NamedTuple):
    """Attention of one layer for one sentence."""

    layer: str  # name in the model
    part: str  # one of PARTS
    # 'content', 'position' and 'bilateral', as far as the layer has them: float (heads, queries, keys) on the CPU
    weights: dict[str, Tensor]


def attention_parts(model: Any, layer: int | None = None) -> dict[str, tuple[str, nn.Module]]:
    """Find the attention layers at one depth of encoder and decoder. Returns name → (part, module).

    ``layer`` is the number of the layer in its stack, from 1, or None for the last.
    """
    parts: dict[str, tuple[str, nn.Module]] = {}
    layers = attention_layers(model)
    for stack, part in zip(('encoder', 'decoder'), PARTS):
        depth = len(getattr(model, stack).layers)
        if layer is not None and not 1 <= layer <= depth:
            raise ValueError(f'layer must be from 1 to {depth}, the layers of the {stack}; got {layer}')
        prefix = f'{stack}.layers.{(depth if layer is None else layer) - 1}.'
        for name, module in layers.items():
            if name.startswith(prefix):
                parts[name] = (PARTS[2] if '.cross_attention' in name else part, module)
    if not parts:
        which = 'the last' if layer is None else f'number {layer}'
        raise ValueError(f'layer must have attention weights; {which} has none, these have: {", ".join(layers)}')
    return parts


@torch.no_grad()
def sentence_attention(model: Any, source: Tensor, target: Tensor, layer: int | None = None) -> list[SentenceAttention]:
    """Run a model on a sentence and its translation, and record the attention weights of each layer at one depth.

    ``model`` is as :class:`TranslationTransformer`, in evaluation mode. ``source``, int64 ``(M)``, is the sentence, and
    ``target``, int64 ``(L)``, its translation, both with ``</s>``. A decoder query is the position that writes a piece.
    A key of its self-attention is a piece that it has read, first ``</s>``. ``layer`` is as in :func:`attention_parts`.
    """
    parts = attention_parts(model, layer)
    with record_attention({name: module for name, (_, module) in parts.items()}) as rows:
        model.hidden(source[None], target[None])
    return [SentenceAttention(name, parts[name][0], weights) for name, weights in rows]


def attention_figure(attention: Sequence[SentenceAttention], source: Sequence[str], target: Sequence[str]) -> Figure:
    """Build the figure of :func:`draw_sentence_attention` from the same arguments."""
    read = [END, *target[:-1]]
    labels = dict(zip(PARTS, ((source, source), (target, read), (target, source))))
    rows = [(entry, kind, weights) for entry in attention for kind, weights in entry.weights.items()]
    heads = max(len(weights) for _, _, weights in rows)
    largest = min(PANEL[1], WIDEST / heads)

    def side(pieces: Sequence[str]) -> float:
        return min(max(CELL * len(pieces), PANEL[0]), largest)

    def size(pieces: Sequence[str]) -> float:
        return min(7.0, 54 * side(pieces) / len(pieces))  # points, 72 per inch

    def margin(pieces: Sequence[str]) -> float:
        return 0.08 + max(map(len, pieces)) * size(pieces) / 72 * 0.75

    # In inches. A layout that matplotlib computes takes ten times as long.
    left = 0.5 + max(margin(labels[entry.part][0]) for entry in attention)
    across = max(side(labels[entry.part][1]) for entry in attention)
    width = left + heads * (across + GAP)
    last = [kind == [*entry.weights][-1] for entry, kind, _ in rows]  # the row of tables that labels its keys
    below = [margin(labels[entry.part][1]) if end else 0.0 for (entry, _, _), end in zip(rows, last)]
    height = 0.3 + sum(side(labels[entry.part][0]) + 0.3 for entry, _, _ in rows) + sum(below)
    figure = Figure((width, height))
    figure.text(0.05 / width, 1 - 0.05 / height, '; '.join(entry.layer for entry in attention), fontsize=8, va='top')
    top = height - 0.3
    for (entry, kind, weights), end, space in zip(rows, last, below):
        queries, keys = labels[entry.part]
        top -= 0.3 + side(queries)
        for head, table in enumerate(weights):
            x = left + head * (across + GAP)
            axis = figure.add_axes((x / width, top / height, across / width, side(queries) / height))
            share = (table / table.amax(1, keepdim=True)).numpy()
            axis.imshow(share, cmap=COLOURS, vmin=0, vmax=1, aspect='auto', interpolation='nearest')
            axis.set_title(f'head {head + 1}, largest {table.max().item():.2g}', fontsize=7, pad=3)
            axis.set_xticks([])
            axis.set_yticks([])
            if end:
                axis.set_xticks(range(len(keys)), keys, rotation=90, fontsize=size(keys), parse_math=False)
            if head == 0:
                axis.set_yticks(range(len(queries)), queries, fontsize=size(queries), parse_math=False)
                figure.text(
                    0.05 / width,
                    (top + side(queries) / 2) / height,
                    f'{entry.part}\n{kind}',
                    fontsize=8,
                    rotation=90,
                    va='center',
                )
            axis.tick_params(length=0, pad=2)
        top -= space
    return figure


def draw_sentence_attention(
    attention: Sequence[SentenceAttention], source: Sequence[str], target: Sequence[str]
) -> np.ndarray:
    """Draw attention weights as tables: one row of tables per layer and kind, one column per head.

    In a table, rows are queries and columns are keys, labelled with their pieces: ``source``, M pieces of the sentence,
    and ``target``, L pieces of its translation, both with ``</s>``. The decoder's rows are the pieces that it writes.
    The columns of its self-attention are the pieces that it has read. Colours show shares of the largest weight in the
    row, and the largest weight of a table is above it. The picture is uint8 ``(height, width, 3)``, RGB.
    """
    sizes = dict(zip(PARTS, ((len(source), len(source)), (len(target), len(target)), (len(target), len(source)))))
    for entry in attention:
        for weights in entry.weights.values():
            if tuple(weights.shape[1:]) != sizes[entry.part]:
                raise ValueError(
                    f'{entry.layer} must have weights of {sizes[entry.part]} queries and keys, as source and target; '
                    f'got {tuple(weights.shape[1:])}'
                )
    return rendered(attention_figure(attention, source, target))
