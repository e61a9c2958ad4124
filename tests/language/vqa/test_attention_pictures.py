"""Pictures of attention: the tables, the order of the regions, boxes and colours in the pixels."""

import itertools

import numpy as np
import pytest
import torch

from mmattn.language.regions.image_regions import grid_boxes
from mmattn.language.vqa.attention_pictures import (
    attention_table,
    draw_answer_attention,
    draw_question_attention,
    log_shares,
    position_boxes,
    question_attention,
    region_order,
)
from mmattn.language.vqa.encoders import ConvImageEncoder
from mmattn.language.vqa.questions import QuestionTokenizer
from mmattn.visualization.panels import BOX_COLOURS, coloured

from ..failing import failing
from ..world import ANSWERS, BAN, PICTURES, UNITARY, WORDS, random_model

SIZE = (60, 40)


def softmax(*shape, seed=0):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    return x.flatten(1).softmax(-1).view(shape)


def boxes_of(count):
    corner = torch.rand(count, 2, generator=torch.Generator().manual_seed(1)) * 20
    return torch.cat([corner, corner + 12], 1)


def test_tables_keep_every_weight():
    weights = softmax(2, 7, 9)
    table = attention_table(weights, ['what', 'is', 'this'])
    assert (table.titles, table.rows) == (['glimpse 1', 'glimpse 2'], ['what', 'is', 'this', '(padding)'])
    torch.testing.assert_close(table.weights[:, :3].double(), weights[:, :3], rtol=1e-6, atol=0)
    torch.testing.assert_close(table.weights.sum((1, 2)), torch.ones(2))
    weights[:, 3:] = 0  # a model that masks words
    assert attention_table(weights, ['what', 'is', 'this']).rows == ['what', 'is', 'this']
    assert attention_table(weights, []).rows == ['(padding)']
    alone = attention_table(weights[:, 0], ['what'])
    assert (alone.titles, alone.rows) == (['attention to the regions'], ['glimpse 1', 'glimpse 2'])
    assert torch.equal(alone.weights[0], weights[:, 0].float())


def test_regions_are_in_the_order_of_their_sum_in_the_first_glimpse():
    weights = softmax(2, 7, 9)
    sums = [sum(weights[0, i, j].item() for i in range(7)) for j in range(9)]
    assert region_order(weights) == sorted(range(9), key=lambda j: -sums[j])
    assert region_order(weights[:, 0]) == sorted(range(9), key=lambda j: -weights[0, 0, j])
    assert region_order((torch.arange(100) % 2).expand(2, 7, 100)) == [*range(1, 100, 2), *range(0, 100, 2)]


def test_maps_and_boxes_of_the_picture(drawn_panels):
    weights, boxes = softmax(2, 7, 9), boxes_of(9)
    weights[1, 2, 3] = 0
    words, order = ['what', 'is', 'this'], region_order(weights)
    draw_question_attention(weights, words, boxes, SIZE, None, 'What?', [('dog', 0.75), ('cat', 0.25)])
    maps = [panel for panel in drawn_panels if panel.columns]
    table = attention_table(weights, words).weights[..., order].numpy()
    shares, _ = log_shares(table)
    assert np.isnan(shares).sum() == (table == 0).sum() == 1
    for panel, share in zip(maps, shares, strict=True):
        np.testing.assert_array_equal(panel.picture[11::22, 13::26], coloured(share))
        assert [*panel.rows] == [*words, '(padding)']
        assert [*panel.columns] == ['1', '2', '3', '4', '5', '6', '', '', '']
        assert [*panel.colours] == [*BOX_COLOURS]
    (shown,) = (panel.picture for panel in drawn_panels if panel.picture.shape == (307, 460, 3))
    scale, first = 460 / SIZE[0], boxes[order[0]]
    left, top, right, bottom = (first * scale).round().int().tolist()
    for y, x in (((top + bottom) // 2, left + 1), (bottom - 1, (left + right) // 2)):
        assert tuple(shown[y, x]) == (0xD4, 0, 0x2A)


def test_logarithmic_shares_and_their_ticks():
    shares, ticks = log_shares(np.array([[0.2, 0.02], [0.0002, 0.0]]))
    np.testing.assert_allclose(shares, [[1, 2 / 3], [0, np.nan]], atol=1e-12)
    assert [*ticks.values()] == ['0.001', '0.01', '0.1']
    np.testing.assert_allclose([*ticks], [1 - np.log10(0.2 / float(tick)) / 3 for tick in ticks.values()])
    shares, ticks = log_shares(np.array([1.0, 1e-2, 1e-7]))  # more than four decades
    np.testing.assert_allclose(shares, [1, 0.5, 0])
    assert ticks[0] == '≤ 0.0001'
    shares, ticks = log_shares(np.full(3, 0.3))
    np.testing.assert_allclose(shares, 0.5)
    assert len(ticks) > 1


def test_the_picture_is_drawn_and_maps_of_one_value_as_well():
    red = np.zeros((20, 30, 3), np.uint8)
    red[..., 0] = 250
    constant = torch.full((1, 2, 3), 1 / 6)
    for picture, count in ((red, 1000), (None, 0)):
        drawn = draw_question_attention(constant, ['a', 'b'], boxes_of(3), SIZE, picture)
        assert (drawn.dtype, drawn.shape[2]) == (np.uint8, 3)
        found = (drawn == [250, 0, 0]).all(-1).sum()
        assert found > count if count else found == 0
    draw_question_attention(torch.zeros(1, 2, 3), ['$x^2$', '有'], boxes_of(3), SIZE)  # no weight, no formula, no glyph


def test_positions_of_a_map_are_its_cells():
    boxes = position_boxes(8, (40, 20))  # 2 × 4
    assert boxes[5].tolist() == [10, 10, 20, 20]
    assert boxes[-1].tolist() == [30, 10, 40, 20]
    assert position_boxes(1, (40, 9)).tolist() == [[0, 0, 40, 9]]


def test_positions_have_the_rows_of_the_map():
    """Of every picture: each stride rounds a side up."""
    encoder = ConvImageEncoder(channels=(1, 1, 1, 1)).eval()
    sides = range(32, 260, 13)
    for width, height in [(64, 33), (225, 256), *itertools.product(sides, sides)]:
        with torch.no_grad():
            rows, columns = encoder.layers(torch.zeros(1, 3, height, width)).shape[2:]
        boxes = position_boxes(rows * columns, (width, height))
        assert torch.equal(boxes, grid_boxes((width, height), rows, columns))


@pytest.mark.parametrize('config', [BAN, UNITARY, PICTURES])
def test_attention_of_a_model(config):
    """Equal to that of the layer, for one question; the picture has one box per region."""
    model, tokenizer = random_model(config), QuestionTokenizer(WORDS, max_words=7)
    generator = torch.Generator().manual_seed(0)
    inputs = dict(question=tokenizer('What is the dog?'))
    if config is PICTURES:
        inputs['image'] = torch.rand(3, 16, 16, generator=generator)
    else:
        inputs |= dict(features=torch.randn(5, 6, generator=generator), boxes=boxes_of(5), sizes=torch.tensor(SIZE))
    scores, weights = question_attention(model, inputs)
    with torch.no_grad():
        expected = model({name: x[None] for name, x in inputs.items()})[0].sigmoid()
    torch.testing.assert_close(scores, expected)
    regions = 16 if config is PICTURES else 5
    assert weights.shape == ((1, regions) if config is UNITARY else (2, 7, regions))
    torch.testing.assert_close(weights.flatten(1).sum(1), torch.ones(len(weights)))
    drawn = draw_answer_attention(model, inputs, 'What is the dog?', tokenizer, ANSWERS, None, 5)
    assert drawn.std() > 10


def draw_without_regions():
    tokenizer = QuestionTokenizer(WORDS, max_words=7)
    inputs = dict(features=torch.zeros(0, 6), boxes=boxes_of(0), sizes=torch.tensor(SIZE))
    draw_answer_attention(
        random_model(BAN), dict(inputs, question=tokenizer('dog')), 'dog', tokenizer, ANSWERS, None, 5
    )


test_failures = failing(
    (lambda: attention_table(torch.ones(3), []), 'weights'),
    (lambda: attention_table(torch.ones(1, 2, 4), ['a', 'b', 'c']), 'words'),
    (lambda: draw_question_attention(torch.ones(1, 2, 4), ['a'], boxes_of(3), SIZE), 'boxes'),
    (lambda: draw_without_regions(), 'inputs'),
    *((lambda count=count: position_boxes(count, (40, 20)), 'count') for count in (7, 13)),
    match='{} must',
)
