"""The rows of weights of the operators against those of a table of all pairs."""

import math

import pytest
import torch

from mmattn.ops import local_attention_weights, strided_support
from mmattn.ops.patterns import PATTERNS
from mmattn.utils.profiling import extra_memory

from . import literal, zscored
from .literal import CONTENT, LEARNED, POSITIONS, SWITCHES, operands, randn
from .test_equations import OTHER_KEYS

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)

OPERATORS = ['global_attention', 'grid_attention']
# size, window_size, coordinates of the queries: corners, the middle, one twice
MAPS = {
    '2d': ((3, 5), 3, [(0, 0), (2, 4), (1, 2), (1, 2)]),
    '2d-tall': ((5, 3), (3, 5), [(4, 0), (1, 1)]),
    '2d-larger_window': ((2, 3), 7, [(1, 0)]),
    '2d-column': ((5, 1), 3, [(0, 0), (3, 0)]),
    '2d-single': ((1, 1), 5, [(0, 0)]),
    '3d': ((2, 3, 4), 3, [(0, 0, 0), (1, 2, 3), (0, 1, 2)]),
    '3d-windows': ((3, 4, 2), (5, 3, 1), [(2, 0, 1)]),
}
LOCAL, STRIDED = 'local_attention', 'strided_attention'
# size, kernel_size, dilation, queries
LOCAL_MAPS = {
    'k3': ((3, 5), 3, 1, MAPS['2d'][-1]),
    '3x5': ((5, 6), (3, 5), 1, [(4, 0), (2, 3)]),
    'dilated': ((5, 6), 3, 2, [(0, 0), (2, 3), (3, 5)]),
    'larger_kernel': ((2, 3), 7, 1, [(1, 0)]),
    'no_neighbours': ((2, 3), 3, 4, [(1, 1)]),
    'column': ((5, 1), 3, 1, [(0, 0), (3, 0)]),
    'single': ((1, 1), 5, 1, [(0, 0)]),
}
# size, key_size, step
STRIDED_MAPS = [((3, 4, 5), (3, 4, 5), 2), ((1, 5, 1), (1, 5, 1), 3), ((4, 5), (4, 5), (3, 2)), *OTHER_KEYS.values()]


def call(operator, size, lengths, outside_bias=LEARNED, **options):
    """Query, key and biases, and settings. ``lengths`` are of windows or kernels, or steps."""
    if operator == LOCAL:
        tensors, settings = literal.with_kernel(size, lengths, 2, 2, **options)
    elif operator == STRIDED:
        tensors, settings = literal.with_offsets(size, lengths, batch=2, heads=2, **options)
    else:
        tensors, settings = literal.with_window(operator, size, lengths, outside_bias, 2, 2, **options)
    del tensors['value']
    return tensors, settings


def weights(operator, tensors, queries, **settings):
    return zscored.operator(f'{operator}_weights')(**tensors, queries=torch.tensor(queries), **settings)


def literal_rows(operator, tensors, queries, **settings):
    """The literal operator's output where the values are unit vectors."""
    key_size = tensors['key' if 'key' in tensors else 'window_bias'].shape[2:-1]
    count = math.prod(key_size)
    value = torch.eye(count, dtype=torch.float64).view(1, 1, *key_size, count).expand(2, 2, *[-1] * (len(key_size) + 1))
    table = getattr(literal, operator)(**tensors, value=value, **settings)
    return table[(slice(None), slice(None), *torch.tensor(queries).T)].unflatten(-1, key_size)


def assert_rows(operator, tensors, queries, **settings):
    actual = weights(operator, tensors, queries, **settings)
    torch.testing.assert_close(actual, literal_rows(operator, tensors, queries, **settings), atol=1e-10, rtol=1e-10)
    return actual


@pytest.mark.parametrize('operator', OPERATORS)
@pytest.mark.parametrize(('outside_bias', 'normalize'), [CONTENT, *POSITIONS])
@pytest.mark.parametrize(('size', 'window_size', 'queries'), MAPS.values(), ids=MAPS)
def test_rows_of_the_table_of_all_pairs(operator, size, window_size, queries, outside_bias, normalize):
    tensors, settings = call(operator, size, window_size, outside_bias)
    rows = assert_rows(operator, tensors, queries, normalize=normalize, scale=0.7, **settings)
    torch.testing.assert_close(rows.flatten(3).sum(-1), torch.ones(2, 2, len(queries), dtype=torch.float64))


@pytest.mark.parametrize('is_causal', [False, True], ids=['', 'is_causal'])
@pytest.mark.parametrize(('outside_bias', 'normalize'), [CONTENT, *POSITIONS])
def test_further_logits_and_supports(outside_bias, normalize, is_causal):
    """Without a key to attend to, as in the second batch item, a row is zero."""
    size = (3, 4)
    tensors, settings = call('global_attention', size, (3, 5), outside_bias, is_causal=is_causal)
    tensors |= {
        'axis_bias': (randn(2, 1, 1, 4, 3, seed=6), randn(4, seed=7)),
        'key_bias': randn(2, 1, 3, 4, seed=8),
        'key_mask': randn(2, *size, seed=9) > -0.5,
    }
    tensors['key_mask'][1] = False
    rows = assert_rows(
        'global_attention', tensors, [(0, 3), (2, 1)], normalize=normalize, is_causal=is_causal, **settings
    )
    assert not rows[1].any()
    torch.testing.assert_close(rows[0].sum((-2, -1)), torch.ones(2, 2, dtype=torch.float64))


def test_sequences_and_other_keys():
    tensors, settings = call('global_attention', (7,), 3, LEARNED)
    assert_rows('global_attention', tensors, [(0,), (6,)], normalize=True, **settings)
    other = operands((2, 3), 2, 2, key_size=(4, 1))
    assert_rows('global_attention', {name: other[name] for name in ('query', 'key')}, [(1, 2)])


@pytest.mark.parametrize('switches', SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize(('size', 'kernel_size', 'dilation', 'queries'), LOCAL_MAPS.values(), ids=LOCAL_MAPS)
def test_neighbourhoods(size, kernel_size, dilation, queries, switches):
    """Of the last softmax, refined or not; 0 outside the neighbourhood."""
    tensors, settings = call(LOCAL, size, kernel_size, dilation=dilation, **switches)
    rows = assert_rows(LOCAL, tensors, queries, **settings)
    torch.testing.assert_close(rows.sum((-2, -1)), torch.ones(2, 2, len(queries), dtype=torch.float64))
    table = literal.neighbours(size, literal.as_tuple(kernel_size, 2), dilation)
    around = torch.stack([table[literal.coordinates(size).index(query)] >= 0 for query in queries])
    assert torch.equal(rows.flatten(-2) > 0, around.expand(2, 2, -1, -1))


@pytest.mark.parametrize('pattern', PATTERNS)
@pytest.mark.parametrize('logits', [False, True], ids=['content', 'offsets'])
@pytest.mark.parametrize(('size', 'key_size', 'step'), STRIDED_MAPS, ids=str)
def test_patterns(size, key_size, step, pattern, logits):
    """0 off the pattern, and for a query without keys."""
    queries = [literal.coordinates(size)[i] for i in (0, -1, 1, 0)]
    tensors, settings = call(STRIDED, size, step, pattern=pattern, key_size=key_size, logits=logits)
    rows = assert_rows(STRIDED, tensors, queries, scale=0.7, **settings)
    support = strided_support(size, step, pattern, torch.tensor(queries), key_size)
    assert torch.equal(rows > 0, support.expand_as(rows))
    torch.testing.assert_close(rows.flatten(3).sum(-1), support.flatten(1).any(1).double().expand(2, 2, -1))


def test_removed_neighbours():
    """By −∞, and by a mask of each sample."""
    tensors, settings = call(LOCAL, (3, 5), 3, iterations=2)
    masked = {**tensors, 'key_mask': randn(2, 3, 5, seed=8) > 0}
    assert_rows(LOCAL, masked, [(0, 0), (1, 2), (2, 4)], **settings)
    removed = randn(2, 2, 3, 5, 9, seed=9) > 0
    removed[..., 4] = False
    tensors['window_bias'] = tensors['window_bias'].masked_fill(removed, -math.inf)
    assert_rows(LOCAL, tensors, [(0, 0), (1, 2), (2, 4)], **settings)


LOW = {
    **{operator: (operator, {}, {'normalize': True}) for operator in OPERATORS},
    **{f'local, {name}': (LOCAL, switches, {}) for name, switches in SWITCHES.items()},
    'strided': (STRIDED, {'pattern': 'centred'}, {}),
}


@pytest.mark.parametrize(('operator', 'options', 'more'), LOW.values(), ids=LOW)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_accumulated_in_float32(operator, options, more, dtype):
    tensors, settings = call(operator, (3, 5), 3, dtype=dtype, **options)
    rows = weights(operator, tensors, [(1, 3)], **settings, **more)
    assert rows.dtype == torch.float32
    exact = literal_rows(operator, literal.each(tensors, torch.Tensor.double), [(1, 3)], **settings, **more)
    torch.testing.assert_close(rows, exact, atol=1e-5, rtol=1e-4, check_dtype=False)


@pytest.mark.parametrize(
    ('operator', 'shapes', 'settings', 'limit'),
    [
        ('global_attention', {'window_bias': [31**2], 'outside_bias': []}, {'window_size': 31}, 16),
        ('grid_attention', {'window_bias': [61], 'outside_bias': []}, {'window_size': 31}, 1.5),
        (LOCAL, {'window_bias': [15**2]}, {'kernel_size': 15, 'iterations': 3}, 16),
    ],
)
def test_the_table_of_all_pairs_is_never_stored(operator, shapes, settings, limit):
    """It would take 64 MiB, and 2 MiB for all crosses. The passes with three channels of values take the rest."""
    shapes = {'query': [8], 'key': [8], **shapes}
    tensors = {name: torch.randn(1, 1, 64, 64, *channels) for name, channels in shapes.items()}
    _, extra = extra_memory(lambda: weights(operator, tensors, [(0, 0), (20, 30), (63, 5)], **settings))
    assert extra < limit


def test_queries_of_inference_mode():
    query, key = randn(2, 1, 2, 5, 4, 8).float().unbind()
    expected = local_attention_weights(query, key, torch.tensor([[1, 2]]), kernel_size=3)
    with torch.inference_mode():
        rows = local_attention_weights(query * 1, key * 1, torch.tensor([[1, 2]]), kernel_size=3)
    assert torch.equal(rows, expected)


def test_neighbourhoods_under_autocast_and_another_default_device():
    query, key, bias = (randn(1, 2, 6, 6, n).float() for n in (8, 8, 25))
    queries = torch.tensor([[0, 0], [3, 2]])
    settings = dict(window_bias=bias, kernel_size=5, iterations=3)
    expected = local_attention_weights(query, key, queries, **settings)
    low = local_attention_weights(query.bfloat16(), key.bfloat16(), queries, **settings)
    with torch.autocast('cpu', torch.bfloat16):  # casts them, as in the operator
        assert torch.equal(local_attention_weights(query, key, queries, **settings), low)
    with torch.device('meta'):
        assert torch.equal(local_attention_weights(query, key, queries, **settings), expected)
