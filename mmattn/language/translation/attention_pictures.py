"""Draw the attention with which a model reads a sentence and writes its translation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mmattn.language.inferencer import record_attention
from mmattn.visualization.attention_maps import attention_layers
from mmattn.visualization.panels import Panel, arrange, coloured, stretched, text

PARTS = ('encoder self-attention', 'decoder self-attention', 'cross-attention')
END = '</s>'
CELL = 13  # pixels per piece
SIDES = 140, 800  # pixels: the smallest and the largest side of a table
WIDEST = 12_000  # pixels: the largest width of a row of tables


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
    labels = dict(zip(PARTS, ((source, source), (target, [END, *target[:-1]]), (target, source))))
    heads = max(len(weights) for entry in attention for weights in entry.weights.values())

    def side(pieces: Sequence[str]) -> int:
        return min(max(CELL * len(pieces), SIDES[0]), SIDES[1], WIDEST // heads)

    rows: list[list] = [[text('; '.join(entry.layer for entry in attention))]]
    for entry in attention:
        queries, keys = labels[entry.part]
        for kind, weights in entry.weights.items():
            rows.append([])
            for head, table in enumerate(weights, 1):
                shares = (table / table.amax(1, keepdim=True)).numpy()
                picture = stretched(coloured(shares), side(keys), side(queries))
                panel = Panel(picture, f'head {head}, largest {table.max().item():.2g}')
                if head == 1:
                    panel.rows, panel.side = queries, f'{entry.part}\n{kind}'
                if kind == [*entry.weights][-1]:
                    panel.columns = keys
                rows[-1].append(panel)
    return arrange(rows, margin=5)
