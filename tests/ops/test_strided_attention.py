"""strided_attention against a table of all pairs masked to each pattern, the masks, and what must hold."""

import functools
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmattn.ops import (
    global_attention,
    grid_support,
    strided_attention,
    strided_attention_weights,
    strided_offsets,
    strided_support,
)
from mmattn.ops.patterns import PATTERNS

from . import literal
from .literal import assert_same, evaluate, operands, randn, with_offsets

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


def assert_literal(tensors, op=lambda f: f, **settings):
    """Values and all gradients are the literal ones to 1e-10; ``op`` wraps both the operator and its reference."""
    actual = evaluate(op(strided_attention), tensors, **settings)
    assert_same(actual, evaluate(op(literal.strided_attention), tensors, **settings))
    return actual


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
    """Their first positions fall together; without a key, a query gives 0."""
    tensors, settings = with_offsets(size, step, pattern, 2, 2, key_size=key_size, logits=logits)
    actual = assert_literal(tensors, **settings)
    alone = ~strided_support(size, step, pattern, key_size=key_size).flatten(1).any(1)
    assert not actual['output'].flatten(2, -2)[:, :, alone].any()


@every_pattern
@pytest.mark.parametrize('channels', [1, 5])
def test_fewer_and_more_channels_of_values(channels, pattern):
    tensors, settings = with_offsets((3, 4, 5), 2, pattern, 2, 2, value_channels=channels)
    assert assert_literal(tensors, **settings)['output'].shape == (2, 2, 3, 4, 5, channels)


@every_pattern
def test_defaults(pattern):
    """⌈√side⌉ steps an axis, 1/√D."""
    size = (4, 5, 9)
    tensors, _ = with_offsets(size, None, pattern)
    expected = evaluate(strided_attention, tensors, pattern=pattern, step=(2, 3, 3), scale=3**-0.5)
    assert_same(evaluate(strided_attention, tensors, pattern=pattern), expected, 0, 0)


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


def reach(*masks):
    """The share of pairs that are connected by layers with these masks, the first one's first, ``(N, M)``."""
    paths = functools.reduce(
        lambda paths, mask: mask.flatten(1).double() @ paths, masks[1:], masks[0].flatten(1).double()
    )
    return (paths > 0).double().mean().item()


def test_reach_of_grid_attention():
    mask = grid_support((5, 5, 5))
    assert [round(reach(*[mask] * layers), 3) for layers in (1, 2, 3)] == [0.104, 0.488, 1]


@pytest.mark.parametrize(
    ('size', 'step', 'pattern', 'expected'),
    [
        ((5, 5, 5), 2, 'centred', 1),
        ((6, 6, 6), 2, 'block', 1),
        ((6, 6, 6), 3, 'block', 1),
        ((4, 6, 2), (2, 3, 1), 'block', 1),
        ((5, 5, 5), 2, 'block', 0.7787),
        ((4, 4, 4), 2, 'forward', 0.6699),
    ],
    ids=str,
)
def test_reach_of_two_sub_layers(size, step, pattern, expected):
    """Where h divides no side, a position of the last block has no relay for some of the remainders."""
    masks = strided_support(size, step, pattern), strided_support(size, step, 'strided')
    assert round(reach(*masks), 4) == expected


@pytest.mark.parametrize(('size', 'step'), [((5, 5, 5), 2), ((5, 5, 5), 3), ((3, 7, 4), (2, 3, 3))], ids=str)
def test_reach_with_relays(size, step):
    """Padded to whole blocks, as queries of the first sub-layer and as keys of the second, every pair is connected."""
    padded = tuple(-(-side // h) * h for side, h in zip(size, literal.as_tuple(step, 3)))
    assert (
        reach(
            strided_support(padded, step, 'block', key_size=size),
            strided_support(size, step, 'strided', key_size=padded),
        )
        == 1
    )
    query, key, value = (randn(1, 1, *size, 2, seed=seed).requires_grad_() for seed in range(3))
    padding = [x for side, whole in zip(reversed(size), reversed(padded)) for x in (0, whole - side)]
    relays = strided_attention(torch.nn.functional.pad(query, [0, 0, *padding]), key, value, pattern='block', step=step)
    out = strided_attention(query, relays, relays, pattern='strided', step=step)
    for at in literal.coordinates(size):
        (d_value,) = torch.autograd.grad(out[(0, 0, *at)].sum(), value, retain_graph=True)
        assert d_value.all()


@every_pattern
@pytest.mark.parametrize('step', [5, (3, 4, 5), 100], ids=str)
def test_a_step_over_the_map(step, pattern):
    """'block' and 'centred' attend to all; 'strided' to the query's own position, its value V; 'forward' onwards."""
    tensors = operands((3, 4, 5), 2, 2)
    actual = evaluate(strided_attention, tensors, pattern=pattern, step=step)
    if pattern in ('block', 'centred'):
        assert_same(actual, evaluate(global_attention, tensors))
    elif pattern == 'strided':
        assert torch.equal(actual['output'], tensors['value'])
    else:
        assert torch.equal(actual['output'][:, :, -1, -1, -1], tensors['value'][:, :, -1, -1, -1])
        expected = global_attention(tensors['query'], tensors['key'], tensors['value'])
        torch.testing.assert_close(actual['output'][:, :, 0, 0, 0], expected[:, :, 0, 0, 0], atol=1e-12, rtol=1e-12)
        assert (actual['output'] - expected)[:, :, 0, 0, 1:].abs().max() > 1e-3


@every_pattern
def test_a_step_of_1(pattern):
    """'strided' attends to all, the others to the query's own position."""
    tensors = operands((2, 3, 4), 2, 2)
    actual = strided_attention(**tensors, pattern=pattern, step=1)
    expected = global_attention(**tensors) if pattern == 'strided' else tensors['value']
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)


@every_pattern
def test_offsets_concatenated_in_the_channels(pattern):
    """Eq. 5.9 as the text has it: Q(K + E), where E holds the embeddings of Δt, Δy and Δx one after the other."""
    size, step = (3, 4, 5), 2
    offsets = strided_offsets(size, step, pattern)
    query, key, value = randn(2, 2, *size, 6, seed=1), randn(2, 2, *size, 6, seed=2), randn(2, 2, *size, 3, seed=3)
    tables = [randn(2 * side - 1, 2, seed=4 + axis) for axis, side in enumerate(size)]  # of all offsets in the map
    logits = [
        part @ table[offset + side - 1].T
        for part, table, offset, side in zip(query.split(2, -1), tables, offsets, size)
    ]
    actual = strided_attention(query, key, value, pattern=pattern, step=step, scale=1.0, offset_bias=logits)
    at = torch.tensor(literal.coordinates(size))
    apart = at - at[:, None]  # q − p, (N, N, 3)
    embeddings = torch.cat([table[apart[..., a] + size[a] - 1] for a, table in enumerate(tables)], -1)
    q, k, v = (x.flatten(2, -2) for x in (query, key, value))
    dense = torch.einsum('bhid,bhijd->bhij', q, k.unsqueeze(2) + embeddings)
    mask = strided_support(size, step, pattern).flatten(1)
    expected = dense.masked_fill(~mask, -math.inf).softmax(-1) @ v
    torch.testing.assert_close(actual.flatten(2, -2), expected, atol=1e-12, rtol=1e-12)


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
@with_and_without_logits
@pytest.mark.parametrize(
    ('size', 'key_size', 'step'),
    [((3, 4, 5), (3, 4, 5), 2), ((1, 5, 1), (1, 5, 1), 3), ((4, 5), (4, 5), (3, 2)), *OTHER_KEYS.values()],
    ids=str,
)
def test_weights_are_rows_of_the_table_of_all_pairs(size, key_size, step, pattern, logits):
    """0 off the pattern, and for a query without keys."""
    tensors, settings = with_offsets(size, step, pattern, 2, 2, key_size=key_size, logits=logits)
    queries = torch.tensor(literal.coordinates(size))[[0, -1, len(tensors) // 2, 0]]
    del tensors['value']
    rows = strided_attention_weights(**tensors, queries=queries, scale=0.7, **settings)
    count = math.prod(key_size)
    value = torch.eye(count, dtype=torch.float64).view(1, 1, *key_size, count).expand(2, 2, *[-1] * (len(size) + 1))
    table = literal.strided_attention(**tensors, value=value, scale=0.7, **settings)
    expected = table[(slice(None), slice(None), *queries.T)].unflatten(-1, key_size)
    torch.testing.assert_close(rows, expected, atol=1e-10, rtol=1e-10)
    support = strided_support(size, step, pattern, queries, key_size)
    assert torch.equal(rows > 0, support.expand_as(rows))
    torch.testing.assert_close(rows.flatten(3).sum(-1), support.flatten(1).any(1).double().expand(2, 2, -1))


def flops(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


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


def test_flops_of_a_video():
    """16×64×64 of 32 channels: the two sub-layers cost a fraction of the 137 G products of dense logits."""
    x = torch.empty(1, 1, 16, 64, 64, 32, device='meta')
    count = [
        flops(lambda p=pattern: strided_attention(x, x, x, pattern=p, step=(4, 8, 8))) // 4 for pattern in PATTERNS
    ]
    block, centred, forward, strided = count
    assert block == strided == 16 * 64 * 64 * 256 * 32
    assert block < 137.4e9 / 200
    assert forward < block < centred < 7 * 15 * 15 / 256 * block
