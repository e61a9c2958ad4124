"""Heads against literal references, their invariances, and the parameter counts of the papers, in float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mmattn.language.vqa import (
    BANHead,
    CoAttentionHead,
    ConcatHead,
    EncodedQuestion,
    FusionHead,
    ImageOnlyHead,
    QuestionOnlyHead,
    UnitaryHead,
)

from ...ops import literal
from ..failing import failing
from ..layers.sequences import assert_same_with_gradients, padding
from ..layers.sequences import build as randomized
from ..layers.test_bilinear_attention_network import lin, literally, unitarily

B, Q, R, N, M, A = 2, 3, 6, 4, 5, 7
WORD_MASK, REGION_MASK = padding(3, 2, of=Q), padding(4, 6, of=R)
COUNTER = dict(type='mmattn.ObjectCounter', num_objects=3)
SMALL = dict(query_dim=3, value_dim=4, pooled_dim=6, out_dim=5)
HADAMARD = 'mmattn.HadamardFusion'
# The square root of the normalisation would magnify the rounding errors of entries that are 0.
MCB = dict(type='mmattn.MCBFusion', sketch_dim=40, normalize=False)
GATE = dict(relations=('add', 'multiply'), groups=((0, 1, 2, 3), (4,)))
FG = dict(GATE, squash=('identity',) * 4 + ('sigmoid',))
NE = dict(
    query_activation=('identity', 'leaky_relu', 'selu', 'sigmoid', 'tanh'), value_activation='selu', post_network={}
)
HEADS = {
    'BAN': (BANHead, dict(num_glimpses=3, embed_dim=3)),
    'BAN, words masked': (BANHead, dict(num_glimpses=3, embed_dim=3, mask_words=True)),
    'BAN sum': (BANHead, dict(num_glimpses=3, embed_dim=3, mode='sum', mask_words=True)),
    'BAN concat': (BANHead, dict(num_glimpses=3, embed_dim=3, mode='concat', mask_words=True)),
    'BAN counter': (BANHead, dict(num_glimpses=2, counter=COUNTER, mask_words=True)),
    'unitary': (UnitaryHead, dict(embed_dim=6)),
    'co-attention': (CoAttentionHead, dict(embed_dim=6, hidden_dim=3)),
    'co-attention, words masked': (CoAttentionHead, dict(embed_dim=6, hidden_dim=3, mask_words=True)),
    'MUTAN': (FusionHead, SMALL),
    'NE+FG+Φ': (FusionHead, dict(SMALL, fusion=dict(type=HADAMARD, **NE, **FG))),
    'MUTAN, linear': (FusionHead, dict(SMALL, activation='identity')),
    'MCB': (FusionHead, dict(SMALL, fusion=MCB, project=False)),
    'two fusions': (FusionHead, dict(SMALL, attention_fusion=dict(type='mmattn.ConcatFusion'))),
    'concat': (ConcatHead, {}),
    'question only': (QuestionOnlyHead, {}),
    'image only': (ImageOnlyHead, {}),
}  # fmt: skip
# Heads that read padding after the words, unless they mask it.
READS_PADDING = ('BAN', 'co-attention')


def build(name, **options):
    cls, own = HEADS[name]
    head = randomized(cls, N, M, A, **{**own, **options})
    head.options = own
    return head


def inputs(requires_grad=True):
    """Words, state, regions"""
    sizes = (B, Q, N), (B, N), (B, R, M)
    return [literal.randn(*size, seed=i).requires_grad_(requires_grad) for i, size in enumerate(sizes)]


def boxes():
    corner = torch.rand(B, R, 2, generator=torch.Generator().manual_seed(0)).double() * 0.6
    return torch.cat([corner, corner + 0.3], -1)


def classified(head, fused):
    return lin(head.classifier[1], lin(head.classifier[0], fused))


def expected_ban(head, words, state, regions, region_mask):
    mask = WORD_MASK if head.mask_words else torch.zeros(B, Q, dtype=torch.bool)
    return classified(head, literally(head.network, words, regions, mask, region_mask, head.network.num_glimpses))


def expected_unitary(head, words, state, regions, region_mask):
    return classified(head, unitarily(head.attention, state, regions, region_mask)[0])


def expected_co_attention(head, words, state, regions, region_mask):
    layer = head.attention
    logits = lin(layer.logits[1], lin(layer.logits[0], words))[..., 0]
    if head.mask_words:
        logits = logits.masked_fill(WORD_MASK, -torch.inf)
    beta = logits.exp() / logits.exp().sum(-1, keepdim=True)
    return classified(head, unitarily(layer.attention, (beta[..., None] * words).sum(1), regions, region_mask)[0])


def expected_fusion(head, words, state, regions, region_mask):
    """Position by position; the fusions themselves are tested with the layers."""

    def projected(layer, x):
        if isinstance(layer, nn.Identity):
            return x
        linear = layer[1].weight @ x + layer[1].bias
        return linear if head.options.get('activation') == 'identity' else torch.tanh(linear)

    logits = []
    for q, v, mask in zip(state, regions, region_mask):
        valid = [x for x, padded in zip(v, mask) if not padded]
        own = projected(head.attention_query, q)
        fused = [head.attention_fusion(own, projected(head.attention_value, x)) for x in valid]
        scores = torch.stack([head.glimpses[1].weight @ u + head.glimpses[1].bias for u in fused])
        attended = []
        for g, layer in enumerate(head.values):
            e = (scores[:, g] - scores[:, g].max()).exp()
            attended.append(projected(layer, sum(weight * x for weight, x in zip(e / e.sum(), valid))))
        u = head.fusion(projected(head.query, q), torch.cat(attended))
        logits.append(head.classifier[1].weight @ u + head.classifier[1].bias)
    return torch.stack(logits)


def expected_concat(head, words, state, regions, region_mask):
    means = torch.stack([v[~mask].sum(0) / len(v[~mask]) for v, mask in zip(regions, region_mask)])
    read = {ConcatHead: (means, state), QuestionOnlyHead: (state,), ImageOnlyHead: (means,)}[type(head)]
    return classified(head, torch.cat(read, 1))


EXPECTED = {BANHead: expected_ban, UnitaryHead: expected_unitary, CoAttentionHead: expected_co_attention}
EXPECTED |= {FusionHead: expected_fusion} | dict.fromkeys(
    (ConcatHead, QuestionOnlyHead, ImageOnlyHead), expected_concat
)


@pytest.mark.parametrize('name', [name for name in HEADS if 'counter' not in name])
def test_logits_and_gradients_are_those_of_the_literal_head(name):
    head, (words, state, regions) = build(name), inputs()
    found, _ = head(EncodedQuestion(words, state, WORD_MASK), regions, REGION_MASK)
    expected = EXPECTED[type(head)](head, words, state, regions, REGION_MASK)
    assert_same_with_gradients(found, expected, [words, state, regions], head, 1e-11)


@pytest.mark.parametrize('name', HEADS)
def test_padding_and_batch_change_nothing(name):
    """Of regions, also NaN; of words where they are masked or not read, also NaN where they are masked."""
    head, (words, state, regions) = build(name), inputs(requires_grad=False)
    given = boxes() if head.reads_boxes else None
    padded = regions.masked_fill(REGION_MASK[..., None], torch.nan).requires_grad_()
    masked = getattr(head, 'mask_words', False)
    read = words.masked_fill(WORD_MASK[..., None], torch.nan if masked else 0).requires_grad_()
    question = EncodedQuestion(read if masked else words, state, WORD_MASK)
    logits, weights = head(question, padded, REGION_MASK, given, need_weights=True)
    for i, (count, valid) in enumerate(((3, 4), (2, 6))):
        count = Q if name in READS_PADDING else count
        alone = EncodedQuestion(words[i : i + 1, :count], state[i : i + 1], WORD_MASK[i : i + 1, :count])
        own = None if given is None else given[i : i + 1, :valid]
        expected, of_valid = head(alone, regions[i : i + 1, :valid], None, own, need_weights=True)
        torch.testing.assert_close(logits[i : i + 1], expected, rtol=1e-12, atol=1e-12)
        if weights is not None:
            torch.testing.assert_close(
                weights[i, ..., :valid],
                F.pad(of_valid[0], (0, 0, 0, Q - count)) if weights.dim() == 4 else of_valid[0],
                rtol=0,
                atol=1e-12,
            )
            assert not weights[i, ..., valid:].any()
    logits.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in head.parameters())
    for x, mask in ((padded, REGION_MASK), (read, WORD_MASK)):
        assert x.grad is None or not x.grad[mask].any()


@pytest.mark.parametrize('without', ['words', 'regions', 'regions, no mask', 'both'])
@pytest.mark.parametrize('name', HEADS)
def test_questions_without_words_and_images_without_regions_are_answered(name, without):
    """Weights are 0 without regions; logits and all gradients are finite, and those of the other sample the same."""
    head, (words, state, regions) = build(name), inputs(requires_grad=False)
    given = boxes() if head.reads_boxes else None
    word_mask, region_mask = WORD_MASK.clone(), REGION_MASK.clone()
    expected, none = head(EncodedQuestion(words, state, word_mask), regions, region_mask, given)
    assert none is None
    if without in ('words', 'both'):
        word_mask[0], state[0], words[0] = True, 0, words[0]
    if without in ('regions', 'both'):
        region_mask[0] = True
        regions[0] = torch.nan
    elif 'no mask' in without:
        regions, region_mask = regions[:, :0], None
        given = None if given is None else given[:, :0]
    logits, weights = head(EncodedQuestion(words, state, word_mask), regions, region_mask, given, need_weights=True)
    assert logits.isfinite().all()
    if region_mask is not None:
        torch.testing.assert_close(logits[1], expected[1], rtol=1e-12, atol=1e-12)
    if weights is not None and 'regions' in without:
        assert not weights[0].any()
    logits.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in head.parameters())


@pytest.mark.parametrize('name', ['BAN', 'BAN counter', 'unitary', 'concat', 'question only', 'image only'])
def test_the_classifier_drops_its_hidden_channels(name):
    """All of them, which leaves the bias."""
    head = build(name, classifier_dropout=1.0)
    head.classifier.train()
    words, state, regions = inputs(requires_grad=False)
    given = boxes() if head.reads_boxes else None
    logits, _ = head(EncodedQuestion(words, state, WORD_MASK), regions, REGION_MASK, given)
    torch.testing.assert_close(logits, logits[:1].expand_as(logits), rtol=1e-12, atol=1e-12)


def test_first_glimpses_in_evaluation():
    head, (words, state, regions) = build('BAN', test_glimpses=2), inputs(requires_grad=False)
    question, none = EncodedQuestion(words, state, WORD_MASK), torch.zeros(B, Q, dtype=torch.bool)
    for training, count in ((False, 2), (True, 3)):
        head.train(training)
        for module in head.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        expected = classified(head, literally(head.network, words, regions, none, REGION_MASK, count))
        torch.testing.assert_close(head(question, regions, REGION_MASK)[0], expected, rtol=1e-12, atol=1e-12)


def test_maps_of_co_attention_are_products():
    head, (words, state, regions) = build('co-attention'), inputs(requires_grad=False)
    _, maps = head(EncodedQuestion(words, state, WORD_MASK), regions, REGION_MASK, need_weights=True)
    beta, alpha = head.attention(words, regions, None, REGION_MASK, need_weights=True)[1]
    torch.testing.assert_close(maps[:, 0], beta[:, :, None] * alpha[:, None])


test_failures = failing(
    (lambda: build('BAN', test_glimpses=4), 'test_glimpses'),
    (lambda: build('BAN concat', test_glimpses=2), 'test_glimpses'),
    match='{} must',
)
