"""BAN, concatenated logits, unitary and co-attention against their equations pair by pair; masks, options, counts."""

import pytest
import torch

from mmattn.language.layers import BilinearAttentionNetwork, CoAttention, ConcatLogits, UnitaryAttention
from mmattn.language.layers.bilinear_attention_network import MODES, attention_entropy
from mmattn.utils.profiling import extra_memory

from ...ops import literal
from ..failing import failing
from .sequences import assert_same_with_gradients, build, padding

N, M, K, Q, R = 4, 5, 3, 3, 6
WORD_MASK, REGION_MASK = padding(3, 2, of=Q), padding(4, 6, of=R)


def network(**options):
    return build(BilinearAttentionNetwork, N, M, **{'embed_dim': K, 'num_glimpses': 3, **options})


def inputs(requires_grad=True):
    """X, Y"""
    return [literal.randn(2, *size, seed=size[0]).requires_grad_(requires_grad) for size in ((Q, N), (R, M))]


def lin(layer, x):
    """s · v / ‖v‖ and its bias, with one s per matrix; ReLU where the layer has it."""
    linear = layer[1]
    scale, v = linear.parametrizations.weight.original0, linear.parametrizations.weight.original1
    assert scale.shape == (1,)  # FSDP takes no parameter without a dimension
    y = x @ (scale * v / v.square().sum().sqrt()).T + linear.bias
    return y.clamp(min=0) if len(layer) == 3 else y


def literally(net, words, regions, word_mask=None, region_mask=None, count=3):
    """The equations, with the product of all pairs."""
    valid = torch.ones(2, Q, R, dtype=torch.bool)
    if word_mask is not None:
        valid = ~word_mask[:, :, None] & ~region_mask[:, None]
    logits, glimpses = net.logits, net.logits.glimpses
    p = glimpses.parametrizations.weight
    p = p.original0 * p.original1 / p.original1.square().sum().sqrt()
    pairs = lin(logits.word_proj, words)[:, :, None] * lin(logits.region_proj, regions)[:, None]  # (B, Q, R, K')
    f, updates = words, []
    for g in range(count):
        found = ((pairs * p[g]).sum(-1) + glimpses.bias[g]).masked_fill(~valid, -torch.inf).exp()
        weights = found / found.sum((1, 2), keepdim=True)
        source = f if net.mode == 'residual' else words
        x, y = lin(net.word_proj[g], source), lin(net.region_proj[g], regions)
        pooled = (weights[..., None] * x[:, :, None] * y[:, None]).sum((1, 2))
        if net.pool_factor > 1:
            pooled = pooled.view(2, -1, net.pool_factor).sum(-1)
        updates.append(lin(net.out_proj[g], pooled))
        f = f + updates[-1][:, None]
    if net.mode == 'residual':
        return (f if word_mask is None else f * ~word_mask[..., None]).sum(1)
    return torch.cat(updates, -1) if net.mode == 'concat' else sum(updates)


@pytest.mark.parametrize('masks', [(), (WORD_MASK, REGION_MASK)], ids=['', 'masks'])
@pytest.mark.parametrize('options', [{}, {'mode': 'sum'}, {'mode': 'concat'}, {'pool_factor': 3}], ids=str)
@pytest.mark.parametrize('recompute', [False, True])
def test_network_is_the_equation(options, masks, recompute):
    net, x = network(recompute=recompute, **options), inputs()
    assert_same_with_gradients(net(*x, *masks)[0], literally(net, *x, *masks), x, net, 1e-12)


@pytest.mark.parametrize('mode', MODES)
def test_maps(mode):
    """Each sums to 1, is 0 at padding, and does not depend on the other glimpses or on b."""
    net, x = network(mode=mode), inputs(requires_grad=False)
    out, weights = net(*x, WORD_MASK, REGION_MASK, need_weights=True)
    assert weights.shape == (2, 3, Q, R)
    torch.testing.assert_close(weights.sum((-2, -1)), torch.ones(2, 3).double(), atol=1e-12, rtol=0)
    assert not weights.movedim(2, 1)[WORD_MASK].any()
    assert not weights.movedim(3, 1)[REGION_MASK].any()
    out.square().sum().backward()
    assert net.logits.glimpses.bias.grad.abs().max() < 1e-12
    entropy = attention_entropy(weights)
    torch.testing.assert_close(entropy, -(weights * weights.clamp(min=1e-300).log()).sum((-2, -1)))
    assert torch.equal(attention_entropy(torch.tensor([[[[1.0, 0.0]]]])), torch.zeros(1, 1))


@pytest.mark.parametrize('fault', ['regions masked', 'words masked', 'no regions', 'no words'])
@pytest.mark.parametrize('counter', [None, dict(type='mmattn.ObjectCounter')], ids=['', 'counter'])
@pytest.mark.parametrize('mode', MODES)
def test_without_a_pair(mode, counter, fault):
    """A and f' are 0, and every gradient is finite."""
    net, x = network(mode=mode, counter=counter), inputs(requires_grad=False)
    masks = [torch.zeros(2, Q, dtype=torch.bool), torch.zeros(2, R, dtype=torch.bool)]
    which = 'words' in fault
    if 'masked' in fault:
        masks[1 - which] |= True
    else:
        x[1 - which], masks[1 - which] = x[1 - which][:, :0], masks[1 - which][:, :0]
    x = [y.requires_grad_() for y in x]
    boxes = torch.rand(2, x[1].shape[1], 4).double() if counter else None
    out, weights = net(*x, *masks, boxes=boxes, need_weights=True)
    assert not weights.any()
    if not counter and not which:
        updates = [lin(layer, torch.zeros(2, K).double()) for layer in net.out_proj]
        words = x[0].sum(1) + sum(updates) * Q
        expected = {'residual': words, 'sum': sum(updates), 'concat': torch.cat(updates, -1)}[mode]
        torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
    grads = torch.autograd.grad(out.square().sum(), [*x, *net.parameters()], allow_unused=True)
    assert out.isfinite().all()
    assert all(grad is None or grad.isfinite().all() for grad in grads)


def test_counter_adds_its_projection_in_each_glimpse():
    """One counter reads the greatest logit of each region; with one glimpse, the words receive the sum of both."""
    net, x = network(num_glimpses=1, counter=dict(type='mmattn.ObjectCounter')), inputs()
    with torch.no_grad():  # the products are positive, so padding has the greatest logits
        parts = net.logits.glimpses.parametrizations.weight
        parts.original1.copy_(-parts.original0.sign() * parts.original1.abs())
    corner = torch.rand(2, R, 2, generator=torch.Generator().manual_seed(0)).double()
    boxes = torch.cat([corner, corner + 0.3], -1)
    logits = net.logits(*x, REGION_MASK)[:, 0]
    greatest = logits.masked_fill(WORD_MASK[..., None], -torch.inf).amax(1)
    assert (net.logits(x[0] * ~WORD_MASK[..., None], x[1], REGION_MASK)[:, 0].amax(1) > greatest)[1].any()
    update = lin(net.count_proj[0], net.counter(greatest, boxes, REGION_MASK))
    expected = literally(net, *x, WORD_MASK, REGION_MASK, 1) + update * (~WORD_MASK).sum(1, keepdim=True)
    out, _ = net(*x, WORD_MASK, REGION_MASK, boxes)
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
    assert net.counter.num_objects + 1 == net.count_proj[0][1].in_features


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_counter_in_half_precision(dtype):
    """The network has the dtype of its input, and the counter reads float32 logits."""
    net, x = network(counter=dict(type='mmattn.ObjectCounter')), inputs(requires_grad=False)
    boxes = torch.rand(2, R, 4, generator=torch.Generator().manual_seed(0)).double()
    expected = net(*x, WORD_MASK, REGION_MASK, boxes)[0]
    out = net.to(dtype)(*(y.to(dtype) for y in x), WORD_MASK, REGION_MASK, boxes)[0]
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=0, rtol=8 * torch.finfo(dtype).eps)


def test_recomputation_draws_the_same_dropout():
    nets = [network(recompute=recompute).train() for recompute in (False, True)]
    grads = []
    for net in nets:
        torch.manual_seed(0)
        x = inputs()
        net(*x, WORD_MASK, REGION_MASK)[0].square().sum().backward()
        grads.append([y.grad for y in (*x, *net.parameters())])
    torch.testing.assert_close(*grads, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('masked', [False, True])
def test_recomputation_keeps_no_projection_of_a_glimpse(masked):
    """A Y'' has 2.5 MiB; without recomputation, each glimpse keeps one, padded, and its rows before padding."""
    x = [torch.randn(16, length, 64).requires_grad_() for length in (4, 80)]
    masks = (None, padding(*[20] * 16, of=80)) if masked else ()
    growth = {}
    for recompute in (False, True):
        extra = []
        for count in (2, 6):
            net = BilinearAttentionNetwork(64, 64, 512, count, logit_factor=1, recompute=recompute)
            extra.append(extra_memory(lambda net=net: net(*x, *masks)[0])[1])
        growth[recompute] = (extra[1] - extra[0]) / 4
    print(f'MiB per glimpse: {growth[False]:.2f} kept, {growth[True]:.2f} recomputed')
    assert growth[False] > 2.5
    assert growth[True] < 0.3


@pytest.mark.slow
def test_autocast_and_compile():
    """Under autocast, projections are bfloat16, and maps float32; a call without masks compiles into one graph."""
    net, x = network(counter=dict(type='mmattn.ObjectCounter')).float(), [y.detach().float() for y in inputs()]
    boxes = torch.rand(2, R, 4, generator=torch.Generator().manual_seed(0))
    expected, maps = net(*x, WORD_MASK, REGION_MASK, boxes, need_weights=True)
    with torch.autocast('cpu', torch.bfloat16):
        out, weights = net(*x, WORD_MASK, REGION_MASK, boxes, need_weights=True)
        out.sum().backward()
    assert weights.dtype == torch.float32
    assert all(parameter.grad.isfinite().all() for parameter in net.parameters())
    torch.testing.assert_close(weights, maps, atol=2e-2, rtol=0)
    # bfloat16 has three digits, and the sums are of order 10
    torch.testing.assert_close(out.float(), expected, atol=0.2, rtol=5e-2)
    torch.compiler.reset()
    plain = network().float()
    compiled = torch.compile(plain, fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(compiled(*x)[0], plain(*x)[0])


def unitarily(layer, query, regions, mask=None):
    products = lin(layer.query_proj, query)[:, None] * lin(layer.region_proj, regions)
    logits = lin(layer.logits, products)[..., 0]
    if mask is not None:
        logits = logits.masked_fill(mask, -torch.inf)
    weights = logits.exp() / logits.exp().sum(-1, keepdim=True)
    attended = (weights[..., None] * regions).sum(1)
    return lin(layer.joint_query_proj, query) * lin(layer.joint_region_proj, attended), weights


@pytest.mark.parametrize('mask', [None, REGION_MASK], ids=['', 'mask'])
def test_unitary_attention_is_the_equation(mask):
    layer, query, (_, regions) = build(UnitaryAttention, N, M, 7), literal.randn(2, N).requires_grad_(), inputs()
    out, weights = layer(query, regions, mask, need_weights=True)
    expected, of_regions = unitarily(layer, query, regions, mask)
    torch.testing.assert_close(weights, of_regions, atol=1e-12, rtol=1e-12)
    assert layer(query, regions, mask)[1] is None
    assert_same_with_gradients(out, expected, [query, regions], layer, 1e-12)


@pytest.mark.parametrize('empty', [False, True])
def test_baselines_without_valid_positions(empty):
    layer = build(CoAttention, N, M, 7, hidden_dim=3)
    words, regions = (x[:, :0] if empty else x.fill_(torch.nan) for x in inputs(requires_grad=False))
    words.requires_grad_(), regions.requires_grad_()
    masks = [torch.ones(x.shape[:2], dtype=torch.bool) for x in (words, regions)]
    out, weights = layer(words, regions, *masks, need_weights=True)
    zeros = torch.zeros(2, N).double(), torch.zeros(2, M).double()
    attention = layer.attention
    expected = lin(attention.joint_query_proj, zeros[0]) * lin(attention.joint_region_proj, zeros[1])
    torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)
    assert not any(x.any() for x in weights)
    assert layer(words, regions, *masks)[1] is None
    out.square().sum().backward()
    assert all(x.grad is None or x.grad.isfinite().all() for x in (words, regions, *layer.parameters()))


WORDS, REGIONS = inputs(requires_grad=False)


def test_concat_dropout_is_of_inputs_and_of_the_hidden_layer():
    layer = ConcatLogits(3, 4, embed_dim=5, dropout=0.0, hidden_dropout=1.0)
    found = layer(torch.randn(1, 3, 3), torch.randn(1, 4, 4))
    torch.testing.assert_close(found, layer.output[2].bias.expand_as(found))


def test_dropout_is_of_inputs_and_of_the_projected_regions():
    """With all of the latter dropped, the logits are their biases."""
    net = network(dropout=0.0, region_dropout=1.0).train()
    words, regions = inputs(requires_grad=False)
    found = net.logits(words, regions)
    torch.testing.assert_close(found, net.logits.glimpses.bias[:, None, None].expand_as(found))
    assert not torch.equal(network(dropout=1.0, region_dropout=0.0).train().logits(words, regions), found)


COUNTING = dict(counter=dict(type='mmattn.ObjectCounter'))


test_failures = failing(
    (lambda: network()(WORDS, REGIONS, REGION_MASK), 'word_padding_mask'),
    (lambda: network()(WORDS, REGIONS, None, REGION_MASK.long()), 'region_padding_mask'),
    (lambda: network()(WORDS, REGIONS, boxes=REGIONS[..., :4]), 'boxes'),
    (lambda: network(**COUNTING)(WORDS, REGIONS), 'boxes'),
    (lambda: network()(WORDS, REGIONS, num_glimpses=4), 'num_glimpses'),
    (lambda: network(mode='concat')(WORDS, REGIONS, num_glimpses=2), 'num_glimpses'),
    (lambda: build(UnitaryAttention, N, M)(WORDS, REGIONS), 'query'),
    (lambda: network().logits(WORDS, REGIONS, WORD_MASK), 'region_padding_mask'),
    (lambda: build(UnitaryAttention, N, M)(WORDS[:, 0], REGIONS, WORD_MASK), 'region_padding_mask'),
    (lambda: build(CoAttention, N, M)(WORDS, REGIONS, REGION_MASK), 'word_padding_mask'),
    (lambda: build(CoAttention, N, M)(WORDS, REGIONS, None, WORD_MASK), 'region_padding_mask'),
    (lambda: build(ConcatLogits, N, M, embed_dim=5)(WORDS, REGIONS, WORD_MASK), 'region_padding_mask'),
    error=(TypeError, ValueError),
)
