"""Bilinear logits, joint softmax and pooling against the sums of the equations, and as operators; the count sketch."""

import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmattn import ops
from mmattn.ops import count_sketch
from mmattn.utils.profiling import extra_memory

from ...ops import literal
from ...ops.literal import assert_same, check_operator, evaluate, randn
from ..failing import failing

B, G, Q, K, C = 3, 2, 4, 5, 6
TENSORS = {
    'bilinear_logits': {'query': randn(B, Q, C, seed=1), 'key': randn(B, K, C, seed=2), 'weight': randn(G, C, seed=3)},
    'bilinear_pooling': {
        'weights': randn(B, G, Q, K, seed=1),
        'query': randn(B, Q, C, seed=2),
        'value': randn(B, K, C, seed=3),
    },
}
both = pytest.mark.parametrize('name', TENSORS)
pairs = list(itertools.product(range(Q), range(K)))


def of_pairs(query, key, weight, pooled_query, value, query_mask=None, key_mask=None):
    """The network of Eq. 6 to 9, pair by pair."""
    logits = torch.stack([(weight * (query[:, i] * key[:, j])[:, None]).sum(-1) for i, j in pairs], -1)  # (B, G, QK)
    if query_mask is not None:
        allowed = torch.stack([query_mask[:, i] & key_mask[:, j] for i, j in pairs], -1)
        logits = logits.masked_fill(~allowed[:, None], -torch.inf)
    weights = logits.exp() / logits.exp().sum(-1, keepdim=True)
    return sum(
        weights[..., n, None] * (pooled_query[:, i] * value[:, j])[:, None] for n, (i, j) in enumerate(pairs)
    )  # fmt: skip


@both
def test_values_and_gradients_are_the_sums(name, monkeypatch):
    expected = evaluate(getattr(literal, name), TENSORS[name])
    assert_same(evaluate(getattr(ops, name), TENSORS[name]), expected, 1e-12, 1e-12)
    lengths = literal.record_slices(monkeypatch, 'mmattn.language.layers.bilinear_attention')
    monkeypatch.setattr('mmattn.ops.chunks.CHUNK_BYTES', 2 * (2 * G * Q + K) * C * 8)  # two samples
    assert_same(evaluate(getattr(ops, name), TENSORS[name]), expected, 1e-12, 1e-12)
    assert lengths == [2, 1] * 2  # forward and backward


def test_a_batch_of_gradients():
    """By ``is_grads_batched``, which vectorised Jacobians use: the gradients that a loop gives."""
    leaves = {**TENSORS['bilinear_logits'], 'pooled_query': randn(B, Q, 3, seed=4), 'value': randn(B, K, 3, seed=5)}
    leaves = {name: x.clone().requires_grad_() for name, x in leaves.items()}
    index, sign = torch.tensor([0, 1, 0]), randn(3, seed=6).sign().requires_grad_()
    key_mask = torch.arange(K) < torch.tensor([[3], [5], [1]])
    out = count_sketch(ops.bilinear_attention(**leaves, key_mask=key_mask), index, sign, 2)
    inputs, batch = [*leaves.values(), sign], randn(3, *out.shape, seed=7)
    found = torch.autograd.grad(out, inputs, batch, is_grads_batched=True, retain_graph=True)
    loop = zip(*(torch.autograd.grad(out, inputs, x, retain_graph=True) for x in batch))
    for x, expected in zip(found, loop):
        torch.testing.assert_close(x, torch.stack(expected), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('masked', [False, True])
def test_attention_is_the_equation(masked):
    tensors = {**TENSORS['bilinear_logits'], 'pooled_query': randn(B, Q, 3, seed=4), 'value': randn(B, K, 3, seed=5)}
    masks = dict(query_mask=torch.arange(Q) < torch.tensor([[4], [2], [1]]),
                 key_mask=torch.arange(K) < torch.tensor([[3], [5], [1]])) if masked else {}  # fmt: skip
    expected = evaluate(of_pairs, tensors, **masks)
    assert_same(evaluate(ops.bilinear_attention, tensors, **masks), expected, 1e-12, 1e-12)


@pytest.mark.parametrize('fault', ['mask', 'no queries', 'no keys', 'no batch', 'no glimpses'])
def test_without_a_pair_the_output_is_0_and_so_are_the_gradients(fault):
    tensors = {**TENSORS['bilinear_logits'], 'pooled_query': randn(B, Q, 3, seed=4), 'value': randn(B, K, 3, seed=5)}
    masks = {}
    if fault == 'mask':
        masks = {'query_mask': torch.ones(B, Q, dtype=torch.bool), 'key_mask': torch.zeros(B, K, dtype=torch.bool)}
    elif fault == 'no queries':
        tensors |= {name: tensors[name][:, :0] for name in ('query', 'pooled_query')}
    elif fault == 'no keys':
        tensors |= {name: tensors[name][:, :0] for name in ('key', 'value')}
    elif fault == 'no batch':
        tensors |= {name: x[:0] for name, x in tensors.items() if name != 'weight'}
    else:
        tensors['weight'] = tensors['weight'][:0]
    for name, x in evaluate(ops.bilinear_attention, tensors, **masks).items():
        assert not x.any(), name


@pytest.mark.slow
@both
def test_opcheck(name):
    tensors = {key: x.float() for key, x in TENSORS[name].items()}
    check_operator(getattr(ops, name), tensors, {})
    check_operator(getattr(ops, name), {key: x.mT.contiguous().mT for key, x in tensors.items()}, {})


def test_autocast_joins_dtypes_and_gradients_keep_their_own():
    """Projections are bfloat16 under autocast, features and the parameter p float32."""
    query, key, weight = (x.float() for x in TENSORS['bilinear_logits'].values())
    tensors = {'query': query.bfloat16(), 'key': key.bfloat16(), 'weight': weight}
    index, sign = torch.zeros(C, dtype=torch.int64), torch.ones(C)
    with torch.autocast('cpu', torch.bfloat16):
        actual = evaluate(ops.bilinear_logits, tensors)
        joined = ops.bilinear_logits(query.bfloat16(), key, weight)
        sketch = count_sketch(query.bfloat16(), index, sign, 2)
    assert [x.dtype for x in actual.values()] == [torch.float32, torch.bfloat16, torch.bfloat16, torch.float32]
    expected = evaluate(ops.bilinear_logits, tensors)
    assert_same(actual, expected, 0, 0)
    assert torch.equal(joined, ops.bilinear_logits(*tensors.values()))
    assert sketch.dtype == torch.bfloat16
    with pytest.raises(TypeError, match='one floating-point dtype'):
        ops.bilinear_logits(query.bfloat16(), key, weight)


def flops(call):
    with FlopCounterMode(display=False) as counter:
        out = call()
    return counter.get_total_flops(), out


@both
def test_flops_are_those_of_the_products(name):
    inputs = [x.clone().requires_grad_() for x in TENSORS[name].values()]
    forward, out = flops(lambda: getattr(ops, name)(*inputs))
    backward, _ = flops(lambda: torch.autograd.grad(out.sum(), inputs))
    product = 2 * B * G * Q * K * C
    assert (forward, backward) == (product, (2 if name == 'bilinear_logits' else 3) * product)


@both
def test_extra_memory_is_below_a_tenth_of_the_literal_product(name):
    """(B, Q, K, C) of one glimpse, in float32: 960 MiB; all G glimpses together take less than a tenth."""
    batch, glimpses, queries, keys, channels = 48, 4, 16, 128, 2560
    x, y = torch.randn(batch, queries, channels), torch.randn(batch, keys, channels)
    other = torch.randn(glimpses, channels) if name == 'bilinear_logits' else torch.rand(batch, glimpses, queries, keys)
    inputs = [z.requires_grad_() for z in ((x, y, other) if name == 'bilinear_logits' else (other, x, y))]
    out, forward = extra_memory(lambda: getattr(ops, name)(*inputs))
    _, backward = extra_memory(lambda: torch.autograd.grad(out, inputs, torch.ones_like(out)))
    print(f'extra: {forward:.1f} MiB forward, {backward:.1f} MiB backward')
    tenth = batch * queries * keys * channels * 4 / 2**20 / 10
    assert 0 < forward < tenth
    assert 0 < backward < tenth


INDEX = torch.tensor([0, 3, 3, 1, 0])
SIGN = torch.tensor([1.0, -1, 1, 1, -1], dtype=torch.float64)


def sketch_literally(x, sign):
    matrix = torch.zeros(5, 4, dtype=x.dtype)
    matrix[torch.arange(5), INDEX] = 1
    return (x * sign) @ matrix


def test_count_sketch_is_the_product():
    tensors = {'x': randn(2, 3, 5), 'sign': SIGN}
    assert_same(evaluate(lambda x, sign: count_sketch(x, INDEX, sign, 4), tensors), evaluate(sketch_literally, tensors))


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_sums_in_float32(dtype):
    """One output is 1 + 4,000 · 2⁻¹²: a summand is half an ulp of 1 in float16, and less in bfloat16."""
    x = torch.full((4001,), 2.0**-12, dtype=dtype)
    x[0] = 1
    found = count_sketch(x, torch.zeros(4001, dtype=torch.int64), torch.ones_like(x), 1)
    assert found.dtype == dtype
    assert found.item() == torch.tensor(1 + 4000 * 2**-12).to(dtype).item()


def test_count_sketch_compiles():
    torch.compiler.reset()
    compiled = torch.compile(count_sketch, fullgraph=True, backend='aot_eager')
    x = randn(2, 5)
    assert torch.equal(compiled(x, INDEX, SIGN, 4), count_sketch(x, INDEX, SIGN, 4))


A = TENSORS['bilinear_pooling']['weights']
# changed arguments of the other operators are drawn in tests/fuzz
test_wrong_arguments = failing(
    (lambda: ops.bilinear_softmax(A[0]), 'logits'),
    (lambda: ops.bilinear_softmax(A, torch.ones(B, K) > 0), 'query_mask'),
    (lambda: ops.bilinear_softmax(A, None, torch.ones(B, K)), 'key_mask'),
    (lambda: count_sketch(torch.ones(5, dtype=torch.long), INDEX, SIGN, 4), 'x'),
    (lambda: count_sketch(randn(5), INDEX, SIGN.float(), 4), 'sign'),
    (lambda: count_sketch(randn(5), INDEX.int(), SIGN, 4), 'index'),
    (lambda: count_sketch(randn(5), INDEX[1:], SIGN, 4), 'index'),
    (lambda: count_sketch(randn(5), INDEX, SIGN[1:], 4), 'sign'),
    (lambda: count_sketch(randn(5), INDEX, SIGN, 0), 'size'),
    (lambda: count_sketch(randn(5), INDEX + 1, SIGN, 4), 'index'),
    error=(IndexError, TypeError, ValueError),
    match=r'\b{}\b',
)
