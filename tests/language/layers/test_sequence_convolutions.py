"""DynamicConv1d and DeformConv1d against their equations, one position after another, and ordinary convolutions."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mmattn.language.layers import DeformConv1d, DynamicConv1d

from ...ops import literal
from .sequences import assert_causal, assert_same_with_gradients, assert_steps_are_forward, build, padding

# Heads, kernel: shorter and longer than the sequence
SETTINGS = [(2, 1), (4, 3), (2, 5), (1, 13)]


def literal_dynamic(layer, x, mask=None):
    p = dict(layer.named_parameters())
    u = F.linear(x, p['glu.weight'], p['glu.bias'])
    if layer.gated:
        a, gate = u.chunk(2, -1)
        u = a * gate.sigmoid()
    k, channels = layer.kernel_size, x.shape[-1]
    first = -(k - 1) if layer.is_causal else -(k // 2)
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
@pytest.mark.parametrize('gated', [True, False], ids=['', 'no GLU'])
@pytest.mark.parametrize('length', [1, 6])
def test_dynamic_layer_is_the_equation(num_heads, kernel_size, causal, masked, gated, length):
    layer = build(DynamicConv1d, 8, num_heads, kernel_size, causal, gated)
    x = literal.randn(2, length, 8).requires_grad_()
    mask = padding(length, max(length - 2, 1), of=length) if masked else None
    out, weights = layer(x, x, x, mask)
    assert weights is None
    assert_same_with_gradients(out, literal_dynamic(layer, x, mask), [x], layer)


@pytest.mark.parametrize('kernel_size', [1, 3])
def test_the_kernel_limits_the_state(kernel_size):
    layer, x = build(DynamicConv1d, 8, 2, kernel_size, is_causal=True), literal.randn(3, 1, 8)
    state = {}
    for t in range(5):
        _, state = layer.step(x, state, t)
        assert {name: y.shape for name, y in state.items()} == {'inputs': (3, min(t + 1, kernel_size - 1), 8)}


def literal_deformable(layer, x, mask=None):
    """Every input has weight max(0, 1 − distance) at a sampled position; a causal layer moves that to at most t."""
    k, length = layer.kernel_size, x.shape[1]
    first = -(k - 1) if layer.is_causal else -(k // 2)
    sentences = []
    for b in range(len(x)):
        inside = [q for q in range(length) if mask is None or not mask[b, q]]
        rows = []
        for t in range(length):
            y = layer.conv.bias
            for e in range(k):
                offset = layer.offset.bias[e]
                for f in range(k):
                    if t + first + f in inside:
                        offset = offset + layer.offset.weight[e, :, f] @ x[b, t + first + f]
                position = t + first + e + offset
                if layer.is_causal and position > t:
                    position = torch.tensor(float(t), dtype=torch.float64)
                for q in inside:
                    if abs(position - q) < 1:
                        y = y + (1 - abs(position - q)) * (layer.conv.weight[:, :, e] @ x[b, q])
            rows.append(y)
        sentences.append(torch.stack(rows))
    return torch.stack(sentences)


@pytest.mark.parametrize('masked', [False, True], ids=['', 'padded'])
@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('kernel_size', [1, 3, 5])
@pytest.mark.parametrize('length', [1, 7])
def test_deformable_layer_is_the_equation(kernel_size, causal, masked, length):
    layer = build(DeformConv1d, 4, kernel_size=kernel_size, is_causal=causal)
    x = literal.randn(2, length, 4).requires_grad_()
    mask = padding(length, max(length - 3, 1), of=length) if masked else None
    out, weights = layer(x, x, x, mask)
    assert weights is None
    assert_same_with_gradients(out, literal_deformable(layer, x, mask), [x], layer)


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('kernel_size', [1, 3, 5])
def test_without_offsets_it_is_an_ordinary_convolution(kernel_size, causal):
    """As a new layer is."""
    layer, stock = DeformConv1d(4, kernel_size=kernel_size, is_causal=causal).double(), nn.Conv1d(4, 4, kernel_size)
    assert not any(p.any() for p in layer.offset.parameters())
    stock.double().load_state_dict(layer.conv.state_dict())
    x, k = literal.randn(2, 7, 4), kernel_size
    expected = stock(F.pad(x.mT, (k - 1, 0) if causal else (k // 2, k // 2))).mT
    torch.testing.assert_close(layer(x, x, x)[0], expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('offsets', [(2, -1, -3), (0, 7, -8), (1, 1, 1), (-1e6, 1e6, 3)], ids=str)
def test_integer_offsets_gather(offsets, causal):
    layer, x, length = build(DeformConv1d, 4, is_causal=causal), literal.randn(2, 6, 4), 6
    nn.init.zeros_(layer.offset.weight)
    layer.offset.bias.data = torch.tensor(offsets, dtype=torch.float64)
    expected = layer.conv.bias.expand(2, length, 4).clone()
    for e, offset in enumerate(offsets):
        for t in range(length):
            where = t + e + int(offset) - (2 if causal else 1)
            where = min(where, t) if causal else where
            if 0 <= where < length:
                expected[:, t] += x[:, where] @ layer.conv.weight[:, :, e].T
    torch.testing.assert_close(layer(x, x, x)[0], expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('offset', [0.0, 0.3, 5.0, -0.7])
def test_later_inputs_are_not_in_the_gradients(offset):
    """Of the first outputs: at the integer positions of a new layer, too, where a slope from the right would be."""
    layer = build(DeformConv1d, 4, is_causal=True)
    nn.init.zeros_(layer.offset.weight)
    nn.init.constant_(layer.offset.bias, offset)
    found = []
    for seed in (1, 2):
        x = torch.cat([literal.randn(2, 3, 4), literal.randn(2, 3, 4, seed=seed)], 1).requires_grad_()
        loss = layer(x, x, x)[0][:, :3].square().sum()
        grad_x, *grads = torch.autograd.grad(loss, [x, *layer.parameters()])
        assert not grad_x[:, 3:].any()
        found.append(grads)
    torch.testing.assert_close(*found, atol=1e-13, rtol=1e-13)
    assert (found[0][2].abs().sum() > 1e-3) == (offset < 2)  # offsets learn, unless all are clamped


def test_an_invalid_input_is_an_invalid_output():
    """Not an index out of range."""
    layer, x = build(DeformConv1d, 4), literal.randn(1, 6, 4)
    x[0, 3, 0] = math.nan
    assert layer(x, x, x)[0][0, 2:5].isnan().all()


def test_deformable_low_precision_is_near_full_precision():
    """At a position above 256, too, where bfloat16 has no odd integers."""
    layer = build(DeformConv1d, 4).float()
    nn.init.zeros_(layer.offset.weight)
    x = literal.randn(1, 600, 4, dtype=torch.float32)
    expected = layer(x, x, x)[0]
    with torch.autocast('cpu', torch.bfloat16):
        ours = layer(x, x, x)[0]
    y = x.bfloat16()
    throughout = layer.bfloat16()(y, y, y)[0]
    assert throughout.dtype == torch.bfloat16
    for out in (ours, throughout):
        assert (out.float() - expected).norm() < 0.03 * expected.norm()


# Both.

BOTH = [(DynamicConv1d, dict(embed_dim=8, num_heads=heads, kernel_size=size)) for heads, size in SETTINGS]
BOTH += [(DeformConv1d, dict(embed_dim=4, kernel_size=size)) for size in (1, 3, 5)]


@pytest.mark.parametrize(('cls', 'options'), BOTH)
def test_causality_and_steps(cls, options):
    layer, channels = build(cls, **options, is_causal=True), options['embed_dim']
    if cls is DeformConv1d:
        layer.offset.weight.data *= 3
    assert_causal(layer, literal.randn(2, 6, channels))
    assert_steps_are_forward(layer, literal.randn(3, 8, channels))


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize(('cls', 'options'), BOTH[1::4])
def test_every_parameter_of_a_new_layer_learns(cls, options, causal):
    layer, x = cls(**options, is_causal=causal), torch.randn(2, 6, options['embed_dim'])
    layer(x, x, x)[0].pow(3).sum().backward()
    assert all(p.grad.abs().max() > 1e-7 for p in layer.parameters())


X = torch.randn(2, 4, 16)


@pytest.mark.parametrize('cls', [DynamicConv1d, DeformConv1d])
@pytest.mark.parametrize(
    ('call', 'names'),
    [
        (lambda cls: cls(16)(X, X[:, :3], X), 'key'),
        (lambda cls: cls(16)(X, X, X, torch.zeros(2, 5, dtype=torch.bool)), 'key_padding_mask'),
        (lambda cls: cls(16).start(X), 'memory'),
        (lambda cls: cls(16).step(X[:, :1], {}, 0), 'is_causal'),
        (lambda cls: cls(16, is_causal=True).step(X[:, :1], {}, 2), 'position'),
        (lambda cls: cls(16, is_causal=True).step(X, {}, 0), 'x must'),
    ],
)
def test_failures(cls, call, names):
    with pytest.raises(ValueError, match=names):
        call(cls)
