"""The rows of weights of the operators against those of a table of all pairs."""

import math

import pytest
import torch

from mmattn.ops import local_attention_weights
from mmattn.utils.profiling import extra_memory

from ..support.operator_calls import Call, cast, small_calls
from . import literal, zscored
from .literal import SWITCHES, randn, with_kernel, with_offsets, with_window
from .test_equations import EDGES, OTHER_KEYS, PATTERNS, calls

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
ATTENTION = 'global_attention', 'grid_attention', 'local_attention', 'strided_attention'
SMALL = {name: call for name, call in small_calls().items() if call.operator in ATTENTION}


def operands_of(call):
    """Of the weights: all tensors but the value."""
    tensors = {name: x for name, x in call.tensors.items() if name != 'value'}
    return tensors, {name: x for name, x in call.settings.items() if name != 'return_lse'}


def some_queries(call):
    """The first, the last, one between, and the first again."""
    size = (call.tensors if call.operator != 'local_attention' else {'query': call.tensors['value']})['query'].shape
    positions = literal.coordinates(size[2:-1])
    return [positions[0], positions[-1], positions[len(positions) // 2], positions[0]]


def weights(call):
    tensors, settings = operands_of(call)
    queries = torch.tensor(some_queries(call))
    return zscored.operator(f'{call.operator}_weights')(**tensors, queries=queries, **settings)


def literal_rows(call):
    """The literal operator's output where the values are unit vectors."""
    tensors, settings = operands_of(call)
    value = call.tensors['value']
    count = math.prod(value.shape[2:-1])
    units = torch.eye(count, dtype=torch.float64).view(1, 1, *value.shape[2:-1], count)
    table = getattr(literal, call.operator)(**tensors, value=units.expand(*value.shape[:-1], count), **settings)
    rows = table[(slice(None), slice(None), *torch.tensor(some_queries(call)).T)]
    return rows.unflatten(-1, value.shape[2:-1])


def check(call):
    """Rows sum to 1, or to 0 without a key, and are 0 where there is no key."""
    actual, expected = weights(call), literal_rows(call)
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)
    assert torch.equal(actual > 0, expected > 0)
    sums = actual.flatten(3).sum(-1)
    torch.testing.assert_close(sums, expected.flatten(3).any(-1).double())


@pytest.mark.parametrize('name', SMALL)
def test_rows_of_the_table_of_all_pairs(name):
    check(SMALL[name])


@pytest.mark.parametrize(('name', 'title'), [x for x in EDGES if x[0] in ATTENTION])
def test_rows_at_the_edges_of_maps(name, title):
    for tensors, settings in calls(name, title):
        check(Call(name, tensors, settings))


@pytest.mark.parametrize('other', OTHER_KEYS)
def test_keys_at_other_positions(other):
    size, key_size, step = OTHER_KEYS[other]
    for pattern in PATTERNS:
        made = with_offsets(size, step, pattern, 2, 2, key_size=key_size, scale=0.7)
        check(Call('strided_attention', *made))


@pytest.mark.parametrize('is_causal', [False, True])
def test_samples_without_keys(is_causal):
    """Their rows are 0."""
    tensors, settings = with_window('global_attention', (3, 4), (3, 5), heads=2, batch=2, is_causal=is_causal)
    tensors |= literal.further((3, 4))
    tensors['key_mask'][1] = False
    call = Call('global_attention', tensors, settings | {'is_causal': is_causal})
    check(call)
    assert not weights(call)[1].any()


def test_removed_neighbours():
    """By −∞, and by a mask of each sample."""
    tensors, settings = with_kernel((3, 5), 3, 2, 2, iterations=2)
    check(Call('local_attention', tensors | {'key_mask': randn(2, 3, 5, seed=8) > 0}, settings))
    removed = randn(2, 2, 3, 5, 9, seed=9) > 0
    removed[..., 4] = False
    tensors['window_bias'] = tensors['window_bias'].masked_fill(removed, -math.inf)
    check(Call('local_attention', tensors, settings))


LOW = {
    **{name: lambda name=name: with_window(name, (3, 5), 3, normalize=True) for name in ATTENTION[:2]},
    **{f'local_attention, {name}': lambda x=x: with_kernel((3, 5), 3, **x) for name, x in SWITCHES.items()},
    'strided_attention': lambda: with_offsets((3, 5), 3, 'centred'),
}


@pytest.mark.parametrize('title', LOW)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_accumulated_in_float32(title, dtype):
    tensors, settings = LOW[title]()
    call = Call(title.partition(',')[0], cast(tensors, dtype), settings)
    rows = weights(call)
    assert rows.dtype == torch.float32
    exact = literal_rows(Call(call.operator, cast(call.tensors, torch.float64), settings))
    torch.testing.assert_close(rows, exact, atol=1e-5, rtol=1e-4, check_dtype=False)


@pytest.mark.parametrize(
    ('operator', 'shapes', 'settings', 'limit'),
    [
        ('global_attention', {'window_bias': [31**2], 'outside_bias': []}, {'window_size': 31}, 16),
        ('grid_attention', {'window_bias': [61], 'outside_bias': []}, {'window_size': 31}, 1.5),
        ('local_attention', {'window_bias': [15**2]}, {'kernel_size': 15, 'iterations': 3}, 16),
    ],
)
def test_the_table_of_all_pairs_is_never_stored(operator, shapes, settings, limit):
    """It would take 64 MiB, and 2 MiB for all crosses. The passes with three channels of values take the rest."""
    shapes = {'query': [8], 'key': [8], **shapes}
    tensors = {name: torch.randn(1, 1, 64, 64, *channels) for name, channels in shapes.items()}
    run, queries = zscored.operator(f'{operator}_weights'), torch.tensor([(0, 0), (20, 30), (63, 5)])
    _, extra = extra_memory(lambda: run(**tensors, queries=queries, **settings))
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
