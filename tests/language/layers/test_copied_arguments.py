"""Wrappers copy each argument of ``layer(x, x, x)``, so key and value are not the object ``query`` any more."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

from mmattn.language import SequenceEncoder
from mmattn.language.layers import (
    BilateralMultiheadAttention,
    DeformConv1d,
    DynamicConv1d,
    RegionAttention,
    TransformerAttention1d,
)
from mmattn.language.layers.position_encodings import relative_geometry

from ...ops import literal
from .sequences import build

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
GEOMETRY = relative_geometry(torch.tensor([[0.0, 0, 2, 1], [1, 1, 4, 3], [0, 2, 1, 5], [3, 0, 4, 2]]).expand(2, -1, -1))
LAYERS = dict(
    bilateral=partial(build, BilateralMultiheadAttention, 8, 2, window_size=3),
    causal=partial(build, BilateralMultiheadAttention, 8, 2, position='none', is_causal=True),
    regions=partial(build, RegionAttention, 8, 2, geometry=('query_dependent', 'key_dependent'), dropout=0),
    dynamic=partial(build, DynamicConv1d, 8, 2, 3),
    deformable=partial(build, DeformConv1d, 8),
    transformer=partial(build, TransformerAttention1d, 8, 2, spatial_range=3),
)


class Copy(torch.autograd.Function):
    """DeepSpeed ZeRO stage 3 passes each input of each module through such a function."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class FirstOutput(torch.nn.Sequential):
    """Tracing does not support None among the outputs."""

    def forward(self, query, key, value):
        return self[0](query, key, value)[0]


def copied_by_hooks(layer, x):
    handle = layer.register_forward_pre_hook(lambda module, inputs: tuple(Copy.apply(t) for t in inputs))
    out, _ = layer(x, x, x)
    handle.remove()
    return out


def with_backward_hook(layer, x):
    handle = layer.register_full_backward_hook(lambda *args: None)
    out, _ = layer(x, x, x)
    handle.remove()
    return out


WRAPPERS = dict(
    none=lambda layer, x: layer(x)[0],
    key_only=lambda layer, x: layer(x, x)[0],
    slices=lambda layer, x: layer(x[:], x[:], x[:])[0],
    clones=lambda layer, x: layer(x.clone(), x.clone(), x.clone())[0],
    hooks=copied_by_hooks,
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
@pytest.mark.every_case
@pytest.mark.parametrize('wrapper', WRAPPERS)
@pytest.mark.parametrize('name', LAYERS)
def test_copies_of_the_query_change_nothing(name, wrapper):
    layer, x = LAYERS[name](), literal.randn(2, 4, 8)
    if name == 'regions':
        layer.forward = partial(layer.forward, relative_geometry=GEOMETRY.double())
    expected = value_and_gradients(layer, x, lambda layer, x: layer(x, x, x)[0])
    assert_same(value_and_gradients(layer, x, WRAPPERS[wrapper]), expected)


def test_key_and_value_of_regions_count():
    layer = LAYERS['regions']()
    query, key, value = literal.randn(3, 2, 4, 8)
    out, _ = layer(query, key, value, relative_geometry=GEOMETRY.double())
    for changed in ((query + 1, key, value), (query, key + torch.arange(4.0)[:, None], value), (query, key, value + 1)):
        assert not torch.allclose(layer(*changed, relative_geometry=GEOMETRY.double())[0], out)


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
        if isinstance(module, BilateralMultiheadAttention):
            fully_shard(module, mesh=mesh)
    fully_shard(encoder, mesh=mesh)
    assert_same(value_and_gradients(encoder, x, lambda module, x: module(x)), expected)
