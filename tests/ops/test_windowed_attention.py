"""What global_attention and grid_attention do alike: logits of a window, of any size and in every dtype."""

import functools

import pytest
import torch

from . import literal, zscored
from .literal import DTYPES, LEARNED, around_1e4, assert_same, evaluate, low_precision, operands

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
OPERATORS = {
    name: (getattr(zscored, name), getattr(literal, name), functools.partial(literal.with_window, name))
    for name in ('global_attention', 'grid_attention')
}
zscore = pytest.mark.parametrize('normalize', [False, True], ids=['plain', 'zscore'])


@pytest.fixture(params=OPERATORS.values(), ids=OPERATORS)
def operator(request):
    return request.param


@zscore
@pytest.mark.parametrize('outside_bias', [LEARNED, 0.0], ids=['learned', 'zero'])
@pytest.mark.parametrize('size', [(4, 5), (2, 3, 4)], ids=['2d', '3d'])
def test_constant_position_logits_leave_the_content(operator, size, outside_bias, normalize):
    """Whatever the constant of a query; for the zero outlier only 0. Their variance is 0, and gradients are finite."""
    op, _, with_window = operator
    tensors, settings = with_window(size, 3, outside_bias, 2, 2)
    constant = tensors.get('outside_bias', torch.zeros(2, 2, *size, dtype=torch.float64))
    tensors['window_bias'] = constant.unsqueeze(-1).expand_as(tensors['window_bias'])
    actual = evaluate(op, tensors, normalize=normalize, **settings)
    expected = evaluate(op, operands(size, 2, 2))
    assert_same({name: actual[name] for name in expected}, expected, 1e-12, 1e-12)
    assert all(x.isfinite().all() for x in actual.values())


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('outside_bias', [LEARNED, 0.0, 1e4], ids=['learned', 'zero', '1e4'])
@pytest.mark.parametrize('window_size', [3, 7], ids=['window_inside', 'window_over_all'])
def test_zscore_of_logits_around_1e4(operator, dtype, outside_bias, window_size):
    """As near float64 as other logits: what E[x²] − μ² would cancel is a difference of neighbours, so exact.

    The mean of a few numbers of 1e4 may be off by an ulp, 1e-3: that shifts all z-scores of a query equally, which
    does not change the softmax, and its square is negligible compared with a variance of order 1.
    """
    op, reference, with_window = operator
    tensors, settings = around_1e4(*with_window((3, 4), window_size, outside_bias, 2, 1, dtype=dtype))
    settings['normalize'] = True
    actual = evaluate(op, tensors, **settings)
    assert_same(actual, evaluate(reference, tensors, torch.float64, **settings), **low_precision(dtype))


@pytest.mark.parametrize(('of_heads', 'of_entries'), [(False, True), (True, False), (False, False)])
def test_a_table_may_have_one_row_for_all_heads_or_one_number_for_all_entries(operator, of_heads, of_entries):
    op, _, with_window = operator
    tensors, settings = with_window((3, 4), 3, 0.0, 2, 2)
    entries = tensors['window_bias'].shape[-1]
    tensors['window_bias'] = literal.randn(2 if of_heads else 1, entries if of_entries else 1, seed=9)
    expected = op(**{**tensors, 'window_bias': tensors['window_bias'].expand(2, entries).contiguous()}, **settings)
    torch.testing.assert_close(op(**tensors, **settings), expected)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('outside_bias', [1e3, -1e5, -1e9])
@zscore
def test_outlier_of_no_key_changes_nothing(operator, outside_bias, normalize, dtype):
    """Where the window covers the map, v_i is the logit of no key: neither the mean nor the variance holds it."""
    op, _, with_window = operator
    tensors, settings = with_window((3, 4), 7, 0.0, 2, 2, dtype=dtype)
    settings['normalize'] = normalize
    expected = evaluate(op, tensors, **settings)
    actual = evaluate(op, tensors, **{**settings, 'outside_bias': outside_bias})
    assert_same(actual, expected, **low_precision(dtype))
