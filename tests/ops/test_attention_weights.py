"""The rows of weights of the operators against those of a table of all pairs."""

import math

import pytest
import torch

from mmattn.ops import local_attention_weights
from mmattn.utils.profiling import extra_memory

from . import literal, zscored
from .literal import CONTENT, LEARNED, POSITIONS, SWITCHES, operands, randn

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
LOCAL = 'local_attention'
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


def call(operator, size, window_size, outside_bias, **kwargs):
    """Query and key, window logits, and settings."""
    lengths = literal.as_tuple(window_size, len(size))
    entries = math.prod(lengths) if operator == 'global_attention' else sum(lengths) - len(size) + 1
    tensors, settings = literal.with_window(entries, size, window_size, outside_bias, 2, 2, **kwargs)
    return {name: x for name, x in tensors.items() if name != 'value'}, settings


def local_call(size, kernel_size, **kwargs):
    tensors, settings = literal.with_kernel(size, kernel_size, 2, 2, **kwargs)
    return {name: x for name, x in tensors.items() if name != 'value'}, settings


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
    entries = (15 + 1) // 2 if is_causal else 15
    tensors, settings = literal.with_window(entries, size, (3, 5), outside_bias, 2, 2)
    del tensors['value']
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
    tensors, settings = literal.with_window(3, (7,), 3, LEARNED, 2, 2)
    del tensors['value']
    assert_rows('global_attention', tensors, [(0,), (6,)], normalize=True, **settings)
    other = operands((2, 3), 2, 2, key_size=(4, 1))
    assert_rows('global_attention', {name: other[name] for name in ('query', 'key')}, [(1, 2)])


@pytest.mark.parametrize('switches', SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize(('size', 'kernel_size', 'dilation', 'queries'), LOCAL_MAPS.values(), ids=LOCAL_MAPS)
def test_neighbourhoods(size, kernel_size, dilation, queries, switches):
    """Of the last softmax, refined or not; 0 outside the neighbourhood."""
    tensors, settings = local_call(size, kernel_size, dilation=dilation, **switches)
    rows = assert_rows(LOCAL, tensors, queries, **settings)
    torch.testing.assert_close(rows.sum((-2, -1)), torch.ones(2, 2, len(queries), dtype=torch.float64))
    table = literal.neighbours(size, literal.as_tuple(kernel_size, 2), dilation)
    around = torch.stack([table[literal.coordinates(size).index(query)] >= 0 for query in queries])
    assert torch.equal(rows.flatten(-2) > 0, around.expand(2, 2, -1, -1))


def test_removed_neighbours():
    tensors, settings = local_call((3, 5), 3, iterations=2)
    removed = randn(2, 2, 3, 5, 9, seed=9) > 0
    removed[..., 4] = False
    tensors['window_bias'] = tensors['window_bias'].masked_fill(removed, -math.inf)
    assert_rows(LOCAL, tensors, [(0, 0), (1, 2), (2, 4)], **settings)


@pytest.mark.parametrize('switches', SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_of_neighbourhoods(dtype, switches):
    tensors, settings = local_call((3, 5), 3, dtype=dtype, **switches)
    rows = weights(LOCAL, tensors, [(1, 3)], **settings)
    assert rows.dtype == torch.float32
    exact = literal_rows(LOCAL, {name: x.double() for name, x in tensors.items()}, [(1, 3)], **settings)
    torch.testing.assert_close(rows, exact, atol=1e-5, rtol=1e-4, check_dtype=False)


@pytest.mark.parametrize('operator', OPERATORS)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_accumulated_in_float32(operator, dtype):
    tensors, settings = call(operator, (3, 5), 3, LEARNED, dtype=dtype)
    rows = weights(operator, tensors, [(1, 3)], normalize=True, **settings)
    assert rows.dtype == torch.float32
    exact = literal_rows(
        operator, {name: x.double() for name, x in tensors.items()}, [(1, 3)], normalize=True, **settings
    )
    torch.testing.assert_close(rows, exact, atol=1e-5, rtol=1e-4, check_dtype=False)


@pytest.mark.parametrize('operator', OPERATORS)
def test_only_the_asked_rows_are_computed(operator):
    """Three rows of 64×64 take 48 KiB each where the table of all pairs, or of all crosses, takes 64 or 2 MiB."""
    tensors, settings = {'query': torch.randn(1, 1, 64, 64, 8), 'key': torch.randn(1, 1, 64, 64, 8)}, {}
    entries = 31**2 if operator == 'global_attention' else 61
    tensors |= {'window_bias': torch.randn(1, 1, 64, 64, entries), 'outside_bias': torch.randn(1, 1, 64, 64)}
    settings = {'window_size': 31}
    _, extra = extra_memory(lambda: weights(operator, tensors, [(0, 0), (20, 30), (63, 5)], **settings))
    assert extra < 0.5


def test_only_the_asked_neighbourhoods_are_computed():
    """Where the neighbourhoods of all of 64×64, of 225 keys each, would take 3.5 MiB."""
    tensors = {name: torch.randn(1, 1, 64, 64, 8) for name in ('query', 'key')}
    tensors['window_bias'] = torch.randn(1, 1, 64, 64, 15**2)
    settings = {'kernel_size': 15, 'iterations': 3}
    _, extra = extra_memory(lambda: weights(LOCAL, tensors, [(0, 0), (20, 30), (63, 5)], **settings))
    assert extra < 0.5


@pytest.mark.parametrize('operator', [*OPERATORS, LOCAL])
@pytest.mark.parametrize(
    'queries',
    [
        torch.zeros(1, 2),
        torch.zeros(2, dtype=torch.long),
        torch.zeros(1, 3, dtype=torch.long),
        torch.tensor([[0, 0], [3, 0]]),
        torch.tensor([[0, -1]]),
    ],
    ids=['dtype', 'vector', 'axes', 'outside', 'negative'],
)
def test_wrong_queries_are_named(operator, queries):
    tensors, settings = local_call((3, 5), 3) if operator == LOCAL else call(operator, (3, 5), 3, LEARNED)
    with pytest.raises(ValueError, match=r'\bqueries\b'):
        zscored.operator(f'{operator}_weights')(**tensors, queries=queries, **settings)


@pytest.mark.parametrize('operator', OPERATORS)
def test_wrong_settings_are_named(operator):
    tensors, settings = call(operator, (3, 5), 3, LEARNED)
    with pytest.raises(ValueError, match='window_size'):
        weights(operator, tensors, [(0, 0)], **settings | {'window_size': 4})
    with pytest.raises(TypeError, match='windows'):
        weights(operator, tensors, [(0, 0)], windows=3)


WRONG = {
    'kernel_size': (ValueError, 'kernel_size', {'kernel_size': 4}),
    'dilation': (ValueError, 'dilation', {'dilation': 0}),
    'iterations': (ValueError, 'iterations', {'iterations': 0}),
    'iterations_alone': (ValueError, 'iterations', {'query': None, 'key': None, 'iterations': 2}),
    'no_key': (ValueError, 'key', {'key': None}),
    'no_query': (ValueError, 'query', {'query': None}),
    'no_logits': (ValueError, 'window_bias', {'query': None, 'key': None, 'window_bias': None}),
    'key_positions': (ValueError, 'query', {'key': randn(2, 2, 3, 4, 3)}),
    'dtypes': (TypeError, 'key', {'key': randn(2, 2, 3, 5, 3).float()}),
    'window_entries': (ValueError, 'window_bias', {'window_bias': randn(2, 2, 3, 5, 15)}),
    'window_entries_alone': (
        ValueError,
        'window_bias',
        {'query': None, 'key': None, 'window_bias': randn(2, 2, 3, 5, 15)},
    ),
    'window_axes_alone': (ValueError, 'window_bias', {'query': None, 'key': None, 'window_bias': randn(2, 2, 15, 9)}),
    'window_integers_alone': (
        TypeError,
        'window_bias',
        {'query': None, 'key': None, 'window_bias': torch.ones(2, 2, 3, 5, 9, dtype=torch.long)},
    ),
    'unknown': (TypeError, 'kernel', {'kernel': 3}),
}


@pytest.mark.parametrize(('error', 'name', 'changes'), WRONG.values(), ids=WRONG)
def test_wrong_arguments_of_neighbourhoods(error, name, changes):
    tensors, settings = local_call((3, 5), 3)
    with pytest.raises(error, match=rf'\b{name}\b'):
        weights(LOCAL, tensors | settings | changes, [(0, 0)])


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
