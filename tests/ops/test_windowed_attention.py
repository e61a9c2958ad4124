"""What global_attention and grid_attention do alike: logits of a window, of any size and in every dtype."""

import math

import pytest
import torch

from . import literal, test_global_attention, test_grid_attention, zscored
from .literal import (
    AFTER,
    DTYPES,
    LAYOUTS,
    LEARNED,
    POSITIONS,
    around_1e4,
    assert_same,
    evaluate,
    low_precision,
    operands,
    randn,
)

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
# The operator, its reference, and the module of its other tests.
OPERATORS = {
    'global': (zscored.global_attention, literal.global_attention, test_global_attention),
    'grid': (zscored.grid_attention, literal.grid_attention, test_grid_attention),
}
zscore = pytest.mark.parametrize('normalize', [False, True], ids=['plain', 'zscore'])


@pytest.fixture(params=OPERATORS.values(), ids=OPERATORS)
def operator(request):
    return request.param


@pytest.mark.parametrize('after', AFTER.values(), ids=AFTER)
@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
@zscore
def test_layouts(operator, layout, after, normalize):
    op, reference, module = operator
    tensors, settings = module.with_window((3, 4), 3, LEARNED, 2, 2, value_channels=3)
    tensors = {name: layout(x) for name, x in tensors.items()}
    assert not any(x.is_contiguous() for name, x in tensors.items() if name != 'outside_bias')
    settings['normalize'] = normalize
    assert_same(evaluate(after(op), tensors, **settings), evaluate(after(reference), tensors, **settings))


X = (1, 2, 3, 4, 3)
QKV = ('query', 'key', 'value')
WRONG = {
    'four_axes': (ValueError, 'query', {name: randn(1, 2, 1, 1, 1, 1, 4) for name in QKV}),
    'key_axes': (ValueError, 'key', {'key': randn(1, 2, 12, 3)}),
    'key_heads': (ValueError, 'key', {name: randn(1, 4, 3, 4, 3) for name in QKV[1:]}),
    'key_channels': (ValueError, 'key', {'key': randn(1, 2, 3, 4, 2)}),
    'value_axes': (ValueError, 'value', {'value': randn(1, 2, 12, 3)}),
    'value_positions': (ValueError, 'value', {'value': randn(1, 2, 4, 3, 3)}),
    'dtypes': (TypeError, 'query, key and value', {'key': randn(*X).float()}),
    'value_dtype': (TypeError, 'query, key and value', {'value': randn(*X).half()}),
    'integers': (TypeError, 'query, key and value', {name: torch.ones(X, dtype=torch.long) for name in QKV}),
    'no_window_size': (ValueError, 'window_size', {'window_size': None}),
    'outlier_shape': (ValueError, 'outside_bias', {'outside_bias': randn(1, 2, 3, 4, 1)}),
    'outlier_dtype': (TypeError, 'outside_bias', {'outside_bias': torch.ones(1, 2, 3, 4, dtype=torch.long)}),
    'normalize_neg_inf': (ValueError, 'outside_bias', {'outside_bias': -math.inf, 'normalize': True}),
}


@pytest.mark.parametrize(('error', 'name', 'changes'), WRONG.values(), ids=WRONG)
def test_wrong_arguments(operator, error, name, changes):
    call = operator[2].call
    call()  # the call that the changes spoil
    with pytest.raises(error, match=rf'\b{name}\b'):
        call(**changes)


@zscore
@pytest.mark.parametrize('outside_bias', [LEARNED, 0.0], ids=['learned', 'zero'])
@pytest.mark.parametrize('size', [(4, 5), (2, 3, 4)], ids=['2d', '3d'])
def test_constant_position_logits_leave_the_content(operator, size, outside_bias, normalize):
    """Whatever the constant of a query; for the zero outlier only 0. Their variance is 0, and gradients are finite."""
    op, _, module = operator
    tensors, settings = module.with_window(size, 3, outside_bias, 2, 2)
    constant = tensors.get('outside_bias', torch.zeros(2, 2, *size, dtype=torch.float64))
    tensors['window_bias'] = constant.unsqueeze(-1).expand_as(tensors['window_bias'])
    actual = evaluate(op, tensors, normalize=normalize, **settings)
    expected = evaluate(op, operands(size, 2, 2))
    assert_same({name: actual[name] for name in expected}, expected, 1e-12, 1e-12)
    assert all(x.isfinite().all() for x in actual.values())


@zscore
def test_float32_logits_with_bfloat16_operands(operator, normalize):
    """Each gradient has the dtype of its tensor."""
    op, reference, module = operator
    tensors, settings = module.with_window((4, 5), 3, LEARNED, 2, 2, dtype=torch.float32)
    if reference is literal.global_attention:
        tensors |= module.further((4, 5), dtype=torch.float32)
    tensors |= {name: tensors[name].bfloat16() for name in QKV}
    settings['normalize'] = normalize
    actual = evaluate(op, tensors, **settings)
    assert {name for name, x in actual.items() if x.dtype == torch.bfloat16} == {'output', *(f'd_{x}' for x in QKV)}
    assert {x.dtype for x in actual.values()} == {torch.bfloat16, torch.float32}
    expected = evaluate(reference, tensors, torch.float64, **settings)
    assert_same(actual, expected, **low_precision(torch.bfloat16))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize(('outside_bias', 'normalize'), POSITIONS)
@pytest.mark.parametrize('large', ['content', 'position', 'outside_bias', 'further'])
def test_logits_of_1e4(operator, large, dtype, outside_bias, normalize):
    """Nothing overflows. A float32 logit of 1e4 is off by up to some 1e-3, its weight by as much of itself."""
    op, reference, module = operator
    tensors, settings = module.with_window((4, 5), 3, outside_bias, 2, 1, dtype=dtype)
    if large == 'content':
        tensors |= {name: tensors[name] * 100 for name in ('query', 'key')}
    elif large == 'position':
        tensors['window_bias'] = tensors['window_bias'] * 1e4
    elif large == 'further':
        if reference is literal.grid_attention:
            pytest.skip('grid_attention has no further logits')
        logits = module.further((4, 5), dtype=dtype)
        tensors['axis_bias'] = tuple(x * 1e4 for x in logits['axis_bias'])
        tensors['key_bias'] = logits['key_bias'] * 1e4
    elif outside_bias is LEARNED:
        tensors['outside_bias'] = tensors['outside_bias'] * 1e4
    elif outside_bias == 0.0:
        settings['outside_bias'] = -1e4
    settings['normalize'] = normalize
    actual = evaluate(op, tensors, **settings)
    for name, x in actual.items():
        assert x.isfinite().all(), name
    expected = evaluate(reference, tensors, torch.float64, **settings)['output']
    torch.testing.assert_close(actual['output'].double(), expected, atol=1e-2, rtol=torch.finfo(dtype).eps)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('outside_bias', [LEARNED, 0.0, 1e4], ids=['learned', 'zero', '1e4'])
@pytest.mark.parametrize('window_size', [3, 7], ids=['window_inside', 'window_over_all'])
def test_zscore_of_logits_around_1e4(operator, dtype, outside_bias, window_size):
    """As near float64 as other logits: what E[x²] − μ² would cancel is a difference of neighbours, so exact.

    The mean of a few numbers of 1e4 may be off by an ulp, 1e-3: that shifts all z-scores of a query equally, which
    does not change the softmax, and its square is negligible compared with a variance of order 1.
    """
    op, reference, module = operator
    tensors, settings = around_1e4(*module.with_window((3, 4), window_size, outside_bias, 2, 1, dtype=dtype))
    settings['normalize'] = True
    actual = evaluate(op, tensors, **settings)
    assert_same(actual, evaluate(reference, tensors, torch.float64, **settings), **low_precision(dtype))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('outside_bias', [1e3, -1e5, -1e9])
@zscore
def test_outlier_of_no_key_changes_nothing(operator, outside_bias, normalize, dtype):
    """Where the window covers the map, v_i is the logit of no key: neither the mean nor the variance holds it."""
    op, _, module = operator
    tensors, settings = module.with_window((3, 4), 7, 0.0, 2, 2, dtype=dtype)
    settings['normalize'] = normalize
    expected = evaluate(op, tensors, **settings)
    actual = evaluate(op, tensors, **{**settings, 'outside_bias': outside_bias})
    assert_same(actual, expected, **low_precision(dtype))
