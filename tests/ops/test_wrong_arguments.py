"""Settings that make no sense: each is an error that names the argument and what came, in every operator."""

import math
from functools import partial

import pytest
import torch

from mmattn.ops import dynamic_conv, global_attention, grid_attention, local_attention, strided_attention

from . import literal

MAP = literal.randn(1, 1, 2, 3, 4)
strided = partial(strided_attention, pattern='block')
ATTENTION = {
    'global': partial(global_attention, MAP, MAP, MAP),
    'grid': partial(grid_attention, MAP, MAP, MAP),
    'local': partial(local_attention, MAP, MAP, MAP),
    'strided': partial(strided, MAP, MAP, MAP),
}
CONVOLVED = partial(dynamic_conv, MAP, literal.randn(1, 1, 2, 3, 9))
LENGTHS = ['3', '31', (3, 3, 3), (3,), 0, -1, 1.0, True, (3, '3'), (3, 0)]
COUNTS = [0, -1, 1.0, '1', True, None]


def wrong(call, name, value, **settings):
    with pytest.raises((TypeError, ValueError)) as caught:
        call(**settings, **{name: value})
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    'value', [math.nan, math.inf, -math.inf, 10**400, '1', (1.0,), True, torch.tensor(1.0)], ids=repr
)
@pytest.mark.parametrize('name', ATTENTION)
def test_scale(name, value):
    """A tensor is refused: it was read as a number, and got no gradient."""
    wrong(ATTENTION[name], 'scale', value)


@pytest.mark.parametrize('value', [math.nan, math.inf, 10**400, '0', None], ids=repr)
@pytest.mark.parametrize('name', ['global', 'grid'])
def test_outlier(name, value):
    entries = {'global': 9, 'grid': 5}[name]
    wrong(ATTENTION[name], 'outside_bias', value, window_bias=literal.randn(1, 1, 2, 3, entries), window_size=3)


@pytest.mark.parametrize('value', [*LENGTHS, 2, (3, 2)], ids=repr)
def test_lengths_of_windows(value):
    for name, entries in (('global', 9), ('grid', 5)):
        wrong(ATTENTION[name], 'window_size', value, window_bias=literal.randn(1, 1, 2, 3, entries))
    for call in (ATTENTION['local'], CONVOLVED):
        wrong(call, 'kernel_size', value)


@pytest.mark.parametrize('value', LENGTHS, ids=repr)
def test_step(value):
    wrong(ATTENTION['strided'], 'step', value)


@pytest.mark.parametrize('value', COUNTS, ids=repr)
def test_counts(value):
    wrong(ATTENTION['local'], 'dilation', value)
    wrong(ATTENTION['local'], 'iterations', value)
    wrong(partial(CONVOLVED, kernel_size=3), 'dilation', value)


@pytest.mark.parametrize(
    ('call', 'arguments', 'message'),
    [
        (
            global_attention,
            dict(query=MAP.numpy()),
            "query, key and value must be tensors; got <class 'numpy.ndarray'>",
        ),
        (
            global_attention,
            dict(axis_bias=MAP[0, 0]),
            r'axis_bias must be empty or hold one tensor .* shape \(2, 3, 4\)',
        ),
        (strided, dict(offset_bias=MAP[0, 0]), r'offset_bias must be empty or hold one tensor .* shape \(2, 3, 4\)'),
        (global_attention, dict(key_bias=1.0), 'key_bias must be a tensor; got 1.0'),
        (strided, dict(scale=1e300), r'scale must be finite in torch.float32; got 1e\+300'),
    ],
)
def test_messages(call, arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(**dict(query=MAP.float(), key=MAP.float(), value=MAP.float()) | arguments)


@pytest.mark.parametrize('shape', [(1, 1, 0, 3, 4), (1, 1, 2, 0, 4)], ids=str)
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_no_keys(shape, dtype):
    query, empty = MAP.to(dtype), MAP.new_empty(shape, dtype=dtype)
    for call in (global_attention, strided):
        with pytest.raises(ValueError, match=r'key must have at least one position.*\(1, 1, '):
            call(query, empty, empty)
    for call in (grid_attention, strided):
        with pytest.raises(ValueError, match=r'query must have at least one position.*\(1, 1, '):
            call(empty, empty, empty)
    assert global_attention(empty, query, query).shape == shape


@pytest.mark.parametrize('call', [global_attention, grid_attention, local_attention, strided])
def test_without_channels_all_keys_weigh_the_same(call):
    none = MAP[..., :0]
    torch.testing.assert_close(call(none, none, MAP), call(none, none, MAP, scale=1.0))
    torch.testing.assert_close(call(none, none, MAP), call(MAP * 0, MAP, MAP))


@pytest.mark.parametrize('name', [*ATTENTION, 'window_bias', 'dynamic'])
def test_two_devices(name):
    """A kernel for 'meta' would give a result without values, or one of unset memory."""
    there = MAP.to('meta')
    calls = {
        'global': lambda: global_attention(MAP, MAP, MAP, key_bias=torch.zeros(3, device='meta')),
        'grid': lambda: grid_attention(MAP, MAP, there),
        'local': lambda: local_attention(there, MAP, MAP),
        'strided': lambda: strided(MAP, there, MAP),
        'window_bias': lambda: local_attention(None, None, MAP, window_bias=torch.zeros(1, 1, 2, 3, 9, device='meta')),
        'dynamic': lambda: dynamic_conv(MAP, torch.zeros(1, 1, 2, 3, 9, device='meta'), kernel_size=3),
    }
    with pytest.raises(ValueError, match=r'all tensors must be on one device; got .* on meta'):
        calls[name]()
