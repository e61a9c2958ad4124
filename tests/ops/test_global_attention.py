"""global_attention against a table of all pairs, and what must hold for it.

The equations are those of chapter 3 of *The Attention Mechanism in Vision and Language Analysis*.
"""

import math

import pytest
import torch

from . import literal
from .literal import (
    CONTENT,
    LEARNED,
    POSITIONS,
    assert_same,
    check_operator,
    evaluate,
    operands,
    randn,
    record_slices,
)
from .zscored import global_attention

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


def with_window(size, window_size, outside_bias=LEARNED, batch=1, heads=1, *, is_causal=False, **kwargs):
    entries = math.prod(literal.as_tuple(window_size, len(size)))
    return literal.with_window(
        (entries + 1) // 2 if is_causal else entries, size, window_size, outside_bias, batch, heads, **kwargs
    )


def further(size, batch=2, heads=1, *, key_size=None, dtype=torch.float64):
    """Axis logits, key logits and a key mask; the logits for ``heads`` heads, 1 for all."""
    key_size = key_size or size
    return {
        'axis_bias': tuple(
            randn(batch, heads, *size, length, seed=6 + a, dtype=dtype) for a, length in enumerate(key_size)
        ),
        'key_bias': randn(batch, heads, *key_size, seed=8, dtype=dtype),
        'key_mask': randn(batch, *key_size, seed=9) > -0.5,
    }


def assert_literal(tensors, op=lambda f: f, **settings):
    """Values and all gradients are the literal ones to 1e-10; ``op`` wraps both the operator and its reference."""
    actual = evaluate(op(global_attention), tensors, **settings)
    assert_same(actual, evaluate(op(literal.global_attention), tensors, **settings))
    return actual


@pytest.mark.every_case
@pytest.mark.parametrize(('outside_bias', 'normalize'), POSITIONS)
@pytest.mark.parametrize(('size', 'window_size', 'batch', 'heads'), MAPS.values(), ids=MAPS)
def test_window_logits(size, window_size, batch, heads, outside_bias, normalize):
    tensors, settings = with_window(size, window_size, outside_bias, batch, heads)
    assert_literal(tensors, normalize=normalize, **settings)


@pytest.mark.parametrize('scale', [None, 1.0, 0.3])
@pytest.mark.parametrize(('size', 'key_size'), KEY_SIZES, ids=str)
def test_content_only(size, key_size, scale):
    assert_literal(operands(size, 2, 2, key_size=key_size), scale=scale)


def test_no_channels_to_compare():
    """The further logits alone, without a product of query and key."""
    size = (3, 4)
    tensors = operands(size, 2, 2) | {name: x for name, x in further(size, heads=2).items() if name != 'key_mask'}
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


@pytest.mark.parametrize(('size', 'window_size'), [((6,), 3), ((6,), 21), ((2, 3), 7), ((2, 2, 3), 3)], ids=str)
@pytest.mark.parametrize(('outside_bias', 'normalize'), POSITIONS)
def test_causal(size, window_size, outside_bias, normalize):
    tensors, settings = with_window(size, window_size, outside_bias, 2, 1, is_causal=True)
    assert_literal(tensors, normalize=normalize, is_causal=True, **settings)


@pytest.mark.parametrize(('size', 'key_size'), KEY_SIZES, ids=str)
def test_further_logits_of_other_keys(size, key_size):
    tensors = operands(size, 2, 2, key_size=key_size)
    assert_literal(tensors | further(size, key_size=key_size), scale=0.7)


@pytest.mark.parametrize(('outside_bias', 'normalize'), [CONTENT, *POSITIONS])
def test_no_key_to_attend_to(outside_bias, normalize):
    """All keys masked in one batch item: zeros, and zero gradients (assert_literal: the other item is as ever)."""
    size = (2, 3)
    tensors, settings = with_window(size, 3, outside_bias, 2, 2)
    tensors |= further(size, 2, 2)
    tensors['key_mask'] = torch.tensor([True, False])[:, None, None].repeat(1, *size)
    result = assert_literal(tensors, normalize=normalize, **settings)
    for name, x in result.items():
        assert not x[1].any(), name
        assert x[0].any(), name


@pytest.mark.parametrize('budget', [1, 20_000])
@pytest.mark.parametrize('is_causal', [False, True], ids=['', 'is_causal'])
@pytest.mark.parametrize(('outside_bias', 'normalize'), POSITIONS)
def test_slices_of_queries(monkeypatch, budget, outside_bias, normalize, is_causal):
    """Many slices, of one query and of several with a shorter last one, give what one slice gives."""
    slices = record_slices(monkeypatch, 'mmattn.ops.global_attention')
    size = (5, 7)
    tensors, settings = with_window(size, 3, outside_bias, 2, 2, is_causal=is_causal)
    tensors |= further(size)
    settings |= {'normalize': normalize, 'is_causal': is_causal}
    whole = evaluate(global_attention, tensors, **settings)
    assert slices == [35, 35]  # forward and backward, in one slice each
    slices.clear()
    monkeypatch.setattr('mmattn.ops.chunks.CHUNK_BYTES', budget)
    sliced = evaluate(global_attention, tensors, **settings)
    assert sum(slices) == 70
    assert len(slices) > 4
    assert (max(slices) == 1) == (budget == 1)
    assert_same(sliced, whole)
    assert_literal(tensors, **settings)


def call(**changes):
    """A call of (1, 2, 3, 4, 3) tensors with a 3×5 window, with some arguments changed; None leaves one out."""
    tensors, settings = with_window((3, 4), (3, 5), heads=2)
    arguments = {**tensors, **settings, **changes}
    return global_attention(**{name: x for name, x in arguments.items() if x is not None})


WRONG = {
    'too_few_axes': (ValueError, 'query', {name: randn(1, 2, 4) for name in ('query', 'key', 'value')}),
    'key_batch': (ValueError, 'key', {'key': randn(2, 2, 3, 4, 3), 'value': randn(2, 2, 3, 4, 3)}),
    'value_heads': (ValueError, 'value', {'value': randn(1, 1, 3, 4, 3)}),
    'window_entries': (ValueError, 'window_bias', {'window_bias': randn(1, 2, 3, 4, 14)}),
    'window_entries_causal': (ValueError, 'window_bias', {'is_causal': True}),
    'window_heads': (ValueError, 'window_bias', {'window_bias': randn(1, 3, 3, 4, 15)}),
    'outlier_heads': (ValueError, 'outside_bias', {'outside_bias': randn(1, 1, 3, 4)}),
    'window_dtype': (TypeError, 'window_bias', {'window_bias': torch.ones(1, 2, 3, 4, 15, dtype=torch.long)}),
    'key_logits_dtype': (TypeError, 'key_bias', {'key_bias': torch.ones(1, 2, 3, 4, dtype=torch.long)}),
    'window_other_keys': (ValueError, 'window_bias', {name: randn(1, 2, 4, 3, 3) for name in ('key', 'value')}),
    'causal_other_keys': (
        ValueError,
        'is_causal',
        {'window_bias': None, 'is_causal': True, **{name: randn(1, 2, 2, 4, 3) for name in ('key', 'value')}},
    ),
    'axis_count': (ValueError, 'axis_bias', {'axis_bias': (randn(1, 2, 3, 4, 3),)}),
    'axis_shape': (ValueError, 'axis_bias', {'axis_bias': (randn(1, 2, 3, 4, 3), randn(1, 2, 3, 4, 3))}),
    'axis_rank': (ValueError, 'axis_bias', {'axis_bias': (randn(3), randn(1, 1, 2, 3, 4, 4))}),
    'key_bias': (ValueError, 'key_bias', {'key_bias': randn(1, 2, 4, 3)}),
    'key_mask_shape': (ValueError, 'key_mask', {'key_mask': torch.ones(1, 4, 3, dtype=torch.bool)}),
    'key_mask_heads': (ValueError, 'key_mask', {'key_mask': torch.ones(1, 2, 3, 4, dtype=torch.bool)}),
    'key_mask_device': (ValueError, 'key_mask', {'key_mask': torch.ones(1, 3, 4, dtype=torch.bool, device='meta')}),
    'key_mask_dtype': (ValueError, 'key_mask', {'key_mask': torch.ones(1, 3, 4)}),
}


@pytest.mark.parametrize(('error', 'name', 'changes'), WRONG.values(), ids=WRONG)
def test_wrong_arguments(error, name, changes):
    call()  # the call that the changes spoil
    with pytest.raises(error, match=rf'\b{name}\b'):
        call(**changes)


# Semantics.


# Numbers of any size, in every dtype.


# As an operator of PyTorch.

FULL = {
    'content': {},
    'window_bias': {'window_bias': True},
    'zscore': {'window_bias': True, 'normalize': True},
    'everything': {'window_bias': True, 'normalize': True, 'more': True},
}


def full_call(window_bias=False, more=False, normalize=False, dtype=torch.float32, size=(3, 4)):
    tensors, settings = with_window(size, 3, LEARNED if window_bias else None, 2, 2, dtype=dtype)
    if more:
        tensors |= further(size, dtype=dtype)
    return tensors, {**settings, 'normalize': normalize}


@pytest.mark.parametrize('which', FULL.values(), ids=FULL)
def test_opcheck(which):
    check_operator(global_attention, *full_call(**which))


@pytest.mark.parametrize('which', [FULL['window_bias'], FULL['everything']], ids=['window_bias', 'everything'])
def test_compile(which):
    torch.compiler.reset()
    compiled = torch.compile(global_attention, fullgraph=True, backend='aot_eager')
    tensors, settings = full_call(**which)
    assert_same(evaluate(compiled, tensors, **settings), evaluate(global_attention, tensors, **settings), 0, 0)


def test_gradcheck():
    tensors, settings = full_call(window_bias=True, more=True, normalize=True, dtype=torch.float64, size=(2, 3))
    first, second = tensors.pop('axis_bias')
    mask = tensors.pop('key_mask')

    def op(first, second, *args):
        return global_attention(**dict(zip(tensors, args)), axis_bias=(first, second), key_mask=mask, **settings)

    assert torch.autograd.gradcheck(op, [x.requires_grad_() for x in (first, second, *tensors.values())])
