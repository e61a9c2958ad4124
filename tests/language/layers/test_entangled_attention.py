"""ETA and GBC against Eq. 2.9 to 2.12 with stock modules; decoding by steps; memories without valid positions."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mmattn.language.layers import BilateralMultiheadAttention, EntangledAttention, GatedBilateralController
from mmattn.language.layers.entangled_attention import MODES

from ...ops import literal
from ..failing import failing
from .sequences import assert_same_with_gradients, build, padding

CHANNELS, HEADS = 6, 2
VISUAL_MASK, SEMANTIC_MASK = padding(5, 3, of=5), padding(2, 4, of=4)
F_OF_TABLE = {'identity': lambda x: x, 'relu': F.relu, 'tanh': torch.tanh, 'sigmoid': lambda x: 1 / (1 + (-x).exp())}


def entangled(mode='entangled', **options):
    return build(EntangledAttention, CHANNELS, HEADS, mode, **options)


def inputs():
    """a, V, S"""
    return [literal.randn(2, length, CHANNELS, seed=length).requires_grad_() for length in (3, 5, 4)]


def attended(sublayer, x, memory, mask):
    """LN(x + MHA(x, memory, memory)) by torch, with the sub-layer's own parameters; without a key, MHA is its bias."""
    mha, norm = sublayer.attention, sublayer.norm
    out = mha.out_proj.bias
    if memory.shape[1] and (mask is None or not mask.all()):
        stock = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True).double()
        out, _ = torch.func.functional_call(stock, dict(mha.named_parameters()), (x, memory, memory, mask))
    return F.layer_norm(x + out, (CHANNELS,), norm.weight, norm.bias)


def gated(control, a, gs, gv, v, s):
    c = 1 / (1 + (-(torch.cat([gs, gv, a], -1) @ control.gate.weight.T + control.gate.bias)).exp())
    f = F_OF_TABLE[control.activation]
    e = f(v) * c + f(s) * (1 - c)
    return e if control.norm is None else F.layer_norm(a + e, (CHANNELS,), control.norm.weight, control.norm.bias)


def literally(layer, a, visual, semantic, visual_mask=None, semantic_mask=None):
    parts, found = layer.sublayers, {}
    if layer.mode != 'stacked_s':
        found['gs'] = attended(parts['semantic_guide'], a, semantic, semantic_mask)
    if layer.mode != 'stacked_v':
        found['gv'] = attended(parts['visual_guide'], a, visual, visual_mask)
    if layer.mode == 'parallel':
        return gated(layer.controller, a, found['gs'], found['gv'], v=found['gv'], s=found['gs'])
    if layer.mode != 'stacked_s':
        found['v'] = attended(parts['visual'], found['gs'], visual, visual_mask)
    if layer.mode != 'stacked_v':
        found['s'] = attended(parts['semantic'], found['gv'], semantic, semantic_mask)
    return gated(layer.controller, a, **found) if layer.controller else found[layer.mode[-1]]


@pytest.mark.parametrize('masks', [(), (VISUAL_MASK, SEMANTIC_MASK)], ids=['', 'masks'])
@pytest.mark.parametrize('mode', MODES)
def test_layer_is_the_equation(mode, masks):
    layer, x = entangled(mode), inputs()
    assert_same_with_gradients(layer(*x, *masks), literally(layer, *x, *masks), x, layer)


@pytest.mark.parametrize('residual', [False, True])
@pytest.mark.parametrize('activation', F_OF_TABLE)
def test_controller_is_the_equation(activation, residual):
    control = build(GatedBilateralController, CHANNELS, activation, residual)
    x = [literal.randn(2, 3, CHANNELS, seed=i).requires_grad_() for i in range(5)]
    a, gs, gv, v, s = x
    assert_same_with_gradients(control(a, gs, gv, visual=v, semantic=s), gated(control, a, gs, gv, v, s), x, control)
    layer = entangled(controller=dict(type='mmattn.GatedBilateralController', activation=activation, residual=residual))
    x = inputs()
    assert_same_with_gradients(layer(*x), literally(layer, *x), x, layer)


def test_an_open_gate_is_the_mean():
    control = GatedBilateralController(CHANNELS)
    assert not control.gate.bias.any()
    assert control.gate.weight.any()
    nn.init.zeros_(control.gate.weight)
    a, gs, gv, v, s = torch.randn(5, 2, 3, CHANNELS)
    torch.testing.assert_close(control(a, gs, gv, v, s), (v + s) / 2)


@pytest.mark.parametrize('masks', [(None, None), (VISUAL_MASK, SEMANTIC_MASK)], ids=['', 'masks'])
@pytest.mark.parametrize('mode', MODES)
def test_steps_are_forward(mode, masks):
    """Three hypotheses per image; then other hypotheses, and other images."""
    layer, (_, *memories) = entangled(mode), inputs()
    state = layer.start(*memories, *masks)
    assert {len(x) for x in state.values()} == {2}
    for t in range(3):
        a = literal.randn(6, 1, CHANNELS, seed=30 + t)
        found, state = layer.step(a, state, t)
        expected = layer(a.view(2, 3, CHANNELS), *memories, *masks).view(6, 1, CHANNELS)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    index = torch.tensor([1, 1, 0])
    state = {name: x.index_select(0, index) for name, x in state.items()}
    a = literal.randn(3, 1, CHANNELS, seed=40)
    repeated = [x if x is None else x[index] for x in (*memories, *masks)]
    torch.testing.assert_close(layer.step(a, state, 3)[0], layer(a, *repeated), rtol=0, atol=1e-11)


@pytest.mark.parametrize('mode', MODES)
def test_without_attributes_the_attention_is_its_bias(mode):
    layer, (a, visual, semantic) = entangled(mode), inputs()
    none = semantic[:, :0]
    masked = torch.ones(2, 4, dtype=torch.bool)
    for attributes, mask in ((semantic, masked), (none, None), (none, masked[:, :0])):
        found = layer(a, visual, attributes, None, mask)
        assert_same_with_gradients(found, literally(layer, a, visual, attributes, None, mask), [a, visual], layer)
        step, _ = layer.step(a[:, :1], layer.start(visual, attributes, None, mask), 0)
        torch.testing.assert_close(step, found[:, :1], rtol=0, atol=1e-12)
    mixed = torch.tensor([[True] * 4, [False] * 4])  # one image without attributes, one with
    found = layer(a, visual, semantic, semantic_padding_mask=mixed)
    torch.testing.assert_close(found[1:], layer(a[1:], visual[1:], semantic[1:]), rtol=0, atol=1e-12)
    torch.testing.assert_close(found[:1], layer(a[:1], visual[:1], semantic[:1, :0]), rtol=0, atol=1e-12)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32])
def test_multihead_attention_without_keys_is_its_bias(dtype):
    """Both implementations of the operator: float64 has no native kernel."""
    layer = build(BilateralMultiheadAttention, CHANNELS, HEADS, position='none').to(dtype)
    x, memory = (literal.randn(2, length, CHANNELS, seed=length).to(dtype).requires_grad_() for length in (3, 4))
    bias = layer.out_proj.bias.expand(2, 3, -1)
    masked = torch.ones(2, 4, dtype=torch.bool)
    negative = torch.full((2, 4), -torch.inf, dtype=dtype)
    none = memory[:, :0]
    for keys, mask in ((memory, masked), (memory, negative), (none, None), (none, masked[:, :0])):
        out, _ = layer(x, keys, keys, mask)
        assert torch.equal(out, bias)
        found = torch.autograd.grad(out.square().sum(), [x, keys, *layer.parameters()], allow_unused=True)
        assert all(y is None or y.isfinite().all() for y in found)
        assert not any(y.any() for y in found[:2])
        if mask is not negative:
            state = layer.start(keys, mask)
            assert torch.equal(layer.step(x[:, :1], state, 0)[0], bias[:, :1])
    assert torch.equal(layer(x[0], none[0], none[0])[0], bias[0])


def test_dropout_is_of_the_attention():
    layer, x = entangled(dropout=1.0), inputs()
    norms = {name: sublayer.norm for name, sublayer in layer.sublayers.items()}
    gs, gv = norms['semantic_guide'](x[0]), norms['visual_guide'](x[0])
    expected = gated(layer.controller, x[0], gs, gv, norms['visual'](gs), norms['semantic'](gv))
    torch.testing.assert_close(layer.train()(*x), expected)


A, V, S = inputs()

test_failures = failing(
    (lambda: entangled()(A, V, S, VISUAL_MASK, VISUAL_MASK), 'key_padding_mask'),
    (lambda: entangled().step(A, entangled().start(V, S), 0), '^x '),
)
