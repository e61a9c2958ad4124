"""RegionAttention against Eq. 5 to 13 written out with loops, and against nn.MultiheadAttention; what both entail."""

import math
from itertools import combinations

import pytest
import torch
from torch import nn

from mmattn.language.layers import RegionAttention
from mmattn.language.layers.position_encodings import relative_geometry
from mmattn.language.layers.region_attention import NORMS, TERMS, normalize_queries

from ...ops import literal
from ..failing import failing
from .sequences import assert_same_with_gradients, build, padding

SUMS = [terms for n in (1, 2, 3) for terms in combinations(TERMS, n)]
BATCH, REGIONS, CHANNELS, HEADS, FEATURES = 2, 5, 6, 2, 3
MASK = padding(REGIONS, 3, of=REGIONS)


def region_attention(**options):
    return build(RegionAttention, CHANNELS, HEADS, **{'geometry_dim': FEATURES, **options})


def regions(seed=0):
    """Features, and boxes whose sides are above 1 pixel."""
    first = literal.randn(BATCH, REGIONS, 2, seed=seed + 20) * 50
    sides = 2 + literal.randn(BATCH, REGIONS, 2, seed=seed + 21).abs() * 30
    return literal.randn(BATCH, REGIONS, CHANNELS, seed=seed), torch.cat([first, first + sides], -1)


def call(layer, x, boxes, mask=None):
    return layer(x, x, x, mask, relative_geometry(boxes, mask))[0]


def literal_geometry(box, other):
    (x, y, w, h), (x2, y2, w2, h2) = (
        ((a + c) / 2, (b + d) / 2, max(c - a, 1), max(d - b, 1)) for a, b, c, d in (box, other)
    )
    return [
        math.log(max(abs(x - x2) / w, 1e-3)),
        math.log(max(abs(y - y2) / h, 1e-3)),
        math.log(w / w2),
        math.log(h / h2),
    ]


def literal_norm(norm, x, valid):
    """``(B, N, C)``, in the training mode of a batch norm."""
    if norm is None:
        return x
    if norm.kind == 'layer':
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / (variance + 1e-5).sqrt() * norm.norm.weight + norm.norm.bias
    out = torch.zeros_like(x)
    groups = [range(len(x))] if norm.kind == 'batch' else [[b] for b in range(len(x))]
    for group in groups:
        for c in range(x.shape[-1]):
            where = [(b, i) for b in group for i in valid[b]]
            column = torch.stack([x[b, i, c] for b, i in where])
            mean = column.sum() / len(column)
            variance = ((column - mean) ** 2).sum() / len(column)
            for (b, i), value in zip(where, (column - mean) / (variance + 1e-5).sqrt()):
                index = tuple(map(torch.tensor, (b, i, c)))
                out = out.index_put(index, value)
    if norm.kind == 'instance_affine':
        out = out * norm.weight + norm.bias
    elif norm.kind == 'batch':
        out = out * norm.norm.weight + norm.norm.bias
    return out


def literally(layer, x, boxes, mask=None):
    """Each image without its padding, each pair of regions by itself; rows of padding are 0."""
    d = CHANNELS // HEADS
    valid = [[i for i in range(REGIONS) if mask is None or not mask[b, i]] for b in range(len(x))]
    q, k, v = (x @ w.T + b for w, b in zip(layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3)))
    q, k = literal_norm(layer.query_norm, q, valid), literal_norm(layer.key_norm, k, valid)
    outs = []
    for b in range(len(x)):
        rows = []
        for i in range(REGIONS):
            if i not in valid[b]:
                rows.append(x.new_zeros(CHANNELS))
                continue
            heads = []
            for h in range(HEADS):
                channels = slice(h * d, (h + 1) * d)
                logits = []
                for j in valid[b]:
                    logit = q[b, i, channels] @ k[b, j, channels]
                    if layer.geometry:
                        f = torch.tensor(literal_geometry(boxes[b, i].tolist(), boxes[b, j].tolist()), dtype=x.dtype)
                        g = (layer.geometry_proj.weight @ f + layer.geometry_proj.bias).clamp(min=0)
                    if 'content_independent' in layer.geometry:
                        logit = logit + (layer.geometry_weight.weight[h] @ g).clamp(min=0)
                    for name, linear, where in (('query', 'geometry_query', i), ('key', 'geometry_key', j)):
                        if f'{name}_dependent' in layer.geometry:
                            projected = getattr(layer, linear)(x[b, where])
                            logit = logit + projected[h * FEATURES : (h + 1) * FEATURES] @ g
                    logits.append(logit / math.sqrt(d))
                weights = torch.stack(logits).softmax(0)
                heads.append(sum(w * v[b, j, channels] for w, j in zip(weights, valid[b])))
            rows.append(layer.out_proj(torch.cat(heads)))
        outs.append(torch.stack(rows))
    return torch.stack(outs)


def assert_is_the_equation(layer, mask):
    x, boxes = regions()
    x.requires_grad_()
    found = call(layer, x, boxes, mask)
    if mask is not None:
        found = found.masked_fill(mask[..., None], 0)
    assert_same_with_gradients(found, literally(layer, x, boxes, mask), [x], layer)


@pytest.mark.parametrize('mask', [None, MASK], ids=['', 'mask'])
@pytest.mark.parametrize('terms', SUMS, ids='+'.join)
def test_geometry_is_the_equation(terms, mask):
    assert_is_the_equation(region_attention(geometry=terms), mask)


@pytest.mark.parametrize('mask', [None, MASK], ids=['', 'mask'])
@pytest.mark.parametrize('names', [('query_norm',), ('key_norm',), ('query_norm', 'key_norm')], ids='+'.join)
@pytest.mark.parametrize('kind', NORMS)
def test_norms_are_the_equation(kind, names, mask):
    """Batch norm in training: with the statistics of the batch."""
    assert_is_the_equation(
        region_attention(**dict.fromkeys(names, kind)).train(kind == 'batch').apply(no_dropout), mask
    )


def no_dropout(module):
    if isinstance(module, nn.Dropout):
        module.p = 0.0


def test_both_together_are_the_equation():
    assert_is_the_equation(region_attention(query_norm='instance', geometry='query_dependent'), MASK)


def test_gradients_of_boxes():
    layer = region_attention(query_norm='instance', geometry=TERMS)
    x, boxes = regions()
    x, boxes = x[:, :4].requires_grad_(), boxes[:, :4].requires_grad_()
    mask = MASK[:, :4]
    assert torch.autograd.gradcheck(lambda x, boxes: call(layer, x, boxes, mask)[~mask], (x, boxes))


@pytest.mark.parametrize('mask', [None, MASK], ids=['', 'mask'])
def test_plain_attention_is_the_stock_module(mask):
    ours, theirs = region_attention(), nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True).double()
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())
    x, _ = regions()
    found, weights = ours(x, x, x, mask, need_weights=True)
    expected, others = theirs(x, x, x, mask, average_attn_weights=False)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(weights, others, rtol=0, atol=1e-12)
    assert ours(x, x, x, mask)[1] is None


@pytest.mark.parametrize('kind', [None, *NORMS])
@pytest.mark.parametrize('terms', SUMS, ids='+'.join)
def test_padding_changes_nothing(terms, kind):
    """90 padded rows with random features and boxes, of which some are no boxes, some inverted."""
    layer, (x, boxes) = region_attention(geometry=terms, query_norm=kind, key_norm=kind), regions()
    x.requires_grad_()
    rows = literal.randn(BATCH, 90, CHANNELS, seed=5) * 100
    others = literal.randn(BATCH, 90, 4, seed=6) * 100
    others[0, 0], others[1, 1], others[0, 2] = math.nan, math.inf, 0
    mask = padding(REGIONS, REGIONS, of=REGIONS + 90)
    found = call(layer, torch.cat([x, rows], 1), torch.cat([boxes, others], 1), mask)[:, :REGIONS]
    assert_same_with_gradients(found, call(layer, x, boxes), [x], layer)
    alone = call(layer, x[:1, :3], boxes[:1, :3])
    padded = call(layer, x, boxes, padding(3, 4, of=REGIONS))[:1, :3]
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-11)


@pytest.mark.parametrize('kind', [None, *NORMS])
def test_without_a_valid_region_the_output_is_the_bias(kind):
    layer = region_attention(geometry=TERMS, query_norm=kind, key_norm=kind).train()
    x, boxes = regions()
    for mask in (torch.tensor([[False] * 5, [True] * 5]), torch.ones(2, 5, dtype=torch.bool)):
        y = x.clone().requires_grad_()
        with torch.autograd.set_detect_anomaly(True):
            found, weights = layer(y, y, y, mask, relative_geometry(boxes, mask), need_weights=True)
            layer.zero_grad()
            found.square().sum().backward()
        torch.testing.assert_close(found[1], layer.out_proj.bias.expand(5, -1), rtol=0, atol=0)
        assert not weights[1].any()
        assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
        assert not y.grad[1].any()
    assert all(z.isfinite().all() for z in layer.state_dict().values())
    empty = x[:, :0]
    assert layer.eval()(empty, empty, empty, None, relative_geometry(boxes[:, :0]))[0].shape == (2, 0, CHANNELS)


def test_geometry_of_two_boxes():
    boxes = torch.tensor([[[0, 0, 10, 20], [30, 10, 50, 30]]], dtype=torch.float64)
    f = relative_geometry(boxes)[0]
    expected = torch.tensor(
        [[1.252763, -0.693147, -0.693147, 0], [0.559616, -0.693147, 0.693147, 0]], dtype=torch.float64
    )
    torch.testing.assert_close(torch.stack([f[0, 1], f[1, 0]]), expected, rtol=0, atol=5e-7)
    itself = torch.tensor([math.log(1e-3)] * 2 + [0, 0], dtype=torch.float64)
    torch.testing.assert_close(f[0, 0], itself)
    narrow = torch.tensor([[[3, 3, 3, 3], [0, 0, 1, 1]]], dtype=torch.float64)  # no sides count as one pixel
    torch.testing.assert_close(relative_geometry(narrow)[0, 0, 1], torch.tensor([2.5, 2.5, 1, 1]).double().log())


def test_geometry_has_the_precision_of_float32():
    _, boxes = regions()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        rounded = boxes.to(dtype)
        found = relative_geometry(rounded)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, relative_geometry(rounded.double()).float(), rtol=1e-5, atol=1e-5)


def test_one_region_has_queries_of_zero():
    x = literal.randn(2, 1, CHANNELS).requires_grad_()
    assert not normalize_queries(x).any()
    layer = region_attention(query_norm='instance', geometry=TERMS)
    _, boxes = regions()
    call(layer, x, boxes[:, :1]).square().sum().backward()
    assert all(y.grad.isfinite().all() for y in (x, *layer.parameters()))


def test_batch_norm_has_running_statistics_of_the_valid_regions():
    layer, (x, boxes) = region_attention(query_norm='batch'), regions()
    norm = layer.query_norm.norm
    nn.init.zeros_(norm.running_mean)
    call(layer.train(), x, boxes, MASK)
    rows = (x @ layer.in_proj_weight[:CHANNELS].T + layer.in_proj_bias[:CHANNELS])[~MASK]
    torch.testing.assert_close(norm.running_mean, rows.mean(0) * 0.1)
    torch.testing.assert_close(norm.running_var, 0.9 + rows.var(0) * 0.1)  # unbiased, as in torch
    alone = call(layer.eval(), x[:1], boxes[:1])
    torch.testing.assert_close(call(layer, x, boxes, MASK)[:1], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize('terms', SUMS, ids='+'.join)
def test_features_of_pairs_are_not_kept(terms):
    """Autograd keeps f for all layers, but no tensor with the channels of G for each pair."""
    layer, (x, boxes) = RegionAttention(CHANNELS, HEADS, geometry=terms, geometry_dim=40).double(), regions()
    f, kept = relative_geometry(boxes), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        layer(x, x, x, relative_geometry=f)
    assert max(kept) < 40 * REGIONS * REGIONS * BATCH


@pytest.mark.parametrize(('options', 'p'), [({}, 0.1), (dict(dropout=0.5), 0.5)])
def test_dropout_is_of_the_weights(options, p):
    layer, (x, _) = region_attention(**options).train(), regions()
    torch.manual_seed(0)
    found, weights = layer(x, x, x, need_weights=True)
    torch.manual_seed(0)
    dropped = nn.functional.dropout(weights, p)
    value = (x @ layer.in_proj_weight.chunk(3)[2].T + layer.in_proj_bias.chunk(3)[2]).chunk(HEADS, -1)
    expected = layer.out_proj(torch.cat((dropped @ torch.stack(value, 1)).unbind(1), -1))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_quantized():
    layer = RegionAttention(8, 2, geometry=TERMS).eval()
    boxes = torch.tensor([[[0.0, 0, 2, 3], [1, 1, 4, 5], [2, 0, 5, 2]]])
    x, geometry = literal.randn(1, 3, 8).float(), relative_geometry(boxes)
    quantized = torch.ao.quantization.quantize_dynamic(layer, {nn.Linear}, torch.qint8)
    expected, _ = layer(x, x, x, relative_geometry=geometry)
    torch.testing.assert_close(quantized(x, x, x, relative_geometry=geometry)[0], expected, atol=0.05, rtol=0.05)


X, BOXES = regions()
F = relative_geometry(BOXES)


@pytest.fixture
def layer():
    return region_attention(geometry=TERMS)


test_failures = failing(
    (lambda layer: layer(X, X[:, :3], X, relative_geometry=F), 'key'),
    *((lambda layer, f=f: layer(X, X, X, relative_geometry=f), 'relative_geometry') for f in (None, BOXES, F[:, :4])),
    (lambda layer: layer(X, X, X, MASK.long(), F), 'key_padding_mask'),
    (lambda: relative_geometry(BOXES.long()), 'boxes'),
    (lambda: relative_geometry(BOXES, MASK[:1]), 'key_padding_mask'),
    error=(TypeError, ValueError),
    match='^{} must',
)
