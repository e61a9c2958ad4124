"""Each operator against its equation written out, at the edges of maps and windows, and what follows from it.

The equations are those of chapters 3 to 5 of *The Attention Mechanism in Vision and Language Analysis*, and of *An
Empirical Study of Spatial Attention Mechanisms in Deep Networks*. A size is combined with every kind of biases, and
with the other options in step: each option is computed by itself, after the same table of keys.
"""

import itertools
import math
from importlib import import_module

import pytest
import torch
from torch.nn import functional as F

from mmattn import ops
from mmattn.ops import (
    dispatch,
    dynamic_conv,
    global_attention,
    grid_support,
    local_attention,
    strided_attention,
    strided_offsets,
    strided_support,
)
from mmattn.ops.patterns import PATTERNS

from . import literal, zscored
from .literal import (
    CONTENT,
    DTYPES,
    LEARNED,
    POSITIONS,
    SWITCHES,
    around_1e4,
    assert_same,
    check_operator,
    evaluate,
    low_precision,
    operands,
    randn,
    with_kernel,
    with_logits,
    with_offsets,
)
from .zscored import grid_attention

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
WINDOWED = 'global_attention', 'grid_attention'
# Of each operator: size, window, kernel or step, batch, heads.
MAPS = {
    'global_attention': {
        '1d': ((7,), 3, 2, 2),
        '1d-wider_window': ((4,), (11,), 1, 2),
        '1d-single': ((1,), 3, 2, 1),
        '2d': ((3, 5), 3, 2, 2),
        '2d-tall': ((5, 3), (3, 5), 2, 1),
        '2d-larger_window': ((2, 3), 7, 1, 2),
        '2d-larger_window_one_axis': ((3, 4), (1, 9), 1, 1),
        '2d-k1': ((3, 4), 1, 2, 2),
        '2d-row': ((1, 5), 3, 1, 1),
        '2d-column': ((5, 1), 3, 1, 2),
        '2d-single': ((1, 1), 5, 1, 1),
        '3d': ((2, 3, 4), 3, 2, 1),
        '3d-flat': ((3, 1, 2), (1, 3, 5), 1, 2),
    },
    'grid_attention': {
        '2d': ((3, 5), 3, 2, 2),
        '2d-tall': ((5, 3), (3, 5), 2, 1),
        '2d-larger_window': ((2, 3), 7, 1, 2),
        '2d-larger_window_one_axis': ((3, 4), (9, 1), 1, 1),
        '2d-k1': ((3, 4), 1, 2, 2),
        '2d-row': ((1, 5), 3, 1, 1),
        '2d-column': ((5, 1), 3, 1, 2),
        '2d-single': ((1, 1), 5, 1, 1),
        '3d': ((4, 3, 5), 3, 2, 1),
        '3d-windows': ((3, 4, 2), (5, 3, 1), 1, 2),
        '3d-flat': ((3, 1, 2), (1, 3, 5), 1, 2),
    },
    'local_attention': {
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
    },
    'strided_attention': {
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
    },
    'dynamic_conv': {
        'k3': ((4, 5), 3, 2, 2),
        'k5': ((6, 4), 5, 1, 3),
        'k13': ((3, 4), 13, 2, 1),
        '3x5': ((5, 6), (3, 5), 2, 1),
        '5x1': ((6, 3), (5, 1), 1, 2),
        'k1': ((3, 4), 1, 1, 2),
        'row': ((1, 6), 3, 2, 2),
        'column': ((6, 1), 5, 1, 2),
        'single': ((1, 1), 3, 2, 2),
        'k7, inside': ((9, 8), 7, 2, 2),
        '3x5, inside': ((9, 8), (3, 5), 2, 2),
    },
}
EDGES = [(name, title) for name, maps in MAPS.items() for title in maps]
# size of the queries' map, of the keys', step
OTHER_KEYS = {
    'padded_queries': ((4, 6, 6), (3, 5, 5), 2),
    'padded_keys': ((3, 5, 5), (4, 6, 6), 2),
    'either': ((4, 2, 5), (3, 4, 5), (2, 3, 1)),
    'more_queries_than_keys': ((5, 3, 7), (2, 1, 3), 2),
    'more_keys_than_queries': ((2, 1, 3), (5, 3, 7), 2),
}
every_pattern = pytest.mark.parametrize('pattern', PATTERNS)


def assert_equation(name, tensors, **settings):
    """Values and all gradients, which are returned, are those of the equation to 1e-10."""
    return literal.assert_equation(zscored.operator(name), getattr(literal, name), tensors, **settings)


def calls(name, title):
    """Tensors and settings of calls on a map with each kind of biases."""
    size, lengths, batch, heads = MAPS[name][title]
    turn = itertools.count([*MAPS[name]].index(title))
    if name in WINDOWED:
        kinds = [x.values for x in POSITIONS] + ([(None, False)] if name == 'grid_attention' else [])
        for outside_bias, normalize in kinds:
            other = next(turn) % 2
            causal = {'is_causal': bool(other)} if name == 'global_attention' else {}
            tensors, settings = literal.with_window(name, size, lengths, outside_bias, batch, heads, **causal)
            scale = {} if causal else {'scale': 0.3 if other else None}
            yield tensors, settings | causal | scale | {'normalize': normalize}
    elif name == 'local_attention':
        for switches in SWITCHES.values():  # values have 2 to 4 channels, keys 3
            dilation = 1 + next(turn) % 3
            yield with_kernel(size, lengths, batch, heads, dilation=dilation, value_channels=dilation + 1, **switches)
    elif name == 'strided_attention':
        for pattern, logits in itertools.product(PATTERNS, (False, True)):
            scale = (None, 1.0)[next(turn) // 2 % 2]
            yield with_offsets(size, lengths, pattern, batch, heads, logits=logits, scale=scale)
    else:
        for dilation in (1, 2, 3):
            yield with_logits(size, lengths, batch, heads, dilation=dilation)


@pytest.mark.parametrize(('name', 'title'), EDGES)
def test_values_and_gradients_at_edges(name, title):
    for tensors, settings in calls(name, title):
        assert_equation(name, tensors, **settings)


# global_attention

# Sizes of queries and of keys, the same or not
KEY_SIZES = [((5,), (3,)), ((2,), (6,)), ((2, 3), (2, 3)), ((2, 3), (4, 1)), ((2, 1, 3), (1, 2, 2))]


@pytest.mark.parametrize(('size', 'key_size'), KEY_SIZES, ids=str)
def test_keys_at_other_positions(size, key_size):
    tensors = operands(size, 2, 2, key_size=key_size)
    assert_equation('global_attention', tensors, scale=0.3)
    assert_equation('global_attention', tensors | literal.further(size, key_size=key_size), scale=0.7)


def test_no_channels_to_compare():
    """The further logits alone, without a product of query and key."""
    size = (3, 4)
    tensors = operands(size, 2, 2) | {
        name: x for name, x in literal.further(size, heads=2).items() if name != 'key_mask'
    }
    alone = {name: randn(2, 2, *size, 0) for name in ('query', 'key')}
    result = assert_equation('global_attention', tensors | alone, scale=1.0)
    zeros = {name: torch.zeros(2, 2, *size, 3, dtype=torch.float64) for name in ('query', 'key')}
    torch.testing.assert_close(result['output'], global_attention(**tensors | zeros), atol=1e-12, rtol=1e-12)
    check_operator(global_attention, tensors | alone, dict(scale=1.0))


# Shapes of further logits, for batch 2, heads 2 and size (3, 4).
AXES = {
    'full': ((2, 2, 3, 4, 3), (2, 2, 3, 4, 4)),
    'broadcast': ((2, 1, 1, 1, 3), (1, 2, 3, 1, 4)),
    'one_value': ((1,), (4,)),
}
# Axis logits, key logits, key mask; the mask leaves one batch item without its first row, so that under causal its
# first queries have no key.
EXTRAS = {
    'none': (None, None, False),
    'mask': (None, None, True),
    **{f'axes_{name}': (name, None, False) for name in AXES},
    'keys': (None, (2, 2, 3, 4), False),
    'keys_broadcast': (None, (1, 2, 1, 4), False),
    'keys_vector': (None, (4,), False),
    'all': ('broadcast', (2, 1, 3, 4), True),
}


@pytest.mark.parametrize(('axes', 'keys', 'mask'), EXTRAS.values(), ids=EXTRAS)
def test_further_logits_and_supports(axes, keys, mask):
    size = (3, 4)
    for number, (outside_bias, normalize) in enumerate(x.values for x in (CONTENT, *POSITIONS)):
        causal = {'is_causal': bool((number + len(axes or '') + bool(keys)) % 2)}
        tensors, settings = literal.with_window('global_attention', size, (3, 5), outside_bias, 2, 2, **causal)
        if axes:
            tensors['axis_bias'] = tuple(randn(*shape, seed=6 + a) for a, shape in enumerate(AXES[axes]))
        if keys:
            tensors['key_bias'] = randn(*keys, seed=8)
        if mask:
            tensors['key_mask'] = randn(2, *size, seed=9) > -0.5
            tensors['key_mask'][1, 0] = False
        assert_equation('global_attention', tensors, normalize=normalize, **causal, **settings)


@pytest.mark.parametrize(('outside_bias', 'normalize'), [CONTENT, *POSITIONS])
def test_no_key_to_attend_to(outside_bias, normalize):
    """All keys masked in one batch item: zeros, and zero gradients(the other item is as ever)."""
    size = (2, 3)
    tensors, settings = literal.with_window('global_attention', size, 3, outside_bias, 2, 2)
    tensors |= literal.further(size, 2, 2)
    tensors['key_mask'] = torch.tensor([True, False])[:, None, None].repeat(1, *size)
    result = assert_equation('global_attention', tensors, normalize=normalize, **settings)
    for name, x in result.items():
        assert not x[1].any(), name
        assert x[0].any(), name


# Windows of global and grid attention


by_windowed = pytest.mark.parametrize('name', WINDOWED)


@pytest.mark.parametrize('outside_bias', [LEARNED, 0.0], ids=['learned', 'zero'])
@by_windowed
def test_constant_position_logits_leave_the_content(name, outside_bias):
    """Whatever the constant of a query; for the zero outlier only 0. Their variance is 0, and gradients are finite."""
    for size, normalize in itertools.product([(4, 5), (2, 3, 4)], (False, True)):
        tensors, settings = literal.with_window(name, size, 3, outside_bias, 2, 2)
        constant = tensors.get('outside_bias', torch.zeros(2, 2, *size, dtype=torch.float64))
        tensors['window_bias'] = constant.unsqueeze(-1).expand_as(tensors['window_bias'])
        actual = evaluate(zscored.operator(name), tensors, normalize=normalize, **settings)
        expected = evaluate(getattr(ops, name), operands(size, 2, 2))
        assert_same({key: actual[key] for key in expected}, expected, 1e-12, 1e-12)
        assert all(x.isfinite().all() for x in actual.values())


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@by_windowed
def test_zscore_of_logits_around_1e4(name, dtype):
    """As near float64 as other logits: what E[x²] − μ² would cancel is a difference of neighbours, so exact.

    The mean of a few numbers of 1e4 may be off by an ulp, 1e-3: that shifts all z-scores of a query equally, which
    does not change the softmax, and its square is negligible compared with a variance of order 1.
    """
    for window_size, outside_bias in itertools.product((3, 7), (LEARNED, 0.0, 1e4)):
        made = literal.with_window(name, (3, 4), window_size, outside_bias, 2, 1, dtype=dtype)
        tensors, settings = around_1e4(*made)
        settings['normalize'] = True
        actual = evaluate(zscored.operator(name), tensors, **settings)
        expected = evaluate(getattr(literal, name), tensors, torch.float64, **settings)
        assert_same(actual, expected, **low_precision(dtype))


@pytest.mark.parametrize(('heads', 'entries'), [(1, None), (2, 1), (1, 1)])
@by_windowed
def test_a_table_may_have_one_row_for_all_heads_or_one_number_for_all_entries(name, heads, entries):
    tensors, settings = literal.with_window(name, (3, 4), 3, 0.0, 2, 2)
    every = tensors['window_bias'].shape[-1]
    tensors['window_bias'] = randn(heads, entries or every, seed=9)
    whole = tensors | {'window_bias': tensors['window_bias'].expand(2, every).contiguous()}
    torch.testing.assert_close(getattr(ops, name)(**tensors, **settings), getattr(ops, name)(**whole, **settings))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@by_windowed
def test_outlier_of_no_key_changes_nothing(name, dtype):
    """Where the window covers the map, v_i is the logit of no key: neither the mean nor the variance holds it."""
    tensors, settings = literal.with_window(name, (3, 4), 7, 0.0, 2, 2, dtype=dtype)
    for normalize, outside_bias in itertools.product((False, True), (1e3, -1e5, -1e9)):
        settings['normalize'] = normalize
        expected, actual = (
            evaluate(zscored.operator(name), tensors, **settings | {'outside_bias': x}) for x in (0.0, outside_bias)
        )
        assert_same(actual, expected, **low_precision(dtype))


# grid_attention


@pytest.mark.parametrize('size', [(2, 200), (200, 2)], ids=str)
def test_lines_of_several_tiles(size):
    """A line's logits take more than one tile of the native kernels."""
    tensors, settings = literal.with_window('grid_attention', size, 5, dtype=torch.float32)
    expected = evaluate(literal.grid_attention, tensors, torch.float64, **settings)
    assert_same(evaluate(grid_attention, tensors, **settings), expected, atol=1e-5, rtol=1e-5, check_dtype=False)


def criss_cross(query, key, value):
    """The arithmetic of mmcv.ops.CrissCrossAttention, on (B, C, H, W)."""
    height = query.shape[2]
    energy_h = torch.einsum('bchw,bciw->bwhi', query, key) + torch.diag(torch.full((height,), -math.inf))
    energy_h = energy_h.transpose(1, 2)
    energy_w = torch.einsum('bchw,bchj->bhwj', query, key)
    weights = torch.cat([energy_h, energy_w], -1).softmax(-1)
    out = torch.einsum('bciw,bhwi->bchw', value, weights[..., :height])
    return out + torch.einsum('bchj,bhwj->bchw', value, weights[..., height:])


@pytest.mark.parametrize('size', [(3, 5), (5, 3), (1, 4), (4, 1), (1, 1)], ids=str)
def test_content_only_is_mmcv_criss_cross_attention(size):
    tensors = {name: x.squeeze(1).movedim(-1, 1).contiguous() for name, x in operands(size, 2).items()}

    def ours(query, key, value):
        query, key, value = (x.movedim(1, -1).unsqueeze(1) for x in (query, key, value))
        return grid_attention(query, key, value, scale=1.0).squeeze(1).movedim(-1, 1)

    assert_same(evaluate(ours, tensors), evaluate(criss_cross, tensors))


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32])
@pytest.mark.parametrize('entries', [slice(0, 2), slice(2, 5), slice(3, 5)])
def test_an_arm_may_have_no_key(entries, dtype):
    """The other arm has: each entry is one of the 3 + 2 keys around a query, of which one arm contains the query."""
    tensors, settings = literal.with_window('grid_attention', (4, 5), 3, -math.inf)
    tensors['window_bias'][..., entries] = -math.inf
    tensors = {name: x.to(dtype) for name, x in tensors.items()}
    found = {}
    for backend in ('auto', 'reference'):
        with dispatch.backend(backend):
            found[backend] = evaluate(grid_attention, tensors, **settings)
    assert_same(found['auto'], found['reference'], 1e-5, 1e-5)
    out = next(iter(found['reference'].values()))
    assert all(x.isfinite().all() for x in found['reference'].values())
    queries = torch.tensor(literal.coordinates((4, 5)))
    weights = ops.grid_attention_weights(
        tensors['query'], tensors['key'], queries, window_bias=tensors['window_bias'], **settings
    )
    assert weights.isfinite().all()
    expected = (weights.flatten(3) @ tensors['value'].flatten(2, 3)).view_as(out)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert (weights.flatten(3).sum(-1) - 1).abs().max() < 1e-5


@pytest.mark.parametrize('backend', ['auto', 'reference'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize('size', [(1, 4), (4, 1), (1, 1), (2, 1, 3)])
def test_an_arm_without_keys_beside_low_logits(size, dtype, backend):
    """The logits of the other arm are about -128, or -800 in float64: their inverse weight would overflow."""
    query = 4 + torch.arange(8.0).sub(4).div(16).expand(1, 1, *size, 8) * randn(1, 1, *size, 1).round()
    tensors = {'query': query.to(dtype), 'key': -query.to(dtype), 'value': randn(*query.shape).to(dtype)}
    scale = 6.25 if dtype == torch.float64 else 1.0
    with dispatch.backend(backend):
        found = evaluate(grid_attention, tensors, scale=scale)
    expected = evaluate(literal.grid_attention, tensors, torch.float64, scale=scale)
    atol = {torch.float16: 1e-2, torch.float32: 1e-4, torch.float64: 1e-11}[dtype]
    assert_same(found, expected, **{**low_precision(dtype), 'atol': atol})


def test_a_query_without_any_key_has_output_0():
    tensors, settings = literal.with_window('grid_attention', (4, 5), 3, -math.inf)
    tensors['window_bias'][:, :, 1, 2] = -math.inf
    for dtype in (torch.float64, torch.float32):
        for backend in ('auto', 'reference'):
            with dispatch.backend(backend):
                found = evaluate(grid_attention, {name: x.to(dtype) for name, x in tensors.items()}, **settings)
            assert all(x.isfinite().all() for x in found.values())
            assert not next(iter(found.values()))[:, :, 1, 2].any()
    weights = ops.grid_attention_weights(
        tensors['query'], tensors['key'], torch.tensor([[1, 2]]), window_bias=tensors['window_bias'], **settings
    )
    assert not weights.any()


# local_attention

BOTH = SWITCHES['bilateral']
REFINED = {'iterations': 3}


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
    actual = assert_equation('local_attention', tensors, iterations=3)
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
    rows = [ops.local_attention_weights(**x, queries=queries, **settings) for x in (other, tensors)]
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


# strided_attention


@every_pattern
@pytest.mark.parametrize('logits', [False, True], ids=['content', 'offsets'])
@pytest.mark.parametrize(('size', 'key_size', 'step'), OTHER_KEYS.values(), ids=OTHER_KEYS)
def test_maps_of_different_sizes(size, key_size, step, pattern, logits):
    """Their first positions fall together; without a key, a query gives 0. Values have more channels than keys."""
    given = dict(key_size=key_size, logits=logits, value_channels=5)
    tensors, settings = with_offsets(size, step, pattern, 2, 2, **given)
    actual = assert_equation('strided_attention', tensors, **settings)
    alone = ~strided_support(size, step, pattern, key_size=key_size).flatten(1).any(1)
    assert not actual['output'].flatten(2, -2)[:, :, alone].any()


@every_pattern
@pytest.mark.parametrize(
    ('size', 'key_size', 'step'),
    [*((size, size, step) for size, step, *_ in MAPS['strided_attention'].values() if step), *OTHER_KEYS.values()],
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
    rows = [ops.strided_attention_weights(**x, queries=queries, **settings) for x in (other, tensors)]
    torch.testing.assert_close(*rows, atol=0, rtol=0)


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


# dynamic_conv


def to_map(x):
    """(B, groups, H, W, C) to (B, groups · C, H, W)."""
    return x.movedim(-1, 2).flatten(1, 2)


@pytest.mark.parametrize(('kernel_size', 'dilation'), [(3, 1), (3, 2), ((3, 5), 1), (13, 1)], ids=str)
def test_one_kernel_for_all_positions_is_a_depth_wise_convolution(kernel_size, dilation):
    """PyTorch's, with zero padding."""
    tensors, settings = with_logits((6, 7), kernel_size, dilation=dilation)
    kernels = tensors['logits'][:1, :, :1, :1]
    sizes = literal.as_tuple(kernel_size, 2)
    weight = kernels[0, :, 0, 0].softmax(-1).view(2, 1, *sizes).repeat_interleave(3, 0)
    expected = F.conv2d(
        to_map(tensors['value']), weight, padding=[dilation * (k // 2) for k in sizes], dilation=dilation, groups=6
    )
    actual = dynamic_conv(tensors['value'], kernels.expand_as(tensors['logits']), **settings)
    torch.testing.assert_close(to_map(actual), expected, atol=1e-12, rtol=1e-12)


def test_autocast():
    tensors, settings = with_logits((4, 5), 3, dtype=torch.float32)
    with torch.autocast('cpu', torch.bfloat16):
        actual = evaluate(dynamic_conv, tensors, **settings)
    assert_same(actual, evaluate(dynamic_conv, tensors, **settings), 0, 0)


@pytest.mark.parametrize('backend', ['auto', 'reference'])
def test_a_dilation_beyond_the_map_leaves_the_centre(backend):
    """Its memory does not grow with the dilation."""
    tensors, settings = with_logits((4, 5), 3, dilation=2**40, dtype=torch.float32)
    with dispatch.backend(backend):
        found = evaluate(dynamic_conv, tensors, **settings)
        assert_same(found, evaluate(dynamic_conv, tensors, **{**settings, 'dilation': 5}))
