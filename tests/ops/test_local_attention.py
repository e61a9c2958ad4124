"""local_attention against the equations written out, and what must hold for it.

The equations are those of chapter 4 of *The Attention Mechanism in Vision and Language Analysis*.
"""

import functools
import math

import pytest
import torch
from torch.nn import functional as F

from mmattn.ops import global_attention, local_attention, local_attention_weights

from . import literal
from .literal import DTYPES, SWITCHES, around_1e4, assert_same, evaluate, low_precision, operands, randn, with_kernel

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)

# size, kernel_size, batch, heads
MAPS = {
    'k3': ((4, 5), 3, 2, 2),
    'k5': ((6, 4), 5, 1, 2),
    'k7': ((5, 8), 7, 2, 1),
    '3x5': ((5, 6), (3, 5), 2, 1),
    '5x1': ((6, 3), (5, 1), 1, 2),
    'k1': ((3, 4), 1, 1, 2),
    'row': ((1, 6), 3, 2, 2),
    'column': ((6, 1), 5, 1, 1),
    'single': ((1, 1), 3, 2, 2),
    'larger_than_the_map': ((3, 4), (9, 11), 1, 2),
    'k7, inside': ((9, 7), 7, 2, 2),
    '3x5, inside': ((9, 7), (3, 5), 2, 2),
}
BOTH = SWITCHES['bilateral']
REFINED = {'iterations': 3}
assert_literal = functools.partial(literal.assert_equation, local_attention, literal.local_attention)


@pytest.mark.parametrize('switches', SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize('dilation', [1, 2, 3])
@pytest.mark.parametrize(('size', 'kernel_size', 'batch', 'heads'), MAPS.values(), ids=MAPS)
def test_literal(size, kernel_size, batch, heads, dilation, switches):
    """Values have 2 to 4 channels, keys 3."""
    switches = dict(switches, value_channels=dilation + 1)
    tensors, settings = with_kernel(size, kernel_size, batch, heads, dilation=dilation, **switches)
    assert_literal(tensors, **settings)


def offsets(kernel_size, dilation=1):
    """The steps j − i of a neighbourhood, row-major."""
    rows, columns = (range(-(k // 2), k // 2 + 1) for k in literal.as_tuple(kernel_size, 2))
    return [(row * dilation, column * dilation) for row in rows for column in columns]


@pytest.mark.parametrize(
    ('size', 'kernel_size'),
    [((3, 4), 7), ((4, 3), 9), ((4, 3), (7, 5)), ((1, 5), 9), ((5, 1), 11), ((1, 1), 1), ((1, 1), 5)],
    ids=str,
)
@pytest.mark.parametrize('scale', [None, 1.0])
def test_a_kernel_over_all_pairs_is_global_attention(size, kernel_size, scale):
    """From k = 2n − 1 along each side n."""
    tensors, settings = with_kernel(size, kernel_size, 2, 2, geometric=False, scale=scale)
    actual = evaluate(local_attention, tensors, **settings)
    assert_same(actual, evaluate(global_attention, tensors, scale=scale))

    def torchs(query, key, value):
        query, key, value = (x.flatten(2, 3) for x in (query, key, value))
        return F.scaled_dot_product_attention(query, key, value, scale=scale).unflatten(2, size)

    assert_same(actual, evaluate(torchs, tensors))


def algorithm_1(x, window_bias, kernel_size, dilation, rounds):
    """Algorithm 1 for each pixel i of ``(H, W, D)`` maps of projected features, then the softmax of Eq. 4.7."""
    height, width, _ = x.shape
    rows = []
    for y in range(height):
        for z in range(width):
            around = [
                (entry, y + a, z + b)
                for entry, (a, b) in enumerate(offsets(kernel_size, dilation))
                if 0 <= y + a < height and 0 <= z + b < width
            ]
            x_j = [x[a, b] for _, a, b in around]
            x_i = x[y, z]
            c = [x_i @ x_l for x_l in x_j]
            for _ in range(rounds):
                total = sum(c_l.exp() for c_l in c)
                a = [c_l.exp() / total for c_l in c]
                x_i = sum(a_l * x_l for a_l, x_l in zip(a, x_j))
                u = (x_i @ x_i) / (1 + x_i @ x_i) * x_i / (x_i @ x_i).sqrt()
                c = [c_l + u @ x_l for c_l, x_l in zip(c, x_j)]
            if window_bias is not None:
                c = [c_l + window_bias[y, z, entry] for c_l, (entry, _, _) in zip(c, around)]
            total = sum(c_l.exp() for c_l in c)
            rows.append(sum(c_l.exp() / total * x_l for c_l, x_l in zip(c, x_j)))
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize('iterations', [1, 2, 3, 4])
@pytest.mark.parametrize(('kernel_size', 'dilation'), [(3, 1), ((3, 5), 1), (3, 2)], ids=str)
@pytest.mark.parametrize('geometric', [False, True], ids=['content', 'bilateral'])
def test_passes_of_algorithm_1(iterations, kernel_size, dilation, geometric):
    """T passes are T − 1 rounds of its loop; one projection x, one head, no scale."""
    tensors = {'x': randn(4, 3, 3)}
    if geometric:
        tensors['window_bias'] = randn(4, 3, len(offsets(kernel_size)), seed=1)

    settings = dict(kernel_size=kernel_size, dilation=dilation, scale=1.0, iterations=iterations)

    def ours(x, window_bias=None):
        x, window_bias = (None if t is None else t[None, None] for t in (x, window_bias))
        return local_attention(x, x, x, window_bias=window_bias, **settings)[0, 0]

    def theirs(x, window_bias=None):
        return algorithm_1(x, window_bias, kernel_size, dilation, iterations - 1)

    literal.assert_equation(ours, theirs, tensors)


@pytest.mark.parametrize('dtype', [torch.float64, *DTYPES], ids=str)
@pytest.mark.parametrize('iterations', [2, 3])
def test_squash_of_nothing(dtype, iterations):
    """A map of zeros: uniform weights, and no gradient through squash, which is of second order there."""
    x = torch.zeros(1, 1, 3, 4, 5, dtype=dtype, requires_grad=True)
    value = randn(1, 1, 3, 4, 2, dtype=dtype).requires_grad_()
    out = local_attention(x, x, value, iterations=iterations)
    expected = local_attention(x, x, value)
    torch.testing.assert_close(out, expected, atol=0, rtol=0)
    d_x, d_value = torch.autograd.grad(out.sum(), (x, value))
    assert not d_x.any()
    torch.testing.assert_close(d_value, torch.autograd.grad(expected.sum(), value)[0], atol=0, rtol=0)
    shared = evaluate(lambda x: local_attention(x, x, x, iterations=iterations), {'x': x})
    assert not shared['output'].any()
    assert shared['d_x'].isfinite().all()


@pytest.mark.parametrize(
    'zeros', [(1, 2), (slice(0, 3), slice(0, 3)), (slice(None), slice(2, None))], ids=['pixel', 'neighbourhood', 'half']
)
@pytest.mark.parametrize('iterations', [2, 3])
def test_pixels_of_zeros(zeros, iterations):
    tensors = {'x': randn(2, 1, 5, 6, 3), 'window_bias': randn(2, 1, 5, 6, 9, seed=1)}
    tensors['x'][(slice(None), slice(None), *zeros)] = 0
    ours, equation = (
        lambda x, window_bias, op=op: op(x, x, x, window_bias=window_bias, iterations=iterations)
        for op in (local_attention, literal.local_attention)
    )
    actual = literal.assert_equation(ours, equation, tensors)
    assert all(x.isfinite().all() for x in actual.values())


@pytest.mark.parametrize('size', [(2, 4), (1, 2)], ids=str)
def test_sums_that_cancel(size):
    """x_i = 0 of keys that are not: a chessboard of ±1 under uniform weights."""
    y, x = torch.meshgrid(*map(torch.arange, size), indexing='ij')
    board = (1 - 2.0 * ((y + x) % 2)).double()
    tensors = {
        'query': torch.zeros(1, 1, *size, 3, dtype=torch.float64),
        'key': board[None, None, ..., None] * randn(3, seed=1),
        'value': randn(1, 1, *size, 2, seed=2),
    }
    actual = assert_literal(tensors, iterations=3)
    torch.testing.assert_close(actual['d_key'], torch.zeros_like(actual['d_key']), atol=1e-12, rtol=0)
    assert actual['d_query'].abs().max() > 1e-2


@pytest.mark.parametrize('size', [1e-12, 1e-18, 1e-21, 1e-30])
def test_squash_of_tiny_sums(size):
    """Where the square of a norm is below the smallest float32, too."""
    tensors = {name: x * (1 if name == 'value' else size) for name, x in operands((3, 4), 1, 2).items()}
    actual = evaluate(local_attention, tensors, torch.float32, iterations=3)
    expected = evaluate(literal.local_attention, tensors, iterations=3)
    assert_same(actual, expected, 1e-6, 1e-5, check_dtype=False)
    assert actual['d_key'].abs().max() < 1e2 * size + 1e-6


@pytest.mark.parametrize('sizes', [(0, 1, 1e-12), (1e-30, 1e-3, 1), (1, 1e-30, 0)], ids=str)
def test_squash_of_channels_of_other_sizes(sizes):
    """The largest decides by what a norm is divided, not the first or the last."""
    sizes = torch.tensor(sizes, dtype=torch.float64)
    tensors = {name: x if name == 'value' else x * sizes for name, x in operands((3, 4), 1, 2).items()}
    actual = evaluate(local_attention, tensors, torch.float32, iterations=3)
    assert_same(actual, evaluate(literal.local_attention, tensors, iterations=3), 1e-5, 1e-5, check_dtype=False)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_no_halo_in_low_precision(dtype):
    tensors, settings = with_kernel((4, 5), 3, dtype=dtype, iterations=2)
    tensors['value'] = torch.full((1, 1, 4, 5, 2), 0.7, dtype=dtype)
    torch.testing.assert_close(
        local_attention(**tensors, **settings), tensors['value'], atol=0 if dtype != torch.float32 else 1e-6, rtol=0
    )


@pytest.mark.parametrize('number', [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize('switches', [BOTH, REFINED, SWITCHES['geometric']], ids=['bilateral', 'refined', 'geometric'])
@pytest.mark.parametrize('dilation', [1, 2])
def test_logits_of_no_neighbour_change_nothing(number, switches, dilation):
    """Neither the output nor the weights; no gradient comes to them."""
    size = (4, 5)
    tensors, settings = with_kernel(size, 3, 2, 2, dilation=dilation, **switches)
    entry = literal.neighbours(size, (3, 3), dilation)  # (N, N)
    nowhere = ~(entry.unsqueeze(-1) == torch.arange(9)).any(1).view(*size, 9).expand_as(tensors['window_bias'])
    other = {**tensors, 'window_bias': tensors['window_bias'].masked_fill(nowhere, number)}
    actual = evaluate(local_attention, other, **settings)
    assert not actual['d_window_bias'][nowhere].any()
    assert_same(actual, evaluate(local_attention, tensors, **settings), 0, 0)
    queries = torch.tensor([(0, 0), (2, 3), (3, 2)])
    del tensors['value'], other['value']
    rows = [local_attention_weights(**x, queries=queries, **settings) for x in (other, tensors)]
    torch.testing.assert_close(*rows, atol=0, rtol=0)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('constant', [1e4, -1e4])
def test_a_constant_of_a_query_changes_nothing(dtype, constant):
    """As near float64 as other logits: the softmax subtracts it."""
    tensors, settings = around_1e4(*with_kernel((4, 5), 3, 2, 2, content=False, dtype=dtype), constant)
    actual = evaluate(local_attention, tensors, **settings)
    tensors['window_bias'] = tensors['window_bias'].double() - constant
    tensors['value'] = tensors['value'].double()
    expected = evaluate(literal.local_attention, tensors, **settings)
    assert_same(actual, expected, **low_precision(dtype))
