"""``attn_mask`` of BilateralMultiheadAttention against ``nn.MultiheadAttention``, and against its own causal layer."""

import itertools

import pytest
import torch
from torch import nn

from mmattn.language.layers import BilateralMultiheadAttention

from ...ops import literal
from ..failing import failing
from .sequences import build

BATCH, HEADS, QUERIES, KEYS, CHANNELS = 2, 2, 4, 5, 8
CAUSAL = torch.ones(6, 6, dtype=torch.bool).triu(1)


def attn_mask(kind, shape):
    if kind == 'float':
        return literal.randn(*shape, seed=3).requires_grad_()
    excluded = literal.randn(*shape, seed=3) > 0
    excluded[..., 0] = False  # torch returns NaN without any key
    return excluded if kind == 'bool' else literal.randn(*shape, seed=4).masked_fill(excluded, -torch.inf)


@pytest.mark.every_case
@pytest.mark.parametrize('padding', [None, 'bool', 'float'])
@pytest.mark.parametrize('per_head', [False, True])
@pytest.mark.parametrize('kind', ['bool', 'float', 'float with -inf'])
@pytest.mark.parametrize('batched', [True, False])
def test_masks_are_those_of_torch(kind, per_head, padding, batched):
    ours = build(BilateralMultiheadAttention, CHANNELS, HEADS, position='none')
    stock = nn.MultiheadAttention(CHANNELS, HEADS, batch_first=True, dtype=torch.float64)
    stock.load_state_dict(ours.state_dict())
    batch = (BATCH,) if batched else ()
    query = literal.randn(*batch, QUERIES, CHANNELS, seed=0).requires_grad_()
    key, value = (literal.randn(*batch, KEYS, CHANNELS, seed=seed).requires_grad_() for seed in (1, 2))
    mask = attn_mask(kind, (*([(BATCH if batched else 1) * HEADS] if per_head else []), QUERIES, KEYS))
    excluded = None
    if padding:
        excluded = torch.zeros(*batch, KEYS, dtype=torch.bool)
        excluded[..., -1] = True
        if padding == 'float':
            excluded = torch.zeros(excluded.shape, dtype=torch.float64).masked_fill(excluded, -torch.inf)
    wanted = [query, key, value, *([mask] if mask.requires_grad else [])]
    results = []
    for layer in (ours, stock):
        out, _ = layer(
            query, key, value, key_padding_mask=excluded, need_weights=False, attn_mask=mask, average_attn_weights=False
        )
        grads = torch.autograd.grad(out, [*wanted, *layer.parameters()], literal.randn(*out.shape, seed=7))
        results.append([out, *grads])
    torch.testing.assert_close(*results, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('kind', ['bool', 'float'])
@pytest.mark.parametrize('position', ['none', 'relative', 'bilateral'])
def test_a_causal_mask_makes_the_causal_layer(position, kind):
    """The causal layer has the entries of the window up to the position itself."""
    options = dict(position=position, window_size=5, max_offset=2, padding='zero')
    masked = build(BilateralMultiheadAttention, CHANNELS, HEADS, **options)
    causal = build(BilateralMultiheadAttention, CHANNELS, HEADS, is_causal=True, **options)
    state = masked.state_dict()
    for name in ('window_position.logits.weight', 'window_position.logits.bias'):
        if name in state:
            state[name] = state[name].unflatten(0, (HEADS, 5))[:, :3].flatten(0, 1)
    causal.load_state_dict(state)
    x = literal.randn(2, 6, CHANNELS)
    mask = CAUSAL if kind == 'bool' else torch.zeros(6, 6).masked_fill(CAUSAL, -torch.inf)
    for inputs in ((x, None), (x, torch.tensor([[False] * 6, [False] * 4 + [True] * 2]))):
        expected = causal(inputs[0], key_padding_mask=inputs[1])[0]
        ours = masked(inputs[0], key_padding_mask=inputs[1], attn_mask=mask, is_causal=True)[0]
        torch.testing.assert_close(ours, expected, atol=1e-12, rtol=1e-12)


def test_a_query_without_keys_has_the_bias_as_output():
    layer, x = build(BilateralMultiheadAttention, CHANNELS, HEADS, window_size=3), literal.randn(2, 4, CHANNELS)
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[1] = True
    out = layer(x, attn_mask=mask)[0]
    torch.testing.assert_close(out[:, 1], layer.out_proj.bias.expand(2, -1))
    empty = layer.double() if layer.position == 'none' else build(BilateralMultiheadAttention, 8, 2, position='none')
    out = empty(x, x[:, :0], attn_mask=mask[:, :0])[0]
    torch.testing.assert_close(out, empty.out_proj.bias.expand_as(out))


@pytest.mark.parametrize('kind', ['bool', 'float'])
def test_the_encoder_and_decoder_of_torch_with_masks(kind):
    """As nn.Transformer passes them: a causal mask and its hint, masks of padding."""
    stock = nn.Transformer(CHANNELS, HEADS, 1, 1, 16, dropout=0, batch_first=True, dtype=torch.float64)
    source, target = literal.randn(2, 5, CHANNELS), literal.randn(2, 6, CHANNELS)
    mask = CAUSAL if kind == 'bool' else nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    settings = dict(tgt_mask=mask, tgt_is_causal=True, src_key_padding_mask=padding, memory_key_padding_mask=padding)
    expected = stock(source, target, **settings)
    for module in [*stock.modules()]:
        for name in ('self_attn', 'multihead_attn'):
            if hasattr(module, name):
                ours = BilateralMultiheadAttention(CHANNELS, HEADS, position='none', dtype=torch.float64)
                ours.load_state_dict(getattr(module, name).state_dict())
                setattr(module, name, ours)
    torch.testing.assert_close(stock(source, target, **settings), expected, atol=1e-11, rtol=1e-11)


def test_an_encoder_of_torch_notices_a_causal_mask():
    """It counts the positions by ``batch_first``, and passes the hint on."""
    hints = []
    stock = nn.TransformerEncoderLayer(CHANNELS, HEADS, 16, batch_first=True)
    stock.self_attn = BilateralMultiheadAttention(CHANNELS, HEADS, is_causal=True)
    stock.self_attn.register_forward_pre_hook(lambda _, args, given: hints.append(given['is_causal']), with_kwargs=True)
    encoder = nn.TransformerEncoder(stock, 2, enable_nested_tensor=False)
    for size in (5, 6):
        encoder(torch.randn(3, size, CHANNELS), nn.Transformer.generate_square_subsequent_mask(size))
        encoder(torch.randn(3, size, CHANNELS), torch.zeros(size, size))
    assert hints == [True, True, False, False] * 2


def masked(mask, *args, **options):
    return BilateralMultiheadAttention(CHANNELS, HEADS, *args, **options)(torch.randn(2, 4, CHANNELS), attn_mask=mask)


NESTED = torch.nested.nested_tensor([torch.randn(3, CHANNELS), torch.randn(2, CHANNELS)])
SHAPES = (4,), (2, 4, 4), (4, 5), (1, 4, 4, 4)
test_wrong_masks = failing(
    *((lambda shape=shape: masked(torch.zeros(shape)), 'attn_mask') for shape in SHAPES),
    (lambda: masked(torch.zeros(4, 4, dtype=torch.long)), 'attn_mask'),
    (lambda: masked(torch.zeros(4, 4), smoothing='zscore'), 'attn_mask'),
    (lambda: masked(torch.zeros(4, 4), normalize_queries=True), 'attn_mask'),
    (lambda: masked(None, 0.1), 'bias'),  # dropout of nn.MultiheadAttention
    (lambda: BilateralMultiheadAttention(CHANNELS, HEADS)(NESTED), 'query .*nested'),
    error=(TypeError, ValueError),
    match='^{}',
)


@pytest.mark.parametrize('position', ['none', 'relative', 'bilateral'])
def test_device_and_dtype(position):
    for device, dtype in itertools.product(('meta', None), (torch.bfloat16, None)):
        layer = BilateralMultiheadAttention(CHANNELS, HEADS, position=position, device=device, dtype=dtype)
        assert {p.device.type for p in layer.parameters()} == {device or 'cpu'}
        assert {p.dtype for p in layer.parameters()} == {dtype or torch.float32}


def test_a_layer_can_be_built_within_a_transform():
    def loss(x):
        torch.manual_seed(0)
        return BilateralMultiheadAttention(CHANNELS, HEADS)(x)[0].sum()

    x = literal.randn(2, 4, CHANNELS, dtype=torch.float32).requires_grad_()
    torch.testing.assert_close(torch.func.grad(loss)(x.detach()), torch.autograd.grad(loss(x), x)[0])
