"""Local bilateral attention against Eq. 4.6 to 4.9 with its own weights, its counts, and in stock modules."""

import copy
import importlib

import pytest
import torch
from mmcv.cnn import ConvModule, fuse_conv_bn
from mmengine.registry import init_default_scope
from mmseg.models.backbones import UNet
from mmseg.models.decode_heads import UPerHead
from torch import nn
from torch.nn.utils import prune

from mmattn.layers import (
    BAConv2d,
    DynamicConv2d,
    LocalBilateralAttention,
    TransformerAttention2d,
    local_bilateral_attention,
)
from mmattn.utils.profiling import extra_memory

from ..ops import literal
from ..requirements import requires
from .common import assert_equal_with_gradients, pointwise, randomised

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)


@pytest.fixture(autouse=True, scope='module')
def scope():
    """Stock modules look up their parts by name."""
    init_default_scope('mmseg')


# Table 4.2: the switches of each row and its count of parameters, 256 channels in and out.
ROWS = {
    'a': (dict(geometric=False), 265_216),
    'b': (dict(content=False), 217_560),
    'c': (dict(num_heads=1), 267_547),
    'd': (dict(num_heads=4), 274_540),
    'e': (dict(), 283_864),
    'f': (dict(num_heads=16), 302_512),
    'g': (dict(geometric=False, share=True, iterations=3), 131_840),
    'h': (dict(share=True), 150_272),
    'i': (dict(share=True, iterations=3), 150_272),
}
OPTIONS = {row: {**switches, 'num_heads': 1 if row == 'c' else 2} for row, (switches, _) in ROWS.items()}
OPTIONS |= {
    'dilated': dict(num_heads=2, dilation=2),
    'scaled': dict(num_heads=2, kernel_size=(5, 3), scale=0.3),
    'no-norm': dict(num_heads=2, norm_cfg=None, act_cfg=None),
    'fewer-out': dict(num_heads=2, out_channels=6),
    'factorised': dict(num_heads=2, kernel_size=(5, 3), out_channels=6, factorised=True),
    'late': dict(num_heads=2, late_fusion=True),
    'one projection': dict(num_heads=2, matching='same'),
    'no projection': dict(num_heads=2, matching='identity'),
    'no projection, content': dict(num_heads=2, out_channels=6, matching='identity', geometric=False),
    'late, factorised': dict(num_heads=2, share=True, iterations=2, scale=0.3, factorised=True, late_fusion=True),
}


def build(**options):
    return randomised(LocalBilateralAttention(4, **options))


def literally(
    layer,
    x,
    num_heads,
    content=True,
    geometric=True,
    share=False,
    kernel_size=3,
    iterations=1,
    dilation=1,
    scale=1.0,
    act_cfg=True,
    factorised=False,
    late_fusion=False,
    matching='linear',
    **_,
):
    parts = pointwise(layer.projection, x.movedim(1, -1)).split(layer.out_channels, -1)

    def heads(y):
        return torch.stack(y.chunk(num_heads, -1), 1)

    query, value = x.movedim(1, -1) if matching == 'identity' else parts[0], parts[-1]
    key = query if share or matching != 'linear' else parts[1]
    window = None
    if factorised:  # xᵀ[r_row, r_column], an offset after the other
        window = torch.stack(
            [
                torch.stack([(x * torch.cat([r, c])).sum(-1) for r in rows for c in columns], -1)
                for x, rows, columns in zip(heads(query).unbind(1), layer.gamma.rows, layer.gamma.columns)
            ],
            1,
        )
    elif geometric:
        window = heads(pointwise(layer.gamma, query))

    def attend(content, window, iterations):
        y = literal.local_attention(
            heads(query) if content else None,
            heads(key) if content else None,
            heads(value),
            window_bias=window,
            kernel_size=kernel_size,
            iterations=iterations,
            dilation=dilation,
            scale=scale,
        )
        return torch.cat(y.unbind(1), -1)

    if late_fusion:
        y = torch.cat([attend(True, None, iterations), attend(False, window, 1)], -1)
    else:
        y = attend(content, window, iterations)
    y = pointwise(layer.output, y).movedim(-1, 1)
    return y.relu() if act_cfg else y


@pytest.mark.parametrize('row', ROWS)
def test_parameters_of_table_4_2(row):
    switches, count = ROWS[row]
    assert sum(p.numel() for p in LocalBilateralAttention(256, **switches).parameters()) == count


@pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)
def test_layer_is_the_equation(options):
    layer = build(**options)
    x = literal.randn(2, 4, 4, 5).requires_grad_()
    assert_equal_with_gradients(layer(x), literally(layer, x, **options), x, layer)


@pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)
def test_every_parameter_learns(options):
    layer = build(**options).train()
    layer(literal.randn(2, 4, 4, 5)).square().sum().backward()
    still = {name for name, p in layer.named_parameters() if not p.grad.abs().sum() > 1e-9}
    # Before a batch norm a bias is subtracted again; so is the query's in γ, and the values' (weights sum to 1).
    unseen = {f'{part}.conv.bias' for part in ('projection', 'gamma', 'output')}
    projects_content = layer.content and layer.matching != 'identity'
    assert still <= (unseen if projects_content else unseen | {'projection.norm.bias'})


@pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)
def test_weights_make_the_layers_output(options):
    layer = build(**options)
    x = literal.randn(2, 4, 4, 5)
    queries = torch.tensor([[0, 0], [2, 3], [3, 4]])
    kinds = layer.attention_kinds if layer.late_fusion else layer.attention_kinds[-1:]
    weights = torch.cat([layer.attention_weights(x, queries=queries, kind=kind) for kind in kinds], 1)
    torch.testing.assert_close(weights.sum((-2, -1)), torch.ones_like(weights[..., 0, 0]))
    value = layer.operands(x)['value'].repeat(1, len(kinds), 1, 1, 1)
    y = torch.einsum('bmqhw,bmhwd->bqmd', weights, value).flatten(2)
    expected = layer.activate(pointwise(layer.output, y))
    torch.testing.assert_close(layer(x)[:, :, queries[:, 0], queries[:, 1]], expected.mT, atol=1e-10, rtol=1e-10)


def test_weights_by_content_and_by_position():
    """γ off, and γ alone, also where content is refined."""
    layer = build(num_heads=2, share=True, iterations=3)
    x, queries = literal.randn(1, 4, 4, 5), torch.tensor([[1, 2]])
    content, position = (layer.attention_weights(x, queries=queries, kind=kind) for kind in ('content', 'position'))
    operands = layer.operands(x)
    window = operands.pop('window_bias')
    value = torch.eye(20, dtype=torch.float64).view(1, 1, 4, 5, 20).expand(1, 2, -1, -1, -1)
    alone = literal.local_attention(**{**operands, 'value': value})[:, :, 1, 2]
    torch.testing.assert_close(content.flatten(3)[:, :, 0], alone, atol=1e-12, rtol=1e-12)
    expected = window[:, :, 1, 2].softmax(-1).view(1, 2, 3, 3)
    torch.testing.assert_close(position[:, :, 0, 0:3, 1:4], expected, atol=1e-12, rtol=1e-12)


def test_vectors_of_rows_and_columns_start_with_the_size_of_a_projected_query():
    """That is, with the variance 1/d, of d channels per head."""
    gamma = LocalBilateralAttention(64, num_heads=2, kernel_size=31, factorised=True).gamma
    for vectors in (gamma.rows, gamma.columns):
        assert vectors.numel() == 2 * 31 * 16
        assert vectors.std().item() == pytest.approx(32**-0.5, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize('options', [OPTIONS['e'], OPTIONS['i'], OPTIONS['b']], ids=['e', 'i', 'b'])
def test_exported_for_any_size_and_in_half(options):
    layer, x = build(**options).float(), torch.randn(2, 4, 5, 6)
    exported = torch.export.export(
        layer, (x,), dynamic_shapes=({2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC},)
    )
    y = torch.randn(2, 4, 7, 9)
    torch.testing.assert_close(exported.module()(y), layer(y))
    layer.half()(x.half())


# In the place of convolutions.

BA = dict(type='mmattn.BAConv2d', num_heads=2)
PLAIN = [dict(kernel_size=1), dict(kernel_size=3, stride=2, padding=1), dict(kernel_size=3, groups=2, padding=1)]


@pytest.mark.parametrize(
    'arguments',
    [
        dict(kernel_size=3, padding=1),
        dict(kernel_size=(3, 5), padding=(1, 2), bias=False),
        dict(kernel_size=3, padding=2, dilation=2),
        *PLAIN,
    ],
    ids=str,
)
def test_attributes_are_those_of_the_convolution(arguments):
    conv, ours = nn.Conv2d(4, 6, **arguments), BAConv2d(4, 6, num_heads=2, **arguments)
    assert type(ours) is (nn.Conv2d if arguments in PLAIN else BAConv2d)
    for name in (
        'in_channels',
        'out_channels',
        'kernel_size',
        'stride',
        'padding',
        'dilation',
        'groups',
        'transposed',
        'output_padding',
    ):
        assert getattr(ours, name) == getattr(conv, name), name
    if type(ours) is nn.Conv2d:
        ours.load_state_dict(conv.state_dict())  # a bias, too, by default
    x = torch.randn(2, 4, 7, 6)
    assert ours(x).shape == conv(x).shape


def test_a_conv_module_of_it_is_the_layer():
    """ConvModule's norm and activation are those that the layer would have, and the bias is left to the norm."""
    module = randomised(ConvModule(4, 6, 3, padding=1, conv_cfg=BA, norm_cfg=dict(type='BN')))
    layer = LocalBilateralAttention(4, 6, num_heads=2).double().eval()
    state = {key.removeprefix('conv.').replace('bn.', 'output.norm.'): x for key, x in module.state_dict().items()}
    missing, unexpected = layer.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (['output.conv.bias'], [])
    layer.output.conv.bias.data.zero_()
    x = literal.randn(2, 4, 5, 6)
    torch.testing.assert_close(module(x), layer(x), atol=1e-12, rtol=1e-12)
    fused = fuse_conv_bn(copy.deepcopy(layer))
    assert not any(isinstance(m, nn.BatchNorm2d) for m in fused.modules())
    torch.testing.assert_close(fused(x), layer(x), atol=1e-12, rtol=1e-12)


STOCK = {
    'UPerHead': (
        UPerHead,
        dict(in_channels=[4, 6, 8, 10], in_index=[0, 1, 2, 3], channels=8, num_classes=3, norm_cfg=dict(type='BN')),
        [(4, 16, 12), (6, 8, 6), (8, 4, 3), (10, 2, 2)],
    ),
    'UNet': (
        UNet,
        dict(
            base_channels=4,
            num_stages=3,
            strides=(1,) * 3,
            enc_num_convs=(2,) * 3,
            dec_num_convs=(2,) * 2,
            downsamples=(True,) * 2,
            enc_dilations=(1,) * 3,
            dec_dilations=(1,) * 2,
        ),
        (3, 16, 12),
    ),
    'FPN': (
        'mmdet.models.necks',
        dict(in_channels=[4, 6], out_channels=8, num_outs=3, add_extra_convs='on_output'),
        [(4, 8, 6), (6, 4, 3)],
    ),
}


@pytest.mark.parametrize(
    'name', [pytest.param(name, marks=[requires('mmcv operators')] if name == 'FPN' else []) for name in STOCK]
)
def test_stock_modules_take_it(name):
    """Every 3×3 convolution of stride 1 is replaced, nothing else; it runs, learns and can be copied."""
    cls, arguments, shapes = STOCK[name]
    if isinstance(cls, str):
        cls = getattr(importlib.import_module(cls), name)
    stock, ours = cls(**arguments), cls(**arguments, conv_cfg=BA)
    ours.init_weights()
    convs = {n: m for n, m in stock.named_modules() if isinstance(m, nn.Conv2d)}
    replaced = {n for n, m in convs.items() if m.kernel_size == (3, 3) and m.stride == (1, 1)}
    assert {n for n, m in ours.named_modules() if isinstance(m, BAConv2d)} == replaced
    assert len(replaced) > 1
    assert {n: m.kernel_size for n, m in ours.named_modules() if n in convs} == {
        n: m.kernel_size for n, m in convs.items()
    }

    def outputs(model):
        x = (
            [torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)) for shape in shapes]
            if isinstance(shapes, list)
            else torch.randn(2, *shapes, generator=torch.Generator().manual_seed(0))
        )
        out = model(x)
        return [out] if torch.is_tensor(out) else out

    outs = outputs(ours)
    assert [out.shape for out in outs] == [out.shape for out in outputs(stock)]
    sum(out.square().sum() for out in outs).backward()
    assert all(p.grad.isfinite().all() for p in ours.parameters() if p.grad is not None)
    assert all(ours.get_submodule(n).projection.conv.weight.grad.abs().sum() > 0 for n in replaced)
    ours.eval()
    torch.testing.assert_close(outputs(copy.deepcopy(ours)), outputs(ours))


@pytest.mark.parametrize('channels_last', [False, True])
@pytest.mark.parametrize('options', OPTIONS)
def test_in_evaluation_strips_of_rows_are_the_whole_map(options, channels_last, monkeypatch):
    """Every neighbourhood is complete: the rows around a strip are projected with it."""
    layer = build(**OPTIONS[options])
    x = torch.randn(2, 4, 11, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    expected = layer(x)  # with gradients: as a whole
    for name in ('WHOLE_BYTES', 'STRIP_BYTES', 'LEAST_ROWS'):
        monkeypatch.setattr(local_bilateral_attention, name, 1)
    calls = []
    monkeypatch.setattr(layer, 'operands', lambda x, whole=layer.operands: calls.append(x.shape[2]) or whole(x))
    with torch.no_grad():
        y = layer(x)
    reach = layer.settings['dilation'] * (layer.settings['kernel_size'][0] // 2)
    assert calls[0] == 3 * reach
    assert len(calls) == -(-11 // (2 * reach))  # the least strip has two rows per row above it
    torch.testing.assert_close(y, expected.detach(), rtol=1e-12, atol=1e-12)
    assert y.stride() == expected.stride()


@pytest.mark.parametrize('options', ['default', 'shared'])
@pytest.mark.parametrize(('dtype', 'share'), [(torch.float64, 1), (torch.float32, 1), (torch.bfloat16, 8)], ids=str)
def test_the_bytes_of_a_map_decide_about_strips(monkeypatch, options, dtype, share):
    """Of all images of a batch, and all that is projected; in 16 bit from an eighth of them on."""
    layer = LocalBilateralAttention(8, num_heads=2, share=options == 'shared').to(dtype).eval()
    x = torch.randn(3, 8, 40, 5, dtype=dtype)
    with torch.no_grad():
        row = layer.projection(x)[:, :, 0].numel() * x.element_size()
        assert row == 3 * 5 * layer.num_projected * x.element_size()
        monkeypatch.setattr(local_bilateral_attention, 'WHOLE_BYTES', 40 * row * share)
        monkeypatch.setattr(local_bilateral_attention, 'STRIP_BYTES', 30 * row - 1)
        assert layer._rows_of_a_strip(x) is None
        monkeypatch.setattr(local_bilateral_attention, 'WHOLE_BYTES', 40 * row * share - 1)
        assert layer._rows_of_a_strip(x) == 29
        for name, least in (('LEAST_ROWS', 33), ('STRIP_BYTES', 35 * row)):
            monkeypatch.setattr(local_bilateral_attention, name, least)
            assert layer._rows_of_a_strip(x) == {'LEAST_ROWS': 33, 'STRIP_BYTES': 35}[name]
    assert layer._rows_of_a_strip(x) is None  # with gradients


@torch.no_grad()
@pytest.mark.parametrize(('dtype', 'share'), [(torch.float32, 1), (torch.bfloat16, 8)], ids=str)
def test_what_projects_to_more_than_32_mib_is_computed_in_strips_of_4_mib(dtype, share):
    layer = LocalBilateralAttention(8, num_heads=2).to('meta', dtype).eval()
    x = torch.empty(1, 8, 1, 500, dtype=dtype, device='meta')
    row = layer.projection(x).numel() * x.element_size()
    height = 2**25 // share // row
    assert layer._rows_of_a_strip(x.expand(-1, -1, height, -1)) is None
    assert layer._rows_of_a_strip(x.expand(-1, -1, height + 1, -1)) == 2**22 // row


def test_in_evaluation_the_height_costs_no_memory(monkeypatch):
    monkeypatch.setattr(local_bilateral_attention, 'STRIP_BYTES', 2**18)
    monkeypatch.setattr(local_bilateral_attention, 'WHOLE_BYTES', 2**20)
    layer = LocalBilateralAttention(64, num_heads=4).eval()
    with torch.no_grad():
        heights = [layer(x) is not None and extra_memory(lambda x=x: layer(x))[1] for x in maps(100, 200)]
        layer.train()
        whole = extra_memory(lambda: layer(next(maps(200))))[1]
    assert heights[1] < 1.05 * heights[0]
    assert heights[1] < 0.3 * whole


def maps(*heights):
    return (torch.randn(1, 64, height, 48).to(memory_format=torch.channels_last) for height in heights)


@pytest.mark.parametrize('norm_cfg', [dict(type='IN'), dict(type='BN', track_running_stats=False), dict(type='BN')])
def test_norms_over_the_map_see_all_of_it(norm_cfg, monkeypatch):
    """Also a batch norm in training in a layer in evaluation, as in test-time adaptation of norms."""
    monkeypatch.setattr(local_bilateral_attention, 'WHOLE_BYTES', 1)
    layer = build(num_heads=2, norm_cfg=norm_cfg)
    if norm_cfg == dict(type='BN'):
        for norm in (module for module in layer.modules() if isinstance(module, nn.BatchNorm2d)):
            norm.train()
    x = torch.randn(1, 4, 30, 5, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(layer(x), layer._finish(layer._attend(layer.operands(x))))


def test_large_maps_are_vectorised(monkeypatch):
    """vmap over images, which no strips could be written for."""
    monkeypatch.setattr(local_bilateral_attention, 'WHOLE_BYTES', 1)
    layer, x = build(num_heads=2), torch.randn(3, 4, 20, 5, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(torch.vmap(lambda image: layer(image[None])[0])(x), layer(x))


def test_strips_under_autocast(monkeypatch):
    for name in ('WHOLE_BYTES', 'STRIP_BYTES'):
        monkeypatch.setattr(local_bilateral_attention, name, 1)
    layer = LocalBilateralAttention(8, num_heads=2).eval()
    x = torch.randn(1, 8, 20, 6)
    with torch.autocast('cpu', torch.bfloat16):
        expected = layer(x)
        with torch.no_grad():
            y = layer(x)
    assert y.dtype == expected.dtype
    torch.testing.assert_close(
        y, expected, rtol=2**-6, atol=2**-8
    )  # bfloat16 has 8 bits; the products sum in another order


def conv_module():
    return ConvModule(8, 8, 3, padding=1, conv_cfg=dict(type='mmattn.BAConv2d', num_heads=2))


BEFORE_RELU = {  # no norm between the last projection and ReLU, which changes its input in place
    'no norm': lambda: LocalBilateralAttention(8, num_heads=2, norm_cfg=None, scale=None),
    'shared': lambda: LocalBilateralAttention(8, num_heads=2, norm_cfg=None, scale=None, share=True, iterations=3),
    'ConvModule': conv_module,
}


@pytest.mark.parametrize('side', [1, 6])
@pytest.mark.parametrize('module', BEFORE_RELU)
def test_training_does_not_depend_on_the_layout(module, side):
    """Channels first are convolved; channels last, as of a single position, are projected."""
    torch.manual_seed(0)
    layer = BEFORE_RELU[module]()
    x = torch.randn(2, 8, side, side, generator=torch.Generator().manual_seed(0))
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        given = x.contiguous(memory_format=layout).requires_grad_()
        with literal.Calls() as calls:
            y = layer(given)
        projected = torch.ops.mmattn.projection.default in [function for function, _ in calls.seen]
        assert projected == (side == 1 or layout == torch.channels_last)
        found.append([y, *torch.autograd.grad(y.square().sum(), [given, *layer.parameters()])])
    for first, last in zip(*found):
        # float32; sums in another order, and norms whose gradients are small differences
        torch.testing.assert_close(last, first, rtol=1e-4, atol=1e-4 * max(1, first.abs().max().item()))


@pytest.mark.parametrize('options', [OPTIONS['e'], OPTIONS['i'], OPTIONS['b']], ids=['e', 'i', 'b'])
@pytest.mark.parametrize('how', ['autocast', 'half'])
def test_in_16_bit_either_layout_is_computed_channels_last(options, how):
    """Thus the values and all gradients are equal bit by bit: float32 may sum in another order (see above)."""
    layer, x = build(**options).float(), torch.randn(2, 4, 5, 6)
    if how == 'half':
        layer, x = layer.bfloat16(), x.bfloat16()
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        features = x.contiguous(memory_format=layout).requires_grad_()
        with torch.autocast('cpu', torch.bfloat16, enabled=how == 'autocast'):
            y = layer(features)
        assert y.dtype == torch.bfloat16
        assert y.is_contiguous(memory_format=torch.channels_last)
        results.append([y, *torch.autograd.grad(y.float().square().sum(), [features, *layer.parameters()])])
    assert all(torch.equal(first, last) for first, last in zip(*results))


def test_hooks_of_the_projections_run():
    layer = LocalBilateralAttention(8, num_heads=2)
    prune.l1_unstructured(layer.projection.conv, 'weight', 0.5)  # a hook computes the masked weight
    calls = []
    layer.output.conv.register_forward_hook(lambda *_: calls.append(1))
    x = torch.randn(1, 8, 6, 6).to(memory_format=torch.channels_last)
    for _ in range(2):
        layer(x).sum().backward()
    assert len(calls) == 2
    mask = layer.projection.conv.weight_mask
    assert 0 < mask.mean() < 1
    assert not (layer.projection.conv.weight_orig.grad * (1 - mask)).any()


@pytest.mark.slow
def test_trainings_compiled_by_inductor_at_two_sizes():
    """With symbolic sizes, it cannot keep a layer's views for the gradients of a network with convolutions."""
    layers = LocalBilateralAttention(8, num_heads=2), DynamicConv2d(8, 3, 2), TransformerAttention2d(8, 2, '1111', 3)
    for layer in layers:
        torch.compiler.reset()
        plain = nn.Sequential(layer, nn.Conv2d(8, 4, 3))
        compiled = torch.compile(copy.deepcopy(plain))
        for size in ((9, 12), (10, 8)):
            x = torch.randn(2, 8, *size)
            actual, expected = (literal.evaluate(lambda x, f=f: f(x), {'x': x}) for f in (compiled, plain))
            literal.assert_same(actual, expected, 1e-4, 1e-4)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float32])
@pytest.mark.parametrize('share', [False, True])
def test_vmap(dtype, share):
    torch.manual_seed(0)
    layer = LocalBilateralAttention(8, 16, num_heads=4, share=share).eval().to(dtype)
    maps = torch.randn(3, 2, 8, 5, 6).to(dtype)
    found = torch.vmap(lambda x: layer(x).float())(maps)
    torch.testing.assert_close(found, torch.stack([layer(x).float() for x in maps]), **literal.low_precision(dtype))
