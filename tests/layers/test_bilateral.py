"""The layers against Eq. 3.9 to 3.12 written out with their own weights, and against the stock modules."""

import math

import pytest
import torch
from mmcv.cnn import NonLocal2d
from torch import nn
from torch.nn import functional as F

from mmattn.language.layers import BilateralMultiheadAttention
from mmattn.layers import BilateralCrissCrossAttention, BilateralNonLocal2d

from ..ops import literal
from .common import assert_equal_with_gradients, randomised

PADDINGS = ['learned', 'zero', 'neg_inf', 'mean', 'min']
POSITIONS = [
    dict(padding=p, smoothing=s) for p in PADDINGS for s in ('zscore', 'sqrt_dim') if (p, s) != ('neg_inf', 'zscore')
]
LAYERS = {'nl': BilateralNonLocal2d, 'cc': BilateralCrissCrossAttention, 'sa': BilateralMultiheadAttention}
SIZES = {'nl': (2, 8, 4, 5), 'cc': (2, 8, 4, 5), 'sa': (2, 6, 8)}


def build(kind, **kwargs):
    return randomised(
        LAYERS[kind](*((8, 2) if kind == 'sa' else (8,)), **({} if kind == 'sa' else {'reduction': 2}) | kwargs)
    )


def call(kind, layer, x):
    return layer(x, x, x)[0] if kind == 'sa' else layer(x)


def weights(conv):
    return (getattr(conv, 'conv', conv).weight.flatten(1), getattr(conv, 'conv', conv).bias)


def divisor(smoothing, d):
    return {'zscore': 1, 'sqrt_dim': math.sqrt(d)}.get(smoothing, smoothing)


def position_logits(layer, x, heads, d, padding, smoothing):
    """f(x) and v of ``(B, *S, C)`` features, in the operators' layout."""
    f = layer.window_position
    logits = F.linear(F.linear(x, *weights(f.embedding)), *weights(f.logits))
    logits = torch.stack(logits.chunk(heads, -1), 1) / divisor(smoothing, d)
    if padding == 'learned':
        return dict(window_bias=logits[..., :-1], outside_bias=logits[..., -1])
    outlier = {
        'zero': lambda: 0.0,
        'neg_inf': lambda: -math.inf,
        'mean': lambda: logits.mean(-1),
        'min': lambda: logits.min(-1).values,
    }[padding]()
    return dict(window_bias=logits, outside_bias=outlier)


def literally(kind, layer, x, window_size, padding, smoothing, causal=False, content_smoothing=2.0):
    """Eq. 3.9 with σc = ``content_smoothing``, by default √d of the layers here."""
    scale = 1 / content_smoothing
    normalize = smoothing == 'zscore'
    if kind == 'sa':
        q, k, v = (
            torch.stack(t.chunk(2, -1), 1) for t in F.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)
        )
        position = position_logits(layer, x, 2, 4, padding, smoothing)
        y = literal.global_attention(
            q, k, v, scale=scale, window_size=window_size, normalize=normalize, is_causal=causal, **position
        )
        return F.linear(torch.cat(y.unbind(1), -1), layer.out_proj.weight, layer.out_proj.bias)
    rows = x.movedim(1, -1)  # (B, H, W, C)
    names = ('theta', 'phi', 'g') if kind == 'nl' else ('query_conv', 'key_conv', 'value_conv')
    q, k, v = (F.linear(rows, *weights(getattr(layer, name))).unsqueeze(1) for name in names)
    position = position_logits(layer, rows, 1, 4, padding, smoothing)
    operator = literal.global_attention if kind == 'nl' else literal.grid_attention
    y = operator(q, k, v, scale=scale, window_size=window_size, normalize=normalize, **position).squeeze(1)
    y = F.linear(y, *weights(layer.conv_out)) if kind == 'nl' else layer.gamma.scale * y
    return x + y.movedim(-1, 1)


@pytest.mark.every_case
@pytest.mark.parametrize('options', POSITIONS, ids=lambda o: '-'.join(o.values()))
@pytest.mark.parametrize(('kind', 'window_size'), [('nl', (3, 5)), ('cc', (3, 5)), ('nl', 11), ('cc', 11), ('sa', 3)])
def test_layer_is_the_equation(kind, window_size, options):
    layer = build(kind, window_size=window_size, **options)
    x = literal.randn(*SIZES[kind]).requires_grad_()
    assert_equal_with_gradients(call(kind, layer, x), literally(kind, layer, x, window_size, **options), x, layer)


@pytest.mark.parametrize('options', POSITIONS, ids=lambda o: '-'.join(o.values()))
def test_causal_sequence_is_the_equation(options):
    layer = build('sa', window_size=5, is_causal=True, **options)
    assert layer.window_position.logits.out_channels == 2 * (3 + (options['padding'] == 'learned'))  # (k + 1)/2 a head
    x = literal.randn(2, 6, 8).requires_grad_()
    assert_equal_with_gradients(layer(x, x, x)[0], literally('sa', layer, x, 5, **options, causal=True), x, layer)
    assert torch.equal(layer(x, x, x, is_causal=True)[0], layer(x, x, x)[0])


@pytest.mark.parametrize(
    'options', [dict(smoothing=0.7), dict(content_smoothing=5.0), dict(smoothing=3, content_smoothing=0.5)]
)
@pytest.mark.parametrize('kind', LAYERS)
def test_smoothing_factors_are_numbers(kind, options):
    """σp and σc of Eq. 3.9, in decoding, too."""
    given = dict(padding='learned', smoothing='sqrt_dim') | options
    layer = build(kind, window_size=3, **given)
    x = literal.randn(*SIZES[kind]).requires_grad_()
    assert_equal_with_gradients(call(kind, layer, x), literally(kind, layer, x, 3, **given), x, layer)
    if kind != 'sa':
        return
    layer = build('sa', window_size=3, is_causal=True, **given)
    expected, state, steps = literally('sa', layer, x, 3, **given, causal=True), layer.start(), []
    for position in range(x.shape[1]):
        step, state = layer.step(x[:, position : position + 1], state, position)
        steps.append(step)
    torch.testing.assert_close(torch.cat(steps, 1), expected)


ZERO_INIT = [
    *(dict(padding=p, smoothing=s) for p in PADDINGS if p != 'neg_inf' for s in ('zscore', 'sqrt_dim')),
    dict(position='relative', max_offset=2),
]


@pytest.mark.parametrize('use_scale', [True, False])
@pytest.mark.parametrize('options', ZERO_INIT, ids=lambda o: '-'.join(map(str, o.values())))
@pytest.mark.parametrize('kind', ['nl', 'cc'])
def test_zero_init_starts_as_the_stock_layer(kind, options, use_scale):
    """With the stock layer's weights, it has its output and its gradients, and the position logits have gradients."""
    if kind == 'nl':
        options = dict(options, use_scale=use_scale)
    stock = build(kind, position='none', **({'use_scale': use_scale} if kind == 'nl' else {}))
    torch.manual_seed(1)
    layer = LAYERS[kind](8, reduction=2, window_size=3, zero_init=True, **options).double()
    missing, unexpected = layer.load_state_dict(stock.state_dict(), strict=False)
    assert not unexpected
    assert all(name.startswith(('window_position.', 'relative_position.')) for name in missing)
    x, cotangent = literal.randn(2, 8, 4, 5).requires_grad_(), literal.randn(2, 8, 4, 5, seed=7)
    output, expected = layer(x), stock(x)
    torch.testing.assert_close(output, expected, atol=1e-12, rtol=1e-12)
    shared = dict(stock.named_parameters())
    found = torch.autograd.grad(output, [x, *layer.parameters()], cotangent)
    grads = dict(zip(['x', *dict(layer.named_parameters())], found))
    for name, grad in zip(['x', *shared], torch.autograd.grad(expected, [x, *shared.values()], cotangent)):
        torch.testing.assert_close(grads[name], grad, atol=1e-10, rtol=1e-10)
    first = 'window_position.logits.weight' if 'padding' in options else 'relative_position.tables.1'
    assert all(grad.isfinite().all() for grad in found)
    assert grads[first].abs().max() > 1e-6


@pytest.mark.parametrize('kind', ['nl', 'cc'])
def test_zero_init_survives_the_initialisation_of_a_backbone(kind):
    """The ``init_cfg`` of mmseg's ResNet sets all convolutions, those of plugins, too."""
    from mmseg.models.backbones import ResNet

    attention = dict(type=f'mmattn.{LAYERS[kind].__name__}', window_size=3, zero_init=True)
    plugins = [dict(cfg=attention, stages=(False, False, False, True), position='after_conv2')]
    backbone = ResNet(50, base_channels=8, plugins=plugins)
    backbone.init_weights()
    layers = [module for module in backbone.modules() if isinstance(module, LAYERS[kind])]
    assert len(layers) == 3
    for layer in layers:
        assert not layer.window_position.logits.weight.any()
        assert layer.window_position.embedding.weight.any()


def test_new_layers_start_small():
    """With mmcv's standard deviation of 0.01, and a relative encoding of the size of a query of ones."""
    layer = LAYERS['nl'](64, position='relative', zeros_init=False)
    for part in (layer.theta, layer.phi, layer.g, layer.conv_out):
        assert part.conv.weight.std().item() == pytest.approx(0.01, rel=0.15)
    for table in layer.relative_position.tables:
        assert table.std().item() == pytest.approx(32**-0.5, rel=0.15)
    layer.init_weights(std=0.5)
    assert layer.g.conv.weight.std().item() == pytest.approx(0.5, rel=0.15)


def test_queries_have_at_least_one_channel():
    layer = LAYERS['cc'](4, window_size=3)
    assert layer.query_conv.out_channels == layer.key_conv.out_channels == 1
    assert LAYERS['cc'](23, window_size=3).query_conv.out_channels == 2
    assert layer(torch.randn(1, 4, 3, 5)).shape == (1, 4, 3, 5)


def test_default_windows_are_those_of_the_thesis():
    assert LAYERS['nl'](8).window_position.logits.out_channels == 31 * 31 + 1
    assert LAYERS['cc'](8).window_position.logits.out_channels == 31 + 30 + 1
    assert LAYERS['sa'](8, 2).window_position.logits.out_channels == 2 * 21
    assert LAYERS['sa'](8, 2, is_causal=True).window_position.logits.out_channels == 2 * 11


def test_relative_non_local_is_the_decomposed_encoding():
    layer = build('nl', position='relative', max_offset=2)
    x = literal.randn(2, 8, 4, 5).requires_grad_()
    rows = x.movedim(1, -1).flatten(1, 2)
    q, k, v = (F.linear(rows, *weights(getattr(layer, name))) for name in ('theta', 'phi', 'g'))
    height, width = layer.relative_position.tables

    def vector(table, offset):
        return table[max(-2, min(2, offset)) + 2]

    def logit(i, j):
        encoding = vector(height, j // 5 - i // 5) + vector(width, j % 5 - i % 5)
        return (q[:, i] * (k[:, j] + encoding)).sum(-1) / math.sqrt(4)

    logits = torch.stack([torch.stack([logit(i, j) for j in range(20)], -1) for i in range(20)], 1)
    y = F.linear(logits.softmax(-1) @ v, *weights(layer.conv_out)).unflatten(1, (4, 5)).movedim(-1, 1)
    assert_equal_with_gradients(layer(x), x + y, x, layer)


def test_relative_criss_cross_is_shaws_encoding():
    layer = build('cc', position='relative', max_offset=2)
    x = literal.randn(2, 8, 4, 5).requires_grad_()
    rows = x.movedim(1, -1)
    q, k, v = (F.linear(rows, *weights(getattr(layer, name))) for name in ('query_conv', 'key_conv', 'value_conv'))
    height, width = layer.relative_position.tables
    y = torch.zeros(2, 4, 5, 8, dtype=torch.float64)
    for a in range(4):
        for b in range(5):
            keys = [(a, j, width[max(-2, min(2, j - b)) + 2]) for j in range(5)]
            keys += [(i, b, height[max(-2, min(2, i - a)) + 2]) for i in range(4) if i != a]
            logits = torch.stack([(q[:, a, b] * (k[:, i, j] + r)).sum(-1) for i, j, r in keys], -1) / math.sqrt(4)
            values = torch.stack([v[:, i, j] for i, j, _ in keys], 1)
            y = y.index_put(
                (torch.arange(2), torch.tensor(a), torch.tensor(b)),
                torch.einsum('bn,bnc->bc', logits.softmax(-1), values),
            )
    assert_equal_with_gradients(layer(x), x + layer.gamma.scale * y.movedim(-1, 1), x, layer)


def test_relative_criss_cross_is_exported_for_one_size():
    """Its windows are as large as the map."""
    layer, x = build('cc', position='relative', max_offset=2).eval(), literal.randn(2, 8, 4, 5)
    with pytest.raises(ValueError, match='--input-size'):
        torch.export.export(layer, (x,), dynamic_shapes=({2: torch.export.Dim('height', max=9)},), strict=False)
    batch = torch.export.Dim('batch', min=2)
    exported = torch.export.export(layer, (x,), dynamic_shapes=({0: batch},), strict=False).module()
    more = literal.randn(3, 8, 4, 5, seed=1)
    torch.testing.assert_close(exported(more), layer(more))


def test_relative_sequence_is_shaws_encoding():
    layer = build('sa', position='relative', max_offset=2)
    x = literal.randn(2, 6, 8).requires_grad_()
    q, k, v = (
        torch.stack(t.chunk(2, -1), 1) for t in F.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)
    )
    offset = (torch.arange(6) - torch.arange(6)[:, None]).clamp(-2, 2) + 2
    logits = torch.einsum('bhid,bhijd->bhij', q, k.unsqueeze(2) + layer.relative_position.tables[0][offset]) / 2
    expected = F.linear(torch.cat((logits.softmax(-1) @ v).unbind(1), -1), layer.out_proj.weight, layer.out_proj.bias)
    assert_equal_with_gradients(layer(x, x, x)[0], expected, x, layer)


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('mask', [None, 'bool', 'float'])
def test_multihead_without_position_is_the_stock_module(mask, causal):
    ours = build('sa', position='none', is_causal=causal)
    stock = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    stock.load_state_dict(ours.state_dict())
    ours.load_state_dict(stock.state_dict())
    x = literal.randn(2, 6, 8)
    if mask == 'bool':
        mask = torch.zeros(2, 6, dtype=torch.bool)
        mask[1, 4:] = True
    elif mask == 'float':
        mask = literal.randn(2, 6, seed=3)
    attn_mask = torch.ones(6, 6, dtype=torch.bool).triu(1) if causal else None
    if mask is not None and mask.is_floating_point() and causal:
        attn_mask = torch.zeros(6, 6, dtype=torch.float64).masked_fill(attn_mask, -math.inf)  # one dtype for both
    expected, _ = stock(x, x, x, key_padding_mask=mask, attn_mask=attn_mask)
    torch.testing.assert_close(ours(x, x, x, key_padding_mask=mask)[0], expected, atol=1e-12, rtol=1e-12)
    if mask is None:
        torch.testing.assert_close(
            ours(x[0], x[0], x[0])[0] if not causal else expected[0],
            stock(x[0], x[0], x[0], attn_mask=attn_mask)[0],
            atol=1e-12,
            rtol=1e-12,
        )
    if not causal:  # another sequence
        memory = literal.randn(2, 6, 8, seed=5)
        torch.testing.assert_close(
            ours(x, memory, memory, mask)[0], stock(x, memory, memory, mask)[0], atol=1e-12, rtol=1e-12
        )


@pytest.mark.parametrize('causal', [False, True])
def test_multihead_drops_weights_as_the_stock_module_in_training(causal):
    """With one seed, both draw one mask. In evaluation, neither draws."""
    ours = build('sa', position='none', is_causal=causal, dropout=0.4)
    stock = nn.MultiheadAttention(8, 2, dropout=0.4, batch_first=True, dtype=torch.float64)
    for name in ('in_proj_weight', 'in_proj_bias', 'out_proj'):  # shared, for the gradients
        setattr(stock, name, getattr(ours, name))
    x = literal.randn(2, 6, 8).requires_grad_()
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    future = torch.ones(6, 6, dtype=torch.bool).triu(1) if causal else None

    def seeded(layer, *inputs, **kwargs):
        torch.manual_seed(7)
        return layer(*inputs, **kwargs)[0]

    for training in (False, True):
        ours.train(training), stock.train(training)
        expected = seeded(stock, x, x, x, key_padding_mask=padding, attn_mask=future)
        assert_equal_with_gradients(seeded(ours, x, x, x, key_padding_mask=padding), expected, x, ours)
    with torch.no_grad():  # one token at a time, also in training
        if causal:
            state = ours.start()
            for t in range(6):
                torch.manual_seed(7)
                out, state = ours.step(x[:, t : t + 1], state, t)
                expected = seeded(stock, x[:, t : t + 1], x[:, : t + 1], x[:, : t + 1])
                torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
        else:
            out = seeded(ours.step, x[:, :1], ours.start(x, padding), 0)
            expected = seeded(stock, x[:, :1], x, x, key_padding_mask=padding)
            torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('options', [dict(), dict(padding='learned', smoothing='zscore', is_causal=True)], ids=str)
def test_multihead_drops_the_weights_of_content_and_positions(options):
    layer = build('sa', window_size=5, dropout=0.4, **options).train()
    x = literal.randn(2, 6, 8)
    weights = layer.attention_weights(x, x, x, queries=torch.arange(6)[:, None])
    torch.manual_seed(7)
    kept = F.dropout(torch.ones_like(weights), 0.4)
    value = F.linear(x, *(p.chunk(3)[2] for p in (layer.in_proj_weight, layer.in_proj_bias)))
    out = (weights * kept) @ torch.stack(value.chunk(2, -1), 1)
    torch.manual_seed(7)
    torch.testing.assert_close(layer(x, x, x)[0], layer.out_proj(out.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize('low', [-1e9, -1e30])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    'options', [dict(position='none'), dict(smoothing='zscore'), dict(normalize_queries=True)], ids=str
)
def test_low_numbers_of_a_mask_are_padding(options, dtype, low):
    """In a row without other keys, gradients would be wrong by a factor: float32 does not hold -1e9 + log(6)."""
    x = literal.randn(2, 6, 8)
    mask = torch.zeros(2, 6, dtype=dtype)
    mask[0, 4:] = mask[1] = low
    found = {}
    for name, given in (('low', mask), ('inf', mask.double().masked_fill(mask < -1e8, -math.inf))):
        layer = build('sa', **options)
        if name == 'low':
            layer.float()
        y = x.to(layer.in_proj_weight.dtype, copy=True).requires_grad_()
        out, _ = layer(y, y, y, given)
        out.square().sum().backward()
        found[name] = out.detach(), y.grad, *(p.grad for p in layer.parameters() if p.grad is not None)
    for actual, expected in zip(found['low'], found['inf'], strict=True):
        torch.testing.assert_close(actual.double(), expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize('mode', ['embedded_gaussian', 'gaussian', 'dot_product'])
def test_maxima_of_the_keys_are_those_of_mmcv(mode):
    options = dict(sub_sample=True, zeros_init=False, mode=mode)
    ours, stock = build('nl', position='none', **options), NonLocal2d(8, **options).double()
    ours.init_weights()  # as a backbone does
    stock.load_state_dict(randomised(ours).state_dict())
    x = literal.randn(2, 8, 5, 6).requires_grad_()
    torch.testing.assert_close(ours(x), stock(x), atol=1e-12, rtol=1e-12)
    cotangent = literal.randn(2, 8, 5, 6, seed=7)
    for a, b in zip(*(torch.autograd.grad(m(x), [x, *m.parameters()], cotangent) for m in (ours, stock))):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('norm_cfg', [None, dict(type='BN')])
@pytest.mark.parametrize('options', [dict(), dict(position='none', sub_sample=True)], ids=str)
def test_the_start_of_the_output_survives_the_backbone(options, norm_cfg):
    """A backbone calls ``init_weights`` again."""
    for zeros_init in (True, False):
        layer = BilateralNonLocal2d(8, zeros_init=zeros_init, norm_cfg=norm_cfg, **options)
        for _ in range(2):
            last = layer.conv_out.conv if norm_cfg is None else layer.conv_out.norm
            assert (last.weight == 0).all() == zeros_init
            layer.init_weights()


def test_multihead_in_a_stock_encoder():
    """Training and evaluation give the same: the encoder's fast path for evaluation would leave the positions out."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=torch.float64)
    layer.self_attn = build('sa')
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x, padding = literal.randn(2, 6, 8), torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    expected = encoder(x, src_key_padding_mask=padding)
    with torch.no_grad():
        torch.testing.assert_close(encoder.eval()(x, src_key_padding_mask=padding), expected)
    for layer in encoder.layers:
        layer.self_attn.position = 'none'
    assert not torch.allclose(encoder(x, src_key_padding_mask=padding), expected)
