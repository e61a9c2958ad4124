"""Transformer attention of sequences against a double loop over queries and keys, and against the stock module."""

import functools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmattn.language.layers import TransformerAttention1d

from ...ops import literal
from ..failing import failing
from .sequences import assert_same_with_gradients, assert_steps_are_forward, build, padding

TERMS = [f'{i:04b}' for i in range(16)]
# Lengths of query and key (None: self-attention), and options
CASES = {
    'self': (5, None, {}),
    'causal': (5, None, dict(is_causal=True)),
    'one': (1, None, dict(is_causal=True)),
    'longer': (3, 6, {}),
    'shorter': (6, 2, dict(bias=False)),
    'bias of the query': (3, 6, dict(query_bias=True)),
    'single': (1, 4, {}),
    'single key': (4, 1, {}),
    'range 1': (5, None, dict(spatial_range=1)),
    'range 3': (5, None, dict(spatial_range=3)),
    'range 3 causal': (5, None, dict(spatial_range=3, is_causal=True)),
    'range 13': (5, None, dict(spatial_range=13)),
    'range 13 causal': (5, None, dict(spatial_range=13, is_causal=True)),
}


@functools.cache
def encoding(offset, channels):
    angles = [offset * 10000 ** (-2 * c / channels) for c in range(channels // 2)]
    return torch.tensor([f(angle) for angle in angles for f in (math.sin, math.cos)], dtype=torch.float64)


def literally(layer, query, key, value, mask=None, is_causal=False, spatial_range=None, **_):
    """One pair after another."""
    heads, channels = layer.num_heads, query.shape[-1]
    d = channels // heads
    b1, b2, b3, b4 = map(int, layer.terms)
    p = dict(layer.named_parameters())

    def projected(name, x):
        y = x @ p[f'{name}.weight'].T
        return (y + p[f'{name}.bias'] if f'{name}.bias' in p else y).unflatten(-1, (heads, d))

    q = projected('q_proj', query) if b1 or b2 else None  # (B, L, heads, d)
    k = projected('k_proj', key) if b1 or b3 else None
    v = projected('v_proj', value)
    r = {}
    if b2 or b4:
        offsets = range(1 - key.shape[1], query.shape[1])
        r = {offset: projected('r_proj', encoding(offset, channels)) for offset in offsets}
    sentences = []
    for b in range(len(query)):
        rows = []
        for i in range(query.shape[1]):
            seen = [
                j
                for j in range(key.shape[1])
                if (mask is None or not mask[b, j])
                and (not is_causal or j <= i)
                and (spatial_range is None or abs(i - j) <= (spatial_range - 1) / 2)
            ]
            joined = []
            for m in range(heads):
                logits = []
                for j in seen:
                    logit = torch.zeros((), dtype=torch.float64)
                    if b1:
                        logit = logit + q[b, i, m] @ k[b, j, m]
                    if b2:
                        logit = logit + q[b, i, m] @ r[i - j][m]
                    if b3:
                        logit = logit + p['content_bias'][m] @ k[b, j, m]
                    if b4:
                        logit = logit + p['position_bias'][m] @ r[i - j][m]
                    logits.append(logit / math.sqrt(d))
                joined.append(torch.stack(logits).softmax(0) @ v[b, seen, m] if seen else 0 * v[b, 0, m])
            rows.append(F.linear(torch.cat(joined), p['out_proj.weight'], p.get('out_proj.bias')))
        sentences.append(torch.stack(rows))
    return torch.stack(sentences)


def inputs_of(length, count, channels=8):
    query = literal.randn(2, length, channels, seed=1).requires_grad_()
    if count is None:
        return query, query, query
    return query, *(literal.randn(2, count, channels, seed=seed).requires_grad_() for seed in (2, 3))


# Values.


@pytest.mark.filterwarnings('ignore:terms=')
@pytest.mark.parametrize('masked', [False, True], ids=['', 'padded'])
@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('terms', TERMS)
def test_layer_is_the_double_loop(terms, case, masked):
    length, count, options = CASES[case]
    layer = build(TransformerAttention1d, 8, 2, terms=terms, **options)
    inputs = inputs_of(length, count)
    keys = count or length
    mask = padding(keys, max(keys - 2, 1), of=keys) if masked else None
    out, weights = layer(*inputs, mask)
    assert weights is None
    distinct = inputs if count else inputs[:1]
    assert_same_with_gradients(out, literally(layer, *inputs, mask, **options), distinct, layer)


@pytest.mark.parametrize(('terms', 'channels'), [('1111', 6), ('0100', 6), ('1010', 9)])
def test_other_sizes(terms, channels):
    """Three heads, an odd number of channels without positions, and sequences of which one is much longer."""
    layer = build(TransformerAttention1d, channels, 3, terms=terms)
    for length, count in ((2, 11), (11, 2)):
        inputs = inputs_of(length, count, channels)
        assert_same_with_gradients(layer(*inputs)[0], literally(layer, *inputs), inputs, layer)


def test_a_new_layer_has_xavier_matrices_and_zeros():
    for name, x in TransformerAttention1d(64, 4).named_parameters():
        if name.endswith('proj.weight'):
            bound = (6 / 128 * (0.5 if name[0] in 'qkv' else 1)) ** 0.5
            assert 0.95 * bound < x.abs().max() <= bound
        else:
            assert not x.any()


@pytest.mark.filterwarnings('ignore:terms=')
@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('case', ['self', 'causal', 'longer'])
def test_query_and_key_content_is_the_stock_module(case, masked, bias):
    length, count, options = CASES[case]
    layer = build(TransformerAttention1d, 8, 2, terms='1000', **options, bias=bias, query_bias=bias)
    stock = nn.MultiheadAttention(8, 2, bias=bias, batch_first=True, dtype=torch.float64)
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    state = {'in_proj_weight': torch.cat([x.weight for x in projections]), 'out_proj.weight': layer.out_proj.weight}
    if bias:
        state |= {'in_proj_bias': torch.cat([x.bias for x in projections]), 'out_proj.bias': layer.out_proj.bias}
    stock.load_state_dict(state)
    inputs = inputs_of(length, count)
    keys = count or length
    mask = padding(keys, keys - 2, of=keys) if masked else None
    future = torch.ones(length, length, dtype=torch.bool).triu(1) if options else None
    expected, _ = stock(*inputs, key_padding_mask=mask, attn_mask=future)
    torch.testing.assert_close(layer(*inputs, mask)[0], expected, atol=1e-12, rtol=1e-12)


# Decoding.


@pytest.mark.parametrize('spatial_range', [None, 1, 3, 5, 31])
@pytest.mark.parametrize('terms', TERMS)
def test_steps_are_forward(terms, spatial_range):
    layer = build(TransformerAttention1d, 8, 2, terms=terms, is_causal=True, spatial_range=spatial_range)
    assert_steps_are_forward(layer, literal.randn(3, 7, 8))


def test_a_range_limits_the_state():
    layer, x = build(TransformerAttention1d, 8, 2, is_causal=True, spatial_range=5), literal.randn(3, 1, 8)
    state = {}
    for t in range(6):
        _, state = layer.step(x, state, t)
        assert {name: y.shape for name, y in state.items()} == dict.fromkeys(['key', 'value'], (3, 2, min(t + 1, 2), 4))


@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('terms', TERMS)
def test_steps_with_a_memory_are_forward(terms, masked):
    """Two sentences of three hypotheses each; the memory is in the state once per sentence."""
    layer = build(TransformerAttention1d, 8, 2, terms=terms)
    memory, x = literal.randn(2, 5, 8, seed=1), literal.randn(6, 4, 8)
    mask = padding(5, 3, of=5) if masked else None
    state = layer.start(memory, mask)
    expected_names = {'memory_value', *(['memory_mask'] if masked else [])}
    assert {*state} == expected_names | ({'memory_key'} if '1' in (terms[0], terms[2]) else set())
    assert all(len(y) == 2 for y in state.values())
    repeated = memory.repeat_interleave(3, 0)
    expected = layer(x, repeated, repeated, mask.repeat_interleave(3, 0) if masked else None)[0]
    for t in range(4):
        out, new = layer.step(x[:, t : t + 1], state, t)
        torch.testing.assert_close(out, expected[:, t : t + 1], atol=1e-12, rtol=1e-12)
        assert new.keys() == state.keys()
        assert all(new[name] is state[name] for name in state)
        state = new


# What it takes.


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that an operator returns."""

    def __init__(self):
        super().__init__()
        self.found = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [x.untyped_storage().nbytes() // x.itemsize for x in tree_leaves(out) if torch.is_tensor(x)]
        self.found = max([self.found, *sizes])
        return out


@pytest.mark.parametrize('backend', ['auto', 'reference'])
@pytest.mark.parametrize('case', ['self', 'causal', 'cross'])
@pytest.mark.parametrize('terms', ['0100', '0001', '1111'])
def test_no_vector_per_pair(terms, case, backend, monkeypatch):
    """No tensor of L·L·d elements, forward or backward: a row of E2 and E4 has one logit per offset."""
    monkeypatch.setenv('MMATTN_BACKEND', backend)
    length, heads, channels = 96, 2, 64
    layer = TransformerAttention1d(channels, heads, terms, is_causal=case == 'causal')
    x = torch.randn(1, length, channels)
    memory = torch.randn(1, length, channels) if case == 'cross' else x
    with Largest() as largest:
        layer(x, memory, memory)[0].sum().backward()
    assert length * channels <= largest.found <= heads * length * 2 * length < length * length * channels / 10


# Its weights.


@pytest.mark.parametrize('case', ['self', 'causal', 'longer', 'range 3', 'range 3 causal'])
@pytest.mark.parametrize('terms', TERMS)
def test_weights_make_the_layers_output(terms, case):
    length, count, options = CASES[case]
    layer = build(TransformerAttention1d, 8, 2, terms=terms, **options)
    inputs, queries = inputs_of(length, count), torch.tensor([[0], [2]])
    mask = padding(count or length, 3, of=count or length)
    weights = layer.attention_weights(*inputs, mask, queries=queries, kind=layer.attention_kinds[-1])
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    y = torch.einsum('bhqm,bhmd->bqhd', weights, layer.operands(*inputs)['value']).flatten(2)
    torch.testing.assert_close(layer.out_proj(y), layer(*inputs, mask)[0][:, [0, 2]], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('case', ['self', 'longer', 'range 3 causal'])
@pytest.mark.parametrize('terms', ['1111', '0011', '0110', '1101'])
def test_kinds_are_the_layer_with_fewer_terms(terms, case):
    length, count, options = CASES[case]
    layer = build(TransformerAttention1d, 8, 2, terms=terms, **options)
    assert layer.attention_kinds == ('content', 'position', 'bilateral')
    inputs, queries = inputs_of(length, count), torch.tensor([[1], [0]])
    single = {f'E{i + 1}': ''.join(switch if j == i else '0' for j in range(4)) for i, switch in enumerate(terms)}
    single = {kind: kept for kind, kept in single.items() if '1' in kept}
    assert layer.attention_terms == (*single,)
    kinds = dict(content=f'{terms[0]}0{terms[2]}0', position=f'0{terms[1]}0{terms[3]}')
    for kind, kept in (kinds | single).items():
        fewer = TransformerAttention1d(8, 2, kept, **options).double()
        fewer.load_state_dict(layer.state_dict(), strict=False)
        assert fewer.attention_kinds == ('content' if '1' in kept[::2] else 'position',)
        torch.testing.assert_close(
            layer.attention_weights(*inputs, queries=queries, kind=kind),
            fewer.attention_weights(*inputs, queries=queries, kind=fewer.attention_kinds[0]),
        )


def attention(**options):
    return TransformerAttention1d(**{'embed_dim': 8, 'num_heads': 2, **options})


X, TOKEN = torch.randn(2, 4, 8), torch.randn(3, 1, 8)
MASK = torch.zeros(2, 4, dtype=torch.bool)


test_failures = failing(
    (lambda: attention(embed_dim=9, num_heads=3), 'embed_dim'),
    (lambda: attention(spatial_range=4), 'spatial_range'),
    (lambda: attention(is_causal=True)(X, X[:, :3], X), 'key'),
    (lambda: attention(spatial_range=3)(X, X[:, :3], X), 'key'),
    (lambda: attention(is_causal=True).start(X), 'memory'),
    (lambda: attention()(X, X, X, torch.zeros(2, 4)), 'key_padding_mask'),
    (lambda: attention(is_causal=True).start(key_padding_mask=MASK), 'key_padding_mask'),
    (lambda: attention().step(TOKEN, attention().start(X), 0), 'x must'),
    (lambda: attention().step(TOKEN, {}, 0), 'step without memory'),
    *((lambda t=t: attention(is_causal=True).step(TOKEN, {}, t), 'position') for t in (1, -1, 0.0)),
    (
        lambda: attention(terms='1010').attention_weights(X, X, X, queries=torch.zeros(2, 1).long(), kind='position'),
        'kind',
    ),
    error=(TypeError, ValueError),
    match='^{}',
)
