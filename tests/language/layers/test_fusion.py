"""Hadamard fusion against Algorithm 1 and the Tucker product, MCB against the sketch of an outer product."""

import functools
import itertools
import math
import pickle
import random

import pytest
import torch
from torch import nn

from mmattn.language.layers import ConcatFusion, HadamardFusion, MCBFusion
from mmattn.language.layers.fusion import PostFusionNetwork

from ...ops import literal
from ..failing import failing
from .sequences import assert_same_with_gradients, build

TQ, TV, TO = 3, 4, 5
F_OF = {
    'identity': lambda x: x,
    'leaky_relu': lambda x: x.clamp(min=0) + 0.01 * x.clamp(max=0),
    'selu': lambda x: 1.0507009873554805 * (x.clamp(min=0) + 1.6732632423543772 * (x.clamp(max=0).exp() - 1)),
    'sigmoid': lambda x: 1 / (1 + (-x).exp()),
    'tanh': lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
}
IDENTITY_OF = {'add': 0.0, 'multiply': 1.0, 'max': -math.inf, 'min': math.inf}
RELATION = {'add': torch.add, 'multiply': torch.mul, 'max': torch.maximum, 'min': torch.minimum}
NE = dict(query_activation=tuple(F_OF), value_activation='selu')
FG = dict(relations=('add', 'multiply'), groups=((0, 1, 2, 3), (4,)), squash=('identity',) * 4 + ('sigmoid',))
PS = dict(FG, squash=('identity',) * 4 + ('tanh',))
FG_PS = dict(
    relations=('add', 'multiply', 'multiply'),
    groups=((0, 1, 2), (3,), (4,)),
    squash=('identity',) * 3 + ('sigmoid', 'tanh'),
)
CONFIGURATIONS = {'MUTAN': {}, 'NE': NE, 'FG': FG, 'PS': PS, 'FG+PS': FG_PS, 'NE+FG': NE | FG, 'NE+PS': NE | PS}
CONFIGURATIONS |= {'MLB': dict(num_branches=1), 'NE+FG+Φ': NE | FG | dict(post_network=dict(hidden_dim=2))}


def fusion(**options):
    return build(HadamardFusion, TQ, TV, TO, **options)


def inputs(*size):
    return [literal.randn(*size, channels, seed=channels).requires_grad_() for channels in (TQ, TV)]


def branches(layer, query, value):
    """T_r, each with its own M_r and N_r; Φ of two blocks of three layers, with the input and both ends in the sum."""
    found = []
    for r in range(len(layer.squash)):
        rows = slice(r * TO, (r + 1) * TO)
        q = query @ layer.query_proj.weight[rows].T + layer.query_proj.bias[rows]
        v = value @ layer.value_proj.weight[rows].T + layer.value_proj.bias[rows]
        f = F_OF[layer.query_activation[r]]
        t = f(q) * F_OF[layer.value_activation[r]](v)
        if layer.post_networks is not None:
            (a, b, c), (d, e, g) = layer.post_networks[r].blocks
            h3 = f(c(f(b(f(a(t))))))
            t = t + h3 + f(g(f(e(f(d(h3))))))
        found.append(F_OF[layer.squash[r]](t))
    return found


def algorithm_1(branches, relations, groups):
    u = torch.full_like(branches[0], IDENTITY_OF[relations[0]])
    for name, group in zip(relations, groups):
        of_group = torch.full_like(u, IDENTITY_OF[name])
        for r in group:
            of_group = RELATION[name](of_group, branches[r])
        u = RELATION[name](u, of_group)
    return u


@pytest.mark.parametrize('name', CONFIGURATIONS)
def test_fusion_is_the_equation(name):
    """Values and gradients: those of branches that are computed separately."""
    layer, x = fusion(**CONFIGURATIONS[name]), inputs(2)
    expected = algorithm_1(branches(layer, *x), layer.relations, layer.groups)
    assert_same_with_gradients(layer(*x), expected, x, layer, 1e-12)


@pytest.mark.parametrize('seed', range(8))
def test_random_partitions_and_relations(seed):
    """The order of the branches in a group is free, that of the groups is not."""
    chance = random.Random(seed)
    count = chance.randint(1, 6)
    order = chance.sample(range(count), count)
    cuts = sorted({0, count, *(chance.randint(0, count) for _ in range(2))})
    groups = [order[a:b] for a, b in itertools.pairwise(cuts)]
    relations = [chance.choice([*RELATION]) for _ in groups]
    layer, x = fusion(num_branches=count, relations=relations, groups=groups), inputs(2)
    expected = algorithm_1(branches(layer, *x), relations, groups)
    assert_same_with_gradients(layer(*x), expected, x, layer, 1e-12)
    other = fusion(num_branches=count, relations=relations, groups=[group[::-1] for group in groups])
    torch.testing.assert_close(other(*x), layer(*x), atol=1e-12, rtol=1e-12)


def test_product_and_sum():
    q, v = (literal.randn(2, TO, seed=seed) for seed in range(2))
    product = HadamardFusion(TO, TO, TO, num_branches=1, project=False)
    assert torch.equal(product(q, v), q * v)
    total = HadamardFusion(
        TO, TO, TO, 2, project=False, query_activation=('identity', 'one'), value_activation=('one', 'identity')
    )
    assert torch.equal(total(q, v), q + v)
    assert not [*product.parameters(), *total.parameters()]


@pytest.mark.parametrize('hidden', [False, True])
def test_concatenation(hidden):
    layer, x = build(ConcatFusion, TQ, TV, TO, hidden), inputs(2)
    first = layer.layers[0] if hidden else layer.layers
    expected = torch.cat(x, -1) @ first.weight.T + first.bias
    if hidden:
        expected = layer.layers[2](expected.clamp(min=0))
    assert_same_with_gradients(layer(*x), expected, x, layer, 1e-12)


@pytest.mark.parametrize('skip', ['add', 'concat'])
@pytest.mark.parametrize('activation', F_OF)
def test_post_fusion_network(activation, skip):
    f, x = F_OF[activation], literal.randn(2, TO, seed=9).requires_grad_()
    network = build(PostFusionNetwork, TO, functools.partial(f), 2, 2, skip)
    (a, b, c), (d, e, g) = network.blocks
    h3 = f(c(f(b(f(a(x))))))
    h6 = f(g(f(e(f(d(h3))))))
    expected = x + h3 + h6 if skip == 'add' else network.out_proj(torch.cat([x, h3, h6], -1))
    assert_same_with_gradients(network(x), expected, [x], network, 1e-12)
    if skip == 'add':
        for block in network.blocks:
            nn.init.zeros_(block[2].weight)
            nn.init.zeros_(block[2].bias)
        assert torch.equal(network(x), x) == (activation != 'sigmoid')  # f(0) = 0


@pytest.mark.parametrize('chunk_size', [None, 1, 3, 7, 9])
@pytest.mark.parametrize('name', ['MUTAN', 'NE+FG+Φ'])
def test_many_positions_are_many_fusions(name, chunk_size):
    """(B, 1, ·) with (B, n, ·), and (B, n, ·) with (B, n, ·); in chunks, too."""
    layer = fusion(chunk_size=chunk_size, **CONFIGURATIONS[name])
    (question, _), (questions, values) = inputs(2, 1), inputs(2, 7)
    for query in (question, questions):
        expected = torch.stack([layer(query[:, min(i, query.shape[1] - 1)], values[:, i]) for i in range(7)], 1)
        assert_same_with_gradients(layer(query, values), expected, [query, values], layer, 1e-12)
    assert layer(question, values[:, :0]).shape == (2, 0, TO)


def test_dropout_in_post_fusion_networks():
    """In training, a channel is 0 or twice as large. Chunks repeat the same choice in the backward pass."""
    network = build(PostFusionNetwork, TO, F_OF['selu'], 400, 1, dropout=0.5)
    x, hidden = literal.randn(1, TO, seed=9), []
    network.blocks[0][1].register_forward_pre_hook(lambda module, args: hidden.append(args[0]))
    network.train()(x)
    network.eval()(x)
    dropped = hidden[0] == 0
    assert 120 < dropped.sum() < 280
    torch.testing.assert_close(hidden[0], torch.where(dropped, 0, 2 * hidden[1]), rtol=1e-12, atol=0)

    layer = fusion(**NE, post_network=dict(hidden_dim=6, dropout=0.5), chunk_size=7).train()
    (query, _), (_, values) = inputs(2, 1), inputs(2, 7)
    gradients = []
    for chunk_size in (7, None):
        layer.chunk_size = chunk_size
        torch.manual_seed(0)
        gradients.append(torch.autograd.grad(layer(query, values).sum(), [query, values, *layer.parameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-11)


def outer_sketch(layer, q, v):
    """Ψ(q ⊗ v) with the hash h_q + h_v mod d and the sign s_q s_v."""
    d = layer.sketch_dim
    out = [q.new_zeros(len(q)) for _ in range(d)]
    for i, j in itertools.product(range(q.shape[1]), range(v.shape[1])):
        k = int(layer.query_index[i] + layer.value_index[j]) % d
        out[k] = out[k] + layer.query_sign[i] * layer.value_sign[j] * q[:, i] * v[:, j]
    return torch.stack(out, 1)


@pytest.mark.parametrize('normalize', [False, True])
@pytest.mark.parametrize('size', [1, 2, 7, 8, 100])
def test_mcb_is_the_count_sketch_of_the_outer_product(size, normalize):
    layer, x = build(MCBFusion, TQ, TV, TO, size, normalize), inputs(2)
    sketch = outer_sketch(layer, *x)
    assert_same_with_gradients(layer.sketch(*x), sketch, x, nn.Identity(), 1e-12)
    sketch = layer.sketch(*x)
    sketch = sketch.where(sketch.abs() > 1e-14, 0)  # entries without a pair, of which the transform leaves noise
    if normalize:
        sketch = sketch.sign() * sketch.abs().sqrt()
        sketch = sketch / sketch.square().sum(-1, keepdim=True).sqrt()
    torch.testing.assert_close(layer(*x), layer.out_proj(sketch), atol=1e-12, rtol=1e-12)


def test_mcb_estimates_products_without_bias():
    """The mean of ⟨MCB(q, v), MCB(q', v')⟩ over seeds is ⟨q, q'⟩⟨v, v'⟩: with one hash for both it would not be."""
    q, v = literal.randn(2, TQ, seed=1), literal.randn(2, TV, seed=2)
    expected = (q[0] @ q[1]) * (v[0] @ v[1])
    found = []
    for seed in range(400):
        sketch = MCBFusion(TQ, TV, TO, 16, seed=seed).double().sketch(q, v)
        found.append(sketch[0] @ sketch[1])
    found = torch.stack(found)
    assert (found.mean() - expected).abs() < 4 * found.std() / 20


def test_hashes_follow_the_seed_and_are_saved():
    torch.manual_seed(1)
    first, other = MCBFusion(TQ, TV, TO, 50, seed=3), MCBFusion(TQ, TV, TO, 50, seed=4)
    torch.manual_seed(2)
    again = MCBFusion(TQ, TV, TO, 50, seed=3)
    hashes = ('query_index', 'query_sign', 'value_index', 'value_sign')
    assert all(torch.equal(getattr(first, name), getattr(again, name)) for name in hashes)
    assert not torch.equal(first.value_index, other.value_index)
    other.load_state_dict(first.state_dict())
    assert all(torch.equal(getattr(first, name), getattr(other, name)) for name in hashes)
    q, v = (torch.randn(2, channels) for channels in (TQ, TV))
    assert torch.equal(first(q, v), other(q, v))


def test_mcb_under_autocast_transforms_in_float32():
    layer, (q, v) = MCBFusion(TQ, TV, TO, 8), [x.detach().float() for x in inputs(2)]
    with torch.autocast('cpu', torch.bfloat16):
        out = layer(q.bfloat16(), v.bfloat16())
    torch.testing.assert_close(out.float(), layer(q, v), atol=2e-2, rtol=2e-2)


def test_pickled_and_quantized():
    x, y = literal.randn(2, 3, 4).float(), literal.randn(2, 3, 5).float()
    hadamard = HadamardFusion(4, 5, 6, 3, post_network={})
    assert torch.equal(pickle.loads(pickle.dumps(hadamard))(x, y), hadamard(x, y))
    mcb = MCBFusion(4, 5, 3, sketch_dim=16)
    quantized = torch.ao.quantization.quantize_dynamic(mcb, {nn.Linear}, torch.qint8)
    assert not isinstance(quantized.out_proj, nn.Linear)
    torch.testing.assert_close(quantized(x, y), mcb(x, y), atol=0.05, rtol=0.05)


@pytest.mark.parametrize('sizes', [(16, 32, 500), (128, 64, 1000)])
def test_features_that_are_0_have_the_gradient_of_an_exact_sketch(sizes):
    """The Fourier transform leaves noise in place of zeros, where the root has no derivative."""
    query_dim, value_dim, size = sizes
    torch.manual_seed(0)
    layer = MCBFusion(query_dim, value_dim, 8, sketch_dim=size)
    q, v = torch.randn(4, query_dim), torch.randn(4, value_dim).relu().requires_grad_()
    (actual,) = torch.autograd.grad(layer(q, v).square().sum(), v)
    index = (layer.query_index[:, None] + layer.value_index) % size
    products = q.double()[:, :, None] * v.double()[:, None] * (layer.query_sign[:, None] * layer.value_sign)
    u = torch.zeros(4, size, dtype=torch.float64).index_add(1, index.flatten(), products.flatten(1))
    root = u.sign() * u.abs().where(u != 0, 1).sqrt()
    out = layer.double().out_proj(torch.nn.functional.normalize(root.where(u != 0, 0), dim=-1))
    (expected,) = torch.autograd.grad(out.square().sum(), v)
    torch.testing.assert_close(actual, expected, atol=1e-3 * expected.abs().max().item(), rtol=1e-2)
    zero = torch.zeros_like(q).double().requires_grad_()
    grads = torch.autograd.grad(layer(zero, v.double()).square().sum(), [zero, v, *layer.parameters()])
    assert all(grad.isfinite().all() for grad in grads)


def test_the_hashes_of_mcb_are_on_the_device_of_the_context():
    with torch.device('meta'):
        layer = MCBFusion(TQ, TV, TO, 8)
    assert {x.device.type for x in (*layer.buffers(), *layer.parameters())} == {'meta'}


test_failures = failing(
    (lambda: fusion(query_activation='relu'), 'query_activation'),
    (lambda: fusion(value_activation=('tanh',) * 4), 'value_activation'),
    (lambda: fusion(squash='selu'), 'squash'),
    (lambda: fusion(relations=('subtract',)), 'relations'),
    (lambda: fusion(relations=()), 'relations'),
    (lambda: fusion(relations=('add', 'add')), 'relations'),
    (lambda: fusion(relations=('add', 'add'), groups=((0, 1, 2), (2, 3, 4))), 'groups'),
    (lambda: fusion(relations=('add', 'add'), groups=((0, 1, 2, 3, 4), ())), 'groups'),
    (lambda: fusion(groups=((0, 1, 2, 3),)), 'groups'),
    (lambda: fusion(project=False), 'project'),
    (lambda: fusion()(torch.ones(2, TQ), torch.ones(2, 1, TV)), 'dimensions'),
)
