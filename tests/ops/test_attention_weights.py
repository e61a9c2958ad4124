"""The rows of weights of both operators against those of a table of all pairs."""
import math

import pytest
import torch

from mmattn import ops
from mmattn.utils.profiling import extra_memory

from . import literal
from .literal import CONTENT, LEARNED, POSITIONS, operands, randn

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


def call(operator, size, window_size, outlier, **kwargs):
    """Query and key, window logits, and settings."""
    lengths = literal.as_tuple(window_size, len(size))
    entries = math.prod(lengths) if operator == 'global_attention' else sum(lengths) - len(size) + 1
    tensors, settings = literal.with_window(entries, size, window_size, outlier, 2, 2, **kwargs)
    return {name: x for name, x in tensors.items() if name != 'value'}, settings


def weights(operator, tensors, queries, **settings):
    return getattr(ops, f'{operator}_weights')(**tensors, queries=torch.tensor(queries), **settings)


def literal_rows(operator, tensors, queries, **settings):
    """The literal operator's output where the values are unit vectors."""
    key_size = tensors['key'].shape[2:-1]
    count = math.prod(key_size)
    value = torch.eye(count, dtype=torch.float64).view(1, 1, *key_size, count).expand(2, 2, *[-1] * (len(key_size) + 1))
    table = getattr(literal, operator)(**tensors, value=value, **settings)
    return table[(slice(None), slice(None), *torch.tensor(queries).T)].unflatten(-1, key_size)


def assert_rows(operator, tensors, queries, **settings):
    actual = weights(operator, tensors, queries, **settings)
    torch.testing.assert_close(actual, literal_rows(operator, tensors, queries, **settings), atol=1e-10, rtol=1e-10)
    return actual


@pytest.mark.parametrize('operator', OPERATORS)
@pytest.mark.parametrize(('outlier', 'normalize'), [CONTENT, *POSITIONS])
@pytest.mark.parametrize(('size', 'window_size', 'queries'), MAPS.values(), ids=MAPS)
def test_rows_of_the_table_of_all_pairs(operator, size, window_size, queries, outlier, normalize):
    tensors, settings = call(operator, size, window_size, outlier)
    rows = assert_rows(operator, tensors, queries, normalize=normalize, scale=0.7, **settings)
    torch.testing.assert_close(rows.flatten(3).sum(-1), torch.ones(2, 2, len(queries), dtype=torch.float64))


@pytest.mark.parametrize('causal', [False, True], ids=['', 'causal'])
@pytest.mark.parametrize(('outlier', 'normalize'), [CONTENT, *POSITIONS])
def test_further_logits_and_supports(outlier, normalize, causal):
    """Without a key to attend to, as in the second batch item, a row is zero."""
    size = (3, 4)
    entries = (15 + 1) // 2 if causal else 15
    tensors, settings = literal.with_window(entries, size, (3, 5), outlier, 2, 2)
    del tensors['value']
    tensors |= {'axis_logits': (randn(2, 1, 1, 4, 3, seed=6), randn(4, seed=7)),
                'key_logits': randn(2, 1, 3, 4, seed=8), 'key_mask': randn(2, *size, seed=9) > -0.5}
    tensors['key_mask'][1] = False
    rows = assert_rows('global_attention', tensors, [(0, 3), (2, 1)], normalize=normalize, causal=causal, **settings)
    assert not rows[1].any()
    torch.testing.assert_close(rows[0].sum((-2, -1)), torch.ones(2, 2, dtype=torch.float64))


def test_sequences_and_other_keys():
    tensors, settings = literal.with_window(3, (7, ), 3, LEARNED, 2, 2)
    del tensors['value']
    assert_rows('global_attention', tensors, [(0, ), (6, )], normalize=True, **settings)
    other = operands((2, 3), 2, 2, key_size=(4, 1))
    assert_rows('global_attention', {name: other[name] for name in ('query', 'key')}, [(1, 2)])


@pytest.mark.parametrize('operator', OPERATORS)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_accumulated_in_float32(operator, dtype):
    tensors, settings = call(operator, (3, 5), 3, LEARNED, dtype=dtype)
    rows = weights(operator, tensors, [(1, 3)], normalize=True, **settings)
    assert rows.dtype == torch.float32
    exact = literal_rows(operator, {name: x.double() for name, x in tensors.items()}, [(1, 3)], normalize=True,
                         **settings)
    torch.testing.assert_close(rows, exact, atol=1e-5, rtol=1e-4, check_dtype=False)


@pytest.mark.parametrize('operator', OPERATORS)
def test_only_the_asked_rows_are_computed(operator):
    """Three rows of 64×64 take 48 KiB each where the table of all pairs, or of all crosses, takes 64 or 2 MiB."""
    tensors, settings = {'query': torch.randn(1, 1, 64, 64, 8), 'key': torch.randn(1, 1, 64, 64, 8)}, {}
    entries = 31**2 if operator == 'global_attention' else 61
    tensors |= {'window': torch.randn(1, 1, 64, 64, entries), 'outlier': torch.randn(1, 1, 64, 64)}
    settings = {'window_size': 31, 'normalize': True}
    _, extra = extra_memory(lambda: weights(operator, tensors, [(0, 0), (20, 30), (63, 5)], **settings))
    assert extra < 0.5


@pytest.mark.parametrize('operator', OPERATORS)
@pytest.mark.parametrize('queries', [torch.zeros(1, 2), torch.zeros(2, dtype=torch.long),
                                     torch.zeros(1, 3, dtype=torch.long), torch.tensor([[0, 0], [3, 0]]),
                                     torch.tensor([[0, -1]])], ids=['dtype', 'vector', 'axes', 'outside', 'negative'])
def test_wrong_queries_are_named(operator, queries):
    tensors, settings = call(operator, (3, 5), 3, LEARNED)
    with pytest.raises(ValueError, match=r'\bqueries\b'):
        getattr(ops, f'{operator}_weights')(**tensors, queries=queries, **settings)


@pytest.mark.parametrize('operator', OPERATORS)
def test_wrong_settings_are_named(operator):
    tensors, settings = call(operator, (3, 5), 3, LEARNED)
    with pytest.raises(ValueError, match='window_size'):
        weights(operator, tensors, [(0, 0)], **settings | {'window_size': 4})
    with pytest.raises(TypeError, match='windows'):
        weights(operator, tensors, [(0, 0)], windows=3)
