"""grid_attention against a table of all pairs masked to the cross, and what must hold for it.

The equations are those of section 3.4.4 of *The Attention Mechanism in Vision and Language Analysis*.
"""

import functools
import math

import pytest
import torch

from mmattn import ops
from mmattn.ops import dispatch

from . import literal
from .literal import CONTENT, POSITIONS, assert_same, evaluate, low_precision, operands, randn
from .zscored import grid_attention

with_window = functools.partial(literal.with_window, 'grid_attention')

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)

# size, window_size, batch, heads
MAPS = {
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
}
assert_literal = functools.partial(literal.assert_equation, grid_attention, literal.grid_attention)


@pytest.mark.parametrize(('outside_bias', 'normalize'), [CONTENT, *POSITIONS])
@pytest.mark.parametrize(('size', 'window_size', 'batch', 'heads'), MAPS.values(), ids=MAPS)
@pytest.mark.parametrize('scale', [None, 0.3])
def test_dense_attention_masked_to_the_cross(size, window_size, batch, heads, outside_bias, normalize, scale):
    tensors, settings = with_window(size, window_size, outside_bias, batch, heads)
    assert_literal(tensors, normalize=normalize, scale=scale, **settings)


@pytest.mark.parametrize('size', [(2, 200), (200, 2)], ids=str)
def test_lines_of_several_tiles(size):
    """A line's logits take more than one tile of the native kernels."""
    tensors, settings = with_window(size, 5, dtype=torch.float32)
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
    tensors, settings = with_window((4, 5), 3, -math.inf)
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
    tensors, settings = with_window((4, 5), 3, -math.inf)
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
