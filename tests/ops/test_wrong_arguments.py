"""Arguments that make no sense: each is an error that names the argument, in every operator."""

import math
from functools import partial

import pytest
import torch

from mmattn import ops
from mmattn.ops import dispatch

from . import literal, zscored
from .literal import QKV, randn
from .test_direct_call import in_python

MAP = randn(1, 1, 2, 3, 4)
SEQUENCE, VOLUME = randn(1, 2, 12, 3), randn(1, 2, 2, 3, 2, 3)
MASK = torch.ones(1, 3, 4, dtype=torch.bool)
LENGTHS = ['3', '31', (3, 3, 3), (3,), 0, -1, 1.0, True, (3, '3'), (3, 0), (3, True)]
COUNTS = [0, -1, 1.0, '1', True, None]
SCALES = [math.nan, math.inf, -math.inf, 10**400, '1', (1.0,), True, torch.tensor(1.0)]  # a tensor got no gradient
NUMBERS = [math.nan, math.inf, 10**400, '0', None]
# A call of each operator that fits: tensors (1, 2, 3, 4, 3), with a window of 3×5, and what else.
FITS = {
    'global_attention': literal.with_window('global_attention', (3, 4), (3, 5), heads=2),
    'grid_attention': literal.with_window('grid_attention', (3, 4), (3, 5), heads=2),
    'local_attention': literal.with_kernel((3, 4), (3, 5), heads=2),
    'strided_attention': literal.with_offsets((3, 4), 2, 'block', heads=2),
    'dynamic_conv': literal.with_logits((3, 4), (3, 5), 1),
    'unit_variance': ({'window_bias': randn(1, 1, 5, 5, 9)}, {'window_size': 3}),
}
ATTENTION = [*FITS][:4]
QUERIES = torch.tensor([[0, 0]])
for name in ATTENTION:
    tensors, settings = FITS[name]
    FITS[f'{name}_weights'] = {k: x for k, x in tensors.items() if k != 'value'}, settings | {'queries': QUERIES}
# The values of a setting, each with itself in the message.
VALUES = [
    *((name, 'scale', SCALES) for name in ATTENTION),
    *((name, 'outside_bias', NUMBERS) for name in ATTENTION[:2]),
    *((name, 'window_size', [*LENGTHS, 2, (3, 2)]) for name in ATTENTION[:2]),
    *((name, 'kernel_size', [*LENGTHS, 2, (3, 2)]) for name in ('local_attention', 'dynamic_conv')),
    *((name, 'dilation', COUNTS) for name in ('local_attention', 'dynamic_conv')),
    ('local_attention', 'iterations', COUNTS),
    ('strided_attention', 'step', LENGTHS),
    ('strided_attention', 'pattern', ['cube', None]),
    ('unit_variance', 'support', ['local']),
]


def attention(*places, like=None, **changes):
    """Change query, key and value, or some of them, to tensors like one."""
    return dict.fromkeys(places or QKV, like) | changes


def faults():
    """Yield an operator, the argument that is named, the error, and what is changed."""
    x, integers = randn(1, 2, 3, 4, 3), torch.ones(1, 2, 3, 4, 3, dtype=torch.long)
    for name in ATTENTION:
        yield name, 'query', ValueError, attention(like=randn(1, 2, 1, 1, 1, 1, 3))
        yield name, 'query, key and value', TypeError, attention('query', like=x.numpy())
        yield name, 'query, key and value', TypeError, attention(like=integers)
        yield name, 'query, key and value', TypeError, attention('key', like=x.float())
        yield name, 'query, key and value', TypeError, attention('value', like=x.half())
        yield name, 'key', ValueError, attention('key', like=SEQUENCE)
        yield name, 'key', ValueError, attention('key', 'value', like=randn(1, 4, 3, 4, 3))
        yield name, 'key', ValueError, attention('key', 'value', like=randn(2, 2, 3, 4, 3))
        yield name, 'key', ValueError, attention('key', like=randn(1, 2, 3, 4, 2))
        yield name, 'value', ValueError, attention('value', like=SEQUENCE)
        yield name, 'value', ValueError, attention('value', like=randn(1, 2, 4, 3, 3))
        yield name, 'value', ValueError, attention('value', like=randn(2, 2, 3, 4, 3))
        yield name, 'value', ValueError, attention('value', like=randn(1, 1, 3, 4, 3))
        yield name, 'device', ValueError, attention('value', like=x.to('meta'))
        for queries in (torch.zeros(1, 2), torch.zeros(2).long(), torch.zeros(1, 3).long(), QUERIES - 1, QUERIES + 3):
            yield f'{name}_weights', 'queries', ValueError, {'queries': queries}
        yield f'{name}_weights', 'windows', TypeError, {'windows': 3}
    for name in ('grid_attention', 'local_attention'):
        yield name, 'query', ValueError, attention(like=SEQUENCE)
        yield name, 'key', ValueError, attention('key', like=randn(1, 2, 3, 5, 3))
        yield name, 'quer|key', ValueError, attention('key', 'value', like=randn(1, 2, 3, 5, 3))
    for name, entries in (('global_attention', 15), ('grid_attention', 7), ('local_attention', 15)):
        yield name, 'window_bias', ValueError, {'window_bias': randn(1, 2, 3, 4, entries - 1)}
        yield name, 'window_bias', ValueError, {'window_bias': randn(1, 3, 3, 4, entries)}
        yield name, 'window_bias', ValueError, {'window_bias': randn(3, entries)}
        yield name, 'window_bias', ValueError, {'window_bias': randn(1, 2, 4, 3, entries)}
        yield name, 'window_bias', ValueError, {'window_bias': randn(1, 2, 3, 4, 1, entries)}
        yield name, 'window_bias', TypeError, {'window_bias': torch.ones(1, 2, 3, 4, entries, dtype=torch.long)}
        yield name, 'window_bias', ValueError, {'window_bias': randn(2, entries).to('meta')}
    for name in ATTENTION[:2]:
        yield name, 'window_size', ValueError, {'window_size': None}
        yield name, 'outside_bias', ValueError, {'outside_bias': randn(1, 2, 3, 4, 1)}
        yield name, 'outside_bias', ValueError, {'outside_bias': randn(1, 1, 3, 4)}
        yield name, 'outside_bias', TypeError, {'outside_bias': torch.ones(1, 2, 3, 4, dtype=torch.long)}
        yield name, 'outside_bias', ValueError, {'outside_bias': -math.inf, 'normalize': True}
        yield f'{name}_weights', 'window_size', ValueError, {'window_size': 4}
    for name in (name for name in ATTENTION if 'key_mask' in dispatch.OPERATORS[name].Arguments._fields):
        yield name, 'key_mask', ValueError, {'key_mask': MASK.mT}
        yield name, 'key_mask', ValueError, {'key_mask': MASK.unsqueeze(1)}
        yield name, 'key_mask', ValueError, {'key_mask': MASK.float()}
        yield name, 'key_mask', ValueError, {'key_mask': MASK.to('meta')}
    name, plain = 'global_attention', {'window_bias': None, 'outside_bias': 0.0}
    yield name, 'query', ValueError, attention(like=randn(1, 2, 4))
    yield name, 'window_bias', ValueError, {'is_causal': True}
    for is_causal, bias in ((True, plain), (False, {})):  # queries at no position of the keys
        for key in (randn(1, 2, 2, 4, 3), randn(1, 2, 3, 5, 3)):
            changes = attention('key', 'value', like=key) | bias | {'is_causal': is_causal}
            yield name, 'window_bias', ValueError, changes
    for shape in ((1, 2, 0, 4, 3), (1, 2, 3, 0, 3)):
        yield name, 'key', ValueError, attention('key', 'value', like=randn(*shape)) | plain
        yield 'strided_attention', 'key', ValueError, attention('key', 'value', like=randn(*shape))
    yield name, 'key_bias', TypeError, {'key_bias': torch.ones(1, 2, 3, 4, dtype=torch.long)}
    yield name, 'key_bias', TypeError, {'key_bias': 1.0}
    yield name, 'key_bias', ValueError, {'key_bias': randn(1, 2, 4, 3)}
    yield name, 'key_bias', ValueError, {'key_bias': torch.zeros(4, device='meta')}
    for shapes in ([(1, 2, 3, 4, 3)], [(1, 2, 3, 4, 3)] * 2, [(3,), (1, 1, 2, 3, 4, 4)]):
        yield name, 'axis_bias', ValueError, {'axis_bias': [randn(*shape) for shape in shapes]}
    yield name, 'axis_bias', ValueError, {'axis_bias': MAP[0, 0]}
    name, alone = 'local_attention', attention('query', 'key')
    yield name, 'query', ValueError, attention(like=VOLUME)
    yield name, 'query', ValueError, {'query': None}
    yield name, 'key', ValueError, {'key': None}
    yield name, 'window_bias', ValueError, alone | {'window_bias': None}
    yield name, 'iterations', ValueError, alone | {'iterations': 2}
    yield name, 'value', ValueError, alone | {'value': SEQUENCE}
    yield name, 'value', ValueError, alone | {'value': VOLUME}
    yield name, 'value', TypeError, alone | {'value': integers}
    for bias, error in ((randn(1, 2, 3, 4, 9), ValueError), (randn(1, 2, 12, 15), ValueError), (integers, TypeError)):
        yield f'{name}_weights', 'window_bias', error, alone | {'window_bias': bias}
    yield f'{name}_weights', 'window_bias', ValueError, alone | {'window_bias': None}
    name = 'strided_attention'
    yield name, 'query', ValueError, attention(like=randn(1, 2, 3))
    yield name, 'scale', ValueError, {key: value.float() for key, value in attention(like=x).items()} | {'scale': 1e300}
    yield name, 'step', ValueError, attention('key', 'value', like=randn(1, 2, 3, 5, 3), step=None)
    for entries in ((3,), (3, 3, 3), (3, 2)):
        biases = [randn(1, 2, 3, 4, n) for n in entries]
        yield name, r'offset_bias(\[1\])?', ValueError, {'offset_bias': biases}
    yield name, r'offset_bias\[0\]', ValueError, {'pattern': 'forward'}
    yield name, r'offset_bias\[0\]', ValueError, {'offset_bias': [randn(1, 2, 4, 3, 3)] * 2}
    yield name, r'offset_bias\[0\]', TypeError, {'offset_bias': [torch.ones(3, dtype=torch.long)] * 2}
    yield name, 'offset_bias', ValueError, {'offset_bias': MAP[0, 0]}
    yield name, 'pattern', ValueError, {'offset_bias': (), 'pattern': 'cube'}
    nowhere = randn(1, 2, 0, 4, 3)
    yield name, 'query', ValueError, attention('query', like=nowhere) | {'offset_bias': ()}
    yield 'grid_attention', 'query', ValueError, attention(like=nowhere) | plain
    name = 'dynamic_conv'
    yield name, 'value', ValueError, {'value': randn(1, 3, 4, 6)}
    yield name, 'value', ValueError, {'value': VOLUME}
    yield name, 'value', TypeError, {'value': integers}
    for shape in ((1, 2, 3, 4, 9), (1, 1, 3, 4, 15), (1, 2, 4, 3, 15), (1, 2, 3, 4, 3, 5)):
        yield name, 'logits', ValueError, {'logits': randn(*shape)}
    yield name, 'logits', TypeError, {'logits': torch.ones(1, 2, 3, 4, 15, dtype=torch.long)}
    yield name, 'logits', ValueError, {'logits': randn(1, 2, 3, 4, 15).to('meta')}
    name = 'unit_variance'
    yield name, 'support', ValueError, {'support': 'grid', 'is_causal': True}
    yield name, 'window_bias', ValueError, {'window_size': 5}
    yield name, 'outside_bias', ValueError, {'outside_bias': -math.inf}
    yield name, 'window_bias', ValueError, {'support': 'grid', 'window_bias': randn(1, 1, 5, 3)}
    for bias in (randn(1, 1, 1), randn(1, 1, 2, 2, 2, 2, 81)):
        yield name, 'window_bias', ValueError, {'window_bias': bias}
    yield name, 'key_mask', ValueError, {'key_mask': MASK}


@pytest.mark.parametrize('size', [(0, 3), (), (2, 2, 2, 2), 3, (2.0, 2)], ids=str)
def test_the_size_of_a_map_is_checked(size):
    for call in (ops.grid_support, lambda x: ops.strided_support(x, 2, 'block')):
        with pytest.raises(ValueError, match=r'^size'):
            call(size)


@pytest.mark.parametrize('in_native_code', [True, False])
@pytest.mark.parametrize('operator', FITS)
def test_the_error_names_the_argument(operator, in_native_code, monkeypatch):
    if not in_native_code:
        in_python(monkeypatch)
    tensors, settings = FITS[operator]
    call = zscored.operator(operator) if operator != 'unit_variance' else ops.unit_variance
    call(**tensors, **settings)  # the call that the changes spoil
    for name, argument, error, changes in faults():
        if name == operator:
            with pytest.raises(error, match=rf'\b({argument})'):
                call(**{**tensors, **settings, **changes})
    for name, argument, values in VALUES:
        for value in values if name == operator else ():
            with pytest.raises((TypeError, ValueError)) as caught:
                call(**{**tensors, **settings, argument: value})
            assert argument in str(caught.value)
            assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ('name', 'mask'),
    {
        'queries': lambda: ops.grid_support((3, 4), torch.tensor([(3, 0)])),
        r'queries\b.*\b3\)': lambda: ops.strided_support((3, 4, 5), 2, 'block', torch.tensor([(1, 0)])),
        'pattern': lambda: ops.strided_support((3, 4), 2, 'cube'),
        'step': lambda: ops.strided_support((3, 4), 0, 'block'),
        r'step must\b.*\(3, 4\).*\(3, 5\)': lambda: ops.strided_support((3, 4), None, 'block', key_size=(3, 5)),
    }.items(),
)
def test_wrong_arguments_of_masks(name, mask):
    with pytest.raises(ValueError, match=rf'\b{name}'):
        mask()


@pytest.mark.parametrize('name', ATTENTION)
def test_without_channels_all_keys_weigh_the_same(name):
    call = partial(getattr(ops, name), **{'pattern': 'block'} if name == 'strided_attention' else {})
    none = MAP[..., :0]
    torch.testing.assert_close(call(none, none, MAP), call(none, none, MAP, scale=1.0))
    torch.testing.assert_close(call(none, none, MAP), call(MAP * 0, MAP, MAP))


def test_tensors_must_be_strided():
    value, logits = torch.ones(1, 1, 3, 4, 2), torch.ones(1, 1, 3, 4, 9)
    with pytest.raises(ValueError, match=r'dynamic_conv: .*torch\.sparse_coo of torch\.float32'):
        ops.dynamic_conv(value.to_sparse(), logits, kernel_size=3)
