"""Checks of arguments: the last value that each accepts, and the first that it refuses, by the argument's name."""

import sys

import pytest
import torch
from torch import nn

from mmattn.utils.checks import (
    check_choice,
    check_count,
    check_counts,
    check_divisor,
    check_fraction,
    check_map,
    check_number,
    check_positive,
)

LARGEST = sys.float_info.max
INFINITE = [float('inf'), -float('inf'), float('nan'), 10**400, -(10**400)]
# check: other arguments, the values that are accepted, those that raise a ValueError, and a TypeError
TABLE = [
    (check_choice, (('a', 'b'),), ['b'], ['c'], []),
    (check_count, (), [1], [0], [2.0, True]),
    (check_count, (0,), [0], [-1], []),
    (check_count, (3,), [3], [2], []),
    (check_divisor, ('channels', 6), [3, 6], [4, 0], [2.0]),
    (check_number, (), [-LARGEST, LARGEST], INFINITE, [True, '1', torch.ones(())]),
    (check_number, (0,), [0], [-1], []),
    (check_number, (0.0, 0.5), [0.0, 0.5], [-1, 0.75], []),
    (check_number, (None, 3), [3], [4], []),
    (check_fraction, (), [0, 1.0], [-0.1, 1.1], [True]),
    (check_positive, (), [5e-324, 2], [0, -0.5, INFINITE[0]], [True]),
]


@pytest.mark.parametrize(('check', 'arguments', 'accepted', 'wrong', 'of_other_types'), TABLE)
def test_what_is_refused_is_named_with_its_argument(check, arguments, accepted, wrong, of_other_types):
    for value in accepted:
        check('size', value, *arguments)
    for error, values in ((ValueError, wrong), (TypeError, of_other_types)):
        for value in values:
            with pytest.raises(error, match=r'^size .*; got ') as caught:
                check('size', value, *arguments)
            assert caught.type is error
            assert repr(value)[:9] in str(caught.value)


@pytest.mark.parametrize(('channels', 'error'), [(0, ValueError), (6.0, TypeError)])
def test_what_is_to_be_divided_is_checked_too(channels, error):
    with pytest.raises(error, match=rf'^channels .*got {channels}'):
        check_divisor('size', 2, 'channels', channels)


def test_each_of_several_counts_is_checked():
    check_counts(height=1, width=2)
    for wrong in ('height', 'width'):
        with pytest.raises(ValueError, match=f'^{wrong} .* 1; got 0$'):
            check_counts(**{'height': 1, 'width': 2, wrong: 0})


@pytest.mark.parametrize(
    ('shape', 'hinted'),
    [((2, 3, 5, 6), False), ((4, 5, 6), True), ((3, 5, 6), False), ((4, 5), False), ((4, 4, 5, 6, 7), False)],
)
def test_a_map_of_other_dimensions_is_refused(shape, hinted):
    """For a single map with the right channels, the error says how to make a batch of it."""
    check_map(nn.ReLU(), torch.empty(2, 4, 5, 6), 4)
    with pytest.raises(ValueError, match=r'^ReLU .*\b4, H, W') as caught:
        check_map(nn.ReLU(), torch.empty(shape), 4)
    assert f'got {shape}' in str(caught.value)
    assert ('x[None]' in str(caught.value)) == hinted
