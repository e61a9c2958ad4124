"""What all layers of sequences have in common: copied arguments, compilation, bfloat16, empty sequences.

Wrappers copy each argument of ``layer(x, x, x)``, so key and value are not the object ``query`` any more.
"""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

from mmattn.language import SequenceEncoder, layers
from mmattn.language.layers.position_encodings import relative_geometry
from mmattn.language.models.transformer import FeedForward
from mmattn.registry import MODELS

from ...ops import literal
from ..world import SAN
from .sequences import build

BOXES = torch.tensor([[0.0, 0, 2, 1], [1, 1, 4, 3], [0, 2, 1, 5], [3, 0, 4, 2]], dtype=torch.float64).expand(2, -1, -1)
LAYERS = dict(
    bilateral=partial(build, layers.BilateralMultiheadAttention, 8, 2, window_size=3),
    causal=partial(build, layers.BilateralMultiheadAttention, 8, 2, position='none', is_causal=True),
    regions=partial(build, layers.RegionAttention, 8, 2, geometry=('query_dependent', 'key_dependent'), dropout=0),
    norms=partial(build, layers.RegionAttention, 8, 2, query_norm='batch', key_norm='layer', dropout=0),
    dynamic=partial(build, layers.DynamicConv1d, 8, 2, 3),
    deformable=partial(build, layers.DeformConv1d, 8),
    deformable_causal=partial(build, layers.DeformConv1d, 8, is_causal=True),
    transformer=partial(build, layers.TransformerAttention1d, 8, 2, spatial_range=3),
    steps=partial(build, layers.TransformerAttention1d, 8, 2, is_causal=True),
    dynamic_steps=partial(build, layers.DynamicConv1d, 8, 2, 5, is_causal=True),
    dynamic_steps_without_glu=partial(build, layers.DynamicConv1d, 8, 2, 5, is_causal=True, gated=False),
)


@pytest.mark.parametrize(
    'build',
    [
        partial(layers.BilateralMultiheadAttention, 64, 4, position='none'),
        partial(layers.RegionAttention, 64, 4),
        partial(layers.DynamicConv1d, 64, 4, 3),
        partial(layers.GatedBilateralController, 64),
        partial(FeedForward, 64, 128, 0.1),
        lambda: MODELS.build(dict(SAN, embed_dim=64)).output,
    ],
)
def test_a_new_layer_has_xavier_matrices_and_no_biases(build):
    """Those of torch differ: with as many outputs as inputs, their matrices are smaller by √3."""
    for x in build().parameters():
        if x.dim() > 1:
            bound = (6 / sum(x.shape)) ** 0.5
            assert 0.95 * bound < x.abs().max() <= bound
        else:
            assert not x.any()


@pytest.fixture(params=LAYERS)
def layer(request):
    layer = LAYERS[request.param]()
    if request.param == 'regions':
        layer.forward = partial(layer.forward, relative_geometry=relative_geometry(BOXES))
    return layer


class FirstOutput(torch.nn.Sequential):
    """Tracing does not support None among the outputs."""

    def forward(self, query, key, value):
        return self[0](query, key, value)[0]


def compiled(layer, x):
    torch.compiler.reset()
    return torch.compile(layer, fullgraph=True, backend='aot_eager')(x, x, x)[0]


def with_backward_hook(layer, x):
    handle = layer.register_full_backward_hook(lambda *args: None)
    out, _ = layer(x, x, x)
    handle.remove()
    return out


WRAPPERS = dict(
    none=lambda layer, x: layer(x)[0],
    key_only=lambda layer, x: layer(x, x)[0],
    clones=lambda layer, x: layer(x.clone(), x.clone(), x.clone())[0],
    compiled=compiled,
    backward_hook=with_backward_hook,
    reentrant=lambda layer, x: checkpoint(layer, x, x, x, use_reentrant=True)[0],
    traced=lambda layer, x: torch.jit.trace(FirstOutput(layer), (x.detach(),) * 3)(x, x, x),
)


@pytest.fixture
def process_group(tmp_path):
    dist.init_process_group('gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def value_and_gradients(module, x, call):
    module.zero_grad()
    x = x.clone().requires_grad_()
    out = call(module, x)
    out.backward(literal.randn(*out.shape, seed=7))  # a reentrant checkpoint does not support torch.autograd.grad
    gradients = {name: p.grad for name, p in module.named_parameters()}
    return dict(
        out=out.detach(),
        x=x.grad,
        **{name: g.full_tensor() if hasattr(g, 'full_tensor') else g for name, g in gradients.items()},
    )


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name, x in expected.items():
        torch.testing.assert_close(
            actual[name], x, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f'{name}: {text}'
        )


@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning', 'ignore:.*torch.jit.trace:DeprecationWarning')
@pytest.mark.parametrize('wrapper', WRAPPERS)
def test_copies_of_the_query_change_nothing(layer, wrapper):
    x = literal.randn(2, 4, 8)
    expected = value_and_gradients(layer, x, lambda layer, x: layer(x, x, x)[0])
    assert_same(value_and_gradients(layer, x, WRAPPERS[wrapper]), expected)


def test_key_and_value_of_regions_count():
    layer, f = LAYERS['regions'](), relative_geometry(BOXES)
    query, key, value = literal.randn(3, 2, 4, 8)
    out, _ = layer(query, key, value, relative_geometry=f)
    for changed in ((query + 1, key, value), (query, key + torch.arange(4.0)[:, None], value), (query, key, value + 1)):
        assert not torch.allclose(layer(*changed, relative_geometry=f)[0], out)


def test_low_precision_is_near_full_precision(layer):
    """bfloat16 has 8 bits, and a layer rounds half a dozen times."""
    layer, x = layer.float(), literal.randn(2, 4, 8, dtype=torch.float32)
    expected, pairs = layer(x, x, x)[0], []
    with torch.autocast('cpu', torch.bfloat16):
        pairs.append((layer(x, x, x)[0], expected))
        if getattr(layer, 'is_causal', False):
            pairs.append((layer.step(x[:, :1], layer.start(), 0)[0], expected[:, :1]))
    pairs[0][0].sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
    throughout = layer.bfloat16()(*[x.bfloat16()] * 3)[0]
    assert throughout.dtype == torch.bfloat16
    for y, wanted in (*pairs, (throughout, expected)):
        assert (y.float() - wanted).norm() < 0.05 * wanted.norm()


@pytest.mark.parametrize('shape', [(0, 5, 8), (2, 0, 8)])
@pytest.mark.parametrize('name', ['deformable', 'transformer'])
def test_empty_sequences(name, shape):
    x = torch.zeros(shape, requires_grad=True, dtype=torch.float64)
    out, _ = LAYERS[name]()(x, x, x)
    out.sum().backward()
    assert out.shape == x.grad.shape == shape


@pytest.mark.parametrize('name', ['dynamic', 'deformable', 'transformer'])
def test_init_weights_resets_every_parameter(name):
    """Whatever it was before, the draws alone decide."""
    found = []
    for value in (5.0, 9.0):
        layer = LAYERS[name]()
        for parameter in layer.parameters():
            torch.nn.init.constant_(parameter, value)
        torch.manual_seed(0)
        layer.init_weights()
        found.append(layer.state_dict())
    assert_same(*found)
    assert max(x.abs().max() for x in found[0].values()) < 2


def test_an_attention_can_be_sharded_by_itself(process_group):
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        from torch.distributed._composable.fsdp import fully_shard  # before torch 2.6
    attention = dict(type='mmattn.BilateralMultiheadAttention', window_size=3)
    encoder = SequenceEncoder(
        2, dict(self_attention=attention, embed_dim=8, num_heads=2, feedforward_dim=16, dropout=0)
    ).double()
    x = literal.randn(2, 5, 8)
    expected = value_and_gradients(encoder, x, lambda module, x: module(x))
    mesh = init_device_mesh('cpu', (1,))
    for module in encoder.modules():
        if isinstance(module, layers.BilateralMultiheadAttention):
            fully_shard(module, mesh=mesh)
    fully_shard(encoder, mesh=mesh)
    assert_same(value_and_gradients(encoder, x, lambda module, x: module(x)), expected)
