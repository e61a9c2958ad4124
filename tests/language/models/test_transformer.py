"""The stacks equal those of nn.Transformer; one token at a time equals the whole sequence; causality; padding."""

import math
from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mmattn.language import SequenceDecoder, SequenceEncoder
from mmattn.language.layers.region_attention import normalize_queries
from mmattn.language.models.transformer import TransformerDecoderLayer

from ..failing import failing

BATCH, SOURCE, TARGET, CHANNELS, HEADS, HIDDEN = 3, 5, 6, 8, 2, 12
BILATERAL = 'mmattn.BilateralMultiheadAttention'
ATTENTIONS = {
    'none': dict(type=BILATERAL, position='none'),
    'relative': dict(type=BILATERAL, position='relative', max_offset=2),
    **{
        f'{padding}-{smoothing}': dict(type=BILATERAL, window_size=5, padding=padding, smoothing=smoothing)
        for padding, smoothing in product(('learned', 'zero', 'neg_inf', 'mean', 'min'), ('sqrt_dim', 'zscore'))
        if (padding, smoothing) != ('neg_inf', 'zscore')
    },
    'longer': dict(type=BILATERAL, window_size=31, padding='learned'),
    'terms': dict(type='mmattn.TransformerAttention1d', terms='1111'),
    'terms-range': dict(type='mmattn.TransformerAttention1d', terms='0100', spatial_range=3),
    'dynamic': dict(type='mmattn.DynamicConv1d', num_heads=4, kernel_size=3),
    'deformable': [dict(type='mmattn.DeformConv1d'), dict(type='mmattn.TransformerAttention1d', terms='1010')],
    'deformable alone': dict(type='mmattn.DeformConv1d'),
    'without': None,
}


def layer(**options):
    return dict(embed_dim=CHANNELS, num_heads=HEADS, feedforward_dim=HIDDEN, dropout=0.0, **options)


def randomized(module):
    """Without values that start at 0 and would hide terms."""
    torch.manual_seed(1)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double().eval()


def inputs():
    torch.manual_seed(0)
    x, memory = torch.randn(BATCH, TARGET, CHANNELS).double(), torch.randn(BATCH, SOURCE, CHANNELS).double()
    padding = torch.arange(TARGET) >= torch.tensor([[TARGET], [4], [2]])
    memory_padding = torch.arange(SOURCE) >= torch.tensor([[3], [SOURCE], [1]])
    return x, memory, padding, memory_padding


def steps(decoder, x, memory, memory_padding, reorder=None):
    """The outputs for one token at a time; ``reorder`` maps a position to the hypotheses that continue."""
    state = decoder.start(memory, memory_padding)
    found = []
    for position in range(x.shape[1]):
        y, state = decoder.step(x[:, position : position + 1], state)
        found.append(y)
        if reorder is not None:
            state = state.reorder(reorder)
    return torch.cat(found, 1)


@pytest.fixture(params=ATTENTIONS.items(), ids=lambda item: item[0])
def decoder(request):
    return randomized(SequenceDecoder(2, layer(self_attention=request.param[1])))


@torch.no_grad()
def test_one_token_at_a_time_is_the_whole_sequence(decoder):
    x, memory, _, memory_padding = inputs()
    found = steps(decoder, x, memory, memory_padding)
    torch.testing.assert_close(found, decoder(x, memory, None, memory_padding), rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize('attention', ['zero-sqrt_dim', 'learned-zscore', 'relative', 'terms', 'dynamic', 'deformable'])
def test_reordered_hypotheses_keep_their_past(attention):
    """Three sentences become two hypotheses each; then hypotheses are exchanged, repeated, and sentences leave."""
    decoder = randomized(SequenceDecoder(2, layer(self_attention=ATTENTIONS[attention])))
    _, memory, _, memory_padding = inputs()
    torch.manual_seed(2)
    # sources[t]: the rows of step t - 1 that the rows of step t continue; sentence of each row
    sources = [[0, 1, 2], [0, 0, 1, 1, 2, 2], [1, 0, 2, 2, 5, 4], [0, 1, 4, 5], [3, 2, 1], [2, 0]]
    state = decoder.start(memory, memory_padding)
    past, sentence = torch.empty(3, 0, CHANNELS).double(), torch.arange(3)
    for position, rows in enumerate(sources):
        rows = torch.tensor(rows)
        if position:
            before = state
            state = state.reorder(rows)
            assert before.count == len(past)  # the old state is still that of the old rows
        past, sentence = past[rows], sentence[rows]
        x = torch.randn(len(rows), 1, CHANNELS).double()
        past = torch.cat([past, x], 1)
        found, state = decoder.step(x, state)
        expected = decoder(past, memory[sentence], None, memory_padding[sentence])[:, -1:]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_the_memory_of_a_sentence_is_not_repeated_for_its_hypotheses():
    decoder = SequenceDecoder(1, layer())
    _, memory, _, memory_padding = inputs()
    state = decoder.float().start(memory.float(), memory_padding)
    state = state.reorder(torch.tensor([0, 0, 1, 1, 2, 2]))
    assert state.sentences[0]['memory_key'].shape[0] == BATCH
    state = state.reorder(torch.tensor([0, 1, 5, 4]))  # the second sentence is finished
    assert state.sentences[0]['memory_key'].shape[0] == 2
    assert state.count == 4


@torch.no_grad()
def test_padding_changes_nothing(decoder):
    x, memory, padding, memory_padding = inputs()
    together = decoder(x, memory, padding, memory_padding)
    spoiled = decoder(
        x.masked_fill(padding[..., None], 1e3),
        memory.masked_fill(memory_padding[..., None], -1e3),
        padding,
        memory_padding,
    )
    for row in range(BATCH):
        length, width = (~padding[row]).sum(), (~memory_padding[row]).sum()
        alone = decoder(x[row : row + 1, :length], memory[row : row + 1, :width])[0]
        torch.testing.assert_close(together[row, :length], alone, rtol=0, atol=1e-10)
        torch.testing.assert_close(spoiled[row, :length], alone, rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize('name', [*ATTENTIONS, 'normalized'])
def test_padding_changes_nothing_in_the_encoder(name):
    attention = ATTENTIONS.get(name, dict(type=BILATERAL, position='none', normalize_queries=True))
    encoder = randomized(SequenceEncoder(2, layer(self_attention=attention)))
    _, x, _, padding = inputs()
    together = encoder(x.masked_fill(padding[..., None], 1e3), padding)
    for row in range(BATCH):
        length = (~padding[row]).sum()
        torch.testing.assert_close(together[row, :length], encoder(x[row : row + 1, :length])[0], rtol=0, atol=1e-10)


def test_the_normalized_queries_are_those_of_instance_norm():
    """Of the sentence without its padding, by torch's own layer; and the layer uses them in place of its queries."""
    torch.manual_seed(0)
    encoder = randomized(
        SequenceEncoder(1, layer(self_attention=dict(type=BILATERAL, position='none', normalize_queries=True)))
    )
    attention = encoder.layers[0].self_attention[0]
    _, x, _, padding = inputs()
    found, _ = attention(x, x, x, key_padding_mask=padding)
    for row in (0, 1):
        alone = x[row, : (~padding[row]).sum()]
        q, k, v = F.linear(alone, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
        q = nn.InstanceNorm1d(CHANNELS).double()(q.T[None])[0].T
        heads = []
        for q_m, k_m, v_m in zip(*(t.chunk(HEADS, -1) for t in (q, k, v))):
            heads.append((q_m @ k_m.T / math.sqrt(CHANNELS // HEADS)).softmax(-1) @ v_m)
        expected = attention.out_proj(torch.cat(heads, -1))
        torch.testing.assert_close(found[row, : len(alone)], expected, rtol=0, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize('options', [dict(smoothing='zscore'), dict(position='none', normalize_queries=True)])
def test_statistics_omit_the_keys_of_a_float_mask(options):
    """nn.TransformerEncoder makes a float mask of a bool one: −∞ where a key is padding."""
    encoder = randomized(SequenceEncoder(1, layer(self_attention=dict(type=BILATERAL, **options))))
    attention = encoder.layers[0].self_attention[0]
    x, _, padding, _ = inputs()
    of_bool, _ = attention(x, x, x, key_padding_mask=padding)
    of_float, _ = attention(
        x, x, x, key_padding_mask=torch.zeros(padding.shape).double().masked_fill(padding, -math.inf)
    )
    torch.testing.assert_close(of_float[~padding], of_bool[~padding], rtol=0, atol=1e-12)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_queries_of_low_precision_are_normalized_in_float32(dtype):
    """Sums of squares of these queries are above the range of float16."""
    torch.manual_seed(0)
    x = (torch.randn(2, 40, 5) * 100 + 50).to(dtype)
    padding = torch.arange(40) >= torch.tensor([[40], [33]])
    for mask in (None, padding):
        expected = normalize_queries(x.double(), mask)
        found = normalize_queries(x, mask)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-3)


def cross(**options):
    return TransformerDecoderLayer(
        CHANNELS, HEADS, HIDDEN, cross_attention=dict(type=BILATERAL, **options)
    ).cross_attention


def own(stack):
    return stack(1, layer()).layers[0].self_attention[0]


@torch.no_grad()
@pytest.mark.parametrize('norm_first', [False, True])
def test_dropout_is_on_the_branches_and_not_on_the_tokens(norm_first):
    """In training, whole sequences and steps: where all branches give 0, what remains are the tokens and the norms."""
    decoder = SequenceDecoder(2, layer(norm_first=norm_first)).double().train()
    for part in decoder.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.5
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.weight)
            nn.init.zeros_(part.bias)
    x, memory, _, memory_padding = inputs()
    expected = x
    for _ in range(1 if norm_first else 6):  # a last norm, or one per sub-layer
        expected = F.layer_norm(expected, (CHANNELS,))
    for found in (decoder(x, memory, None, memory_padding), steps(decoder, x, memory, memory_padding)):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


MEMORY, MASK = torch.randn(1, 2, CHANNELS), torch.zeros(1, 2, dtype=torch.bool)
NORMALIZED = dict(type=BILATERAL, position='none', normalize_queries=True)


test_failures = failing(
    (lambda: SequenceDecoder(1, layer(self_attention=NORMALIZED)), 'normalize_queries'),
    (lambda: SequenceEncoder(3, [layer(), layer()]), '3; got 2'),
    (lambda: cross(position='relative').start(MEMORY), 'memory'),
    (lambda: cross(position='none').start(MEMORY, MASK.float()), 'key_padding_mask'),
    (lambda: own(SequenceDecoder).start(None, MASK), 'key_padding_mask'),
    (lambda: own(SequenceEncoder).start(), 'is_causal'),
    (lambda: own(SequenceDecoder).step(MEMORY[:, :1], {}, 2), 'position'),
    (lambda: own(SequenceDecoder).step(MEMORY, {}, 0), 'x must'),
    error=(TypeError, ValueError),
)
