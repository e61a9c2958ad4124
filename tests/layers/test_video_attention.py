"""The layers of video against Eq. 5.3, 5.7 and 5.9 written out over all pairs of voxels, with their own weights."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from mmattn.layers import DenseAttention3d, GridAttention3d, StridedAttention3d, VideoTransformerLayer

from ..ops import literal
from .common import assert_equal_with_gradients, randomised

C, HEADS = 12, 2
SIZE = (3, 4, 5)
NUMBERS = torch.tensor([[0, 5, 12]])
QUERIES = torch.tensor([[0, 0, 0], [1, 3, 2], [2, 2, 4]])
ROWS = [0, 20 + 3 * 5 + 2, 40 + 2 * 5 + 4]  # their numbers in row-major order
LIMITS = 1, 2, 2  # the largest offsets of a map of half the size, (2, 3, 3)
POSITIONS = [
    ('relative', 'sinusoidal'),
    ('relative', 'absolute'),
    ('relative', 'relative'),
    ('relative', 'none'),
    ('none', 'sinusoidal'),
    ('none', 'none'),
]


def encoding(kind, layer, numbers):
    """What is added to queries and keys: of each frame, (1, T, 1, 1, C)."""
    if kind == 'absolute':
        rows = [layer.temporal_encoding.embedding.weight[min(int(n), 255)] for n in numbers[0]]
    elif kind == 'sinusoidal':
        base = layer.temporal_encoding.wavelength
        angles = [[n / base ** (2 * i / C) for i in range(C // 2)] for n in numbers[0].tolist()]
        rows = [torch.tensor([f(x) for f in (math.sin, math.cos) for x in row], dtype=torch.float64) for row in angles]
    else:
        return 0
    return torch.stack(rows).view(1, -1, 1, 1, C)


def attend(layer, query, key, numbers, key_numbers, temporal, vectors, reaches):
    """One attention of the layer's projections; ``vectors(p, q)`` is E_{q−p}, ``reaches(p, q)`` whether q is a key.

    Its output, and its weights (heads, queries, keys), 0 where there is no key.
    """
    sizes = query.shape[1:4], key.shape[1:4]
    q = layer.query_proj(query + encoding(temporal, layer, numbers)).view(-1, HEADS, C // HEADS)
    k = layer.key_proj(key + encoding(temporal, layer, key_numbers)).view(-1, HEADS, C // HEADS)
    v = layer.value_proj(key).view(-1, HEADS, C // HEADS)
    rows, table = [], torch.zeros(HEADS, len(q), len(k), dtype=q.dtype)
    for i, p in enumerate(literal.coordinates(sizes[0])):
        there = [(j, r) for j, r in enumerate(literal.coordinates(sizes[1])) if reaches(p, r)]
        keys = torch.stack([k[j] + vectors(p, r) for j, r in there])  # (keys, heads, D)
        weights = (layer.scale * (q[i] * keys).sum(-1)).softmax(0)
        rows.append((weights.unsqueeze(-1) * v[[j for j, _ in there]]).sum(0).flatten())
        table[:, i, [j for j, _ in there]] = weights.T.detach()
    return layer.out_proj(torch.stack(rows)).view(1, *sizes[0], C), table


def table(layer, axis, offset, axes, limits=None, step=1):
    """The vector of an axis' offset, a multiple of the step, 0 for one without a table."""
    tables = layer.relative_position.tables if layer.relative_position is not None else []
    axis -= axes - len(tables)
    if axis < 0 or not len(tables):
        return 0
    limit = (limits[axis] if limits else layer.relative_position.max_offset) // step * step
    return tables[axis][max(-limit, min(offset, limit)) + layer.relative_position.max_offset]


@pytest.mark.parametrize('crossed', [False, True], ids=['self', 'cross'])
@pytest.mark.parametrize(('spatial', 'temporal'), [*POSITIONS, ('relative', 'trained')], ids=str)
@pytest.mark.parametrize('kind', [GridAttention3d, DenseAttention3d])
def test_grid_attention_is_eq_5_9_and_dense_attention_eq_5_1(kind, spatial, temporal, crossed):
    size = SIZE if kind is GridAttention3d else (3, 2, 3)
    limits = LIMITS if temporal == 'trained' else None
    options = dict(clip_offset=limits) if limits else {}
    options |= dict(wavelength=100.0) if kind is DenseAttention3d else {}  # as in the thesis's public operators
    temporal = 'relative' if temporal == 'trained' else temporal
    layer = randomised(kind(C, HEADS, 0.7, spatial, temporal, max_offset=4, **options), 0.4)
    if temporal == 'sinusoidal':
        assert layer.temporal_encoding.wavelength == (100 if kind is DenseAttention3d else 10000)
    query, key = (literal.randn(1, *size, C, seed=seed).requires_grad_() for seed in (1, 2))
    other = key if crossed else query

    def reaches(p, r):
        return kind is DenseAttention3d or sum(a != b for a, b in zip(p, r)) < 2

    def vectors(p, r):
        if kind is DenseAttention3d:
            rows = [table(layer, axis, r[axis] - p[axis], 3, limits) for axis in range(3)]
            rows = [row for row in rows if not isinstance(row, int)]
            return torch.cat(rows) if rows else 0
        axis = next((a for a in range(3) if p[a] != r[a]), 2)
        return table(layer, axis, r[axis] - p[axis], 3, limits)

    expected, weights = attend(layer, query, other, NUMBERS, NUMBERS, temporal, vectors, reaches)
    ours = layer(query, key if crossed else None, NUMBERS)
    assert_equal_with_gradients(ours, expected, query, layer)
    queries = QUERIES % torch.tensor(size)
    found = layer.attention_weights(
        query, key if crossed else None, NUMBERS, queries=queries, kind=layer.attention_kinds[-1]
    )
    torch.testing.assert_close(found[0].flatten(2), weights.unflatten(1, size)[(slice(None), *queries.T)])


# Every position with blocks that need padding; every pattern with relative positions.
STRIDED = (
    [('block', 2, *position) for position in POSITIONS]
    + [
        (pattern, step, 'relative', 'relative')
        for pattern, step in (('centred', (1, 2, 3)), ('forward', (2, 3, 2)), ('block', None))
    ]
    + [('block', (2, 2, 2), 'relative', 'trained')]
)


@pytest.mark.parametrize('crossed', [False, True], ids=['self', 'cross'])
@pytest.mark.parametrize(('pattern', 'step', 'spatial', 'temporal'), STRIDED, ids=str)
def test_strided_attention_is_eq_5_9_twice(pattern, step, spatial, temporal, crossed):
    """'trained': a map of twice the training's size keeps its steps, and clips offsets to the trained ones."""
    options = dict(scale=0.7, spatial_position=spatial, temporal_position=temporal, max_offset=5)
    limits = LIMITS if temporal == 'trained' else None
    if limits:
        options.update(temporal_position='relative', clip_offset=limits)
    layer = randomised(StridedAttention3d(C, HEADS, step, pattern, **options), 0.4)
    query, key = (literal.randn(1, *SIZE, C, seed=seed).requires_grad_() for seed in (1, 2))
    keys = key if crossed else query
    steps = literal.as_tuple(step if step is not None else (2, 2, 3), 3)  # ⌈√3⌉, ⌈√4⌉, ⌈√5⌉
    after = [-side % h if pattern == 'block' else 0 for side, h in zip(SIZE, steps)]
    pad = (0, 0, 0, after[2], 0, after[1], 0, after[0])
    padded_numbers = torch.cat([NUMBERS, NUMBERS[:, -1:].expand(1, after[0])], 1)
    conditions = {
        'block': lambda a, b, h: a // h == b // h,
        'centred': lambda a, b, h: abs(a - b) < h,
        'forward': lambda a, b, h: 0 <= b - a < h,
        'strided': lambda a, b, h: (b - a) % h == 0,
    }

    def run(part, kind, *operands):
        def vectors(p, r):
            apart = steps if kind == 'strided' else (1, 1, 1)
            rows = [table(part, axis, r[axis] - p[axis], 3, limits, apart[axis]) for axis in range(3)]
            rows = [row for row in rows if not isinstance(row, int)]
            return torch.cat(rows) if rows else 0

        def reaches(p, r):
            return all(conditions[kind](a, b, h) for a, b, h in zip(p, r, steps))

        return attend(part, *operands, temporal, vectors, reaches)

    found, local = run(layer.local_attention, pattern, F.pad(query, pad), keys, padded_numbers, NUMBERS)
    relays = F.pad(keys, pad) + found
    inside = tuple(slice(side) for side in (1, *SIZE))
    second = query if crossed else relays[inside]
    gathered, strided = run(layer.strided_attention, 'strided', second, relays, NUMBERS, padded_numbers)
    ours = layer(query, key if crossed else None, NUMBERS)
    assert_equal_with_gradients(ours, found[inside] + gathered, query, layer)
    local = local.unflatten(1, [side + pad for side, pad in zip(SIZE, after)])[(slice(None), *QUERIES.T)]
    for kind, weights in (('local', local), ('strided', strided[:, ROWS])):
        drawn = layer.attention_weights(query, key if crossed else None, NUMBERS, queries=QUERIES, kind=kind)
        torch.testing.assert_close(drawn[0].flatten(2), weights)
    with pytest.raises(ValueError, match='kind'):
        layer.attention_weights(query, None, NUMBERS, queries=QUERIES, kind='bilateral')


def test_counts_of_the_thesis():
    layer = GridAttention3d(128, 8)
    names = ('query_proj', 'key_proj', 'value_proj', 'out_proj')
    assert sum(p.numel() for name in names for p in getattr(layer, name).parameters()) == 66048
    assert sum(p.numel() for p in GridAttention3d(128, spatial_position='none').parameters()) == 66048


def test_cost_of_the_thesis():
    """Dense attention's products on 16×64×64 voxels of 32 channels, "more than 137 billion" each, and the grid's."""

    def macs(kind):
        with torch.device('meta'), FlopCounterMode(display=False) as counter:
            layer, clip = kind(32, spatial_position='none', temporal_position='none'), torch.empty(1, 16, 64, 64, 32)
            layer(clip)
        return counter.get_total_flops() / 2 - 4 * 32**2 * 16 * 64 * 64  # without the projections

    assert macs(DenseAttention3d) == 2 * 65536**2 * 32
    assert 137e9 < macs(DenseAttention3d) / 2 < 138e9
    assert macs(GridAttention3d) < 0.7e9


@pytest.mark.parametrize(
    'layer',
    [GridAttention3d(C, HEADS), DenseAttention3d(C, HEADS)]
    + [
        StridedAttention3d(C, HEADS, step, pattern)
        for pattern, step in (('block', 2), ('block', None), ('centred', (1, 2, 3)), ('forward', 2))
    ],
    ids=['grid', 'dense', 'block', 'block by default', 'centred', 'forward'],
)
def test_reached_voxels_have_a_gradient(layer):
    """Of one voxel and of two, through one layer and through two with residuals.

    One strided layer connects all voxels, but for 'forward'. Of odd sizes, 'block' reaches them by padded relays.
    """
    torch.manual_seed(0)
    x = torch.randn(1, *SIZE, C, dtype=torch.float64, requires_grad=True)
    once = x + layer.double()(x, frame_numbers=NUMBERS)
    twice = once + layer(once, frame_numbers=NUMBERS)
    for positions in ([(1, 3, 2)], [(1, 3, 2), (2, 0, 0)]):
        voxels = torch.zeros(SIZE, dtype=torch.bool)
        voxels[tuple(torch.tensor(positions).T)] = True
        for y, reached in ((once, layer.reach(voxels)), (twice, layer.reach(layer.reach(voxels)))):
            (gradient,) = torch.autograd.grad(y[0][voxels].sum(), x, retain_graph=True)
            assert torch.equal(reached, (gradient[0] != 0).any(-1))
        if getattr(layer, 'local_pattern', 'forward') != 'forward':
            assert layer.reach(voxels).all()


def test_two_grid_layers_reach_what_the_thesis_says():
    torch.manual_seed(0)
    x = torch.randn(1, 5, 5, 5, C, dtype=torch.float64, requires_grad=True)
    y, shares = x, []
    for _ in range(3):
        y = GridAttention3d(C, HEADS, temporal_position='none').double()(y)
        reached = [
            (torch.autograd.grad(y[(0, *p)].sum(), x, retain_graph=True)[0].abs().sum(-1) > 0).float().mean()
            for p in ((0, 0, 0), (2, 1, 4))
        ]
        shares.append([round(float(share), 3) for share in reached])
    assert shares == [[0.104] * 2, [0.488] * 2, [1] * 2]


@pytest.mark.parametrize('query', ['memory', 'x'])
def test_the_transformer_layer_is_attention_and_network_with_residuals(query):
    layer = randomised(VideoTransformerLayer(C, dict(type='mmattn.GridAttention3d', num_heads=HEADS), query=query), 0.4)
    layer.train()  # by default, nothing is dropped
    x, memory = (literal.randn(1, *SIZE, C, seed=seed).requires_grad_() for seed in (1, 2))

    def literally(memory):
        y = layer.norms[0](x)
        operands = (y,) if memory is None else (memory, y) if query == 'memory' else (y, memory)
        x1 = x + layer.attention(*operands, frame_numbers=NUMBERS)
        inner, outer = (module for module in layer.ffn.modules() if isinstance(module, nn.Linear))
        assert inner.out_features == 4 * C
        return x1 + outer(F.relu(inner(layer.norms[1](x1))))

    assert_equal_with_gradients(layer(x, None, NUMBERS), literally(None), x, layer)
    assert_equal_with_gradients(layer(x, memory, NUMBERS), literally(memory), x, layer)


@pytest.mark.parametrize(
    'layer', [GridAttention3d(C, HEADS), DenseAttention3d(C, HEADS), StridedAttention3d(C, HEADS, step=2)]
)
def test_a_clip_in_a_batch_is_as_alone(layer):
    """With its own frame numbers, of which the last is that of the padding."""
    layer = randomised(layer, 0.4)
    x, numbers = literal.randn(2, *SIZE, C), torch.tensor([[0, 5, 12], [1, 2, 9]])
    alone = torch.cat([layer(x[i : i + 1], frame_numbers=numbers[i : i + 1]) for i in range(2)])
    torch.testing.assert_close(layer(x, frame_numbers=numbers), alone)
    assert not torch.allclose(layer(x, frame_numbers=numbers.flip(0)), alone)


@pytest.mark.parametrize('kind', [GridAttention3d, DenseAttention3d, StridedAttention3d])
def test_attention_starts_as_a_search_for_similar_voxels(kind):
    """Keys are projected as queries are, and values otherwise."""
    layer = kind(C, HEADS)
    for part in [layer] if kind is not StridedAttention3d else [layer.local_attention, layer.strided_attention]:
        assert torch.equal(part.key_proj.weight, part.query_proj.weight)
        assert torch.equal(part.key_proj.bias, part.query_proj.bias)
        assert part.key_proj.weight is not part.query_proj.weight
        assert not torch.equal(part.value_proj.weight, part.query_proj.weight)


def test_frames_after_the_last_embedding_have_the_last():
    layer = GridAttention3d(C, HEADS, temporal_position='absolute', max_frames=3)
    rows = layer.temporal_encoding.embedding.weight
    assert torch.equal(layer.temporal_encoding(torch.tensor([[0, 1, 2, 3, 9]]))[0], rows[[0, 1, 2, 2, 2]])


@pytest.mark.parametrize('options', [dict(max_offset=0), dict(max_offset=3, clip_offset=0)], ids=str)
@pytest.mark.parametrize('kind', [GridAttention3d, StridedAttention3d])
def test_offsets_may_all_have_one_vector(kind, options):
    """Which is that of offset 0: the others of the table change nothing."""
    layer = randomised(kind(C, HEADS, temporal_position='none', **options), 0.4)
    x = literal.randn(1, *SIZE, C)
    expected = layer(x)
    for encoding in [module for module in layer.modules() if hasattr(module, 'tables')]:
        for vectors in encoding.tables:
            vectors.data[torch.arange(len(vectors)) != options['max_offset']] = 0
    torch.testing.assert_close(layer(x), expected)


def test_offsets_of_space_are_clipped_without_those_of_time():
    for kind in (GridAttention3d, StridedAttention3d):
        layer = kind(C, HEADS, temporal_position='relative', max_offset=9, clip_offset=(2, 3))
        parts = [layer] if kind is GridAttention3d else [layer.local_attention, layer.strided_attention]
        assert [part.relative_position.clip_offset for part in parts] == [(9, 2, 3)] * len(parts)
