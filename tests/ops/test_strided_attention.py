"""strided_attention against a table of all pairs masked to each pattern, the masks, and what must hold."""

import functools
import math
from importlib import import_module

import pytest
import torch

from mmattn.ops import grid_support, strided_attention, strided_attention_weights, strided_offsets, strided_support
from mmattn.ops.patterns import PATTERNS

from . import literal
from .literal import assert_same, evaluate, randn, with_offsets
from .test_flops import flops

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)

# size, step, batch, heads
MAPS = {
    'whole_blocks': ((2, 4, 6), 2, 2, 2),
    'cut_blocks': ((3, 5, 4), 2, 2, 1),
    'steps': ((4, 3, 5), (3, 1, 2), 1, 2),
    'default': ((2, 5, 3), None, 1, 1),
    'h1': ((2, 3, 2), 1, 1, 2),
    'one_frame': ((1, 4, 3), 2, 2, 2),
    'row': ((1, 1, 5), 2, 1, 1),
    'column': ((1, 5, 1), 3, 2, 2),
    'clip_of_a_pixel': ((5, 1, 1), 3, 1, 2),
    'single': ((1, 1, 1), 3, 2, 2),
    'larger_step': ((2, 3, 4), 9, 1, 2),
    'larger_step_one_axis': ((2, 5, 3), (4, 2, 1), 2, 1),
    '2d': ((4, 5), (3, 2), 2, 2),
    '1d': ((7,), 3, 2, 2),
}
# size of the queries' map, of the keys', step
OTHER_KEYS = {
    'padded_queries': ((4, 6, 6), (3, 5, 5), 2),
    'padded_keys': ((3, 5, 5), (4, 6, 6), 2),
    'either': ((4, 2, 5), (3, 4, 5), (2, 3, 1)),
    'more_queries_than_keys': ((5, 3, 7), (2, 1, 3), 2),
    'more_keys_than_queries': ((2, 1, 3), (5, 3, 7), 2),
}
assert_literal = functools.partial(literal.assert_equation, strided_attention, literal.strided_attention)
every_pattern = pytest.mark.parametrize('pattern', PATTERNS)
with_and_without_logits = pytest.mark.parametrize('logits', [False, True], ids=['content', 'offsets'])


@every_pattern
@with_and_without_logits
@pytest.mark.parametrize(('size', 'step', 'batch', 'heads'), MAPS.values(), ids=MAPS)
@pytest.mark.parametrize('scale', [None, 1.0])
def test_dense_attention_masked_to_the_pattern(size, step, batch, heads, pattern, logits, scale):
    tensors, settings = with_offsets(size, step, pattern, batch, heads, logits=logits)
    assert_literal(tensors, scale=scale, **settings)


@every_pattern
@with_and_without_logits
@pytest.mark.parametrize(('size', 'key_size', 'step'), OTHER_KEYS.values(), ids=OTHER_KEYS)
def test_maps_of_different_sizes(size, key_size, step, pattern, logits):
    """Their first positions fall together; without a key, a query gives 0. Values have more channels than keys."""
    given = dict(key_size=key_size, logits=logits, value_channels=5)
    tensors, settings = with_offsets(size, step, pattern, 2, 2, **given)
    actual = assert_literal(tensors, **settings)
    alone = ~strided_support(size, step, pattern, key_size=key_size).flatten(1).any(1)
    assert not actual['output'].flatten(2, -2)[:, :, alone].any()


@every_pattern
@pytest.mark.parametrize(
    ('size', 'key_size', 'step'),
    [*((size, size, step) for size, step, *_ in MAPS.values() if step), *OTHER_KEYS.values()],
    ids=str,
)
def test_support_of_strided_attention(size, key_size, step, pattern):
    expected, _ = literal.strided(size, key_size, literal.as_tuple(step, len(size)), pattern)
    mask = strided_support(size, step, pattern, key_size=key_size)
    assert mask.shape == (math.prod(size), *key_size)
    assert torch.equal(mask.flatten(1), expected)


@pytest.mark.parametrize('size', [(3, 4, 2), (1, 4, 3), (3, 1, 1), (1, 1, 1), (4, 5), (1, 3)], ids=str)
def test_support_of_grid_attention(size):
    expected = literal.cross(size, (1,) * len(size)) >= 0
    mask = grid_support(size)
    assert mask.shape == (math.prod(size), *size)
    assert torch.equal(mask.flatten(1), expected)
    assert (mask.flatten(1).sum(1) == sum(size) - len(size) + 1).all()


def test_support_of_some_queries():
    size, queries = (3, 4, 5), torch.tensor([(2, 3, 4), (0, 1, 0), (2, 3, 4)])
    rows = torch.tensor([literal.coordinates(size).index(tuple(query)) for query in queries.tolist()])
    assert torch.equal(grid_support(size, queries), grid_support(size)[rows])
    for pattern in PATTERNS:
        assert torch.equal(
            strided_support(size, None, pattern, queries), strided_support(size, (2, 2, 3), pattern)[rows]
        )


@every_pattern
@pytest.mark.parametrize('number', [math.nan, math.inf, 1e30])
def test_logits_of_no_key_change_nothing(number, pattern):
    """Neither the output nor the weights; no gradient comes to them."""
    size, step = (3, 4, 5), 2
    tensors, settings = with_offsets(size, step, pattern)
    support = strided_support(size, step, pattern)
    nowhere = []
    for axis, offsets in enumerate(strided_offsets(size, step, pattern)):
        there = torch.tensor(literal.coordinates(size))[:, axis, None] + offsets
        inside = (there >= 0) & (there < size[axis])
        along = support.flatten(2).any(-1) if axis == 0 else support.movedim(axis + 1, 1).flatten(2).any(-1)
        nowhere.append(~(inside & along.gather(1, there.clamp(0, size[axis] - 1))).view(1, 1, *size, -1))
    assert any(x.any() for x in nowhere)
    other = tensors | {'offset_bias': tuple(x.masked_fill(n, number) for x, n in zip(tensors['offset_bias'], nowhere))}
    actual = evaluate(strided_attention, other, **settings)
    assert_same(actual, evaluate(strided_attention, tensors, **settings), 0, 0)
    for axis, n in enumerate(nowhere):
        assert not actual[f'd_offset_bias{axis or ""}'][n].any()
    queries = torch.tensor(literal.coordinates(size))
    del tensors['value'], other['value']
    rows = [strided_attention_weights(**x, queries=queries, **settings) for x in (other, tensors)]
    torch.testing.assert_close(*rows, atol=0, rtol=0)


@every_pattern
@pytest.mark.parametrize(('size', 'key_size', 'step'), [((3, 4, 5), (3, 4, 5), 2), *OTHER_KEYS.values()], ids=str)
def test_flops_of_the_pairs(size, key_size, step, pattern):
    """Per pair: its logit and its share of the sum; backward: logit, gradients at q, k; weight's gradient and v's."""
    pairs = 2 * 3 * strided_support(size, step, pattern, key_size=key_size).sum().item()
    query, key, value = (randn(2, 3, *s, c).requires_grad_() for s, c in ((size, 8), (key_size, 8), (key_size, 16)))
    settings = {'pattern': pattern, 'step': step}
    assert flops(lambda: strided_attention(query, key, value, **settings)) == 2 * pairs * (8 + 16)
    out = strided_attention(query, key, value, **settings)
    assert flops(lambda: torch.autograd.grad(out.sum(), (query, key, value))) == 2 * pairs * (3 * 8 + 2 * 16)


@pytest.mark.parametrize(
    ('size', 'key_size', 'name'),
    [((5, 0, 4), None, 'size'), ((), None, 'size'), (5, None, 'size'), ((5, -1), None, 'size')]
    + [((5, 2.5), None, 'size'), ((5, 3), (3,), 'key_size'), ((5, 3), (3, 0), 'key_size')],
)
@every_pattern
def test_sizes_of_no_map(pattern, size, key_size, name):
    for function in (strided_offsets, lambda *x: strided_support(*x[:3], None, x[3])):
        with pytest.raises(ValueError, match=f'^{name} must'):
            function(size, 2, pattern, key_size)


@pytest.mark.parametrize(
    ('pattern', 'step', 'first_queries', 'groups'),
    [
        ('block', 3, [0, 1, 2], [(0, 3), (3, 6), (6, 9)]),
        ('centred', 3, [0, 1, 2], [(-3, 6), (0, 9), (3, 12)]),
        ('forward', 3, [0, 1, 2], [(0, 6), (3, 9), (6, 12)]),
        ('backward', 3, [0, 1, 2], [(-3, 3), (0, 6), (3, 9)]),
        *((pattern, 7, [*range(7)], [(0, 7)]) for pattern in ('block', 'centred', 'forward', 'backward')),
        *((pattern, 1, [0], [(i, i + 1) for i in range(7)]) for pattern in ('centred', 'forward', 'backward')),
    ],
)
def test_a_group_of_queries_has_the_keys_of_its_block_and_of_adjacent_ones(pattern, step, first_queries, groups):
    """On an axis of seven queries and five keys. What is beyond the axis is padding."""
    queries, keys = import_module('mmattn.ops.strided_attention').cut(7, 5, step, pattern)
    assert queries.positions('cpu')[0].tolist() == first_queries
    assert keys.positions('cpu').tolist() == [[*range(*group)] for group in groups]
