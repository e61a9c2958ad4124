"""Every attention layer in the plugin slot of stock ResNets: the output stays as it was until the layer learns."""

import importlib

import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

from mmattn import layers

from ..requirements import requires
from .test_every_layer import LAYERS, MAP

ARGUMENTS = dict(depth=50, base_channels=8, stem_channels=8)
BN = dict(type='BN')
# What has another place: a convolution's, or in AttendedResidual.
OTHERS = {'BAConv2d', 'LocalBilateralAttention'}
PLUGINS = {
    name: {key: x for key, x in options.items() if key != 'in_channels'}
    for name, (options, shape) in LAYERS.items()
    if shape == MAP and name not in OTHERS
}
assert {'BilateralNonLocal2d', 'BilateralCrissCrossAttention', 'TransformerAttention2d', 'DynamicConv2d'} <= {*PLUGINS}
PLUGINS['DynamicConv2d norm'] = dict(kernel_size=3, groups=4, norm_cfg=BN)


def resnet(package, **options):
    return importlib.import_module(f'{package}.models.backbones').ResNet(**ARGUMENTS, **options)


def plugins(name, stages=(False, False, True, True)):
    cfg = dict(type=f'mmattn.{name.split()[0]}', **PLUGINS[name])
    return [dict(cfg=cfg, stages=stages, position='after_conv2')]


def randomise_norms(model):
    """As after training: stock ``zero_init_residual`` would hide the effect of a block."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for x in (module.weight, module.bias, module.running_mean, module.running_var):
                x.data.copy_(torch.rand(x.shape, generator=generator) + 0.5)


def wake(layer):
    """What the layer learns first: its residual scalar, or its output projection."""
    if isinstance(layer, layers.BilateralNonLocal2d):
        return [layer.conv_out.conv.weight, layer.conv_out.conv.bias]
    gamma = layer.gamma
    return [gamma if isinstance(gamma, nn.Parameter) else gamma.scale]


@pytest.mark.parametrize('package', ['mmseg', pytest.param('mmdet', marks=requires('mmcv operators'))])
@pytest.mark.parametrize('name', PLUGINS)
def test_a_new_plugin_leaves_the_output_as_it_was(package, name):
    torch.manual_seed(0)
    ours = resnet(package, plugins=plugins(name))
    ours.init_weights()
    blocks = [m for m in ours.modules() if type(m) is getattr(layers, name.split()[0])]
    assert len(blocks) == 6 + 3
    stock = resnet(package)
    state = ours.state_dict()
    stock.load_state_dict({key: state[key] for key in stock.state_dict()})
    for model in (ours, stock):
        randomise_norms(model)
    inside = {id(m) for block in blocks for m in block.modules()}
    mine = [m for m in ours.modules() if isinstance(m, nn.BatchNorm2d) and id(m) not in inside]
    theirs = [m for m in stock.modules() if isinstance(m, nn.BatchNorm2d)]
    for a, b in zip(mine, theirs, strict=True):
        a.load_state_dict(b.state_dict())
    for model in (ours, stock):
        model.eval()
    x = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        expected = stock(x)
        assert all(map(torch.equal, ours(x), expected))
        assert expected[-1].std() > 1e-3
        for block in blocks:
            for parameter in wake(block):
                parameter.fill_(1)
        changed = ours(x)
    assert all(map(torch.equal, changed[:2], expected[:2]))  # stages without plugins
    for a, b in zip(changed[2:], expected[2:]):
        assert (a - b).abs().max() > 1e-3 * b.abs().max()


@pytest.mark.parametrize('name', PLUGINS)
def test_a_plugin_keeps_the_dtype_of_its_map(name):
    """Under autocast a backbone's maps are half as large; a block must not make them float32 again."""
    block = MODELS.build(dict(plugins(name)[0]['cfg'], in_channels=16))
    with torch.autocast('cpu', torch.bfloat16):
        assert block(torch.randn(1, 16, 5, 6, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize('name', PLUGINS)
def test_a_plugin_learns(name):
    model = resnet('mmseg', plugins=plugins(name), zero_init_residual=False)
    model.init_weights()
    model(torch.randn(2, 3, 64, 96))[-1].square().mean().backward()
    for block in (m for m in model.modules() if type(m) is getattr(layers, name.split()[0])):
        assert all(parameter.grad.abs().sum() > 0 for parameter in wake(block))
