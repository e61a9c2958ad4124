"""The layers' rows of weights: they make the layer's output, and fall apart into content and position."""

import pytest
import torch
from torch.nn import functional as F

from ..ops import literal
from .test_bilateral import LAYERS, POSITIONS, SIZES, build, call

QUERIES = {'nl': [(0, 0), (2, 4), (3, 1)], 'cc': [(0, 0), (2, 4), (3, 1)], 'sa': [(0,), (5,)]}
OPTIONS = [dict(position='none'), dict(position='relative', max_offset=2), *POSITIONS]


def weights(kind, layer, x, what, queries=None):
    queries = torch.tensor(queries or QUERIES[kind])
    return layer.attention_weights(*[x] * (3 if kind == 'sa' else 1), queries=queries, kind=what)


def at(x, kind):
    """The features at the queries, ``(B, Q, C)``, of a layer's input or output."""
    if kind == 'sa':
        return x[:, [i for (i,) in QUERIES[kind]]]
    return torch.stack([x[:, :, i, j] for i, j in QUERIES[kind]], 1)


@pytest.mark.parametrize('options', OPTIONS, ids=lambda o: '-'.join(map(str, o.values())))
@pytest.mark.parametrize('kind', LAYERS)
def test_weights_make_the_layers_output(kind, options):
    layer = build(kind, window_size=3, **options)
    x = literal.randn(*SIZES[kind])
    w = weights(kind, layer, x, 'content' if options.get('position') == 'none' else 'bilateral').flatten(3)
    torch.testing.assert_close(w.sum(-1), torch.ones_like(w[..., 0]), atol=1e-12, rtol=0)
    if kind == 'sa':
        value = F.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)[2]
        value = torch.stack(value.chunk(2, -1), 1)  # (B, heads, L, E/heads)
        expected = layer.out_proj(torch.cat((w @ value).unbind(1), -1))
    else:
        value = (layer.g if kind == 'nl' else layer.value_conv)(x).flatten(2).transpose(1, 2)  # (B, H·W, C)
        y = w[:, 0] @ value
        out = (
            F.linear(y, layer.conv_out.conv.weight.flatten(1), layer.conv_out.conv.bias)
            if kind == 'nl'
            else layer.gamma.scale * y
        )
        expected = at(x, kind) + out
    torch.testing.assert_close(at(call(kind, layer, x), kind), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize('options', OPTIONS[1:], ids=lambda o: '-'.join(map(str, o.values())))
@pytest.mark.parametrize('kind', LAYERS)
def test_content_is_the_layer_without_position(kind, options):
    layer, stock = build(kind, window_size=3, **options), build(kind, position='none')
    stock.load_state_dict(layer.state_dict(), strict=False)
    stock.scale = layer.scale  # stock criss-cross attention divides by nothing
    x = literal.randn(*SIZES[kind])
    content = weights(kind, layer, x, 'content')
    torch.testing.assert_close(content, weights(kind, stock, x, 'content'), atol=1e-12, rtol=1e-12)
    assert (content - weights(kind, layer, x, 'bilateral')).abs().max() > 1e-3


@pytest.mark.parametrize('options', POSITIONS, ids=lambda o: '-'.join(o.values()))
@pytest.mark.parametrize('kind', LAYERS)
def test_position_is_the_layer_without_content(kind, options):
    layer, without = build(kind, window_size=3, **options), build(kind, window_size=3, **options)
    for name, parameter in without.named_parameters():
        if name.startswith(('theta', 'query_conv', 'in_proj')):
            parameter.data.zero_()
    x = literal.randn(*SIZES[kind])
    torch.testing.assert_close(
        weights(kind, layer, x, 'position'), weights(kind, without, x, 'bilateral'), atol=1e-12, rtol=1e-12
    )


@pytest.mark.parametrize('options', POSITIONS, ids=lambda o: '-'.join(o.values()))
@pytest.mark.parametrize('kind', ['nl', 'cc'])
def test_a_query_moved_moves_the_position_map(kind, options):
    """The same feature everywhere, windows inside the map; content sees no difference at all."""
    layer = build(kind, window_size=3, **options)
    x = literal.randn(1, 8, 1, 1).expand(1, 8, 6, 7)
    here, there = weights(kind, layer, x, 'position', [(1, 2), (3, 5)])[0, 0]
    torch.testing.assert_close(here.roll((2, 3), (0, 1)), there, atol=1e-12, rtol=1e-12)
    assert not torch.allclose(here, there)
    if kind == 'nl':
        content = weights(kind, layer, x, 'content', [(1, 2), (3, 5)])
        torch.testing.assert_close(content, torch.full_like(content, 1 / 42))


def test_padding_of_a_sequence_has_no_weight():
    layer, x = build('sa', window_size=3), literal.randn(1, 6, 8)
    mask = torch.tensor([[False] * 4 + [True] * 2])
    for kind in layer.attention_kinds:
        w = layer.attention_weights(x, x, x, mask, queries=torch.tensor([[2]]), kind=kind)
        assert not w[..., 4:].any()
        torch.testing.assert_close(w.sum(-1), torch.ones_like(w[..., 0]))
