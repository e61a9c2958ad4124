"""Draw the attention with which a model answers a question: words × regions, and the boxes with the largest weights."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

from mmattn.language.regions.box_pictures import BOX_COLOURS, draw_boxes
from mmattn.language.regions.region_store import grid_boxes
from mmattn.visualization.figure import COLOURS, rendered

from .answers import best_answers
from .questions import QuestionTokenizer

STRONGEST = 6  # boxes, as in Fig. 3
DECADES = 4  # the most that the colours span
PANEL = 4.2  # inches: the largest side of the picture
CELL = 0.1, 0.24  # inches: the smallest and the largest width of a region
ROW = 0.2  # inches: height of a row
MAP = 4.0  # inches: width of a map, if the cells allow it
NARROWEST = 1.5  # inches: width of a title
GAP = 0.25  # inches between parts
TITLE, LABELS = 0.28, 0.25  # inches above a map, and below it


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
    picture: np.ndarray | None = None,
    top_k: int = 5,
) -> np.ndarray:
    """Draw the attention with which a model answers a question, and its ``top_k`` best answers, with their scores.

    The arguments are as in :func:`question_attention` and :func:`draw_question_attention`. ``tokenizer`` splits the
    question into words. ``answers`` are all answers of the model. ``picture`` defaults to the picture that the model
    reads, or to a white one.
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
    return rendered(_figure(table, order, boxes.cpu(), size, picture, question, answers))


def _figure(
    table: AttentionTable,
    order: list[int],
    boxes: Tensor,
    size: tuple[int, int],
    picture: np.ndarray | None,
    question: str,
    answers: Sequence[tuple[str, float]],
) -> Figure:
    # All positions are in inches from the top left: a layout by matplotlib takes ten times as long.
    count, regions = len(table.weights), len(order)
    scale = PANEL / max(size)
    shown = size[0] * scale, size[1] * scale
    cell = min(max(MAP / regions, CELL[0]), CELL[1])
    margin = 0.15 + 0.075 * max(map(len, table.rows))
    wide, high = margin + max(cell * regions, NARROWEST), TITLE + ROW * len(table.rows) + LABELS
    across = 1 if count == 1 or wide > MAP + margin else 2
    left = max(shown[0], 3.0) + 2 * GAP
    bar = left + across * (wide + GAP) + 0.05
    first = f'the boxes of the first {min(STRONGEST, regions)} are in the picture'
    note = f'columns: {regions} regions, those with the largest weights in glimpse 1 first; {first}'
    width = max(bar + 0.95, 2 * GAP + 0.061 * len(note))
    heading = textwrap.wrap(question, int(width / 0.105)) or ['']
    top = 0.4 + 0.23 * len(heading)
    below = top + GAP + shown[1] + 0.15 + 0.19 * (len(answers) + 1) * bool(answers)
    height = max(below, top + -(-count // across) * high) + 0.15
    figure = Figure((width, height), dpi=110)

    def add_axes(x: float, y: float, wide: float, high: float) -> Axes:
        return figure.add_axes((x / width, 1 - (y + high) / height, wide / width, high / height))

    figure.text(GAP / width, 1 - 0.1 / height, '\n'.join(heading), fontsize=12, va='top', parse_math=False)
    figure.text(GAP / width, 1 - top / height, note, fontsize=8, va='bottom', color='0.3')
    axis = add_axes(GAP, top + GAP, *shown)
    draw_boxes(axis, picture, size, boxes[order[:STRONGEST]].tolist())
    if answers:
        y = top + GAP + shown[1] + 0.1
        column = max(5, *(len(answer) for answer, _ in answers))
        lines = ['score  answer', *(f'{score:5.3f}  {answer:<{column}}' for answer, score in answers)]
        figure.text(
            GAP / width, 1 - y / height, '\n'.join(lines), family='monospace', fontsize=9, va='top', parse_math=False
        )
    numbers = [str(number) for number in range(1, min(STRONGEST, regions) + 1)]
    norm, colours = _log_norm(table.weights), colormaps[COLOURS].with_extremes(bad='0.8')
    for number, (title, weights) in enumerate(zip(table.titles, table.weights)):
        x, y = left + number % across * (wide + GAP) + margin, top + number // across * high + TITLE
        axis = add_axes(x, y, cell * regions, ROW * len(table.rows))
        values = np.ma.masked_less_equal(weights[:, order].numpy(), 0)
        axis.imshow(values, cmap=colours, norm=norm, aspect='auto', interpolation='nearest')
        axis.set_title(title, fontsize=9, pad=4)
        axis.set_yticks(range(len(table.rows)), table.rows, fontsize=9, parse_math=False)
        axis.set_xticks(range(len(numbers)), numbers, fontsize=8)
        for label, colour in zip(axis.get_xticklabels(), BOX_COLOURS):
            label.set(color=colour, fontweight='bold')
        axis.tick_params(length=0, pad=2)
    side = add_axes(bar, top + TITLE, 0.16, 2.2)
    figure.colorbar(ScalarMappable(norm, colours), cax=side, extend='min' if _cut(table.weights) else 'neither')
    ticks = _ticks(norm)
    side.set_yticks(ticks, [f'{tick:.2g}' for tick in ticks], fontsize=8)
    side.set_yticks([], minor=True)
    side.set_ylabel('attention weight, log scale', fontsize=8)
    return figure


def _cut(weights: Tensor) -> bool:  # whether positive weights are below the span of the colours
    return bool(weights[weights > 0].numel() and weights[weights > 0].min() < weights.max() * 10**-DECADES)


def _log_norm(weights: Tensor) -> LogNorm:
    positive = weights[weights > 0]
    largest = float(positive.max()) if positive.numel() else 1.0
    smallest = max(float(positive.min()), largest * 10**-DECADES) if positive.numel() else largest
    if smallest > largest / 1.25:  # a constant map
        smallest, largest = smallest / 1.6, largest * 1.6
    return LogNorm(smallest, largest)


def _ticks(norm: LogNorm) -> list[float]:
    low, high = (np.log10(float(x)) for x in (norm.vmin, norm.vmax))  # type: ignore[arg-type]
    # the powers of ten in the span, or four values if there are too few
    powers = [10.0**k for k in range(int(np.ceil(low)), int(np.floor(high)) + 1)]
    return powers if len(powers) > 1 else np.logspace(low, high, 4).tolist()


def position_boxes(count: int, size: tuple[int, int]) -> Tensor:
    """Divide an image of ``size`` (width, height) into ``count`` cells, row by row: boxes ``(count, 4)`` in pixels.

    The cells are as square as possible. A ``count`` that does not fit the shape of the image raises a ValueError.
    """
    rows = max(1, round((count * size[1] / size[0]) ** 0.5))
    if count % rows:
        raise ValueError(f'count must be that of a map of the shape of the image, {size[0]}×{size[1]}; got {count}')
    return grid_boxes(size, rows, count // rows)
