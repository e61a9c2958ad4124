"""The compositions that exporters use return what the operators return, in double precision."""

import math

import pytest
import torch

from mmattn.ops import export, library
from mmattn.ops.dispatch import OPERATORS

from ..support.operator_calls import cast
from . import literal
from .test_random_options import check_calls


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def tensor(*shape):
    return torch.randn(shape, dtype=torch.float64)


def operands(*positions, channels=3, keys=None):
    query, key = tensor(2, 2, *positions, channels), tensor(2, 2, *(keys or positions), channels)
    return query, key, tensor(2, 2, *(keys or positions), 4)


def check(name, *arguments):
    """Compare the composition of an operator with the operator; ``arguments`` are those of the schema."""
    run = OPERATORS[name].run
    found, expected = export.COMPOSITIONS[run](*arguments), run(*arguments)
    found, expected = ((x,) if isinstance(x, torch.Tensor) else x for x in (found, expected))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize('name', [name for name in library.KERNELS if name != 'strided_attention'])
def test_random_calls(name):
    """Two hundred, with all options of the operator."""

    def check_call(op, call, _):
        tensors = cast(call.tensors, torch.float64)
        settings = {key: x for key, x in call.settings.items() if key not in ('normalize', 'return_lse')}
        check(name, *literal.arguments(name, **tensors, **settings))

    check_calls(name, check_call, 200)


@pytest.mark.parametrize('size', [(5, 4), (1, 4), (2, 4, 3)])
@pytest.mark.parametrize('window', [True, False])
def test_grid_attention(size, window):
    settings = {}
    if window:
        window_size = (5, 3, 7)[-len(size) :]
        bias = tensor(2, 2, *size, sum(window_size) - len(size) + 1)
        settings = dict(window_bias=bias, window_size=window_size, outside_bias=tensor(2, 2, *size))
    check('grid_attention', *literal.arguments('grid_attention', *operands(*size), scale=1.3, **settings))


@pytest.mark.parametrize(('kernel_size', 'dilation'), [(3, 1), ((5, 3), 2), (1, 1)])
def test_dynamic_conv(kernel_size, dilation):
    entries = math.prod(literal.as_tuple(kernel_size, 2))
    given = tensor(2, 2, 4, 5, 3), tensor(2, 2, 4, 5, entries)
    settings = dict(kernel_size=kernel_size, dilation=dilation)
    check('dynamic_conv', *literal.arguments('dynamic_conv', *given, **settings))


def test_global_attention_of_the_last_queries():
    settings = dict(window_bias=tensor(2, 2, 2, 4, 15), window_size=(5, 3), outside_bias=0.3)
    check('global_attention', *literal.arguments('global_attention', *operands(2, 4, keys=(5, 4)), **settings))


@pytest.mark.parametrize('outside', [0.3, -math.inf, 'learned'])
@pytest.mark.parametrize('is_causal', [False, True])
def test_global_attention_with_windows(outside, is_causal):
    """What no query attends to may hold anything."""
    query, key, value = operands(2, 4, keys=(5, 4))
    mask = torch.rand(2, 5, 4) > 0.4
    key[~mask[:, None].expand(2, 2, 5, 4)] = math.nan
    bias = tensor(2, 2, 2, 4, 8 if is_causal else 15)
    settings = dict(window_bias=bias, window_size=(5, 3), key_mask=mask, is_causal=is_causal)
    settings['outside_bias'] = tensor(2, 2, 2, 4) if outside == 'learned' else outside
    check('global_attention', *literal.arguments('global_attention', query, key, value, scale=1.3, **settings))


@pytest.mark.parametrize(
    'settings', [dict(), dict(iterations=3, scale=0.7), dict(kernel_size=(3, 5), dilation=2), dict(kernel_size=(1, 5))]
)
@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('parts', ['content', 'both', 'geometric'])
def test_local_attention(parts, masked, settings):
    """Masked keys and values may hold anything; an image may have no key."""
    query, key, value = operands(4, 6)
    if parts == 'geometric':
        query = key = None
        settings = {name: x for name, x in settings.items() if name != 'iterations'}
    if parts != 'content':
        entries = math.prod(literal.as_tuple(settings.get('kernel_size', 3), 2))
        settings = dict(settings, window_bias=tensor(2, 2, 4, 6, entries))
    if masked:
        mask = torch.rand(2, 4, 6) > 0.4
        mask[1] = False
        settings = dict(settings, key_mask=mask)
        for x in (value, key):
            if x is not None:
                x[~mask[:, None].expand(2, 2, 4, 6)] = math.nan
    check('local_attention', *literal.arguments('local_attention', query, key, value, **settings))


@pytest.mark.parametrize('channels', [0, 3])
@pytest.mark.parametrize('masked', [False, True])
def test_global_attention_with_biases_of_keys(channels, masked):
    """Without channels there is no content; a masked-out image has no key at all."""
    settings = dict(key_bias=tensor(2, 2, 3, 6), axis_bias=(tensor(2, 2, 2, 5, 3), tensor(1, 2, 1, 5, 6)))
    if masked:
        settings['key_mask'] = torch.rand(2, 3, 6) > 0.5
        settings['key_mask'][1] = False
    given = operands(2, 5, keys=(3, 6), channels=channels)
    check('global_attention', *literal.arguments('global_attention', *given, scale=1.3, **settings))


def test_local_attention_without_any_finite_logit():
    value, window = tensor(2, 2, 3, 4, 5), tensor(2, 2, 3, 4, 9)
    window[0, 1, 2, 3] = -math.inf
    check('local_attention', *literal.arguments('local_attention', None, None, value, window_bias=window))


@pytest.mark.parametrize('size', [(5, 8), (1, 4), (3, 1), (1, 1), (2, 4, 3)])
@pytest.mark.parametrize('outside', [True, False])
@pytest.mark.parametrize('support', ['grid', 'global', 'causal', 'masked', 'masked, causal'])
def test_window_zscore(size, outside, support):
    """The biases are far from zero, as those of a query may be: a variance of E[x²] − μ² would cancel."""
    window_size = (5, 3, 7)[-len(size) :]
    is_causal = 'causal' in support
    if support == 'grid':
        entries = sum(window_size) - len(size) + 1
    else:
        entries = (math.prod(window_size) + 1) // 2 if is_causal else math.prod(window_size)
    mask = torch.rand(2, *size) > 0.4 if 'masked' in support else None
    window = tensor(2, 2, *size, entries) + 10
    bias = tensor(2, 2, *size) + 10 if outside else None
    name = 'grid' if support == 'grid' else 'global'
    check('window_zscore', window, bias, mask, window_size, 9.0, is_causal, name)


def test_projection():
    x, weight, bias = torch.randn(2, 3, 4, 5), torch.randn(6, 5), torch.randn(6)
    run = torch.ops.mmattn.projection.default
    torch.testing.assert_close(export.COMPOSITIONS[run](x, weight, bias), run(x, weight, bias))
