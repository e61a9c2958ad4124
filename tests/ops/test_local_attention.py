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
from .literal import (
    AFTER,
    DTYPES,
    LAYOUTS,
    SWITCHES,
    assert_same,
    check_operator,
    evaluate,
    low_precision,
    operands,
    randn,
    record_slices,
    with_kernel,
)

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
}
BOTH = SWITCHES['bilateral']
REFINED = {'iterations': 3}


def assert_literal(tensors, op=lambda f: f, **settings):
    """Values and all gradients are the literal ones to 1e-10; ``op`` wraps both the operator and its reference."""
    actual = evaluate(op(local_attention), tensors, **settings)
    assert_same(actual, evaluate(op(literal.local_attention), tensors, **settings))
    return actual


@pytest.mark.parametrize('switches', SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize('dilation', [1, 2])
@pytest.mark.parametrize(('size', 'kernel_size', 'batch', 'heads'), MAPS.values(), ids=MAPS)
def test_literal(size, kernel_size, batch, heads, dilation, switches):
    tensors, settings = with_kernel(size, kernel_size, batch, heads, dilation=dilation, **switches)
    assert_literal(tensors, **settings)


def unfold(x, kernel_size, dilation):
    """(B, heads, H, W, C) to (B, heads, H, W, C, k²), zeros outside the map."""
    height, width, channels = x.shape[2:]
    kernel_size = literal.as_tuple(kernel_size, 2)
    padding = [dilation * (k // 2) for k in kernel_size]
    x = F.unfold(x.flatten(0, 1).movedim(-1, 1), kernel_size, dilation, padding).unflatten(0, x.shape[:2])
    return x.unflatten(-1, (height, width)).unflatten(2, (channels, -1)).movedim((2, 3), (-2, -1))


def unfolded(query, key, value, *, kernel_size=3, dilation=1, scale=None, window_bias=None, iterations=1):
    """Another way to write it: k² copies of the maps, and a mask of what is there."""
    exists = unfold(torch.ones_like(value[..., :1]), kernel_size, dilation).squeeze(-2) > 0
    logits = torch.zeros(exists.shape, dtype=value.dtype).masked_fill(~exists, -math.inf)
    if query is not None:
        around = unfold(key, kernel_size, dilation)
        logits = logits + torch.einsum('bhyxc,bhyxck->bhyxk', query, around) * (scale or query.shape[-1] ** -0.5)
        for _ in range(iterations - 1):
            refined = torch.einsum('bhyxk,bhyxck->bhyxc', logits.softmax(-1), around)
            logits = logits + torch.einsum('bhyxc,bhyxck->bhyxk', literal.squash(refined), around)
    if window_bias is not None:
        logits = logits + window_bias
    return torch.einsum('bhyxk,bhyxck->bhyxc', logits.softmax(-1), unfold(value, kernel_size, dilation))


@pytest.mark.parametrize('switches', SWITCHES.values(), ids=SWITCHES)
@pytest.mark.parametrize('dilation', [1, 2, 3])
@pytest.mark.parametrize('kernel_size', [3, 5, 7, (3, 5)], ids=str)
def test_unfolded(kernel_size, dilation, switches):
    """On maps with an interior, of channels that differ between keys and values; the other way round below."""
    tensors, settings = with_kernel((9, 7), kernel_size, 2, 2, dilation=dilation, value_channels=4, **switches)
    assert_same(evaluate(local_attention, tensors, **settings), evaluate(unfolded, tensors, **settings))


@pytest.mark.parametrize('channels', [1, 2, 5])
@pytest.mark.parametrize('switches', [BOTH, REFINED], ids=['bilateral', 'refined'])
def test_fewer_and_more_channels_of_values(channels, switches):
    tensors, settings = with_kernel((3, 4), 3, 2, 2, value_channels=channels, **switches)
    assert assert_literal(tensors, **settings)['output'].shape == (2, 2, 3, 4, channels)


def test_defaults():
    """k = 3, no dilation, 1/√D, one pass."""
    tensors, _ = with_kernel((4, 5), 3, 2, 2)
    expected = evaluate(local_attention, tensors, kernel_size=3, dilation=1, scale=3**-0.5, iterations=1)
    assert_same(evaluate(local_attention, tensors), expected, 0, 0)


# Which operands are one tensor; Algorithm 1 has one for all three.
SHARED = {'all': 'xxx', 'query_key': 'xxy', 'key_value': 'xyy', 'query_value': 'xyx'}


@pytest.mark.parametrize('which', SHARED.values(), ids=SHARED)
@pytest.mark.parametrize('iterations', [1, 2, 3])
@pytest.mark.parametrize('geometric', [False, True], ids=['content', 'bilateral'])
def test_one_tensor_in_several_places(which, iterations, geometric):
    """Its gradient is the sum of those of its places."""

    def share(op):
        return lambda window_bias=None, **given: op(
            *map(given.get, which), window_bias=window_bias, iterations=iterations
        )

    tensors = {name: randn(2, 2, 4, 3, 3, seed=i) for i, name in enumerate(sorted(set(which)))}
    if geometric:
        tensors['window_bias'] = randn(2, 2, 4, 3, 9, seed=4)
    assert_literal(tensors, share)


@pytest.mark.parametrize('after', AFTER.values(), ids=AFTER)
@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize('switches', [BOTH, REFINED, SWITCHES['geometric']], ids=['bilateral', 'refined', 'geometric'])
def test_layouts(layout, after, switches):
    tensors, settings = with_kernel((3, 4), 3, 2, 2, value_channels=3, **switches)
    tensors = {name: layout(x) for name, x in tensors.items()}
    assert not any(x.is_contiguous() for x in tensors.values())
    assert_literal(tensors, after, **settings)


def test_output_keeps_the_strides_of_value():
    tensors, settings = with_kernel((3, 4), 3, 2, 2)
    tensors['value'] = LAYOUTS['channels_last'](tensors['value'])
    assert local_attention(**tensors, **settings).stride() == tensors['value'].stride()


@pytest.mark.parametrize('budget', [1, 30_000])
@pytest.mark.parametrize('switches', SWITCHES.values(), ids=SWITCHES)
def test_slices_of_batch_and_heads(monkeypatch, budget, switches):
    """Many slices, of one item and head and of several with a shorter last one, give what a single slice gives."""
    slices = record_slices(monkeypatch, 'mmattn.ops.neighbourhood')
    tensors, settings = with_kernel((3, 4), 3, 2, 5, **switches)
    whole = evaluate(local_attention, tensors, **settings)
    assert slices == [2, 5] * 2  # forward and backward
    slices.clear()
    monkeypatch.setattr('mmattn.ops.chunks.CHUNK_BYTES', budget)
    sliced = evaluate(local_attention, tensors, **settings)
    if budget == 1:
        assert slices == [1, *[1] * 5] * 2 * 2
    else:
        assert len(slices) > 4
        assert max(slices) > 1
    assert_same(sliced, whole, 1e-12, 1e-12)
    assert_literal(tensors, **settings)


def call(**changes):
    """A call of (1, 2, 3, 4, 3) tensors with a 3×5 kernel, with some arguments changed."""
    tensors, settings = with_kernel((3, 4), (3, 5), heads=2)
    return local_attention(**{**tensors, **settings, **changes})


def same(*shape, dtype=torch.float64):
    return {name: randn(*shape).to(dtype) for name in ('query', 'key', 'value')}


ALONE = {'query': None, 'key': None}
WRONG = {
    'one_axis': (ValueError, 'query', same(1, 2, 12, 3)),
    'three_axes': (ValueError, 'query', same(1, 2, 3, 2, 2, 3)),
    'query_positions': (ValueError, 'query', {'query': randn(1, 2, 4, 4, 3)}),
    'key_axes': (ValueError, 'key', {'key': randn(1, 2, 12, 3)}),
    'key_positions': (ValueError, 'key', {'key': randn(1, 2, 3, 5, 3)}),
    'key_value_positions': (ValueError, 'query', {name: randn(1, 2, 3, 5, 3) for name in ('key', 'value')}),
    'key_heads': (ValueError, 'key', {name: randn(1, 4, 3, 4, 3) for name in ('key', 'value')}),
    'key_channels': (ValueError, 'key', {'key': randn(1, 2, 3, 4, 2)}),
    'value_axes': (ValueError, 'value', {'value': randn(1, 2, 12, 3)}),
    'value_axes_alone': (ValueError, 'value', {'value': randn(1, 2, 12, 3), **ALONE}),
    'value_positions': (ValueError, 'value', {'value': randn(1, 2, 4, 3, 3)}),
    'value_batch': (ValueError, 'value', {'value': randn(2, 2, 3, 4, 3)}),
    'dtypes': (TypeError, 'query, key and value', {'key': randn(1, 2, 3, 4, 3).float()}),
    'value_dtype': (TypeError, 'query, key and value', {'value': randn(1, 2, 3, 4, 3).half()}),
    'integers': (TypeError, 'query, key and value', same(1, 2, 3, 4, 3, dtype=torch.long)),
    'integers_alone': (TypeError, 'value', {'value': torch.ones(1, 2, 3, 4, 3, dtype=torch.long), **ALONE}),
    'no_query': (ValueError, 'query', {'query': None}),
    'no_key': (ValueError, 'key', {'key': None}),
    'no_logits': (ValueError, 'window_bias', {'window_bias': None, **ALONE}),
    'iterations_alone': (ValueError, 'iterations', {'iterations': 2, **ALONE}),
    'window_entries': (ValueError, 'window_bias', {'window_bias': randn(1, 2, 3, 4, 9)}),
    'window_heads': (ValueError, 'window_bias', {'window_bias': randn(3, 15)}),
    'mask_positions': (ValueError, 'key_mask', {'key_mask': torch.ones(1, 4, 3, dtype=torch.bool)}),
    'mask_of_numbers': (ValueError, 'key_mask', {'key_mask': torch.ones(1, 3, 4)}),
    'window_positions': (ValueError, 'window_bias', {'window_bias': randn(1, 2, 4, 3, 15)}),
    'window_axes': (ValueError, 'window_bias', {'window_bias': randn(1, 2, 3, 4, 3, 5)}),
    'window_integers': (TypeError, 'window_bias', {'window_bias': torch.ones(1, 2, 3, 4, 15, dtype=torch.long)}),
}


@pytest.mark.parametrize(('error', 'name', 'changes'), WRONG.values(), ids=WRONG)
def test_wrong_arguments(error, name, changes):
    call()  # the call that the changes spoil
    with pytest.raises(error, match=rf'\b{name}\b'):
        call(**changes)


# Semantics.


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


@pytest.mark.parametrize('switches', SWITCHES.values(), ids=SWITCHES)
def test_without_neighbours_a_pixel_keeps_its_value(switches):
    tensors, settings = with_kernel((3, 4), 3, 2, 2, dilation=4, **switches)
    torch.testing.assert_close(local_attention(**tensors, **settings), tensors['value'], atol=0, rtol=0)
    tensors['window_bias'] = randn(2, 2, 3, 4, 1)
    out = local_attention(**tensors, **settings | {'kernel_size': 1, 'dilation': 1})
    torch.testing.assert_close(out, tensors['value'], atol=0, rtol=0)


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

    def ours(x, window_bias=None):
        x, window_bias = (None if t is None else t[None, None] for t in (x, window_bias))
        return local_attention(
            x,
            x,
            x,
            window_bias=window_bias,
            kernel_size=kernel_size,
            dilation=dilation,
            scale=1.0,
            iterations=iterations,
        )[0, 0]

    def theirs(x, window_bias=None):
        return algorithm_1(x, window_bias, kernel_size, dilation, iterations - 1)

    assert_same(evaluate(ours, tensors), evaluate(theirs, tensors))


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
    actual = assert_literal(
        tensors, lambda op: lambda x, window_bias: op(x, x, x, window_bias=window_bias, iterations=iterations)
    )
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


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_no_halo_in_low_precision(dtype):
    tensors, settings = with_kernel((4, 5), 3, dtype=dtype, iterations=2)
    tensors['value'] = torch.full((1, 1, 4, 5, 2), 0.7, dtype=dtype)
    torch.testing.assert_close(
        local_attention(**tensors, **settings), tensors['value'], atol=0 if dtype != torch.float32 else 1e-6, rtol=0
    )


def outside(size, kernel_size, dilation=1):
    """(H, W, k²): the entries whose neighbour is not in the map."""
    return torch.tensor(
        [
            [
                [not (0 <= y + a < size[0] and 0 <= x + b < size[1]) for a, b in offsets(kernel_size, dilation)]
                for x in range(size[1])
            ]
            for y in range(size[0])
        ]
    )


@pytest.mark.parametrize('number', [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize('switches', [BOTH, REFINED, SWITCHES['geometric']], ids=['bilateral', 'refined', 'geometric'])
@pytest.mark.parametrize('dilation', [1, 2])
def test_logits_of_no_neighbour_change_nothing(number, switches, dilation):
    """Neither the output nor the weights; no gradient comes to them."""
    size = (4, 5)
    tensors, settings = with_kernel(size, 3, 2, 2, dilation=dilation, **switches)
    nowhere = outside(size, 3, dilation).expand_as(tensors['window_bias'])
    other = {**tensors, 'window_bias': tensors['window_bias'].masked_fill(nowhere, number)}
    actual = evaluate(local_attention, other, **settings)
    assert not actual['d_window_bias'][nowhere].any()
    assert_same(actual, evaluate(local_attention, tensors, **settings), 0, 0)


@pytest.mark.parametrize('number', [math.nan, math.inf, -math.inf, 1e30])
def test_logits_of_no_neighbour_change_no_weights(number):
    size, queries = (4, 5), torch.tensor([(0, 0), (2, 3), (3, 2)])
    tensors, settings = with_kernel(size, 3, 2, 2)
    del tensors['value']
    other = {**tensors, 'window_bias': tensors['window_bias'].masked_fill(outside(size, 3), number)}
    actual, expected = (local_attention_weights(**x, queries=queries, **settings) for x in (other, tensors))
    torch.testing.assert_close(actual, expected, atol=0, rtol=0)


@pytest.mark.parametrize('switches', [BOTH, REFINED, SWITCHES['geometric']], ids=['bilateral', 'refined', 'geometric'])
def test_neg_inf_removes_a_key(switches):
    """From the last softmax: the passes before it go by content alone."""
    tensors, settings = with_kernel((4, 5), 3, 2, 2, **switches)
    removed = randn(2, 2, 4, 5, 9, seed=9) > 0
    removed[..., 4] = False  # a pixel keeps itself
    tensors['window_bias'] = tensors['window_bias'].masked_fill(removed, -math.inf)
    actual = assert_literal(tensors, **settings)
    assert not actual['d_window_bias'][removed].any()
    assert all(x.isfinite().all() for x in actual.values())


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
def test_neg_inf_of_all_keys_leaves_nothing(dtype):
    tensors, settings = with_kernel((4, 5), 3, 2, 2, dtype=dtype)
    tensors['window_bias'][:, :, 1:3] = -math.inf
    actual = evaluate(local_attention, tensors, **settings)
    assert_same(actual, evaluate(literal.local_attention, tensors, torch.float64, **settings), **low_precision(dtype))
    assert not actual['output'][:, :, 1:3].any()


# Numbers of any size, in every dtype.


@pytest.mark.parametrize('switches', [BOTH, REFINED, SWITCHES['geometric']], ids=['bilateral', 'refined', 'geometric'])
@pytest.mark.parametrize('wide', ['window_bias', 'operands'])
def test_float32_with_bfloat16(wide, switches):
    """float32 geometric logits with bfloat16 operands, or the reverse; gradients have the dtypes of their tensors."""
    tensors, settings = with_kernel((4, 5), 3, 2, 2, **switches)
    dtypes = {
        name: torch.float32 if (name == 'window_bias') == (wide == 'window_bias') else torch.bfloat16
        for name in tensors
    }
    tensors = {name: x.to(dtypes[name]) for name, x in tensors.items()}
    actual = evaluate(local_attention, tensors, **settings)
    assert actual['output'].dtype == dtypes['value']
    assert {name: actual[f'd_{name}'].dtype for name in tensors} == dtypes
    expected = evaluate(literal.local_attention, tensors, torch.float64, **settings)
    assert_same(actual, expected, **low_precision(torch.bfloat16))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('large', ['content', 'window_bias', 'both'])
@pytest.mark.parametrize('iterations', [1, 3])
def test_logits_of_1e4(large, dtype, iterations):
    """Nothing overflows. A float32 logit of 1e4 is off by up to some 1e-3, its weight by as much of itself."""
    tensors, settings = with_kernel((4, 5), 3, 2, 2, dtype=dtype, iterations=iterations)
    if large != 'window_bias':
        tensors |= {name: tensors[name] * 100 for name in ('query', 'key')}
    if large != 'content':
        tensors['window_bias'] = tensors['window_bias'] * 1e4
    actual = evaluate(local_attention, tensors, **settings)
    for name, x in actual.items():
        assert x.isfinite().all(), name
    expected = evaluate(literal.local_attention, tensors, torch.float64, **settings)['output']
    torch.testing.assert_close(actual['output'].double(), expected, atol=1e-2, rtol=torch.finfo(dtype).eps)


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('constant', [1e4, -1e4])
def test_a_constant_of_a_query_changes_nothing(dtype, constant):
    """As near float64 as other logits: the softmax subtracts it."""
    tensors, settings = with_kernel((4, 5), 3, 2, 2, content=False, dtype=dtype)
    step = 2.0 ** math.ceil(math.log2(max(1, 1e4 * torch.finfo(dtype).eps)))
    tensors['window_bias'] = (constant + (tensors['window_bias'].double() * 2).round().clamp(-2, 2) * step).to(dtype)
    actual = evaluate(local_attention, tensors, **settings)
    tensors['window_bias'] = tensors['window_bias'].double() - constant
    tensors['value'] = tensors['value'].double()
    expected = evaluate(literal.local_attention, tensors, **settings)
    assert_same(actual, expected, **low_precision(dtype))


# As an operator of PyTorch.


def full_call(switches, dtype=torch.float32, size=(3, 4), kernel_size=3):
    return with_kernel(size, kernel_size, 2, 2, dtype=dtype, **switches)


CALLS = {name: SWITCHES[name] for name in ('bilateral', 'content', 'geometric', 'refined', 'refined-content')}


@pytest.mark.parametrize('switches', CALLS.values(), ids=CALLS)
def test_opcheck(switches):
    check_operator(local_attention, *full_call(switches | {'return_lse': True}))


@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
def test_opcheck_of_layouts(layout):
    tensors, settings = full_call(REFINED | {'return_lse': True})
    check_operator(local_attention, {name: layout(x) for name, x in tensors.items()}, settings)


@pytest.mark.parametrize('switches', CALLS.values(), ids=CALLS)
def test_compile(switches):
    torch.compiler.reset()
    compiled = torch.compile(local_attention, fullgraph=True, backend='aot_eager')
    tensors, settings = full_call(switches)
    assert_same(evaluate(compiled, tensors, **settings), evaluate(local_attention, tensors, **settings), 0, 0)


def test_compile_one_tensor():
    torch.compiler.reset()

    def shared(x, window_bias):
        return local_attention(x, x, x, window_bias=window_bias, iterations=3)

    compiled = torch.compile(shared, fullgraph=True, backend='aot_eager')
    tensors = {'x': randn(2, 2, 3, 4, 3), 'window_bias': randn(2, 2, 3, 4, 9)}
    assert_same(evaluate(compiled, tensors), evaluate(shared, tensors), 0, 0)


@pytest.mark.parametrize('switches', [REFINED, SWITCHES['geometric']], ids=['refined', 'geometric'])
def test_export(switches):
    tensors, settings = full_call(switches)

    class Model(torch.nn.Module):
        def forward(self, **tensors):
            return local_attention(**tensors, **settings)

    exported = torch.export.export(Model(), (), tensors).module()
    torch.testing.assert_close(exported(**tensors), local_attention(**tensors, **settings), atol=0, rtol=0)


@pytest.mark.parametrize('switches', SWITCHES.values(), ids=SWITCHES)
def test_gradcheck(switches):
    tensors, settings = full_call(switches, torch.float64, (2, 3), (3, 5))
    op = functools.partial(local_attention, **settings)
    assert torch.autograd.gradcheck(
        lambda *args: op(**dict(zip(tensors, args))), [x.requires_grad_() for x in tensors.values()]
    )


def test_gradients_of_some_operands():
    """Those that need none get none, and leave the others as they are."""
    tensors, settings = with_kernel((3, 4), 3, 2, 2, iterations=2)
    expected = evaluate(local_attention, tensors, **settings)
    for name, x in tensors.items():
        leaf = x.clone().requires_grad_()
        actual = evaluate(
            lambda leaf, name=name: local_attention(**{**tensors, name: leaf}, **settings), {'leaf': leaf}
        )
        torch.testing.assert_close(actual['d_leaf'], expected[f'd_{name}'], atol=0, rtol=0)
