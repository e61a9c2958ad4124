"""Checks of arguments: the last value that each accepts, the first that it refuses, and what the error names."""

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


@pytest.mark.parametrize(
    ('check', 'arguments'),
    [
        (check_choice, ('b', ('a', 'b'))),
        (check_count, (1,)),
        (check_count, (0, 0)),
        (check_count, (3, 3)),
        (check_divisor, (3, 'channels', 6)),
        (check_divisor, (6, 'channels', 6)),
        (check_number, (-LARGEST,)),
        (check_number, (LARGEST,)),
        (check_number, (0, 0)),
        (check_number, (0.0, 0.0, 0.5)),
        (check_number, (0.5, 0.0, 0.5)),
        (check_number, (3, None, 3)),
        (check_fraction, (0,)),
        (check_fraction, (1.0,)),
        (check_positive, (5e-324,)),
        (check_positive, (2,)),
    ],
)
def test_what_is_accepted(check, arguments):
    check('size', *arguments)


@pytest.mark.parametrize(
    ('check', 'arguments', 'error', 'said'),
    [
        (check_choice, ('c', ('a', 'b')), ValueError, r"size .*\('a', 'b'\); got 'c'$"),
        (check_count, (0,), ValueError, 'size .* 1; got 0$'),
        (check_count, (2, 3), ValueError, 'size .* 3; got 2$'),
        (check_count, (2.0,), TypeError, r'size .* integer; got 2\.0$'),
        (check_count, (True,), TypeError, 'size .* integer; got True$'),
        (check_divisor, (4, 'channels', 6), ValueError, 'size .* channels=6; got 4$'),
        (check_divisor, (0, 'channels', 6), ValueError, 'size .* 1; got 0$'),
        (check_divisor, (2, 'channels', 0), ValueError, 'channels .* 1; got 0$'),
        (check_divisor, (2, 'channels', 6.0), TypeError, r'channels .* integer; got 6\.0$'),
        (check_divisor, (2.0, 'channels', 6), TypeError, r'size .* integer; got 2\.0$'),
        (check_number, (True,), TypeError, 'size .* number; got True$'),
        (check_number, ('1',), TypeError, "size .* number; got '1'$"),
        (check_number, (torch.ones(()),), TypeError, r'size .* number; got tensor\(1\.\)$'),
        *((check_number, (x,), ValueError, 'size .* finite; got ') for x in (float('nan'), float('inf'), 10**400)),
        *((check_number, (x,), ValueError, 'size .* finite; got -') for x in (-float('inf'), -(10**400))),
        (check_number, (-1, 0), ValueError, 'size .* 0; got -1$'),
        (check_number, (-1, 0, 0.5), ValueError, r'size .* 0 to 0\.5; got -1$'),
        (check_number, (0.75, 0, 0.5), ValueError, r'size .* 0 to 0\.5; got 0\.75$'),
        (check_fraction, (-0.1,), ValueError, r'size .* 0 to 1; got -0\.1$'),
        (check_fraction, (1.1,), ValueError, r'size .* 0 to 1; got 1\.1$'),
        (check_fraction, (True,), TypeError, 'size .* number; got True$'),
        (check_positive, (0,), ValueError, 'size .* above 0; got 0$'),
        (check_positive, (-0.5,), ValueError, r'size .* above 0; got -0\.5$'),
        (check_positive, (float('inf'),), ValueError, 'size .* finite; got inf$'),
        (check_positive, (True,), TypeError, 'size .* number; got True$'),
    ],
)
def test_what_is_refused_is_named_with_what_is_accepted(check, arguments, error, said):
    with pytest.raises(error, match=f'^{said}'):
        check('size', *arguments)


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
