"""global_attention against a table of all pairs, and what must hold for it.

The equations are those of chapter 3 of *The Attention Mechanism in Vision and Language Analysis*.
"""

import functools
import math

import pytest
import torch

from . import literal
from .literal import (
    AFTER,
    CONTENT,
    DTYPES,
    LAYOUTS,
    LEARNED,
    POSITIONS,
    around_1e4,
    assert_same,
    check_operator,
    evaluate,
    low_precision,
    moved_object,
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


@pytest.mark.parametrize('after', AFTER.values(), ids=AFTER)
@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize('normalize', [False, True], ids=['plain', 'zscore'])
def test_layouts(layout, after, normalize):
    tensors, settings = with_window((3, 4), 3, LEARNED, 2, 2, value_channels=3)
    tensors = {name: layout(x) for name, x in tensors.items()}
    assert not any(x.is_contiguous() for name, x in tensors.items() if name != 'outside_bias')
    assert_literal(tensors, after, normalize=normalize, **settings)


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
    'too_many_axes': (ValueError, 'query', {name: randn(1, 2, 1, 1, 1, 1, 4) for name in ('query', 'key', 'value')}),
    'key_axes': (ValueError, 'key', {'key': randn(1, 2, 12, 3)}),
    'value_axes': (ValueError, 'value', {'value': randn(1, 2, 12, 3)}),
    'key_batch': (ValueError, 'key', {'key': randn(2, 2, 3, 4, 3), 'value': randn(2, 2, 3, 4, 3)}),
    'key_heads': (ValueError, 'key', {'key': randn(1, 4, 3, 4, 3), 'value': randn(1, 4, 3, 4, 3)}),
    'key_channels': (ValueError, 'key', {'key': randn(1, 2, 3, 4, 2)}),
    'value_positions': (ValueError, 'value', {'value': randn(1, 2, 4, 3, 3)}),
    'value_heads': (ValueError, 'value', {'value': randn(1, 1, 3, 4, 3)}),
    'dtypes': (TypeError, 'query, key and value', {'key': randn(1, 2, 3, 4, 3).float()}),
    'value_dtype': (TypeError, 'query, key and value', {'value': randn(1, 2, 3, 4, 3).half()}),
    'integers': (
        TypeError,
        'query, key and value',
        {name: torch.ones(1, 2, 3, 4, 3, dtype=torch.long) for name in ('query', 'key', 'value')},
    ),
    'even': (ValueError, 'window_size', {'window_size': 4}),
    'even_axis': (ValueError, 'window_size', {'window_size': (3, 4)}),
    'no_length': (ValueError, 'window_size', {'window_size': 0}),
    'negative': (ValueError, 'window_size', {'window_size': (3, -5)}),
    'one_length_too_few': (ValueError, 'window_size', {'window_size': (3,)}),
    'one_length_too_many': (ValueError, 'window_size', {'window_size': (3, 5, 1)}),
    'no_window_size': (ValueError, 'window_size', {'window_size': None}),
    'window_entries': (ValueError, 'window_bias', {'window_bias': randn(1, 2, 3, 4, 14)}),
    'window_entries_causal': (ValueError, 'window_bias', {'is_causal': True}),
    'window_heads': (ValueError, 'window_bias', {'window_bias': randn(1, 1, 3, 4, 15)}),
    'outlier_shape': (ValueError, 'outside_bias', {'outside_bias': randn(1, 2, 3, 4, 1)}),
    'outlier_heads': (ValueError, 'outside_bias', {'outside_bias': randn(1, 1, 3, 4)}),
    'outlier_dtype': (TypeError, 'outside_bias', {'outside_bias': torch.ones(1, 2, 3, 4, dtype=torch.long)}),
    'window_dtype': (TypeError, 'window_bias', {'window_bias': torch.ones(1, 2, 3, 4, 15, dtype=torch.long)}),
    'key_logits_dtype': (TypeError, 'key_bias', {'key_bias': torch.ones(1, 2, 3, 4, dtype=torch.long)}),
    'normalize_neg_inf': (ValueError, 'outside_bias', {'outside_bias': -math.inf, 'normalize': True}),
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


@pytest.mark.parametrize('normalize', [False, True], ids=['plain', 'zscore'])
@pytest.mark.parametrize('outside_bias', [LEARNED, 0.0], ids=['learned', 'zero'])
@pytest.mark.parametrize('support', ['all', 'masked', 'is_causal'])
def test_constant_position_logits_leave_the_content(outside_bias, normalize, support):
    """Whatever the constant of a query; for the zero outlier only 0."""
    size, is_causal = (3, 4), support == 'is_causal'
    tensors, settings = with_window(size, (3, 5), outside_bias, 2, 2, is_causal=is_causal)
    constant = tensors.get('outside_bias', torch.zeros(2, 2, *size, dtype=torch.float64))
    tensors['window_bias'] = constant.unsqueeze(-1).expand_as(tensors['window_bias'])
    if support == 'masked':
        tensors['key_mask'] = randn(2, *size, seed=9) > -0.5
    settings |= {'normalize': normalize, 'is_causal': is_causal}
    actual = evaluate(global_attention, tensors, **settings)
    content = {name: x for name, x in tensors.items() if name not in ('window_bias', 'outside_bias')}
    expected = evaluate(global_attention, content, is_causal=is_causal)
    assert_same({name: actual[name] for name in expected}, expected, 1e-12, 1e-12)
    assert all(x.isfinite().all() for x in actual.values())


@pytest.mark.parametrize('size', [(7,), (4, 5), (2, 3, 4)], ids=str)
def test_neg_inf_restricts_attention_to_the_window(size):
    tensors, settings = with_window(size, 3, -math.inf)
    tensors['window_bias'] = torch.zeros_like(tensors['window_bias'])
    coordinates = torch.tensor(literal.coordinates(size))
    inside = ((coordinates[:, None] - coordinates).abs() <= 1).all(-1)
    logits = tensors['query'].flatten(2, -2) @ tensors['key'].flatten(2, -2).transpose(-1, -2) / math.sqrt(3)
    expected = logits.where(inside, -math.inf).softmax(-1) @ tensors['value'].flatten(2, -2)
    actual = global_attention(**tensors, **settings).flatten(2, -2)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(('outside_bias', 'normalize'), [CONTENT, *POSITIONS])
def test_weights_sum_to_one(outside_bias, normalize):
    tensors, settings = with_window((4, 5), 3, outside_bias)
    tensors['value'] = torch.ones(1, 1, 4, 5, 1, dtype=torch.float64)
    out = global_attention(**tensors, normalize=normalize, **settings)
    torch.testing.assert_close(out, torch.ones_like(out), atol=1e-12, rtol=0)


@pytest.mark.parametrize(('outside_bias', 'normalize'), POSITIONS)
def test_output_moves_with_an_object(outside_bias, normalize):
    at = functools.partial(moved_object, global_attention, 3 * 5, outside_bias, normalize)
    for place in ((5, 4), (1, 4), (3, 2)):
        torch.testing.assert_close(at(place), at((1, 2)), atol=1e-12, rtol=1e-12)
    assert (at((0, 2)) - at((1, 2))).abs().max() > 1e-6  # the window leaves the map: entries are dropped


# Numbers of any size, in every dtype.


@pytest.mark.parametrize('normalize', [False, True], ids=['plain', 'zscore'])
def test_float32_logits_with_bfloat16_operands(normalize):
    """Each gradient has the dtype of its tensor."""
    tensors, settings = with_window((4, 5), 3, LEARNED, 2, 2, dtype=torch.float32)
    tensors |= further((4, 5), dtype=torch.float32)
    tensors |= {name: tensors[name].bfloat16() for name in ('query', 'key', 'value')}
    settings['normalize'] = normalize
    actual = evaluate(global_attention, tensors, **settings)
    narrow = {'output', 'd_query', 'd_key', 'd_value'}
    assert {name for name, x in actual.items() if x.dtype == torch.bfloat16} == narrow
    assert {x.dtype for x in actual.values()} == {torch.bfloat16, torch.float32}
    expected = evaluate(literal.global_attention, tensors, torch.float64, **settings)
    assert_same(actual, expected, **low_precision(torch.bfloat16))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize(('outside_bias', 'normalize'), POSITIONS)
@pytest.mark.parametrize('large', ['content', 'position', 'outside_bias', 'further'])
def test_logits_of_1e4(large, dtype, outside_bias, normalize):
    """Nothing overflows. A float32 logit of 1e4 is off by up to some 1e-3, its weight by as much of itself."""
    tensors, settings = with_window((4, 5), 3, outside_bias, 2, 1, dtype=dtype)
    if large == 'content':
        tensors |= {name: tensors[name] * 100 for name in ('query', 'key')}
    elif large == 'position':
        tensors['window_bias'] = tensors['window_bias'] * 1e4
    elif large == 'further':
        logits = further((4, 5), dtype=dtype)
        tensors['axis_bias'] = tuple(x * 1e4 for x in logits['axis_bias'])
        tensors['key_bias'] = logits['key_bias'] * 1e4
    elif outside_bias is LEARNED:
        tensors['outside_bias'] = tensors['outside_bias'] * 1e4
    elif outside_bias == 0.0:
        settings['outside_bias'] = -1e4
    settings['normalize'] = normalize
    actual = evaluate(global_attention, tensors, **settings)
    for name, x in actual.items():
        assert x.isfinite().all(), name
    expected = evaluate(literal.global_attention, tensors, torch.float64, **settings)['output']
    torch.testing.assert_close(actual['output'].double(), expected, atol=1e-2, rtol=torch.finfo(dtype).eps)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('outside_bias', [LEARNED, 0.0, 1e4], ids=['learned', 'zero', '1e4'])
@pytest.mark.parametrize('window_size', [3, 7], ids=['window_inside', 'window_over_all'])
def test_zscore_of_logits_around_1e4(dtype, outside_bias, window_size):
    """As near float64 as other logits: what E[x²] − μ² would cancel is a difference of neighbours, so exact.

    The mean of a few numbers of 1e4 may be off by an ulp, 1e-3: that shifts all z-scores of a query equally, which
    does not change the softmax, and its square is negligible compared with a variance of order 1.
    """
    tensors, settings = around_1e4(*with_window((3, 4), window_size, outside_bias, 2, 1, dtype=dtype))
    settings['normalize'] = True
    actual = evaluate(global_attention, tensors, **settings)
    expected = evaluate(literal.global_attention, tensors, torch.float64, **settings)
    assert_same(actual, expected, **low_precision(dtype))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('outside_bias', [1e3, -1e5, -1e9])
@pytest.mark.parametrize('normalize', [False, True], ids=['plain', 'zscore'])
def test_outlier_of_no_key_changes_nothing(outside_bias, normalize, dtype):
    """Where the window covers the map, v_i is the logit of no key: neither the mean nor the variance holds it."""
    tensors, settings = with_window((3, 4), 7, 0.0, 2, 2, dtype=dtype)
    settings['normalize'] = normalize
    expected = evaluate(global_attention, tensors, **settings)
    actual = evaluate(global_attention, tensors, **{**settings, 'outside_bias': outside_bias})
    assert_same(actual, expected, **low_precision(dtype))


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
