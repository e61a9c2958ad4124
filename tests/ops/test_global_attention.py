"""global_attention against a table of all pairs, and what must hold for it (spec/segmentation.md)."""
import functools
import importlib
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mmattn.ops import global_attention

from . import literal
from .literal import assert_same, evaluate

LEARNED = 'learned'
OUTLIERS = {'learned': LEARNED, 'zero': 0.0, 'neg_inf': -math.inf}
# Each kind of outlier, plain and z-scored; only neg_inf has no z-score.
POSITIONS = [
    pytest.param(outlier, normalize, id=f'{name}-{"zscore" if normalize else "plain"}')
    for name, outlier in OUTLIERS.items() for normalize in (False, True) if not (normalize and name == 'neg_inf')
]
# size, window_size, batch, heads
MAPS = {
    '1d': ((7, ), 3, 2, 2),
    '1d-wider_window': ((4, ), (11, ), 1, 2),
    '1d-single': ((1, ), 3, 2, 1),
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


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def operands(size, batch=1, heads=1, channels=3, value_channels=2, key_size=None, dtype=torch.float64):
    key_size = key_size or size
    return {
        'query': randn(batch, heads, *size, channels, seed=1, dtype=dtype),
        'key': randn(batch, heads, *key_size, channels, seed=2, dtype=dtype),
        'value': randn(batch, heads, *key_size, value_channels, seed=3, dtype=dtype),
    }


def entries(size, window_size, causal=False):
    total = math.prod(literal.as_tuple(window_size, len(size)))
    return (total + 1) // 2 if causal else total


def with_window(size, window_size, outlier=LEARNED, batch=1, heads=1, dtype=torch.float64, causal=False, **kwargs):
    """Tensors and settings of a call with window logits."""
    tensors = operands(size, batch, heads, dtype=dtype, **kwargs)
    tensors['window'] = randn(batch, heads, *size, entries(size, window_size, causal), seed=4, dtype=dtype)
    settings = {'window_size': window_size}
    if outlier is LEARNED:
        tensors['outlier'] = randn(batch, heads, *size, seed=5, dtype=dtype)
    else:
        settings['outlier'] = outlier
    return tensors, settings


def assert_literal(tensors, op=lambda f: f, **settings):
    """Values and all gradients are the literal ones to 1e-10; ``op`` wraps the operator and its reference alike."""
    actual = evaluate(op(global_attention), tensors, **settings)
    assert_same(actual, evaluate(op(literal.global_attention), tensors, **settings))
    return actual


@pytest.mark.parametrize(('outlier', 'normalize'), POSITIONS)
@pytest.mark.parametrize(('size', 'window_size', 'batch', 'heads'), MAPS.values(), ids=MAPS)
def test_window_logits(size, window_size, batch, heads, outlier, normalize):
    tensors, settings = with_window(size, window_size, outlier, batch, heads)
    assert_literal(tensors, normalize=normalize, **settings)


@pytest.mark.parametrize('scale', [None, 1.0, 0.3])
@pytest.mark.parametrize(('size', 'key_size'), [((5, ), (3, )), ((2, 3), (2, 3)), ((2, 3), (4, 1)), ((2, 1, 3), (1, 2, 2))])
def test_content_only(size, key_size, scale):
    tensors = operands(size, 2, 2, key_size=key_size)
    assert_literal(tensors, scale=scale)


# What may be added to the logits, or taken from the support: shapes for batch 2, heads 2, size (3, 4). A mask leaves the
# last batch item without its first row, so that under causal its first queries have no key.
AXES = {
    'full': ((2, 2, 3, 4, 3), (2, 2, 3, 4, 4)),
    'broadcast': ((2, 1, 1, 1, 3), (1, 2, 3, 1, 4)),
    'one_value': ((1, ), (4, )),
}
EXTRAS = {
    'mask': (None, None, True),
    **{f'axes_{name}': (name, None, False) for name in AXES},
    'keys': (None, (2, 2, 3, 4), False),
    'keys_broadcast': (None, (1, 2, 1, 4), False),
    'keys_vector': (None, (4, ), False),
    'all': ('broadcast', (2, 1, 3, 4), True),
}


@pytest.mark.parametrize('causal', [False, True], ids=['', 'causal'])
@pytest.mark.parametrize(('outlier', 'normalize'), [pytest.param(None, False, id='content'), *POSITIONS])
@pytest.mark.parametrize(('axes', 'keys', 'mask'), [*EXTRAS.values(), (None, None, False)], ids=[*EXTRAS, 'none'])
def test_further_logits_and_supports(axes, keys, mask, outlier, normalize, causal):
    size = (3, 4)
    if outlier is None:
        tensors, settings = operands(size, 2, 2), {}
    else:
        tensors, settings = with_window(size, (3, 5), outlier, 2, 2, causal=causal)
    if axes:
        tensors['axis_logits'] = tuple(randn(*shape, seed=6 + a) for a, shape in enumerate(AXES[axes]))
    if keys:
        tensors['key_logits'] = randn(*keys, seed=8)
    if mask:
        tensors['key_mask'] = randn(2, *size, seed=9) > -0.5
        tensors['key_mask'][1, 0] = False
    assert_literal(tensors, normalize=normalize, causal=causal, **settings)


@pytest.mark.parametrize(('size', 'window_size'), [((6, ), 3), ((6, ), 21), ((2, 3), 7), ((2, 2, 3), 3)], ids=str)
@pytest.mark.parametrize(('outlier', 'normalize'), POSITIONS)
def test_causal(size, window_size, outlier, normalize):
    tensors, settings = with_window(size, window_size, outlier, 2, 1, causal=True)
    assert_literal(tensors, normalize=normalize, causal=True, **settings)


@pytest.mark.parametrize(('size', 'key_size'), [((5, ), (3, )), ((3, ), (2, )), ((2, 3), (3, 4)), ((2, 1, 3), (2, 2, 2))])
def test_keys_at_other_positions(size, key_size):
    tensors = operands(size, 2, 2, key_size=key_size)
    tensors['axis_logits'] = tuple(randn(2, 1, *size, length, seed=6 + a) for a, length in enumerate(key_size))
    tensors['key_logits'] = randn(2, 1, *key_size, seed=8)
    tensors['key_mask'] = randn(2, *key_size, seed=9) > -0.5
    assert_literal(tensors, scale=0.7)


@pytest.mark.parametrize(('outlier', 'normalize'), [pytest.param(None, False, id='content'), *POSITIONS])
def test_no_key_to_attend_to(outlier, normalize):
    """All keys masked in one batch item: zeros, and zero gradients (assert_literal: the other item is as ever)."""
    size = (2, 3)
    tensors, settings = (operands(size, 2, 2), {}) if outlier is None else with_window(size, 3, outlier, 2, 2)
    tensors['key_mask'] = torch.tensor([True, False])[:, None, None].repeat(1, *size)
    tensors['axis_logits'] = (randn(2, 2, *size, 2, seed=6), randn(2, 2, *size, 3, seed=7))
    tensors['key_logits'] = randn(2, 2, *size, seed=8)
    result = assert_literal(tensors, normalize=normalize, **settings)
    for name, x in result.items():
        assert not x[1].any(), name
        assert x[0].any(), name


# Layouts: how a tensor (B, heads, *S, C) may come, and what may happen to the output.
LAYOUTS = {
    # (B, heads · C, H, W), contiguous, as a convolution gives it
    'channels_first': lambda x: x.movedim(-1, 2).flatten(1, 2).contiguous().unflatten(1, x.shape[1:2] + x.shape[-1:]),
    # the same, channels last
    'channels_last': lambda x: x.movedim(-1, 2).flatten(1, 2).contiguous(memory_format=torch.channels_last).unflatten(
        1, x.shape[1:2] + x.shape[-1:]),
}


@pytest.mark.parametrize('after', ['movedim', 'sum'])
@pytest.mark.parametrize('layout', [*LAYOUTS, 'strided', 'expanded'])
@pytest.mark.parametrize('normalize', [False, True], ids=['plain', 'zscore'])
def test_layouts(layout, after, normalize):
    tensors, settings = with_window((3, 4), 3, LEARNED, 2, 2, value_channels=3)
    if layout == 'strided':
        tensors = {name: torch.stack([x, x], -1)[..., 0] for name, x in tensors.items()}
    elif layout == 'expanded':
        tensors = {name: x[:1, :, :1].expand_as(x) for name, x in tensors.items()}
    else:
        for name, x in tensors.items():
            if name != 'outlier':
                tensors[name] = LAYOUTS[layout](x).movedim(2, -1)
    assert not all(x.is_contiguous() for x in tensors.values())
    # 'movedim' brings the cotangent back transposed, 'sum' with strides of 0.
    wrap = {
        'movedim': lambda f: lambda **kwargs: f(**kwargs).movedim(-1, 2).flatten(1, 2).contiguous(),
        'sum': lambda f: lambda **kwargs: f(**kwargs).square().sum() + f(**kwargs).sum(),
    }[after]
    assert_literal(tensors, wrap, normalize=normalize, **settings)


@pytest.mark.parametrize('budget', [1, 20_000])
@pytest.mark.parametrize('causal', [False, True], ids=['', 'causal'])
@pytest.mark.parametrize(('outlier', 'normalize'), POSITIONS)
def test_slices_of_queries(monkeypatch, budget, outlier, normalize, causal):
    """Many slices, of one query and of several with a shorter last one, give what one slice gives."""
    module, slices = importlib.import_module('mmattn.ops.global_attention'), []
    cut = module.chunks

    def recorded(*args):
        for rows in cut(*args):
            slices.append(rows.stop - rows.start)
            yield rows

    monkeypatch.setattr(module, 'chunks', recorded)
    size = (5, 7)
    tensors, settings = with_window(size, 3, outlier, 2, 2, causal=causal)
    tensors['axis_logits'] = (randn(2, 1, *size, 5, seed=6), randn(2, 2, *size, 7, seed=7))
    tensors['key_logits'] = randn(2, 2, *size, seed=8)
    tensors['key_mask'] = randn(2, *size, seed=9) > -0.5
    settings |= {'normalize': normalize, 'causal': causal}
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
    'key_heads': (ValueError, 'key', {'key': randn(1, 1, 3, 4, 3), 'value': randn(1, 1, 3, 4, 3)}),
    'key_channels': (ValueError, 'key', {'key': randn(1, 2, 3, 4, 2)}),
    'value_positions': (ValueError, 'value', {'value': randn(1, 2, 4, 3, 3)}),
    'value_heads': (ValueError, 'value', {'value': randn(1, 1, 3, 4, 3)}),
    'dtypes': (TypeError, 'query, key and value', {'key': randn(1, 2, 3, 4, 3).float()}),
    'value_dtype': (TypeError, 'query, key and value', {'value': randn(1, 2, 3, 4, 3).half()}),
    'integers': (TypeError, 'query, key and value',
                 {name: torch.ones(1, 2, 3, 4, 3, dtype=torch.long) for name in ('query', 'key', 'value')}),
    'even': (ValueError, 'window_size', {'window_size': 4}),
    'even_axis': (ValueError, 'window_size', {'window_size': (3, 4)}),
    'no_length': (ValueError, 'window_size', {'window_size': 0}),
    'negative': (ValueError, 'window_size', {'window_size': (3, -5)}),
    'one_length_too_few': (ValueError, 'window_size', {'window_size': (3, )}),
    'one_length_too_many': (ValueError, 'window_size', {'window_size': (3, 5, 1)}),
    'no_window_size': (ValueError, 'window_size', {'window_size': None}),
    'window_entries': (ValueError, 'window', {'window': randn(1, 2, 3, 4, 14)}),
    'window_entries_causal': (ValueError, 'window', {'causal': True}),
    'window_heads': (ValueError, 'window', {'window': randn(1, 1, 3, 4, 15)}),
    'outlier_shape': (ValueError, 'outlier', {'outlier': randn(1, 2, 3, 4, 1)}),
    'outlier_heads': (ValueError, 'outlier', {'outlier': randn(1, 1, 3, 4)}),
    'normalize_neg_inf': (ValueError, 'normalize', {'outlier': -math.inf, 'normalize': True}),
    'normalize_alone': (ValueError, 'normalize', {'window': None, 'normalize': True}),
    'window_other_keys': (ValueError, 'window', {name: randn(1, 2, 4, 3, 3) for name in ('key', 'value')}),
    'causal_other_keys': (ValueError, 'causal',
                          {'window': None, 'causal': True, **{name: randn(1, 2, 2, 4, 3) for name in ('key', 'value')}}),
    'axis_count': (ValueError, 'axis_logits', {'axis_logits': (randn(1, 2, 3, 4, 3), )}),
    'axis_shape': (ValueError, 'axis_logits', {'axis_logits': (randn(1, 2, 3, 4, 3), randn(1, 2, 3, 4, 3))}),
    'axis_rank': (ValueError, 'axis_logits', {'axis_logits': (randn(3), randn(1, 1, 2, 3, 4, 4))}),
    'key_logits': (ValueError, 'key_logits', {'key_logits': randn(1, 2, 4, 3)}),
    'key_mask_shape': (ValueError, 'key_mask', {'key_mask': torch.ones(1, 4, 3, dtype=torch.bool)}),
    'key_mask_heads': (ValueError, 'key_mask', {'key_mask': torch.ones(1, 2, 3, 4, dtype=torch.bool)}),
    'key_mask_dtype': (ValueError, 'key_mask', {'key_mask': torch.ones(1, 3, 4)}),
}


@pytest.mark.parametrize(('error', 'name', 'changes'), WRONG.values(), ids=WRONG)
def test_wrong_arguments(error, name, changes):
    call()  # the call that the changes spoil
    with pytest.raises(error, match=rf'\b{name}\b'):
        call(**changes)


# Semantics.


@pytest.mark.parametrize('normalize', [False, True], ids=['plain', 'zscore'])
@pytest.mark.parametrize('outlier', [LEARNED, 0.0], ids=['learned', 'zero'])
@pytest.mark.parametrize('support', ['all', 'masked', 'causal'])
def test_constant_position_logits_leave_the_content(outlier, normalize, support):
    """Whatever the constant of a query; for the zero outlier only 0."""
    size, causal = (3, 4), support == 'causal'
    tensors, settings = with_window(size, (3, 5), outlier, 2, 2, causal=causal)
    constant = tensors.get('outlier', torch.zeros(2, 2, *size))
    tensors['window'] = constant.unsqueeze(-1).expand_as(tensors['window']).double()
    if support == 'masked':
        tensors['key_mask'] = randn(2, *size, seed=9) > -0.5
    settings |= {'normalize': normalize, 'causal': causal}
    actual = evaluate(global_attention, tensors, **settings)
    content = {name: x for name, x in tensors.items() if name not in ('window', 'outlier')}
    expected = evaluate(global_attention, content, causal=causal)
    assert_same({name: actual[name] for name in expected}, expected, 1e-12, 1e-12)
    assert all(x.isfinite().all() for x in actual.values())


@pytest.mark.parametrize('size', [(7, ), (4, 5), (2, 3, 4)], ids=str)
def test_neg_inf_restricts_attention_to_the_window(size):
    tensors, settings = with_window(size, 3, -math.inf)
    tensors['window'] = torch.zeros_like(tensors['window'])
    coordinates = torch.tensor(literal.coordinates(size))
    inside = ((coordinates[:, None] - coordinates).abs() <= 1).all(-1)
    logits = tensors['query'].flatten(2, -2) @ tensors['key'].flatten(2, -2).transpose(-1, -2) / math.sqrt(3)
    expected = logits.where(inside, -math.inf).softmax(-1) @ tensors['value'].flatten(2, -2)
    actual = global_attention(**tensors, **settings).flatten(2, -2)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(('outlier', 'normalize'), [pytest.param(None, False, id='content'), *POSITIONS])
def test_weights_sum_to_one(outlier, normalize):
    tensors, settings = operands((4, 5)), {}
    if outlier is not None:
        tensors, settings = with_window((4, 5), 3, outlier)
    tensors['value'] = torch.ones(1, 1, 4, 5, 1, dtype=torch.float64)
    out = global_attention(**tensors, normalize=normalize, **settings)
    torch.testing.assert_close(out, torch.ones_like(out), atol=1e-12, rtol=0)


def moved_object(op, entries, outlier, normalize, top_left):
    """Output at the pixels of a 2×3 object in an 8×9 map of zeros; q, k, v, f and v_i are linear in the map."""
    x = torch.zeros(1, 1, 8, 9, 4, dtype=torch.float64)
    window = (..., slice(top_left[0], top_left[0] + 2), slice(top_left[1], top_left[1] + 3), slice(None))
    x[window] = randn(2, 3, 4, seed=10)
    query, key, value, f = (x @ randn(4, width, seed=11 + width) for width in (3, 5, 2, entries))
    key = key[..., :3]
    v = (x @ randn(4, 1, seed=20)).squeeze(-1) if outlier is LEARNED else outlier
    return op(query, key, value, window=f, window_size=(3, 5), outlier=v, normalize=normalize)[window]


@pytest.mark.parametrize(('outlier', 'normalize'), POSITIONS)
def test_output_moves_with_an_object(outlier, normalize):
    # A 3×5 window of a 2×3 object stays inside the map where its corner is from (1, 2) to (5, 4).
    at = functools.partial(moved_object, global_attention, 15, outlier, normalize)
    for place in ((5, 4), (1, 4), (3, 2)):
        torch.testing.assert_close(at(place), at((1, 2)), atol=1e-12, rtol=1e-12)
    assert (at((0, 2)) - at((1, 2))).abs().max() > 1e-6  # the window leaves the map: entries are dropped


# Numbers of any size, in every dtype.

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def half_tolerance(dtype):
    """For logits, values and cotangents of order 1, all sums in float32.

    A result is rounded once (eps/2 of itself). The backward pass starts from the rounded output, which shifts a row's
    Σ p·dp by up to eps/2 · Σ|dy·y| ≈ eps/2, and so each gradient by that times a sum of p, or of p·|q|: some eps.
    """
    eps = torch.finfo(dtype).eps
    return {'rtol': eps, 'atol': 1e-5 if dtype == torch.float32 else 2 * eps}


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize(('outlier', 'normalize'), POSITIONS)
@pytest.mark.parametrize('further', [False, True], ids=['', 'further'])
def test_low_precision_is_near_float64(dtype, outlier, normalize, further):
    """Against the literal result, in float64, of the same rounded inputs."""
    tensors, settings = with_window((4, 5), 3, outlier, 2, 2, dtype)
    if further:
        tensors['axis_logits'] = (randn(2, 1, 4, 5, 4, seed=6, dtype=dtype), randn(2, 2, 4, 5, 5, seed=7, dtype=dtype))
        tensors['key_logits'] = randn(2, 1, 4, 5, seed=8, dtype=dtype)
        tensors['key_mask'] = randn(2, 4, 5, seed=9) > -0.5
    settings['normalize'] = normalize
    actual = evaluate(global_attention, tensors, **settings)
    assert {x.dtype for x in actual.values()} == {dtype}
    expected = evaluate(literal.global_attention, tensors, torch.float64, **settings)
    assert_same(actual, expected, **half_tolerance(dtype), check_dtype=False)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize(('outlier', 'normalize'), POSITIONS)
@pytest.mark.parametrize('large', ['content', 'position', 'outlier', 'further'])
def test_logits_of_1e4_are_finite(large, dtype, outlier, normalize):
    size = (4, 5)
    tensors, settings = with_window(size, 3, outlier, 2, 1, dtype)
    if large == 'content':
        tensors['query'], tensors['key'] = tensors['query'] * 100, tensors['key'] * 100
    elif large == 'position':
        tensors['window'] = tensors['window'] * 1e4
    elif large == 'further':
        tensors['axis_logits'] = (randn(2, 1, *size, 4, dtype=dtype) * 1e4, randn(2, 1, *size, 5, dtype=dtype) * 1e4)
        tensors['key_logits'] = randn(2, 1, *size, dtype=dtype) * 1e4
    elif outlier is LEARNED:
        tensors['outlier'] = tensors['outlier'] * 1e4
    elif outlier == 0.0:
        settings['outlier'] = -1e4
    for name, x in evaluate(global_attention, tensors, normalize=normalize, **settings).items():
        assert x.isfinite().all(), name


def raised(dtype, near, outlier):
    """Window logits of 1e4 with a spread of ±2 steps of the dtype; outliers among them, or elsewhere."""
    step = max(1.0, 1e4 * torch.finfo(dtype).eps)
    step = 2.0**math.ceil(math.log2(step))
    tensors, settings = with_window((3, 4), near, outlier, 2, 1, dtype)
    for name in ('window', 'outlier'):
        if name in tensors:
            tensors[name] = (1e4 + (tensors[name].double() * 2).round().clamp(-2, 2) * step).to(dtype)
    return tensors, settings


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('outlier', [LEARNED, 0.0, 1e4], ids=['learned', 'zero', 'number'])
@pytest.mark.parametrize('window_size', [3, 7], ids=['window_inside', 'window_over_all'])
def test_zscore_of_logits_around_1e4(dtype, outlier, window_size):
    """Where E[x²] − μ² cancels, the z-score is exact to a few ulp: x − v and its mean are small, or dominated by v.

    So the result has the tolerance of any other logits of order 1 (in float32, whose spread of 1 is 1000 ulp of 1e4 and
    whose mean of 12 numbers of 1e4 may be off by an ulp, by 1e-3, which shifts all z-scores of a query alike and leaves
    the softmax as it is). A gradient has the factor 1/σ ≤ 1.
    """
    tensors, settings = raised(dtype, window_size, outlier)
    actual = evaluate(global_attention, tensors, normalize=True, **settings)
    expected = evaluate(literal.global_attention, tensors, torch.float64, normalize=True, **settings)
    assert_same(actual, expected, **half_tolerance(dtype), check_dtype=False)


# As an operator of PyTorch.


class Calls(TorchDispatchMode):
    """The calls of the operators of ``mmattn``, forward and backward."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == 'mmattn':
            self.seen.append((func, args))
        return func(*args, **(kwargs or {}))


def leaf(x):
    """``x`` as a leaf that asks for gradients, in lists too; what is no floating-point tensor stays."""
    if isinstance(x, (list, tuple)):
        return type(x)(map(leaf, x))
    return x.detach().clone().requires_grad_(x.is_floating_point()) if isinstance(x, torch.Tensor) else x


def check_operator(op, tensors, settings):
    """``opcheck`` of the operators that a call of ``op`` and its backward pass run."""
    with Calls() as calls:
        evaluate(op, tensors, **settings)
    assert len(calls.seen) == 2
    (forward, inputs), (backward, saved) = calls.seen
    torch.library.opcheck(forward, leaf(inputs))
    # Not differentiable twice, so the autograd checks do not apply.
    torch.library.opcheck(backward, saved, test_utils=('test_schema', 'test_faketensor'))


FULL = {
    'content': {},
    'window': {'window': True},
    'zscore': {'window': True, 'normalize': True},
    'everything': {'window': True, 'normalize': True, 'further': True},
}


def full_call(window=False, further=False, normalize=False, dtype=torch.float32, size=(3, 4)):
    tensors, settings = with_window(size, 3, LEARNED, 2, 2, dtype) if window else (operands(size, 2, 2, dtype=dtype), {})
    if further:
        tensors['axis_logits'] = (randn(2, 1, *size, size[0], seed=6, dtype=dtype),
                                  randn(2, 2, *size, size[1], seed=7, dtype=dtype))
        tensors['key_logits'] = randn(1, 2, *size, seed=8, dtype=dtype)
        tensors['key_mask'] = randn(2, *size, seed=9) > -0.5
    return tensors, {**settings, 'normalize': normalize}


@pytest.mark.parametrize('which', FULL.values(), ids=FULL)
def test_opcheck(which):
    check_operator(global_attention, *full_call(**which))


@pytest.mark.parametrize('which', [FULL['window'], FULL['everything']], ids=['window', 'everything'])
def test_compile(which):
    torch.compiler.reset()
    compiled = torch.compile(global_attention, fullgraph=True, backend='aot_eager')
    tensors, settings = full_call(**which)
    assert_same(evaluate(compiled, tensors, **settings), evaluate(global_attention, tensors, **settings), 0, 0)


def test_autocast():
    tensors, settings = full_call(window=True, further=True, normalize=True)
    with torch.autocast('cpu', torch.bfloat16):
        actual = evaluate(global_attention, tensors, **settings)
    assert_same(actual, evaluate(global_attention, tensors, **settings), 0, 0)


def test_gradcheck():
    tensors, settings = full_call(window=True, further=True, normalize=True, dtype=torch.float64, size=(2, 3))
    first, second = tensors.pop('axis_logits')
    mask = tensors.pop('key_mask')

    def op(first, second, *args):
        return global_attention(**dict(zip(tensors, args)), axis_logits=(first, second), key_mask=mask, **settings)

    assert torch.autograd.gradcheck(op, [x.requires_grad_() for x in (first, second, *tensors.values())])
