"""Panels: where pictures, labels, boxes and colours are in the pixels."""

import numpy as np
import pytest
from PIL import ImageDraw

from mmattn.visualization.panels import (
    BOX_COLOURS,
    Panel,
    _free_place,
    add_legend,
    arrange,
    class_colours,
    colour_bar,
    coloured,
    draw_boxes,
    draw_dot,
    overlay,
    resized,
    stretched,
    text,
)

RED, GREEN, BLUE = (200, 10, 20), (10, 150, 20), (10, 20, 250)


def plain(colour, width=40, height=30):
    return np.full((height, width, 3), colour, np.uint8)


def edges(picture, colour):
    """Left, top, right, bottom of the pixels of a colour."""
    rows, columns = np.nonzero((picture == colour).all(-1))
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


def dark(picture):
    return edges(np.where(picture.max(-1, keepdims=True) < 140, 0, 255) * np.ones(3, int), (0, 0, 0))


def test_panels_of_a_column_are_aligned_whatever_their_labels():
    left = Panel(plain(RED), 'title', 'caption', rows=['a long label', ''], columns='ab', side='turned')
    picture = arrange([[left, Panel(plain(GREEN))], [Panel(plain(BLUE)), Panel(plain((0, 200, 200)))]], gap=7, margin=5)
    red, green, blue = (edges(picture, colour) for colour in (RED, GREEN, BLUE))
    assert [edge[2] - edge[0] for edge in (red, green, blue)] == [40] * 3
    assert red[0] == blue[0] > 60  # the label and the turned text
    assert red[1] == green[1] > 15  # the title
    assert blue[1] > red[3] + 20  # columns and caption
    assert edges(picture, (0, 200, 200))[:2] == (green[0], blue[1])
    assert green[0] == red[2] + 7
    assert picture.shape[1] == green[2] + 5
    assert picture.shape[0] == blue[3] + 5


def test_a_row_of_one_panel_spans_all_columns():
    picture = arrange([['a title'], [plain(RED, 300)], [[[plain(GREEN)], [plain(GREEN)]], plain(BLUE)]])
    left, top, right, bottom = edges(picture, BLUE)
    assert (left, right, bottom) == (50, 90, top + 30)
    assert top == edges(picture, RED)[3] + 10
    assert edges(picture, GREEN) == (0, top, 40, top + 70)


def test_labels_are_in_the_middle_of_their_parts():
    black = ['', 'l', ''], ['', '', 'I']
    picture = arrange([[Panel(plain(RED, 90, 90), rows=black[0], columns=black[1], colours=['green'] * 3)]])
    left, _, _, bottom = edges(picture, RED)
    label = dark(picture[:, :left])
    assert (label[1] + label[3]) / 2 == pytest.approx(45, abs=3)
    below = np.argwhere((picture[bottom:, :, 1] > 100) & (picture[bottom:, :, 0] < 60))
    assert below[:, 1].mean() - left == pytest.approx(75, abs=2)


def test_titles_captions_and_sides_are_centred_beside_their_picture():
    picture = arrange([[Panel(plain(RED, 120, 100), title='MMM', caption='MMM', side='MMM')]], margin=30)
    left, top, right, bottom = edges(picture, RED)
    above, below, beside = dark(picture[:top]), dark(picture[bottom:]), dark(picture[:, :left])
    for first, last in (above[::2], below[::2]):
        assert (first + last) / 2 == pytest.approx((left + right) / 2, abs=1.5)
    assert (beside[1] + beside[3]) / 2 == pytest.approx((top + bottom) / 2, abs=1.5)
    assert 4 <= top - above[3] < 10
    assert 4 <= below[1] < 10
    assert 4 <= left - beside[2] < 10
    assert above[3] - above[1] > below[3] - below[1]  # a title is larger
    widths = [arrange([[Panel(plain(RED), rows=['MMM'], side=side)]]).shape[1] for side in ('', 'M')]
    assert widths[1] >= widths[0] + 4 + text('M').shape[0]  # left of the labels


def test_labels_of_columns_are_turned_if_they_do_not_fit():
    heights = [arrange([[Panel(plain(RED, 90), columns=[label] * 3)]]).shape[0] for label in ('ab', 'abcdefgh')]
    assert heights[1] > heights[0] + 20


def test_text_is_broken_at_the_width():
    long = 'a model with a name of many words'
    once, broken = text(long), text(long, width=80)
    assert once.shape[1] > 120
    assert broken.shape[1] <= 90
    assert broken.shape[0] >= 2 * once.shape[0]
    lines = text(['one', 'two'], colours=['#ff0000', '#0000ff'])
    half = len(lines) // 2
    assert (lines[:half, :, 0] == 255).all()
    assert (lines[half:, :, 2] == 255).all()


def test_maps_are_stretched_without_interpolation_and_cut_at_their_extent():
    values = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(stretched(values, 6, 4), values.repeat(2, 0).repeat(2, 1))
    np.testing.assert_array_equal(stretched(values, 4, 2, (1.5, 2.0)), [[0, 0, 1, 1]] * 2)


def test_an_overlay_hides_what_is_below_the_threshold():
    shares = np.array([[0.1, 0.5], [np.nan, 1.0]])
    drawn = overlay(plain((100, 50, 0), 4, 4), shares, 0.3)[::2, ::2]
    grey = 0.8 * 50
    for at, share in np.ndenumerate(shares):
        expected = 0.35 * grey + 0.65 * coloured(shares)[at] if share > 0.3 else [grey] * 3
        np.testing.assert_allclose(drawn[at], expected, atol=0.51)
    assert tuple(coloured(shares)[1, 0]) == (204, 204, 204)
    drawn = overlay(plain((100, 50, 0), 4, 4), np.nan_to_num(shares))[::2, ::2]  # by default, nothing is hidden
    np.testing.assert_allclose(drawn, 0.35 * grey + 0.65 * coloured(np.nan_to_num(shares)), atol=0.51)


def test_ticks_of_the_colours():
    bar = colour_bar('weights', {0.25: 'a', 1: 'b'}, 101)
    assert {row: label for row, label in enumerate(bar.rows) if label} == {0: 'b', 75: 'a'}
    np.testing.assert_array_equal(bar.picture[75, 5], coloured(np.array([0.25]))[0])
    assert bar.side == 'weights'
    bar = colour_bar('weights')
    ticks = {row: label for row, label in enumerate(bar.rows) if label}
    assert ticks == {100: '0', 80: '0.2', 60: '0.4', 40: '0.6', 20: '0.8', 0: '1'}


@pytest.mark.parametrize('filled', [True, False])
def test_dots_are_at_their_points(filled):
    drawn = draw_dot(plain((0, 0, 0), 60, 50), 20, 30, filled=filled)
    red = np.argwhere((drawn[..., 0] > 200) & (drawn[..., 1] < 50))
    np.testing.assert_allclose(red.mean(0), [30, 20], atol=1.5)
    assert (drawn[30, 20] == (255, 0, 0) if filled else drawn[30, 20] == 0).all()


def test_boxes_have_their_colours_and_the_first_is_on_top():
    boxes = [(50, 100, 150, 200), (150, 100, 240, 200), (400, 10, 900, 290)]
    drawn = draw_boxes(plain((128, 128, 128), 500, 300), np.divide(boxes, 2), (250, 150))
    for box, colour in zip(boxes, BOX_COLOURS):
        rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        for y in (box[1] + 60, box[1] + 80):
            assert [*drawn[y, box[0] + 2]] == rgb or colour == BOX_COLOURS[1]  # the first covers its side
        assert [*drawn[box[3] - 2, min(box[2], 500) - 20]] == rgb
    assert [*drawn[150, 150]] == [0xD4, 0, 0x2A]
    dashed = draw_boxes(plain((128, 128, 128), 500, 300), boxes[:1], (500, 300), ['yellow'], dashed=True)
    side = (dashed[100, 50:150] == (255, 255, 0)).all(-1)
    assert 0.4 < side.mean() < 0.6


def test_boxes_have_numbers_from_1_beside_them(monkeypatch):
    written, write = {}, ImageDraw.ImageDraw.text
    monkeypatch.setattr(
        ImageDraw.ImageDraw,
        'text',
        lambda self, place, number, *more: written.update({number: place}) or write(self, place, number, *more),
    )
    boxes = [(50, 100, 150, 200), (300, 40, 400, 90)]
    draw_boxes(plain(BLUE, 500, 300), boxes, (500, 300))
    assert sorted(written) == ['1', '2']
    for (left, top, *_), place in zip(boxes, (written['1'], written['2'])):
        np.testing.assert_allclose(place, (left + 10, top - 13), atol=3)  # the middle of a square of 19 pixels
    written.clear()
    draw_boxes(plain(BLUE, 500, 300), boxes, (500, 300), dashed=True)
    assert not written


def test_numbers_of_equal_boxes_do_not_cover_each_other():
    placed = []
    for _ in range(6):
        placed.append(_free_place((10, 10, 40, 30), (60, 40), 3.0, placed))
    for i, (x, y) in enumerate(placed):
        assert 0 <= x <= 60 - 3
        assert 0 <= y <= 40 - 3
        assert all(max(abs(x - a), abs(y - b)) > 3 for a, b in placed[:i])


@pytest.mark.parametrize(
    ('box', 'sides'),
    [
        ((10, 10, 40, 30), (10, 6.4, 37, 27)),
        ((-5, -5, 100, 100), (0, 0, 57, 37)),  # within the picture
        ((59, 39, 60, 40), (57, 35.4, 57, 37)),
        ((0, 50, 60, 60), (0, 37, 57, 37)),
    ],
)
def test_numbers_are_along_the_sides_of_their_box(box, sides):
    """Of a number of 3 pixels, from the upper left corner on, above the box, and there again if no place is left."""
    placed, (left, top, right, bottom) = [], sides
    for _ in range(50):
        placed.append(_free_place(box, (60, 40), 3.0, placed))
    first = [placed.index(place) for place in dict.fromkeys(placed)]
    places = np.array(placed)[first]
    np.testing.assert_allclose(places[0], (left, top))
    np.testing.assert_allclose(placed[-1], (left, top))
    distances = np.stack([places[:, 0] - left, right - places[:, 0], places[:, 1] - top, bottom - places[:, 1]])
    assert distances.min() >= -1e-9
    np.testing.assert_allclose(distances.min(0), 0, atol=1e-9)
    if right > left and bottom > top:
        assert (distances < 1e-9).sum(1).min() > 2  # on each side
    if right > left:
        step = (right - left) / 11
        np.testing.assert_allclose(places[1], (left + step * np.ceil(1.15 * 3 / step), top))


def test_a_legend_has_a_square_per_name_in_rows_that_fit():
    picture, colours = plain(BLUE, 150, 20), dict(road=RED, sidewalk=GREEN, building=(1, 2, 3))
    drawn = add_legend(picture, colours)
    np.testing.assert_array_equal(drawn[:20, :150], picture)
    red, green, last = (edges(drawn[20:], colour) for colour in colours.values())
    assert red[1] == green[1] < last[1]
    assert red[0] == last[0] < green[0]
    wide = add_legend(picture, {'a name that is wider than the picture': RED})
    assert wide.shape[1] > 200
    assert add_legend(picture, {}) is picture
    meta = dict(classes=('a', 'b', 'c'), palette=[RED, GREEN, BLUE])
    assert class_colours(meta, np.array([2, 0, 255])) == dict(a=RED, c=BLUE)


def test_pictures_are_scaled_and_none_is_white():
    grey = resized(np.full((4, 6, 1), 77, np.uint8), 12, 8)
    assert grey.shape == (8, 12, 3)
    assert (grey == 77).all()
    white = resized(None, 12, 8)
    assert white.shape == (8, 12, 3)
    assert (white[1:-1, 1:-1] == 255).all()


def test_line_breaks_of_every_kind_and_small_pictures():
    for line in ('a\r', 'a\x1c', 'a\x85', 'a\u2029', ['a\n']):
        assert np.array_equal(text(line), text('a '))
    assert draw_boxes(plain(RED, 20, 16), [(2, 2, 10, 9)], (20, 16)).shape == (16, 20, 3)


def test_a_strip_of_an_image_is_drawn_shorter():
    assert resized(plain(RED, 1, 900), 20).shape == (160, 20, 3)
    assert resized(plain(RED, 40, 100), 20).shape == (50, 20, 3)
    assert resized(plain(RED, 900, 1), 20).shape == (1, 20, 3)
