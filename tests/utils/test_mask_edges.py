"""Labels that were interpolated after painting, and those that only look like it."""

import numpy as np
import pytest

from mmattn.utils.mask_edges import altered_labels


@pytest.mark.parametrize('turned', [False, True])
def test_a_line_ends_where_the_next_begins(turned):
    """Lines 3 3 3 3 0 0 0 0 1 have one edge each. Read on into the next line, 0 1 3 would be a ramp."""
    lines = np.tile(np.array([3] * 4 + [0] * 4 + [1], np.uint8), (40, 1))
    assert altered_labels(lines.T if turned else lines) == ''
    ramps = np.tile(np.array([3] * 4 + [0] * 4 + [1] + [3] * 4, np.uint8), (40, 1))
    assert '0 1 3' in altered_labels(ramps.T if turned else ramps)


@pytest.mark.parametrize('turned', [False, True])
@pytest.mark.parametrize(('between', 'found'), [((1,), True), ((1, 2), True), ((1, 2, 3), True), ((1, 2, 3, 4), False)])
def test_an_edge_has_up_to_three_pixels_between_two_areas(turned, between, found):
    lines = np.tile(np.array([0, 0, *between, 9, 9], np.uint8), (40, 1))
    said = altered_labels(lines.T if turned else lines)
    assert said.startswith('100 % of 40 edges') == found
    assert said.endswith(' '.join(['such as', *map(str, (0, *between, 9))])) == found


@pytest.mark.parametrize(
    ('line', 'ramps'),
    [
        ([0, 0, 1, 2, 2], True),
        ([2, 2, 1, 0, 0], True),
        ([0, 0, 2, 1, 3, 3], False),  # not from one to the other
        ([0, 1, 2, 2], False),  # from no area
        ([0, 0, 1, 2], False),
        ([0, 0, 1, 1], False),  # labels that differ by 1
        *(([0, 0, *[1] * width, 3, 3], width <= 3) for width in (2, 3, 4)),
    ],
)
def test_edges_go_one_way_between_areas(line, ramps):
    assert bool(altered_labels(np.tile(np.array(line, np.uint16), (40, 1)))) == ramps


@pytest.mark.parametrize(
    ('ramps', 'direct', 'said'), [(30, 0, '100 % of 30'), (29, 0, ''), (10, 40, ''), (11, 40, '22 % of 51')]
)
def test_a_fifth_of_thirty_edges_or_more_must_be_altered(ramps, direct, said):
    lines = [[0, 0, 1, 2, 2]] * ramps + [[0, 0, 0, 2, 2]] * direct
    found = altered_labels(np.array(lines, np.uint8))
    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.parametrize(('count', 'specks'), [(6, True), (5, False)])
def test_single_pixels_are_specks(count, specks):
    """Each has five pixels at borders: itself, and its neighbours. Those of a diagonal line are none."""
    labels = np.zeros((9, 5 * count + 4), np.uint8)
    labels[4, 3::5][:count] = 7
    found = altered_labels(labels)
    assert found.startswith(f'{count} of {5 * count} pixels' if specks else '')
    assert bool(found) == specks
    for diagonal in (np.eye(40, dtype=np.uint8), np.eye(40, dtype=np.uint8)[::-1]):
        assert altered_labels(diagonal) == ''
    assert altered_labels(np.indices((12, 12)).sum(0) % 2).endswith('specks of one pixel')  # a checkerboard


@pytest.mark.parametrize('seed', range(2))
def test_specks_are_counted_as_by_hand(seed):
    """A pixel whose four neighbours have one other label. Of two diagonals of its label, one alone makes it a line."""
    labels = (np.random.default_rng(seed).random((11, 17)) < 0.12).astype(np.uint8) * 5
    border = specks = 0
    for y in range(1, 10):
        for x in range(1, 16):
            own, sides = labels[y, x], [labels[y, x + 1], labels[y, x - 1], labels[y + 1, x], labels[y - 1, x]]
            border += any(side != own for side in sides)
            falling = labels[y - 1, x - 1] == labels[y + 1, x + 1] == own
            rising = labels[y - 1, x + 1] == labels[y + 1, x - 1] == own
            specks += all(side != own for side in sides) and falling == rising
    assert specks > border / 10
    assert altered_labels(labels) == f'{specks} of {border} pixels at borders are specks of one pixel'
