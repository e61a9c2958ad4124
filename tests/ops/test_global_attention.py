"""global_attention against a table of all pairs, and what must hold for it.

The equations are those of chapter 3 of *The Attention Mechanism in Vision and Language Analysis*.
"""

import functools

import pytest
import torch

from . import literal
from .literal import CONTENT, POSITIONS, check_operator, operands, randn
from .zscored import global_attention

with_window = functools.partial(literal.with_window, 'global_attention')

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)

# size, window_size, batch, heads
MAPS = {
    '1d': ((7,), 3, 2, 2),
    '1d-wider_window': ((4,), (11,), 1, 2),
    '1d-single': ((1,), 3, 2, 1),
    '2d': ((3, 5), 3, 2, 2),
    '2d-tall': ((5, 3), (3, 5), 2, 1),
    '2d-larger_window': ((2, 3), 7, 1, 2),
    '2d-larger_window_one_axis': ((3, 4), (1, 9), 1, 1),
    '2d-k1': ((3, 4), 1, 2, 2),
    '2d-row': ((1, 5), 3, 1, 1),
    '2d-column': ((5, 1), 3, 1, 2),
    '2d-single': ((1, 1), 5, 1, 1),
    '3d': ((2, 3, 4), 3, 2, 1),
    '3d-flat': ((3, 1, 2), (1, 3, 5), 1, 2),
}
# Sizes of queries and of keys, the same or not
KEY_SIZES = [((5,), (3,)), ((2,), (6,)), ((2, 3), (2, 3)), ((2, 3), (4, 1)), ((2, 1, 3), (1, 2, 2))]
assert_literal = functools.partial(literal.assert_equation, global_attention, literal.global_attention)


@pytest.mark.every_case
@pytest.mark.parametrize('is_causal', [False, True], ids=['', 'is_causal'])
@pytest.mark.parametrize(('outside_bias', 'normalize'), POSITIONS)
@pytest.mark.parametrize(('size', 'window_size', 'batch', 'heads'), MAPS.values(), ids=MAPS)
def test_window_logits(size, window_size, batch, heads, outside_bias, normalize, is_causal):
    tensors, settings = with_window(size, window_size, outside_bias, batch, heads, is_causal=is_causal)
    assert_literal(tensors, normalize=normalize, is_causal=is_causal, **settings)


@pytest.mark.parametrize('scale', [None, 1.0, 0.3])
@pytest.mark.parametrize(('size', 'key_size'), KEY_SIZES, ids=str)
def test_content_only(size, key_size, scale):
    assert_literal(operands(size, 2, 2, key_size=key_size), scale=scale)


def test_no_channels_to_compare():
    """The further logits alone, without a product of query and key."""
    size = (3, 4)
    tensors = operands(size, 2, 2) | {
        name: x for name, x in literal.further(size, heads=2).items() if name != 'key_mask'
    }
    alone = {name: randn(2, 2, *size, 0) for name in ('query', 'key')}
    result = assert_literal(tensors | alone, scale=1.0)
    zeros = {name: torch.zeros(2, 2, *size, 3, dtype=torch.float64) for name in ('query', 'key')}
    torch.testing.assert_close(result['output'], global_attention(**tensors | zeros), atol=1e-12, rtol=1e-12)
    check_operator(global_attention, tensors | alone, dict(scale=1.0))


# Shapes of further logits, for batch 2, heads 2 and size (3, 4).
AXES = {
    'full': ((2, 2, 3, 4, 3), (2, 2, 3, 4, 4)),
    'broadcast': ((2, 1, 1, 1, 3), (1, 2, 3, 1, 4)),
    'one_value': ((1,), (4,)),
}
# Axis logits, key logits, key mask; the mask leaves one batch item without its first row, so that under causal its
# first queries have no key.
EXTRAS = {
    'none': (None, None, False),
    'mask': (None, None, True),
    **{f'axes_{name}': (name, None, False) for name in AXES},
    'keys': (None, (2, 2, 3, 4), False),
    'keys_broadcast': (None, (1, 2, 1, 4), False),
    'keys_vector': (None, (4,), False),
    'all': ('broadcast', (2, 1, 3, 4), True),
}


@pytest.mark.parametrize('is_causal', [False, True], ids=['', 'is_causal'])
@pytest.mark.parametrize(('outside_bias', 'normalize'), [CONTENT, *POSITIONS])
@pytest.mark.parametrize(('axes', 'keys', 'mask'), EXTRAS.values(), ids=EXTRAS)
def test_further_logits_and_supports(axes, keys, mask, outside_bias, normalize, is_causal):
    size = (3, 4)
    tensors, settings = with_window(size, (3, 5), outside_bias, 2, 2, is_causal=is_causal)
    if axes:
        tensors['axis_bias'] = tuple(randn(*shape, seed=6 + a) for a, shape in enumerate(AXES[axes]))
    if keys:
        tensors['key_bias'] = randn(*keys, seed=8)
    if mask:
        tensors['key_mask'] = randn(2, *size, seed=9) > -0.5
        tensors['key_mask'][1, 0] = False
    assert_literal(tensors, normalize=normalize, is_causal=is_causal, **settings)


@pytest.mark.parametrize(('size', 'key_size'), KEY_SIZES, ids=str)
def test_further_logits_of_other_keys(size, key_size):
    tensors = operands(size, 2, 2, key_size=key_size)
    assert_literal(tensors | literal.further(size, key_size=key_size), scale=0.7)


@pytest.mark.parametrize(('outside_bias', 'normalize'), [CONTENT, *POSITIONS])
def test_no_key_to_attend_to(outside_bias, normalize):
    """All keys masked in one batch item: zeros, and zero gradients (assert_literal: the other item is as ever)."""
    size = (2, 3)
    tensors, settings = with_window(size, 3, outside_bias, 2, 2)
    tensors |= literal.further(size, 2, 2)
    tensors['key_mask'] = torch.tensor([True, False])[:, None, None].repeat(1, *size)
    result = assert_literal(tensors, normalize=normalize, **settings)
    for name, x in result.items():
        assert not x[1].any(), name
        assert x[0].any(), name
