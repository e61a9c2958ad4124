"""DynamicConv2d against Eq. 5 to 7 with its own weights, its counts (Table 3), and in stock backbones."""

import importlib
import math

import pytest
import torch
from mmcv.cnn import build_plugin_layer
from mmengine.registry import MODELS, init_default_scope
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from mmattn.layers import DynamicConv2d

from ..ops import literal

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)

BN = dict(type='BN')
OPTIONS = {
    'k3': dict(kernel_size=3, groups=2),
    '3x5': dict(kernel_size=(3, 5), groups=4),
    'k13': dict(kernel_size=13, groups=1),
    'norm': dict(kernel_size=3, groups=2, norm_cfg=BN),
}


@pytest.fixture(autouse=True, scope='module')
def scope():
    """Stock modules look up their parts by name."""
    init_default_scope('mmseg')


def randomize(module, only=torch.nn.Module):
    """Every parameter and statistic of the submodules of a type."""
    generator = torch.Generator().manual_seed(0)
    for part in module.modules():
        if isinstance(part, only):
            for x in [*part.parameters(recurse=False), *part.buffers(recurse=False)]:
                if x.is_floating_point():
                    x.data.normal_(0, 0.5, generator=generator)
            if getattr(part, 'running_var', None) is not None:
                part.running_var.abs_().add_(0.5)
    return module


def build(**options):
    return randomize(DynamicConv2d(4, **options).double().eval())


def pointwise(module, x):
    """A 1×1 convolution of ``(B, H, W, C)`` and its norm in evaluation, written out."""
    x = F.linear(x, module.conv.weight.flatten(1), module.conv.bias)
    if module.with_norm:
        norm = module.norm
        x = (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
    return x


def literally(layer, x):
    wide, gate = pointwise(layer.glu, x.movedim(1, -1)).chunk(2, -1)
    u = wide / (1 + torch.exp(-gate))
    value, logits = (torch.stack(y.chunk(layer.groups, -1), 1) for y in (u, pointwise(layer.kernel, u)))
    y = literal.dynamic_conv(value, logits, kernel_size=layer.kernel_size)
    y = pointwise(layer.output, torch.cat(y.unbind(1), -1)).movedim(-1, 1)
    return x + layer.gamma * y


@pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)
def test_layer_is_the_equation(options):
    layer = build(**options)
    x = literal.randn(2, 4, 4, 5).requires_grad_()
    ours, expected = layer(x), literally(layer, x)
    torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-10)
    cotangent, wanted = literal.randn(*ours.shape, seed=7), [x, *layer.parameters()]
    for name, a, b in zip(
        ['x', *dict(layer.named_parameters())],
        torch.autograd.grad(ours, wanted, cotangent),
        torch.autograd.grad(expected, wanted, cotangent),
    ):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9, msg=lambda text, name=name: f'{name}: {text}')


@pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)
def test_a_new_block_is_the_identity_and_learns(options):
    """First γ alone; once γ is not 0, everything."""
    layer, x = DynamicConv2d(4, **options), torch.randn(2, 4, 6, 5)
    assert layer.gamma.shape == (1,)
    out = layer(x)
    assert torch.equal(out, x)
    out.square().sum().backward()
    assert {name for name, p in layer.named_parameters() if p.grad.any()} == {'gamma'}
    torch.nn.init.ones_(layer.gamma)
    layer.zero_grad()
    out = layer(x)
    assert (out - x).abs().max() > 1e-2
    out.pow(3).sum().backward()
    assert all(p.grad.abs().max() > 1e-5 for p in layer.parameters())


@pytest.mark.parametrize(
    'wrong', [dict(kernel_size=4), dict(kernel_size=(3, 2)), dict(groups=3), dict(groups=0), dict(groups=16)], ids=str
)
def test_wrong_arguments_are_named(wrong):
    with pytest.raises(ValueError, match=f'^{next(iter(wrong))}'):
        DynamicConv2d(8, **{'kernel_size': 3, 'groups': 2, **wrong})


# Counts.


@pytest.mark.parametrize(('channels', 'kernel_size', 'groups'), [(32, 3, 16), (64, 13, 16), (8, (3, 5), 2)], ids=str)
def test_parameters(channels, kernel_size, groups):
    """Three matrices, two biases and γ; each norm has two numbers a channel, in place of a bias."""
    entries = groups * math.prod(literal.as_tuple(kernel_size, 2))

    def count(**options):
        return sum(p.numel() for p in DynamicConv2d(channels, kernel_size, groups, **options).parameters())

    weights = channels * (2 * channels + entries + channels)
    assert count() == weights + 3 * channels + 1
    assert count(norm_cfg=BN) == weights + 2 * (3 * channels + entries) + 1


def macs(channels, kernel_size, height, width):
    """Without computing anything."""
    with torch.device('meta'), FlopCounterMode(display=False) as counter:
        DynamicConv2d(channels, kernel_size)(torch.empty(1, channels, height, width))
    assert counter.get_total_flops() % 2 == 0
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(
    ('n', 'detection', 'segmentation'),
    [(13, 244.3, 584.3), (19, 270.6, 692.1), (25, 306.8, 840.4), (31, 352.9, 1029.0)],
)
def test_multiply_accumulates_of_table_3(n, detection, segmentation):
    """In 6 + 3 bottlenecks, at 800×1344 compared with 213.7 G, and at 768×768 with 449.5 G and one more at the end."""

    def formula(channels, height, width):
        positions = height * width
        return positions * channels * (16 * n**2 + n**2 + 2 * channels + channels)

    sizes = [(256, 50, 84), (512, 25, 42), (256, 96, 96), (512, 96, 96)]
    counted = [macs(channels, n, *size) for channels, *size in sizes]
    assert counted == [formula(*size) for size in sizes]
    conv4, conv5, wide_conv4, wide_conv5 = (count / 1e9 for count in counted)
    assert 213.7 + 6 * conv4 + 3 * conv5 == pytest.approx(detection, abs=0.1)
    assert 449.5 + 6 * wide_conv4 + 4 * wide_conv5 == pytest.approx(segmentation, abs=0.1)


# As a plugin.


def test_mmcv_builds_it():
    name, layer = build_plugin_layer(dict(type='mmattn.DynamicConv2d', kernel_size=13), postfix='_a', in_channels=32)
    assert name == 'dynamic_conv2d_a'
    assert type(layer) is DynamicConv2d
    assert (layer.kernel_size, layer.groups) == ((13, 13), 16)
    assert type(MODELS.build(dict(type='mmattn.DynamicConv2d', in_channels=16, kernel_size=3))) is DynamicConv2d


def test_compile():
    torch.compiler.reset()
    layer, x = build(**OPTIONS['k3']), literal.randn(2, 4, 4, 5)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend='aot_eager')(x), layer(x))


@pytest.mark.parametrize('autocast', [torch.bfloat16, None], ids=['autocast', 'bfloat16'])
def test_low_precision(autocast):
    layer, x = build(**OPTIONS['k3']).float(), literal.randn(2, 4, 4, 5, dtype=torch.float32)
    expected = layer(x)
    if autocast:
        with torch.autocast('cpu', autocast):
            out = layer(x)
        assert out.dtype == torch.float32
    else:
        out = layer.bfloat16()(x.bfloat16())
        assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, atol=5e-2, rtol=2e-2)


@pytest.mark.parametrize('norm_cfg', [None, BN], ids=['plain', 'norm'])
@pytest.mark.parametrize('package', ['mmseg', pytest.param('mmdet', marks=pytest.mark.mmcv_operators)])
def test_a_stock_resnet_takes_it_and_stays_as_it_was(package, norm_cfg):
    """Whatever ``init_weights`` and a checkpoint of the plain network put in."""
    arguments = dict(depth=50, stem_channels=8, base_channels=8, out_indices=(0, 1, 2, 3), norm_eval=False)
    plugin = dict(
        cfg=dict(type='mmattn.DynamicConv2d', kernel_size=3, groups=4, norm_cfg=norm_cfg),
        stages=(False, False, True, True),
        position='after_conv2',
    )
    backbone = importlib.import_module(f'{package}.models').ResNet
    stock, ours = backbone(**arguments), backbone(**arguments, plugins=[plugin])
    ours.init_weights()
    blocks = {name: m for name, m in ours.named_modules() if isinstance(m, DynamicConv2d)}
    assert set(blocks) == {f'layer{stage}.{i}.dynamic_conv2d' for stage, n in ((3, 6), (4, 3)) for i in range(n)}
    stock.init_weights()
    randomize(stock, torch.nn.BatchNorm2d)
    missing, unexpected = ours.load_state_dict(stock.state_dict(), strict=False)
    assert not unexpected
    assert all('dynamic_conv2d' in name for name in missing)
    x = torch.randn(2, 3, 64, 96)
    for model in (stock, ours):
        model.eval()
    expected = stock(x)
    assert all(map(torch.equal, ours(x), expected))
    for block in blocks.values():
        torch.nn.init.ones_(block.gamma)
    same = [torch.equal(*pair) for pair in zip(ours(x), expected)]
    assert same == [True, True, False, False]
