"""Every layer and head under activation checkpointing, of both kinds; layers compiled, exported, and under autocast."""

import re
from inspect import getdoc, signature

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope
from torch.utils.checkpoint import checkpoint

from mmattn import layers
from mmattn.language import layers as language_layers

VIDEO = (1, 2, 3, 4, 8)
MAP = (2, 8, 5, 6)
SEQUENCE = (2, 5, 8)
INPUTS = dict(in_channels=MAP, embed_dims=VIDEO, embed_dim=SEQUENCE)  # by the option that has the channels
# A config, and the shape of the layer's inputs: one tensor for all, or one of each. Others are those of their examples.
LAYERS = {
    'BilateralNonLocal2d': (dict(in_channels=8, window_size=3), MAP),
    'BilateralCrissCrossAttention': (dict(in_channels=8, window_size=3), MAP),
    'BilateralMultiheadAttention': (dict(embed_dim=8, num_heads=2, window_size=3), SEQUENCE),
    'LocalBilateralAttention': (dict(in_channels=8, num_heads=2, iterations=2, share=True), MAP),
    'BAConv2d': (dict(in_channels=8, out_channels=8, kernel_size=3, padding=1, num_heads=2), MAP),
    'TransformerAttention2d': (dict(in_channels=8, num_heads=2), MAP),
    'TransformerAttention1d': (dict(embed_dim=8, num_heads=2), SEQUENCE),
    'RegionAttention': (dict(embed_dim=8, num_heads=2, query_norm='instance', dropout=0.0), SEQUENCE),
    'EntangledAttention': (dict(embed_dim=8, num_heads=2, dropout=0.0), SEQUENCE),
    'BilinearAttentionNetwork': (dict(word_dim=8, region_dim=8, num_glimpses=2), SEQUENCE),
    'BilinearLogits': (dict(word_dim=8, region_dim=8, embed_dim=6), SEQUENCE),
    'ConcatLogits': (dict(word_dim=8, region_dim=8, embed_dim=6), SEQUENCE),
    'UnitaryAttention': (dict(query_dim=8, region_dim=8, embed_dim=6), [(2, 8), SEQUENCE]),
    'CoAttention': (dict(word_dim=8, region_dim=8, embed_dim=32), SEQUENCE),
    'ObjectCounter': ({}, [(2, 5), (2, 5, 4)]),
    'HadamardFusion': (dict(query_dim=8, value_dim=8, out_dim=6, post_network={}, chunk_size=2), SEQUENCE),
    'ConcatFusion': (dict(query_dim=8, value_dim=8, out_dim=6, hidden=True), SEQUENCE),
    'MCBFusion': (dict(query_dim=8, value_dim=8, out_dim=6, sketch_dim=16), SEQUENCE),
    'GridAttention3d': (dict(embed_dims=8, num_heads=2, temporal_position='relative'), VIDEO),
    'StridedAttention3d': (dict(embed_dims=8, num_heads=2, temporal_position='relative'), VIDEO),
    'DenseAttention3d': (dict(embed_dims=8, num_heads=2, temporal_position='relative'), VIDEO),
    'VideoTransformerLayer': (
        dict(embed_dims=8, attention=dict(type='mmattn.GridAttention3d', num_heads=2, temporal_position='none')),
        VIDEO,
    ),
}


def example(kind):
    """The options of a layer in the example of its docstring, with 8 channels, and the shape of its input."""
    call = re.search(rf'= ({kind.__name__}\(.+\))\n', getdoc(kind))
    assert call, f'add {kind.__name__} to LAYERS: its example has no line … = {kind.__name__}(…)'
    options = eval(call[1], {kind.__name__: lambda *args, **options: signature(kind).bind(*args, **options).arguments})
    ((channels, shape),) = ((name, shape) for name, shape in INPUTS.items() if name in options)
    return options | {channels: 8}, shape


LAYERS |= {
    name: example(getattr(room, name))
    for room in (layers, language_layers)
    for name in room.__all__
    if name not in LAYERS
}
HEAD = dict(in_channels=8, channels=8, num_classes=3)
BLOCK = dict(type='mmattn.LocalBilateralAttention', num_heads=2)
HEADS = {
    'BiNLHead': dict(HEAD, window_size=3),
    'BiCCHead': dict(HEAD, window_size=3),
    'AttentionHead': dict(HEAD, attention=dict(type='mmattn.BilateralCrissCrossAttention', window_size=3)),
    'UNetBAHead': dict(in_channels=[8, 8], up_channels=[8], block=BLOCK, num_classes=3),
}


def fresh(cfg):
    """A module whose every parameter is away from the zeros with which some layers start."""
    torch.manual_seed(0)
    module = MODELS.build(cfg)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


# A layer, the options that it requires or that bring others into effect, and the defaults that its docstring names.
WINDOWS = dict(window_size=31, padding='learned', smoothing='zscore')
LOCAL = dict(kernel_size=3, num_heads=8, content=True, geometric=True, iterations=1, share=False, dilation=1, scale=1.0)
LOCAL |= dict(norm_cfg=dict(type='BN'), factorised=False, late_fusion=False, matching='linear')
OF_CLIPS = dict(num_heads=8, scale=1.0, spatial_position='relative', temporal_position='sinusoidal', max_offset=96)
OF_CLIPS |= dict(clip_offset=None, wavelength=10000.0)
DEFAULTS = [
    ('BilateralNonLocal2d', dict(in_channels=16), dict(WINDOWS, reduction=2, position='bilateral', zero_init=False)),
    ('BilateralNonLocal2d', dict(in_channels=16, position='relative'), dict(max_offset=96, zero_init=False)),
    (
        'BilateralNonLocal2d',
        dict(in_channels=16, position='none'),
        dict(mode='embedded_gaussian', use_scale=True, sub_sample=False, zeros_init=True, norm_cfg=None),
    ),
    (
        'BilateralCrissCrossAttention',
        dict(in_channels=32),
        dict(WINDOWS, reduction=8, position='bilateral', zero_init=False),
    ),
    ('BilateralCrissCrossAttention', dict(in_channels=32, position='relative'), dict(max_offset=96, zero_init=False)),
    ('LocalBilateralAttention', dict(in_channels=16), dict(LOCAL, out_channels=16, act_cfg=dict(type='ReLU'))),
    (
        'BAConv2d',
        dict(in_channels=16, out_channels=8, kernel_size=3, padding=1),
        dict(LOCAL, stride=1, groups=1, bias=True),
    ),
    (
        'BAConv2d',
        dict(in_channels=16, out_channels=8, kernel_size=1),
        dict(stride=1, padding=0, dilation=1, groups=1, bias=True),
    ),
    ('DynamicConv2d', dict(in_channels=16, kernel_size=3), dict(groups=16, norm_cfg=None)),
    (
        'TransformerAttention2d',
        dict(in_channels=16),
        dict(num_heads=8, terms='1111', spatial_range=None, position_dim=8, wavelength=1000, norm_cfg=None)
        | dict(q_stride=1, kv_stride=1, query_bias=False),
    ),
    *((name, dict(embed_dims=16), OF_CLIPS) for name in ('GridAttention3d', 'DenseAttention3d')),
    ('GridAttention3d', dict(embed_dims=16, temporal_position='absolute'), dict(max_frames=256)),
    ('StridedAttention3d', dict(embed_dims=16), dict(OF_CLIPS, step=None, local_pattern='block')),
    (
        'VideoTransformerLayer',
        dict(embed_dims=16, attention=dict(type='mmattn.GridAttention3d')),
        dict(feedforward_channels=64, dropout=0.0, query='memory'),
    ),
]


@pytest.mark.parametrize(('name', 'required', 'defaults'), DEFAULTS)
def test_defaults_are_those_of_the_documentation(name, required, defaults):
    """By the parameters at the start, and by outputs, of which those of clips depend on far frames."""
    clip = 'embed_dims' in required
    x = torch.randn((1, 3, 3, 4, 16) if clip else (2, required.get('in_channels'), 5, 6))
    more = dict(frame_numbers=torch.tensor([[0, 90, 255]])) if clip else {}
    more |= dict(memory=x.flip(1)) if name == 'VideoTransformerLayer' else {}
    outs = []
    for options in (required, defaults | required):
        torch.manual_seed(0)
        new = MODELS.build(dict(options, type=f'mmattn.{name}'))
        layer = fresh(dict(options, type=f'mmattn.{name}'))
        outs.append({**new.state_dict(), 'output': layer(x, **more)})
    assert outs[0].keys() == outs[1].keys()
    for key, expected in outs[1].items():
        assert torch.equal(outs[0][key], expected), key


@pytest.mark.parametrize(
    'options',
    [
        dict(type='mmattn.LocalBilateralAttention'),
        dict(type='mmattn.LocalBilateralAttention', factorised=True, norm_cfg=None, scale=None),
        dict(type='mmattn.TransformerAttention2d', norm_cfg=dict(type='BN')),
        dict(type='mmattn.AttendedResidual', attention=dict(type='mmattn.LocalBilateralAttention')),
    ],
    ids=str,
)
def test_initialising_again_resets_every_parameter(options):
    """To the constants of a new layer, such as those of norms and γ, and to its distributions."""
    cfg = dict(options, in_channels=32)
    layer, new = fresh(cfg), dict(MODELS.build(cfg).named_parameters())
    before = {name: x.clone() for name, x in layer.named_parameters()}
    layer.init_weights()
    for name, x in layer.named_parameters():
        if len(new[name].unique()) == 1:
            assert torch.equal(x, new[name]), name
        else:
            assert not (x == before[name]).any(), name
            assert x.std().item() == pytest.approx(new[name].std().item(), rel=0.6), name


def gradients(cfg, run, inputs):
    module = fresh(cfg)
    inputs = [x.clone().requires_grad_() for x in inputs]
    torch.manual_seed(1)
    run(module, *inputs).square().sum().backward()
    return {
        **{name: x.grad for name, x in module.named_parameters()},
        **{f'input {i}': x.grad for i, x in enumerate(inputs)},
    }


def compare(cfg, inputs, call):
    """Under both kinds of activation checkpointing, all gradients are those without."""
    expected = gradients(cfg, call, inputs)
    assert any(x is not None and x.abs().sum() > 0 for x in expected.values())
    for use_reentrant in (False, True):

        def under_checkpoint(module, *inputs, use_reentrant=use_reentrant):
            return checkpoint(lambda *inputs: call(module, *inputs), *inputs, use_reentrant=use_reentrant)

        actual = gradients(cfg, under_checkpoint, inputs)
        for name, x in expected.items():
            assert (x is None) == (actual[name] is None), name
            if x is not None:
                torch.testing.assert_close(actual[name], x, msg=lambda text, name=name: f'{name}: {text}')


def test_the_table_holds_every_layer():
    assert {*LAYERS} == {*layers.__all__, *language_layers.__all__}


@pytest.mark.parametrize('name', LAYERS)
def test_layers(name):
    options, shape = LAYERS[name]
    formats = [torch.contiguous_format, *([torch.channels_last] if shape == MAP else [])]
    shapes = shape if isinstance(shape, list) else [shape]

    def call(layer, *inputs):
        required = [p for p in signature(layer.forward).parameters.values() if p.default is p.empty]
        out = layer(*inputs if len(inputs) > 1 else inputs * len(required))
        return out[0] if isinstance(out, tuple) else out

    for memory_format in formats:
        generator = torch.Generator().manual_seed(2)
        inputs = [torch.randn(size, generator=generator).contiguous(memory_format=memory_format) for size in shapes]
        compare(dict(options, type=f'mmattn.{name}'), inputs, call)


@pytest.mark.parametrize('name', ['BilateralNonLocal2d', 'BilateralCrissCrossAttention', 'BiCCHead'])
def test_either_layout_is_computed_channels_last_and_stays(name):
    """Values and gradients do not depend on it; what comes back has the strides of the map, or of its gradient."""
    module = fresh(dict(HEADS[name] if name in HEADS else LAYERS[name][0], type=f'mmattn.{name}'))
    layer = module.attend if name in HEADS else module
    layouts = []
    for part in (module.cca, *module.cca.children()) if name in HEADS else module.children():
        part.register_forward_pre_hook(lambda part, args: layouts.append(args[0].stride(1) == 1))
    generator = torch.Generator().manual_seed(2)
    first, results = torch.randn(MAP, generator=generator), []
    for layout in (torch.contiguous_format, torch.channels_last):
        x = first.clone(memory_format=layout).requires_grad_()
        y = layer(x)
        grads = torch.autograd.grad(y.square().sum(), [x, *module.parameters()], allow_unused=True)
        assert y.stride() == grads[0].stride() == x.stride()
        results.append([y, *(grad for grad in grads if grad is not None)])
    assert {*layouts} == {True}
    torch.testing.assert_close(*results)


@pytest.mark.parametrize('name', HEADS)
def test_heads(name):
    init_default_scope('mmseg')  # of the losses of mmseg
    generator = torch.Generator().manual_seed(2)
    sides = (8, 4) if name == 'UNetBAHead' else (5,)
    maps = [torch.randn(2, 8, side, side + 1, generator=generator) for side in sides]
    compare(dict(HEADS[name], type=f'mmattn.{name}'), maps, lambda head, *maps: head(maps))


# Those of maps and videos, and of sequences with positions.
COMPILED = [name for name in LAYERS if name in layers.__all__ or name == 'BilateralMultiheadAttention']
COMPILED.remove('BAConv2d')  # it is LocalBilateralAttention
WITHOUT_WINDOWS = [f'{name} {position}' for name in [*LAYERS][:3] for position in ('relative', 'none')]


def made(name):
    """A layer, its inputs, and a function that calls it or what was made of it."""
    kind, *position = name.split()
    options, shape = LAYERS[kind]
    options = dict(options, position=position[0]) if position else options
    layer = fresh(dict(options, type=f'mmattn.{kind}')).eval()
    inputs = [torch.randn(shape, generator=torch.Generator().manual_seed(2))]
    inputs *= 3 if kind == 'BilateralMultiheadAttention' else 1
    return layer, inputs, lambda layer: layer(*inputs)[0] if len(inputs) > 1 else layer(*inputs)


@pytest.mark.one_case
@pytest.mark.parametrize('dynamic', [False, True])
@pytest.mark.parametrize('name', COMPILED)
def test_compiled(name, dynamic):
    """With ``dynamic=True``, numbers such as the scale are symbols, too."""
    layer, _, call = made(name)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend='eager' if dynamic else 'aot_eager')
    torch.testing.assert_close(call(compiled), call(layer))


@pytest.mark.one_case
@pytest.mark.parametrize('name', COMPILED)
def test_exported(name):
    layer, inputs, call = made(name)
    torch.testing.assert_close(call(torch.export.export(layer, tuple(inputs)).module()), call(layer))


@pytest.mark.parametrize('name', COMPILED + WITHOUT_WINDOWS)
def test_autocast_is_near_full_precision(name):
    layer, _, call = made(name)
    expected = call(layer)
    with torch.autocast('cpu', torch.bfloat16):
        ours = call(layer)
    # bfloat16 has 8 bits; a layer rounds half a dozen times.
    assert (ours - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize('name', [name for name, (_, shape) in LAYERS.items() if shape in (MAP, VIDEO)])
def test_an_input_without_a_batch_or_with_other_channels_is_named(name):
    """The error gives the shape that the layer takes, and the one that came."""
    cfg, shape = LAYERS[name]
    layer = MODELS.build(dict(cfg, type=f'mmattn.{name}'))
    channels = shape.index(8)
    other = [*shape]
    other[channels] = 7
    for wrong in (shape[1:], tuple(other), (1, *shape)):
        with pytest.raises(ValueError, match=rf'8.*{re.escape(str(tuple(wrong)))}'):
            layer(torch.zeros(wrong))
    if shape is MAP:
        for wrong in torch.zeros(shape, dtype=torch.int64), torch.zeros(1, 8, 0, 5):
            with pytest.raises(ValueError, match=re.escape(f'{wrong.dtype} {tuple(wrong.shape)}')):
                layer(wrong)
