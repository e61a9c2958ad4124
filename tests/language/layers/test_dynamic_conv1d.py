"""DynamicConv1d against Eq. 5 to 7 in one dimension, one position and channel after another."""

import pytest
import torch
from mmengine.registry import MODELS
from torch.nn import functional as F

from mmattn.layers import DynamicConv1d

from ...ops import literal
from .sequences import (
    assert_causal,
    assert_padding_changes_nothing,
    assert_same_with_gradients,
    assert_steps_are_forward,
    build,
    padding,
)

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)

# Heads, kernel: shorter and longer than the sequence
SETTINGS = [(2, 1), (4, 3), (2, 5), (1, 13)]


def literally(layer, x, mask=None):
    p = dict(layer.named_parameters())
    a, gate = F.linear(x, p['glu.weight'], p['glu.bias']).chunk(2, -1)
    u = a * gate.sigmoid()
    k, channels = layer.kernel_size, x.shape[-1]
    first = -(k - 1) if layer.causal else -(k // 2)
    sentences = []
    for b in range(len(x)):
        inside = [t for t in range(x.shape[1]) if mask is None or not mask[b, t]]
        rows = []
        for t in range(x.shape[1]):
            source = u[b, t] if t in inside else torch.zeros_like(u[b, t])
            kernels = (p['kernel.weight'] @ source).unflatten(0, (layer.num_heads, k)).softmax(-1)
            row = []
            for c in range(channels):
                kernel = kernels[c // (channels // layer.num_heads)]
                terms = [kernel[e] * u[b, t + first + e, c] for e in range(k) if t + first + e in inside]
                row.append(sum(terms, torch.zeros((), dtype=torch.float64)))
            rows.append(torch.stack(row))
        sentences.append(torch.stack(rows))
    return F.linear(torch.stack(sentences), p['output.weight'], p['output.bias'])


@pytest.mark.parametrize('masked', [False, True], ids=['', 'padded'])
@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize(('num_heads', 'kernel_size'), SETTINGS)
@pytest.mark.parametrize('length', [1, 6])
def test_layer_is_the_equation(num_heads, kernel_size, causal, masked, length):
    layer = build(DynamicConv1d, 8, num_heads, kernel_size, causal)
    x = literal.randn(2, length, 8).requires_grad_()
    mask = padding(length, max(length - 2, 1), of=length) if masked else None
    out, weights = layer(x, x, x, mask)
    assert weights is None
    assert_same_with_gradients(out, literally(layer, x, mask), [x], layer)


@pytest.mark.parametrize('causal', [False, True])
def test_equal_logits_are_a_mean_filter(causal):
    """Over all entries of the kernel, those outside the sentence included."""
    layer, x = build(DynamicConv1d, 8, 2, 5, causal), literal.randn(2, 7, 8)
    torch.nn.init.zeros_(layer.kernel.weight)
    u = F.pad(F.glu(layer.glu(x)).mT, (4, 0) if causal else (2, 2))
    expected = layer.output(F.avg_pool1d(u, 5, 1).mT)
    torch.testing.assert_close(layer(x, x, x)[0], expected, atol=1e-12, rtol=1e-12)


def test_a_causal_kernel_ends_at_its_position():
    causal, x = build(DynamicConv1d, 8, 2, 3, True), literal.randn(2, 7, 8)
    u = F.glu(causal.glu(x))
    kernels = causal.kernel(u).unflatten(-1, (2, 3)).softmax(-1).repeat_interleave(4, 2)  # (B, L, E, 3)
    windows = F.pad(u, (0, 0, 2, 0)).unfold(1, 3, 1)  # (B, L, E, 3)
    expected = causal.output((kernels * windows).sum(-1))
    torch.testing.assert_close(causal(x, x, x)[0], expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize(('num_heads', 'kernel_size'), SETTINGS)
def test_padding_changes_nothing(num_heads, kernel_size, causal):
    layer = build(DynamicConv1d, 8, num_heads, kernel_size, causal)
    assert_padding_changes_nothing(layer, literal.randn(3, 6, 8), [6, 4, 1])


@pytest.mark.parametrize(('num_heads', 'kernel_size'), SETTINGS)
def test_causality_and_steps(num_heads, kernel_size):
    layer = build(DynamicConv1d, 8, num_heads, kernel_size, causal=True)
    assert_causal(layer, literal.randn(2, 6, 8))
    assert_steps_are_forward(layer, literal.randn(3, 8, 8))


def test_the_kernel_limits_the_state():
    layer, x = build(DynamicConv1d, 8, 2, 3, causal=True), literal.randn(3, 1, 8)
    state = {}
    for t in range(5):
        _, state = layer.step(x, state, t)
        assert {name: y.shape for name, y in state.items()} == {'inputs': (3, min(t + 1, 2), 8)}


def test_every_parameter_learns_from_the_start():
    layer, x = DynamicConv1d(16, 4, 3), torch.randn(2, 6, 16)
    assert not layer.glu.bias.any()
    assert not layer.output.bias.any()
    assert layer.kernel.bias is None
    layer(x, x, x)[0].pow(3).sum().backward()
    assert all(p.grad.abs().max() > 1e-7 for p in layer.parameters())


def test_compiled():
    layer, x = build(DynamicConv1d, 8, 2, 3, causal=True), literal.randn(2, 5, 8).requires_grad_()
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend='aot_eager')
    assert_same_with_gradients(compiled(x, x, x)[0], layer(x, x, x)[0], [x], layer)


def test_low_precision_is_near_full_precision():
    layer = build(DynamicConv1d, 16, 4, 5, causal=True).float()
    x = literal.randn(2, 6, 16, dtype=torch.float32)
    expected = layer(x, x, x)[0]
    with torch.autocast('cpu', torch.bfloat16):
        ours = layer(x, x, x)[0]
        step, _ = layer.step(x[:, :1], {}, 0)
    y = x.bfloat16()
    throughout = layer.bfloat16()(y, y, y)[0]
    assert throughout.dtype == torch.bfloat16
    for out, wanted in ((ours, expected), (throughout, expected), (step, expected[:, :1])):
        assert (out.float() - wanted).norm() < 0.05 * wanted.norm()  # bfloat16 has 8 bits


def test_a_config_names_it():
    layer = MODELS.build(dict(type='mmattn.DynamicConv1d', embed_dim=32))
    assert type(layer) is DynamicConv1d
    assert (layer.num_heads, layer.kernel_size, layer.causal) == (16, 31, False)


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r'^num_heads must divide embed_dim=8; got 3'):
        DynamicConv1d(8, 3)
    with pytest.raises(ValueError, match=r'^kernel_size must be an odd length .*; got 4'):
        DynamicConv1d(8, 2, 4)
    layer, x = DynamicConv1d(8, 2, 3), torch.randn(2, 4, 8)
    for inputs in ((x, x.clone(), x), (x, x, x.clone())):
        with pytest.raises(ValueError, match=r'^key and value must be query itself: DynamicConv1d'):
            layer(*inputs)
    with pytest.raises(ValueError, match=r'^query must be \(B, L, 8\); got \(2, 4, 7\)'):
        layer(*[x[..., :7]] * 3)
    with pytest.raises(ValueError, match=r'^query must be \(B, L, 8\); got \(4, 8\)'):
        layer(*[x[0]] * 3)
    with pytest.raises(TypeError, match=r'^key_padding_mask must be bool; got torch.int64'):
        layer(x, x, x, torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r'^memory and key_padding_mask must be None'):
        layer.start(x)
    with pytest.raises(ValueError, match=r'^step without memory requires causal=True'):
        layer.step(x[:, :1], {}, 0)
    causal = DynamicConv1d(8, 2, 3, causal=True)
    with pytest.raises(ValueError, match=r'^position must follow the state: it holds 0 tokens.*; got 2'):
        causal.step(x[:, :1], {}, 2)
    with pytest.raises(ValueError, match=r'^x must be \(n, 1, 8\)'):
        causal.step(x, {}, 0)
