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
from mmattn.utils.profiling import extra_memory

from . import literal
from .literal import (
    AFTER,
    DTYPES,
    LAYOUTS,
    assert_same,
    check_operator,
    evaluate,
    low_precision,
    operands,
    randn,
    record_slices,
)

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)

PATTERNS = ['block', 'centred', 'forward', 'strided']
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


def with_offsets(size, step, pattern, batch=1, heads=1, *, key_size=None, logits=True, **kwargs):
    """Tensors and settings of a call; the heads share the position logits of the first axis only."""
    tensors = operands(size, batch, heads, key_size=key_size, **kwargs)
    if logits:
        offsets = strided_offsets(size, step, pattern, key_size)
        tensors['offset_bias'] = tuple(
            randn(batch, heads if axis else 1, *size, len(x), seed=4 + axis, dtype=tensors['query'].dtype)
            for axis, x in enumerate(offsets)
        )
    return tensors, {'step': step, 'pattern': pattern}


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


@pytest.mark.parametrize('which', ['xxx', 'xyy'])
@every_pattern
def test_one_tensor_in_several_places(which, pattern):
    """Its gradient is the sum of those of its places."""

    def share(op):
        return lambda **given: op(*map(given.get, which), pattern=pattern, step=2)

    assert_literal({name: randn(2, 2, 3, 4, 5, 3, seed=i) for i, name in enumerate(sorted(set(which)))}, share)


def as_map(layout):
    """Of LAYOUTS, for (B, heads, T, H, W, C): frames one below the other are a map."""
    return lambda x: layout(x.flatten(2, 3)).unflatten(2, x.shape[2:4])


@pytest.mark.parametrize('after', AFTER.values(), ids=AFTER)
@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
@every_pattern
def test_layouts(layout, after, pattern):
    tensors, settings = with_offsets((2, 3, 4), 2, pattern, 2, 2, value_channels=3)
    logits = tensors.pop('offset_bias')
    tensors = {name: as_map(layout)(x) for name, x in tensors.items()}
    assert not any(x.is_contiguous() for x in tensors.values())
    tensors['offset_bias'] = tuple(as_map(layout)(x) for x in logits)
    assert_literal(tensors, after, **settings)


@pytest.mark.parametrize('budget', [1, 2**18])
@pytest.mark.parametrize(('size', 'step'), [((4, 5, 3), 2), ((3, 4, 2), 9)], ids=['groups', 'one_group'])
@every_pattern
@with_and_without_logits
def test_slices(monkeypatch, budget, size, step, pattern, logits):
    """Many slices, down to single queries where a group alone is too much, give what a single slice gives."""
    slices = record_slices(monkeypatch, 'mmattn.ops.strided_attention')
    tensors, settings = with_offsets(size, step, pattern, 2, 3, logits=logits)
    whole = evaluate(strided_attention, tensors, **settings)
    assert len(slices) == 2 * 8  # one a dimension, forward and backward
    slices.clear()
    monkeypatch.setattr('mmattn.ops.chunks.CHUNK_BYTES', budget)
    sliced = evaluate(strided_attention, tensors, **settings)
    assert len(slices) > 2 * 8
    assert (max(slices) == 1) == (budget == 1)
    assert_same(sliced, whole, 1e-12, 1e-12)


def call(**changes):
    """A call of (1, 2, 2, 3, 4, 3) tensors in blocks of length 2, with some arguments changed."""
    tensors, settings = with_offsets((2, 3, 4), 2, 'block', heads=2)
    return strided_attention(**{**tensors, **settings, **changes})


def same(*shape, dtype=torch.float64):
    return {name: randn(*shape).to(dtype) for name in ('query', 'key', 'value')}


def logits_of(*entries):
    return {'offset_bias': tuple(randn(1, 2, 2, 3, 4, n) for n in entries)}


WRONG = {
    'no_axis': (ValueError, 'query', same(1, 2, 3)),
    'four_axes': (ValueError, 'query', same(1, 2, 1, 1, 1, 1, 3)),
    'key_axes': (ValueError, 'key', {'key': randn(1, 2, 12, 3)}),
    'key_heads': (ValueError, 'key', {name: randn(1, 4, 2, 3, 4, 3) for name in ('key', 'value')}),
    'key_channels': (ValueError, 'key', {'key': randn(1, 2, 2, 3, 4, 2)}),
    'value_axes': (ValueError, 'value', {'value': randn(1, 2, 12, 3)}),
    'value_positions': (ValueError, 'value', {'value': randn(1, 2, 2, 4, 3, 3)}),
    'dtypes': (TypeError, 'query, key and value', {'key': randn(1, 2, 2, 3, 4, 3).float()}),
    'integers': (TypeError, 'query, key and value', same(1, 2, 2, 3, 4, 3, dtype=torch.long)),
    'pattern': (ValueError, 'pattern', {'pattern': 'cube'}),
    'no_pattern': (ValueError, 'pattern', {'pattern': None}),
    'no_step_for_other_keys': (
        ValueError,
        'step',
        {'step': None, **{n: randn(1, 2, 2, 4, 4, 3) for n in ('key', 'value')}},
    ),
    'one_axis_too_few': (ValueError, 'offset_bias', logits_of(3, 3)),
    'one_axis_too_many': (ValueError, 'offset_bias', logits_of(3, 3, 3, 3)),
    'entries': (ValueError, r'offset_bias\[1\]', logits_of(3, 2, 3)),
    'entries_of_another_pattern': (ValueError, r'offset_bias\[0\]', {'pattern': 'forward'}),
    'logit_positions': (ValueError, r'offset_bias\[0\]', {'offset_bias': [randn(1, 2, 3, 2, 4, 3)] * 3}),
    'integer_logits': (TypeError, r'offset_bias\[0\]', {'offset_bias': [torch.ones(3, dtype=torch.long)] * 3}),
}


@pytest.mark.parametrize(('error', 'name', 'changes'), WRONG.values(), ids=WRONG)
def test_wrong_arguments(error, name, changes):
    call()  # the call that the changes spoil
    with pytest.raises(error, match=rf'\b{name}'):
        call(**changes)


# Masks.


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


@pytest.mark.parametrize(
    ('name', 'mask'),
    {
        'queries': lambda: grid_support((3, 4), torch.tensor([(3, 0)])),
        r'queries\b.*\b3\)': lambda: strided_support((3, 4, 5), 2, 'block', torch.tensor([(1, 0)])),
        'pattern': lambda: strided_support((3, 4), 2, 'cube'),
        'step': lambda: strided_support((3, 4), 0, 'block'),
    }.items(),
)
def test_wrong_arguments_of_masks(name, mask):
    with pytest.raises(ValueError, match=rf'\b{name}'):
        mask()


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


# Semantics.


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
def test_neg_inf_removes_keys(pattern):
    """From some queries all of them, which then give 0."""
    tensors, settings = with_offsets((3, 4, 5), 2, pattern, 2, 2)
    removed = [randn(*x.shape, seed=9 + axis) > 0.5 for axis, x in enumerate(tensors['offset_bias'])]
    tensors['offset_bias'] = tuple(x.masked_fill(r, -math.inf) for x, r in zip(tensors['offset_bias'], removed))
    actual = assert_literal(tensors, **settings)
    assert not actual['output'].any(-1).all()
    for axis, r in enumerate(removed):
        assert not actual[f'd_offset_bias{axis or ""}'][r].any()


# Numbers of any size, in every dtype.


@every_pattern
def test_float32_logits_with_bfloat16_operands(pattern):
    """Each gradient has the dtype of its tensor."""
    tensors, settings = with_offsets((3, 4, 5), 2, pattern, 2, 2, dtype=torch.float32)
    tensors |= {name: tensors[name].bfloat16() for name in ('query', 'key', 'value')}
    actual = evaluate(strided_attention, tensors, **settings)
    assert {name for name, x in actual.items() if x.dtype == torch.float32} == {
        'd_offset_bias',
        'd_offset_bias1',
        'd_offset_bias2',
    }
    expected = evaluate(literal.strided_attention, tensors, torch.float64, **settings)
    assert_same(actual, expected, **low_precision(torch.bfloat16))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@every_pattern
@pytest.mark.parametrize('large', ['content', 'offsets', 'both'])
def test_logits_of_1e4(large, dtype, pattern):
    """Nothing overflows. A float32 logit of 1e4 is off by up to some 1e-3, its weight by as much of itself."""
    tensors, settings = with_offsets((3, 4, 5), 2, pattern, 2, 1, dtype=dtype)
    if large != 'offsets':
        tensors |= {name: tensors[name] * 100 for name in ('query', 'key')}
    if large != 'content':
        tensors['offset_bias'] = tuple(x * 1e4 for x in tensors['offset_bias'])
    actual = evaluate(strided_attention, tensors, **settings)
    for name, x in actual.items():
        assert x.isfinite().all(), name
    expected = evaluate(literal.strided_attention, tensors, torch.float64, **settings)['output']
    torch.testing.assert_close(actual['output'].double(), expected, atol=1e-2, rtol=torch.finfo(dtype).eps)


# Rows of weights.


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


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16], ids=str)
def test_weights_of_low_precision(dtype):
    tensors, settings = with_offsets((3, 4, 5), 2, 'centred', 2, 2, dtype=dtype)
    del tensors['value']
    queries = torch.tensor([(1, 2, 3)])
    rows = strided_attention_weights(**tensors, queries=queries, **settings)
    assert rows.dtype == torch.float32
    exact = {name: x.double() if torch.is_tensor(x) else tuple(y.double() for y in x) for name, x in tensors.items()}
    torch.testing.assert_close(
        rows, strided_attention_weights(**exact, queries=queries, **settings), atol=1e-5, rtol=1e-4, check_dtype=False
    )


@pytest.mark.parametrize(
    'queries',
    [
        torch.zeros(1, 3),
        torch.zeros(3, dtype=torch.long),
        torch.zeros(1, 2, dtype=torch.long),
        torch.tensor([[0, 0, 4]]),
        torch.tensor([[0, -1, 0]]),
    ],
    ids=['dtype', 'vector', 'axes', 'outside', 'negative'],
)
def test_wrong_queries_are_named(queries):
    tensors, settings = with_offsets((2, 3, 4), 2, 'block')
    del tensors['value']
    with pytest.raises(ValueError, match=r'\bqueries\b'):
        strided_attention_weights(**tensors, queries=queries, **settings)
    with pytest.raises(ValueError, match='pattern'):
        strided_attention_weights(**tensors, queries=torch.zeros(1, 3, dtype=torch.long), **settings | {'pattern': ''})


# Costs.


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


@functools.cache
def extra(pattern, frames, height, width):
    """Extra MiB of the forward pass, and of forward and backward pass, with steps of ⌈√side⌉ and 4 heads."""
    size = frames, height, width
    offsets = strided_offsets(size, None, pattern)
    tensors = [
        torch.randn(1, 4, *size, n, generator=torch.Generator().manual_seed(n)).requires_grad_()
        for n in (16, 16, 16, *map(len, offsets))
    ]
    query, key, value, *logits = tensors
    out, forward = extra_memory(lambda: strided_attention(query, key, value, pattern=pattern, offset_bias=logits))
    grads, backward = extra_memory(lambda: torch.autograd.grad(out, tensors, torch.ones_like(out)))
    assert [x.shape for x in grads] == [x.shape for x in tensors]
    return forward, max(forward, backward)


@every_pattern
def test_extra_memory_grows_with_the_positions(pattern):
    """Beyond the slices; a table of all pairs grows 16-fold, and of the larger map alone would take 256 MiB."""
    for small, large in zip(extra(pattern, 4, 15, 17), extra(pattern, 4, 30, 34)):
        print(f'extra {small:.1f} MiB at 4×15×17, {large:.1f} MiB at 4×30×34')
        assert large < 4.5 * small


# As an operator of PyTorch.

CALLS = {
    f'{pattern}-{"offsets" if logits else "content"}': (pattern, logits)
    for pattern in PATTERNS
    for logits in (False, True)
}


def full_call(pattern, logits, size=(2, 3, 5), dtype=torch.float32):
    return with_offsets(size, 2, pattern, 2, 2, logits=logits, dtype=dtype)


@pytest.mark.parametrize('which', CALLS.values(), ids=CALLS)
def test_opcheck(which):
    check_operator(strided_attention, *full_call(*which))


@pytest.mark.parametrize('which', CALLS.values(), ids=CALLS)
def test_opcheck_of_other_keys(which):
    tensors, settings = with_offsets((4, 6, 4), 2, which[0], 2, 2, key_size=(3, 5, 4), logits=which[1])
    check_operator(strided_attention, tensors, settings)


@pytest.mark.parametrize('which', CALLS.values(), ids=CALLS)
def test_compile(which):
    torch.compiler.reset()
    compiled = torch.compile(strided_attention, fullgraph=True, backend='aot_eager')
    tensors, settings = full_call(*which)
    settings['step'] = None
    if which[1]:
        tensors, _ = with_offsets((2, 3, 5), None, which[0], 2, 2, dtype=torch.float32)
    assert_same(evaluate(compiled, tensors, **settings), evaluate(strided_attention, tensors, **settings), 0, 0)


def test_compile_once_for_all_sizes():
    torch.compiler.reset()
    compiled = torch.compile(strided_attention, fullgraph=True, backend='aot_eager', dynamic=True)
    for size in ((2, 3, 5), (3, 4, 4)):
        tensors = operands(size)
        settings = {'pattern': 'block', 'step': None}
        assert_same(evaluate(compiled, tensors, **settings), evaluate(strided_attention, tensors, **settings), 0, 0)


@pytest.mark.parametrize('which', [('block', False), ('strided', True)], ids=str)
def test_export(which):
    tensors, settings = full_call(*which)

    class Model(torch.nn.Module):
        def forward(self, **tensors):
            return strided_attention(**tensors, **settings)

    exported = torch.export.export(Model(), (), tensors).module()
    torch.testing.assert_close(exported(**tensors), strided_attention(**tensors, **settings), atol=0, rtol=0)


@every_pattern
def test_gradcheck(pattern):
    tensors, settings = full_call(pattern, True, (2, 1, 3), torch.float64)
    *names, _ = tensors
    assert torch.autograd.gradcheck(
        lambda *args: strided_attention(**dict(zip(names, args)), offset_bias=args[3:], **settings),
        [x.requires_grad_() for x in (*map(tensors.get, names), *tensors['offset_bias'])],
    )


def test_gradients_of_some_operands():
    """Those that need none get none, and leave the others as they are."""
    tensors, settings = with_offsets((3, 4, 5), 2, 'block')
    expected = evaluate(strided_attention, tensors, **settings)
    for name in ('query', 'key', 'value'):
        actual = evaluate(
            lambda leaf, name=name: strided_attention(**{**tensors, name: leaf}, **settings), {'leaf': tensors[name]}
        )
        torch.testing.assert_close(actual['d_leaf'], expected[f'd_{name}'], atol=0, rtol=0)
