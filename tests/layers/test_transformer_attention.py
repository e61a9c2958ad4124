"""Transformer attention against Eq. 1, 2 and 8 with a table of all pairs, against mmcv's block, in a stock ResNet."""

import functools
import math

import pytest
import torch
from mmcv.cnn.bricks import GeneralizedAttention
from mmengine.registry import init_default_scope
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from mmattn.layers import TransformerAttention2d
from mmattn.ops import chunks, global_attention
from mmattn.utils.profiling import extra_memory
from mmattn.visualization import attention_layers

from ..ops import literal
from ..requirements import requires
from .common import assert_equal_with_gradients, randomised

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)

TERMS = [f'{i:04b}' for i in range(16)]
WRONG_IN_MMCV = ['0100', '0110', '1100', '1110']
# Size, heads: H ≠ W, a row, a column, one position
MAPS = [((2, 8, 4, 5), 2), ((1, 8, 5, 3), 8), ((2, 8, 1, 4), 1), ((1, 8, 4, 1), 2), ((1, 4, 1, 1), 1)]


def build(cls, in_channels, num_heads, **options):
    return randomised(cls(in_channels, num_heads=num_heads, **options))


@functools.cache
def encodings(height, width, dimensions, wavelength):
    """R of the offset q − k on each axis, columns and rows, ``(N, N, dimensions)``; and the offsets themselves."""
    places = range(height * width)
    offsets = [[[i % width - j % width, i // width - j // width] for j in places] for i in places]
    offsets = torch.tensor(offsets).double().unbind(-1)
    tables = []
    for offset in offsets:
        waves = [offset / wavelength ** (2 * i / dimensions) for i in range(dimensions // 2)]
        tables.append(torch.stack([w.sin() for w in waves] + [w.cos() for w in waves], -1))
    return tables, offsets


def literally(layer, x, terms, num_heads, spatial_range=None, position_dim=None, wavelength=1000):
    height, width = x.shape[2:]
    (column, row), offsets = encodings(height, width, position_dim or 2 * math.ceil(x.shape[1] / 4), wavelength)
    z = x.flatten(2).mT  # (B, N, C)
    b1, b2, b3, b4 = map(int, terms)
    parts = {name: p.flatten(1) if p.dim() > 1 else p for name, p in layer.named_parameters()}

    def project(name, x):
        y = x @ parts[f'{name}.weight'].T + parts.get(f'{name}.bias', 0)
        if f'norms.{name}.weight' not in parts:
            return y
        deviation = y - y.mean((0, 1))
        y = deviation / (deviation.square().mean((0, 1)) + 1e-5).sqrt()
        return y * parts[f'norms.{name}.weight'] + parts[f'norms.{name}.bias']

    y = []
    for m in range(num_heads):
        head = slice(m * x.shape[1] // num_heads, (m + 1) * x.shape[1] // num_heads)
        logits = x.new_zeros(len(x), height * width, height * width)
        if b1 or b2:
            query = project('query_conv', z)[..., head]
        if b1 or b3:
            key = project('key_conv', z)[..., head]
        if b2 or b4:
            relative = (
                column @ parts['appr_geom_fc_x.weight'][head].T + row @ parts['appr_geom_fc_y.weight'][head].T
            ) / math.sqrt(2)  # (N, N, d)
        if b1:
            logits = logits + torch.einsum('bqd,bkd->bqk', query, key)
        if b2:
            logits = logits + torch.einsum('bqd,qkd->bqk', query, relative)
        if b3:
            logits = logits + (key @ parts['appr_bias'][head])[:, None]
        if b4:
            logits = logits + relative @ parts['geom_bias'][head]
        if spatial_range is not None:
            for offset in offsets:
                logits = logits.masked_fill(offset.abs() > (spatial_range - 1) / 2, -math.inf)
        y.append(logits.softmax(-1) @ project('value_conv', z)[..., head])
    return x + parts['gamma'] * project('proj_conv', torch.cat(y, -1)).mT.unflatten(2, (height, width))


@pytest.mark.parametrize('spatial_range', [None, 1, 3, 5, 11])
@pytest.mark.parametrize(('size', 'num_heads'), MAPS, ids=str)
@pytest.mark.parametrize('terms', TERMS)
def test_layer_is_the_equation(terms, size, num_heads, spatial_range):
    layer = build(TransformerAttention2d, size[1], num_heads, terms=terms, spatial_range=spatial_range)
    x = literal.randn(*size).requires_grad_()
    assert_equal_with_gradients(layer(x), literally(layer, x, terms, num_heads, spatial_range), x, layer, 1e-11)


@pytest.mark.filterwarnings('ignore:terms=')
@pytest.mark.parametrize('query_bias', [False, True])
@pytest.mark.parametrize('spatial_range', [None, 3])
@pytest.mark.parametrize('terms', TERMS)
def test_batch_norm_follows_convolutions(terms, spatial_range, query_bias):
    """In training: the statistics are those of all positions, also where they share an output ('0000', '0010')."""
    norm = dict(norm_cfg=dict(type='BN'), spatial_range=spatial_range, query_bias=query_bias)
    layer = build(TransformerAttention2d, 8, 2, terms=terms, **norm).train()
    x = literal.randn(2, 8, 4, 5).requires_grad_()
    expected = literally(layer, x, terms, 2, spatial_range)
    assert_equal_with_gradients(layer(x), expected, x, layer, 1e-9)
    means = {name: norm.running_mean.clone() for name, norm in layer.norms.items()}
    assert len(means) == 2 + (query_bias and '1' in terms[:2]) + ('1' in (terms[0], terms[2]))
    assert all(mean.abs().min() > 0 for mean in means.values())


@pytest.mark.parametrize('spatial_range', [None, 3])
@pytest.mark.parametrize(('channels', 'encoding'), [(8, dict(position_dim=6, wavelength=10000)), (6, {})], ids=str)
def test_other_encodings(channels, encoding, spatial_range):
    """With 6 channels, mmcv's encoding has another number of channels than its projection."""
    options = dict(encoding, spatial_range=spatial_range)
    layer = build(TransformerAttention2d, channels, 2, **options)
    x = literal.randn(2, channels, 4, 5).requires_grad_()
    assert_equal_with_gradients(layer(x), literally(layer, x, '1111', 2, **options), x, layer, 1e-11)


@pytest.mark.parametrize('strides', [(1, 1), (1, 2), (2, 1), (3, 2)])
@pytest.mark.parametrize('terms', [terms for terms in TERMS if terms not in WRONG_IN_MMCV])
def test_weights_and_strides_of_mmcv(terms, strides):
    """Weights load both ways, under the same keys, and give the same values and gradients."""
    options = dict(zip(('q_stride', 'kv_stride'), strides))
    ours = build(TransformerAttention2d, 8, 2, terms=terms, **options)
    stock = GeneralizedAttention(8, num_heads=2, attention_type=terms, **options).double()
    stock.load_state_dict(ours.state_dict())
    ours.load_state_dict(stock.state_dict())
    x = literal.randn(2, 8, 5, 7).requires_grad_()
    assert_equal_with_gradients(ours(x), stock(x), x, ours, 1e-12, stock)


def test_weights_of_queries_with_strides_are_rows_of_the_layer():
    ours, x = build(TransformerAttention2d, 8, 2, q_stride=2, kv_stride=3), literal.randn(2, 8, 5, 7)
    operands = ours.operands(x)
    queries = torch.tensor([[0, 0], [2, 5], [4, 6]])
    weights = ours.attention_weights(x, queries=queries)
    assert weights.shape == (2, 2, 3, 2, 3)
    expected = global_attention(**operands)[:, :, queries[:, 0] // 2, queries[:, 1] // 2]
    torch.testing.assert_close(weights.flatten(-2) @ operands['value'].flatten(2, 3), expected)


@pytest.mark.parametrize('terms', WRONG_IN_MMCV)
def test_where_mmcv_is_wrong(terms):
    """If this fails, mmcv has been mended, and test_weights_and_strides_of_mmcv should have the string."""
    stock = build(GeneralizedAttention, 8, 2, kv_stride=1, attention_type=terms)
    square = literal.randn(2, 8, 5, 5)
    assert (stock(square) - literally(stock, square, terms, 2)).abs().max() > 0.1
    with pytest.raises(RuntimeError, match='size'):
        stock(literal.randn(2, 8, 5, 7))


def test_the_range_of_mmcv_reaches_one_key_too_far():
    """As above. An impulse is seen from one position further on one side."""
    stock = build(GeneralizedAttention, 256, 1, kv_stride=1, attention_type='0001', spatial_range=1)
    ours = build(TransformerAttention2d, 256, 1, terms='0001', spatial_range=3)
    impulse = torch.zeros(1, 256, 1, 7, dtype=torch.float64)
    impulse[..., 3] = 1
    reached = [(layer(impulse) != layer(0 * impulse)).any(1).flatten().tolist() for layer in (stock, ours)]
    assert reached == [[False, True, True, True, True, False, False], [False, False, True, True, True, False, False]]


@pytest.mark.parametrize('spatial_range', [None, 3])
def test_layouts(spatial_range):
    layer, x = build(TransformerAttention2d, 8, 2, spatial_range=spatial_range), literal.randn(2, 8, 4, 5)
    expected = layer(x)
    for y in (x.to(memory_format=torch.channels_last), x.mT.contiguous().mT):
        torch.testing.assert_close(layer(y), expected, atol=1e-13, rtol=1e-13)


def macs(layer, x):
    with FlopCounterMode(display=False) as counter:
        layer(x)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize('spatial_range', [None, 7, 13, 39])  # the last has all keys of the map
@pytest.mark.parametrize('terms', TERMS)
def test_complexity(terms, spatial_range):
    """Of the published formulas, all but these: an encoding has C/2 numbers an axis, so projecting it takes half as
    much; E2 costs the same with E1 as without; E3 and E4 have their small products; and without E1, E2
    and E4 all queries have one output, which is projected once.
    """
    b1, b2, b3, b4 = map(int, terms)
    c, h, w, heads = 64, 12, 20, 4
    n = h * w
    keys, lines, offsets, tables = n, h + w, 2 * h - 1 + 2 * w - 1, h * h + w * w
    is_local = spatial_range in (7, 13)
    if is_local:
        keys, tables = spatial_range**2, 2 * spatial_range
        lines = offsets = tables
    shared = terms in ('0000', '0010') and not is_local
    outputs = 1 if shared else n
    expected = n * c * c * ((b1 or b2) + (b1 or b3) + 1) + outputs * c * c  # projections: query, key, value; output
    expected += n * keys * c * b1  # E1
    expected += n * c if shared else n * keys * c  # aggregation
    expected += offsets * c * c // 2 * (b2 or b4)  # R
    expected += n * lines * c * b2  # E2
    if b3 and not b1:
        expected += n * c + (n * keys * heads if is_local else 0)  # E3: uᵀ(V^C x), and in a range its copies
    if b4 and not b2:
        expected += tables * c  # E4
    layer = TransformerAttention2d(c, heads, terms, spatial_range).to('meta')
    assert macs(layer, torch.empty(1, c, h, w, device='meta')) == expected


# Tables 2 and 3: GFLOPs, that is multiply-accumulates, that blocks in conv4 and conv5 add to Faster R-CNN's 213.7, and
# those with one more block to the segmentation network's 449.5.
PUBLISHED = {
    **dict.fromkeys(
        [('1111', None), ('1110', None), ('1101', None), ('1100', None), ('1011', None), ('1001', None)], (67.7, 662.6)
    ),
    **dict.fromkeys([('1010', None), ('1000', None)], (67.5, 661.7)),
    **dict.fromkeys([('0111', None), ('0110', None)], (39.9, 364.5)),
    **dict.fromkeys([('0101', None), ('0100', None)], (37.4, 351.2)),
    ('0011', None): (36.4, 344.9),
    ('0001', None): (33.9, 331.6),
    ('0010', None): (7.4, 40.0),
    ('0100', 31): (15.7, 73.8),
    ('0100', 25): (12.9, 62.3),
    ('0100', 19): (10.7, 53.1),
    ('0100', 13): (9.0, 46.4),
}


@pytest.mark.parametrize(('terms', 'spatial_range'), PUBLISHED)
def test_published_complexity(terms, spatial_range):
    """To 1 % of what the blocks add; 1.3 % where the query is compared with keys and with positions.

    With E3 alone the paper projects each position's output, all of which are one.
    """

    def published(layer, x):
        height, width = x.shape[2:]
        again = (height * width - 1) * x.shape[1] ** 2 if terms == '0010' else 0
        return macs(layer, x) + again

    conv4, conv5 = (TransformerAttention2d(c, 8, terms, spatial_range).to('meta') for c in (256, 512))
    detection, segmentation = (
        (
            6 * published(conv4, torch.empty(1, 256, *size4, device='meta'))
            + blocks * published(conv5, torch.empty(1, 512, *size5, device='meta'))
        )
        / 1e9
        for size4, size5, blocks in (((50, 84), (25, 42), 3), ((96, 96), (96, 96), 3 + 1))
    )
    assert (detection, segmentation) == pytest.approx(
        PUBLISHED[terms, spatial_range], rel=0.013 if terms[:2] == '11' else 0.01
    )


@pytest.mark.parametrize(('terms', 'most'), [('1111', 45), ('0110', 35), ('0010', 18)])
def test_extra_memory(terms, most, monkeypatch):
    """At 512 channels and 48×48 a table of all pairs is 162 MiB, a map 4.5. The operator's slices are kept small."""
    monkeypatch.setattr(chunks, 'CHUNK_BYTES', 4 * 2**20)
    layer, x = TransformerAttention2d(512, 8, terms), torch.randn(1, 512, 48, 48)
    with torch.no_grad():
        _, extra = extra_memory(lambda: layer(x))
    print(f'{terms}: {extra:.0f} MiB')
    assert 1 < extra < most


@pytest.mark.parametrize('terms', TERMS)
def test_every_parameter_learns(terms):
    """None is left without gradient, which distributed training would object to."""
    for spatial_range in (None, 3):
        layer = build(TransformerAttention2d, 8, 2, terms=terms, spatial_range=spatial_range)
        layer(literal.randn(2, 8, 4, 5).requires_grad_()).square().sum().backward()
        assert all(p.grad.abs().sum() > 1e-9 for p in layer.parameters())


@pytest.mark.parametrize('terms', TERMS)
@pytest.mark.parametrize('spatial_range', [None, 3])
def test_a_new_block_is_the_identity(terms, spatial_range):
    layer, x = TransformerAttention2d(16, 8, terms, spatial_range), torch.randn(2, 16, 5, 3)
    assert torch.equal(layer(x), x)


def test_a_new_block_has_the_distributions_of_mmcv():
    """Uniform ones, whose largest of many numbers is near their bound."""
    ours, stock = TransformerAttention2d(256, 4), GeneralizedAttention(256, num_heads=4, attention_type='1111')
    expected = stock.state_dict()
    for name, x in ours.state_dict().items():
        assert x.abs().max().item() == pytest.approx(expected[name].abs().max().item(), rel=0.05), name
        if x.any():
            assert x.std().item() == pytest.approx(x.abs().max().item() / math.sqrt(3), rel=0.15), name


@requires('mmcv operators')
def test_a_backbones_checkpoint_with_mmcvs_block_loads():
    from mmdet.models.backbones import ResNet

    init_default_scope('mmdet')

    def resnet(cfg):
        return ResNet(
            50, base_channels=8, plugins=[dict(cfg=cfg, stages=(False, False, True, True), position='after_conv2')]
        )

    stock = resnet(dict(type='GeneralizedAttention', num_heads=2, kv_stride=1, attention_type='0010'))
    resnet(dict(type='mmattn.TransformerAttention2d', num_heads=2, terms='0010')).load_state_dict(stock.state_dict())


OPTIONS = [
    dict(terms='1111'),
    dict(terms='0010'),
    dict(terms='0011'),
    dict(terms='1011', spatial_range=3),
    dict(terms='0110', spatial_range=3),
]


@pytest.mark.slow
@pytest.mark.parametrize('options', OPTIONS, ids=str)
def test_compiled_and_exported(options):
    layer, x = build(TransformerAttention2d, 8, 2, **options), literal.randn(2, 8, 4, 5).requires_grad_()
    expected = layer(x)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend='aot_eager')
    assert_equal_with_gradients(compiled(x), expected, x, layer, 1e-11)
    exported = torch.export.export(layer, (x.detach(),)).module()
    torch.testing.assert_close(exported(x.detach()), expected.detach())


@pytest.mark.parametrize('options', OPTIONS, ids=str)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_low_precision_is_near_full_precision(options, dtype):
    """Under autocast, from either dtype, and with all in low precision."""
    layer = build(TransformerAttention2d, 16, 2, **options).float()
    for parameter in layer.parameters():
        parameter.data.div_(2)
    x = literal.randn(2, 16, 4, 5, dtype=torch.float32)
    expected = layer(x) - x
    with torch.autocast('cpu', dtype):
        ours, from_low = layer(x), layer(x.to(dtype))
        ours.sum().backward()
    assert (ours.dtype, from_low.dtype) == (torch.float32, dtype)
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    throughout = layer.to(dtype)(x.to(dtype))
    assert throughout.dtype == dtype
    # bfloat16 has 8 bits; a layer rounds half a dozen times, and then the sum with x.
    for y in (ours, from_low, throughout):
        assert (y.float() - x - expected).norm() < 0.05 * (expected + x).norm()


@pytest.mark.parametrize('spatial_range', [None, 3])
@pytest.mark.parametrize('terms', TERMS)
def test_weights_make_the_layers_output(terms, spatial_range):
    layer = build(TransformerAttention2d, 8, 2, terms=terms, spatial_range=spatial_range)
    x, queries = literal.randn(2, 8, 4, 5), torch.tensor([[0, 0], [2, 3], [3, 4]])
    weights = layer.attention_weights(x, queries=queries, kind=layer.attention_kinds[-1])
    torch.testing.assert_close(weights.sum((-2, -1)), torch.ones_like(weights[..., 0, 0]))
    y = torch.einsum('bmqhw,bmhwd->bqmd', weights, layer.operands(x)['value']).flatten(2)
    y = F.linear(y, layer.proj_conv.weight.flatten(1), layer.proj_conv.bias).mT
    at = (slice(None), slice(None), queries[:, 0], queries[:, 1])
    torch.testing.assert_close(layer(x)[at], x[at] + layer.gamma * y, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('spatial_range', [None, 3])
@pytest.mark.parametrize('terms', ['1111', '0011', '0110', '1101'])
def test_kinds_are_the_layer_with_fewer_terms(terms, spatial_range):
    layer = build(TransformerAttention2d, 8, 2, terms=terms, spatial_range=spatial_range)
    x, queries = literal.randn(2, 8, 4, 5), torch.tensor([[1, 2], [3, 0]])
    single = {f'E{i + 1}': ''.join(switch if j == i else '0' for j in range(4)) for i, switch in enumerate(terms)}
    single = {kind: kept for kind, kept in single.items() if '1' in kept}
    assert layer.attention_terms == (*single,)
    kinds = dict(content=f'{terms[0]}0{terms[2]}0', position=f'0{terms[1]}0{terms[3]}')
    for kind, kept in (kinds | single).items():
        fewer = TransformerAttention2d(8, 2, kept, spatial_range).double()
        fewer.load_state_dict(layer.state_dict(), strict=False)
        assert fewer.attention_kinds == ('content' if '1' in kept[::2] else 'position',)
        torch.testing.assert_close(
            layer.attention_weights(x, queries=queries, kind=kind),
            fewer.attention_weights(x, queries=queries, kind=fewer.attention_kinds[0]),
        )


def test_it_is_an_attention_layer():
    model = nn.Sequential(TransformerAttention2d(8))
    assert attention_layers(model) == {'0': model[0]}


def test_dynamic_quantization_leaves_the_layer_as_it_is():
    layer = TransformerAttention2d(8, 2, terms='1111')
    nn.init.ones_(layer.gamma)
    quantized = torch.ao.quantization.quantize_dynamic(layer, {nn.Linear}, dtype=torch.qint8)
    x = torch.randn(1, 8, 4, 5)
    assert torch.equal(quantized(x), layer(x))
