"""Draw the attention with which a model answers a question: words × regions, and the boxes with the largest weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mmattn.language.regions.image_regions import grid_boxes
from mmattn.visualization.panels import (
    BOX_COLOURS,
    TITLE,
    Content,
    Panel,
    arrange,
    colour_bar,
    coloured,
    draw_boxes,
    resized,
    stretched,
    text,
)

from .answers import best_answers
from .questions import QuestionTokenizer

STRONGEST = 6  # boxes, as in Fig. 3
DECADES = 4  # the most that the colours span
SIDE = 460  # pixels: the largest side of the picture
CELL = 11, 26  # pixels: the smallest and the largest width of a region
ROW = 22  # pixels: height of a word
MAP = 440  # pixels: width of a map, if the cells allow it


class AttentionTable(NamedTuple):
    """Attention weights of a question as tables, ``(tables, rows, K)`` on the CPU, with their titles and row names."""

    titles: list[str]
    rows: list[str]
    weights: Tensor


@torch.no_grad()
def question_attention(model: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Run a model on one question. Returns the scores ``(A,)`` of all answers and the attention weights, on the CPU.

    The weights are ``(G, L, K)`` for words and regions, or ``(G, K)`` for regions. ``model`` has ``attention``, as
    :class:`VQAModel`, and is in evaluation mode. ``inputs`` are those of a sample of :class:`VQADataset`, not padded.
    """
    attention = getattr(model, 'attention', None)
    if attention is not None:
        batch = model.data_preprocessor(dict(inputs={name: [x] for name, x in inputs.items()}), False)['inputs']
        scores, weights = attention(batch)
        if weights is not None:
            return scores[0].cpu(), weights[0].cpu()
    kind = type(getattr(model, 'head', model)).__name__
    raise ValueError(f'the model must return attention weights; {kind} returns none')


def draw_answer_attention(
    model: Any,
    inputs: dict[str, Tensor],
    question: str,
    tokenizer: QuestionTokenizer,
    answers: Sequence[str],
    picture: np.ndarray | None,
    top_k: int,
) -> np.ndarray:
    """Draw the attention with which a model answers a question, and its ``top_k`` best answers, with their scores.

    The arguments are as in :func:`question_attention` and :func:`draw_question_attention`. ``tokenizer`` splits the
    question into words. ``answers`` are all answers of the model. None for ``picture`` is the picture that the
    model reads, or a white one.
    """
    scores, weights = question_attention(model, inputs)
    if 'image' in inputs:
        pixels = (inputs['image'] * 255).round().byte().permute(1, 2, 0).cpu().numpy()
        size = pixels.shape[1], pixels.shape[0]
        picture, boxes = pixels if picture is None else picture, position_boxes(weights.shape[-1], size)
    else:
        width, height = inputs['sizes'].tolist()
        size, boxes = (width, height), inputs['boxes']
        if not len(boxes):
            raise ValueError('inputs must have a region, so that there is attention to draw; got an image without any')
    best = best_answers(scores, answers, top_k)
    return draw_question_attention(weights, tokenizer.words(question), boxes, size, picture, question, best)


def attention_table(weights: Tensor, words: Sequence[str]) -> AttentionTable:
    """Arrange the weights of a question as tables: one per glimpse with a row per word, or one with a row per glimpse.

    ``weights`` are A of G glimpses, float ``(G, L, K)`` for words × regions, or ``(G, K)`` for regions alone. ``words``
    are at most L. Some models also attend to padding after the words: the row '(padding)' has the sum of these weights.
    """
    weights = weights.detach().float().cpu()
    if weights.dim() not in (2, 3) or not weights.numel():
        raise ValueError(f'weights must be (G, L, K) or (G, K), not empty; got {tuple(weights.shape)}')
    glimpses = [f'glimpse {g}' for g in range(1, len(weights) + 1)]
    if weights.dim() == 2:
        return AttentionTable(['attention to the regions'], glimpses, weights[None])
    if len(words) > weights.shape[1]:
        raise ValueError(f'words must be at most {weights.shape[1]}, the positions of weights; got {len(words)}')
    table, padding = weights[:, : len(words)], weights[:, len(words) :].sum(1, keepdim=True)
    if not padding.any():
        return AttentionTable(glimpses, [*words], table)
    return AttentionTable(glimpses, [*words, '(padding)'], torch.cat([table, padding], 1))


def region_order(weights: Tensor) -> list[int]:
    """Sort the regions by Σ_i A_0[i,j], the greatest first, for weights A ``(G, L, K)`` or ``(G, K)``."""
    sums = weights[0] if weights.dim() == 2 else weights[0].sum(0)
    return sums.argsort(descending=True, stable=True).tolist()


def draw_question_attention(
    weights: Tensor,
    words: Sequence[str],
    boxes: Tensor,
    size: tuple[int, int],
    picture: np.ndarray | None = None,
    question: str = '',
    answers: Sequence[tuple[str, float]] = (),
) -> np.ndarray:
    """Draw the attention maps of a question in log scale, and the six boxes that the first glimpse attends to most.

    The columns of the maps are the regions, sorted by Σ_i A_0[i,j], the greatest first. The first six have the numbers
    and colours of their boxes in the picture. The colours span at most four decades. A weight of 0 is grey. The result
    is uint8 ``(height, width, 3)``, RGB.

    ``weights`` and ``words`` are as in :func:`attention_table`. ``boxes``, left, top, right, bottom ``(K, 4)``, are in
    pixels of the image, whose width and height are ``size``. ``picture`` is the image, possibly reduced, uint8
    ``(H, W, 3)``, RGB, by default a white one. ``question`` is the heading. ``answers`` have scores, the best first.

    Source: "Bilinear Attention Networks", 2018, Fig. 3.
    """
    table = attention_table(weights, words)
    if boxes.shape != (weights.shape[-1], 4):
        raise ValueError(f'boxes must be ({weights.shape[-1]}, 4), one per region; got {tuple(boxes.shape)}')
    order = region_order(weights.detach().cpu())
    cell = min(max(MAP // len(order), CELL[0]), CELL[1])
    numbers = [str(number) for number in range(1, min(STRONGEST, len(order)) + 1)]
    columns = numbers + [''] * (len(order) - len(numbers))
    shares, ticks = log_shares(table.weights[..., order].numpy())
    maps = []
    for title, values in zip(table.titles, shares):
        map_picture = stretched(coloured(values), cell * len(order), ROW * len(table.rows))
        maps.append(Panel(map_picture, title, '', table.rows, columns, BOX_COLOURS))
    across = 1 if cell * len(order) > MAP else 2
    shown = resized(picture, *(max(3, round(SIDE * side / max(size))) for side in size))
    lines = ['score  answer', *(f'{score:5.3f}  {answer}' for answer, score in answers)]
    left = [[draw_boxes(shown, boxes[order[:STRONGEST]].tolist(), size)], [text(lines, TITLE, style='Mono')]]
    first = f'the boxes of the first {len(numbers)} are in the picture'
    note = f'columns: {len(order)} regions, those with the largest weights in glimpse 1 first; {first}'
    tables = arrange([maps[i : i + across] for i in range(0, len(maps), across)])
    parts: list[Content] = [left if answers else left[:1], tables, colour_bar('attention weight, log scale', ticks)]
    heading = text(question, 16, width=SIDE + tables.shape[1])
    return arrange([[heading], [text(note, colours='#4d4d4d')], parts], margin=12)


def log_shares(weights: np.ndarray) -> tuple[np.ndarray, dict[float, str]]:
    """Scale weights to logarithmic shares from 0 to 1, NaN for a weight of 0, with the ticks of their colour bar.

    The scale ends at the largest weight. It begins at the smallest, or ``DECADES`` below the largest.
    """
    positive = weights[weights > 0] if (weights > 0).any() else np.ones(1)
    high, low = np.log10(positive.max()), np.log10(positive.min())
    is_cut, low = low < high - DECADES, max(low, high - DECADES)
    if high - low < 0.1:  # a constant map
        low, high = low - 0.2, high + 0.2
    powers = [*range(int(np.ceil(low)), int(np.floor(high)) + 1)]
    values = powers if len(powers) > 1 else np.linspace(low, high, 4).tolist()
    ticks = {(value - low) / (high - low): f'{10.0**value:.2g}' for value in values}
    if is_cut:
        ticks = {share: tick for share, tick in ticks.items() if share > 0.1} | {0.0: f'≤ {10.0**low:.2g}'}
    shares = (np.log10(np.where(weights > 0, weights, np.nan)) - low) / (high - low)
    return np.clip(shares, 0, 1), ticks


def position_boxes(count: int, size: tuple[int, int]) -> Tensor:
    """Divide an image of ``size`` (width, height) into ``count`` cells, row by row: boxes ``(count, 4)`` in pixels.

    The cells are as square as possible. A ``count`` that does not fit the shape of the image raises a ValueError.
    """
    width, height = size
    divisors = [rows for rows in range(1, count + 1) if count % rows == 0]
    rows = min(divisors, key=lambda rows: abs(math.log(rows * rows * width / (count * height))))
    columns = count // rows
    # No stride gives such a map, up or down as it may round.
    if width * (rows - 1) >= height * (columns + 1) or height * (columns - 1) >= width * (rows + 1):
        raise ValueError(f'count must be that of a map of the shape of the image, {size[0]}×{size[1]}; got {count}')
    return grid_boxes(size, rows, columns)
