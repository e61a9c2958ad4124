"""The compositions that exporters use return what the operators return, in double precision."""

import math
from itertools import product

import pytest
import torch

from mmattn.ops import export
from mmattn.ops.dispatch import OPERATORS

from . import literal

SIZES = [(5, 8), (1, 4), (3, 1), (1, 1)]
KERNELS = list(product([(5, 8), (1, 4), (1, 1)], [3, (1, 5)], [1, 2]))  # size, kernel, dilation
TOLERANCE = dict(atol=1e-12, rtol=1e-10)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def tensor(*shape):
    return torch.randn(shape, dtype=torch.float64)


def operands(*positions, heads=2, channels=3, value_channels=4, keys=None):
    query, key = tensor(2, heads, *positions, channels), tensor(2, heads, *(keys or positions), channels)
    return query, key, tensor(2, heads, *(keys or positions), value_channels)


def check(name, *arguments):
    """Compare the composition of an operator with the operator; ``arguments`` are those of the schema."""
    run = OPERATORS[name].run
    found, expected = export.COMPOSITIONS[run](*arguments), run(*arguments)
    found, expected = ((x,) if isinstance(x, torch.Tensor) else x for x in (found, expected))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, **TOLERANCE)


@pytest.mark.parametrize('size', [*SIZES, (2, 4, 3), (3, 1, 1)])
@pytest.mark.parametrize('outside', ['none', 'tensor', 'number', '-inf'])
def test_grid_attention(size, outside):
    window_size = (5, 3, 7)[-len(size) :]
    settings = {}
    if outside != 'none':
        bias = {'tensor': tensor(2, 2, *size), 'number': 0.7, '-inf': -math.inf}[outside]
        entries = sum(window_size) - len(size) + 1
        settings = dict(window_bias=tensor(2, 2, *size, entries), window_size=window_size, outside_bias=bias)
    check('grid_attention', *literal.arguments('grid_attention', *operands(*size), scale=0.8, **settings))


@pytest.mark.parametrize('size', [*SIZES, (6,), (2, 4, 3)])
@pytest.mark.parametrize('outside', ['none', 'tensor', 'number', '-inf'])
@pytest.mark.parametrize('is_causal', [False, True])
def test_global_attention_with_windows(size, outside, is_causal):
    window_size = (5, 3, 7)[-len(size) :]
    settings = {}
    if outside != 'none':
        bias = {'tensor': tensor(2, 2, *size), 'number': 0.7, '-inf': -math.inf}[outside]
        entries = (math.prod(window_size) + 1) // 2 if is_causal else math.prod(window_size)
        settings = dict(window_bias=tensor(2, 2, *size, entries), window_size=window_size, outside_bias=bias)
    check('global_attention', *literal.arguments('global_attention', *operands(*size), is_causal=is_causal, **settings))


def test_global_attention_of_the_last_queries():
    settings = dict(window_bias=tensor(2, 2, 2, 4, 15), window_size=(5, 3), outside_bias=0.3)
    check('global_attention', *literal.arguments('global_attention', *operands(2, 4, keys=(5, 4)), **settings))


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


@pytest.mark.parametrize(('size', 'kernel_size', 'dilation'), KERNELS)
@pytest.mark.parametrize('terms', ['content', 'geometry', 'both'])
def test_local_attention(size, kernel_size, dilation, terms):
    query, key, value = operands(*size)
    entries = 9 if kernel_size == 3 else 5
    window = None if terms == 'content' else tensor(2, 2, *size, entries)
    query, key = (None, None) if terms == 'geometry' else (query, key)
    settings = dict(kernel_size=kernel_size, dilation=dilation, window_bias=window)
    check('local_attention', *literal.arguments('local_attention', query, key, value, **settings))


def test_local_attention_with_refinement():
    settings = dict(kernel_size=(3, 5), iterations=3, window_bias=tensor(2, 2, 4, 6, 15))
    check('local_attention', *literal.arguments('local_attention', *operands(4, 6, value_channels=3), **settings))


def test_local_attention_without_any_finite_logit():
    window = tensor(2, 2, 3, 4, 9)
    window[0, 1, 2, 3] = -math.inf
    check(
        'local_attention', *literal.arguments('local_attention', None, None, tensor(2, 2, 3, 4, 5), window_bias=window)
    )


@pytest.mark.parametrize(('size', 'kernel_size', 'dilation'), KERNELS)
def test_dynamic_conv(size, kernel_size, dilation):
    entries = 9 if kernel_size == 3 else 5
    given = tensor(2, 3, *size, 4), tensor(2, 3, *size, entries)
    check('dynamic_conv', *literal.arguments('dynamic_conv', *given, kernel_size=kernel_size, dilation=dilation))


@pytest.mark.parametrize('size', [*SIZES, (2, 4, 3)])
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
