"""MCAN against a literal reference of its parts, and its invariances, in float64."""

import pytest
import torch

from mmattn.language.vqa import MCAN, AttentionPooling

from ..layers.sequences import assert_same_with_gradients
from ..world import MCAN as TINY
from ..world import batch, random_model, random_regions

SMALL = dict(
    vocab_size=20,
    num_answers=5,
    num_features=6,
    word_dim=7,
    num_layers=2,
    embed_dim=16,
    num_heads=2,
    feedforward_dim=24,
    fused_dim=12,
)
GSA = dict(type='mmattn.RegionAttention', geometry='query_dependent', geometry_dim=4)
ATTENTION = {'plain': dict(type='mmattn.RegionAttention'), 'GSA': GSA, 'NSA': dict(GSA, query_norm='instance')}


@pytest.fixture(params=ATTENTION)
def model(request):
    torch.manual_seed(0)
    return MCAN(**SMALL, region_attention=ATTENTION[request.param]).double().eval()


def questions(words=(3, 6, 1), regions=(5, 2, 4)):
    """One question per image, with different numbers of words and regions."""
    generator = torch.Generator().manual_seed(1)
    return [
        dict(
            random_regions(count, generator),
            question=torch.randint(4, 20, (length,), generator=generator),
            targets=torch.rand(5, generator=generator, dtype=torch.float64),
        )
        for length, count in zip(words, regions, strict=True)
    ]


def pooled(pooling, x):
    """W Σ_i softmax_i(w·ReLU(U x_i + u) + c) x_i + b of one set, without a mask."""
    first, _, _, last = pooling.score
    scores = [last.weight[0] @ torch.relu(first.weight @ each + first.bias) + last.bias[0] for each in x]
    e = [(score - max(scores)).exp() for score in scores]
    total = sum(weight / sum(e) * each for weight, each in zip(e, x))
    return pooling.projection.weight @ total + pooling.projection.bias


def test_pooling_and_its_gradients_are_those_of_the_valid_vectors():
    torch.manual_seed(0)
    pooling = AttentionPooling(8, 3, dropout=0.0).double()
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(5) >= torch.tensor([5, 1, 3])[:, None]
    expected = torch.stack([pooled(pooling, each[~padded]) for each, padded in zip(x, mask)])
    assert_same_with_gradients(pooling(x, mask), expected, [x], pooling, 1e-12)


def reference(model, sample):
    """The logits of one question, unpadded: torch's LSTM and layers by their formulas, without a mask."""

    def attention(layer, query, memory, f=None):  # of one sample; the layers are tested by themselves
        context = {} if f is None else dict(relative_geometry=f[None])
        return layer(query[None], memory[None], memory[None], **context)[0][0]

    def feed_forward(layer, x):
        first, _, _, last = layer.feedforward
        return layer.feedforward_norm(x + last(torch.relu(first(x))))

    words = model.lstm(model.embedding.weight[sample['question']])[0]
    for layer in model.word_encoder.layers:
        words = layer.attention_norm(words + attention(layer.self_attention[0], words, words))
        words = feed_forward(layer, words)
    boxes = sample['boxes']
    centre, side = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    distance = (centre[:, None] - centre[None]).abs() / side[:, None]
    f = torch.cat([distance.clamp(min=1e-3), side[:, None] / side[None]], -1).log()
    x = model.region_embedding(sample['features'])
    for layer in model.region_encoder.layers:
        x = layer.attention_norm(x + attention(layer.self_attention[0], x, x, f))
        x = layer.cross_attention_norm(x + attention(layer.cross_attention, x, words))
        x = feed_forward(layer, x)
    fused = pooled(model.word_pooling, words) + pooled(model.region_pooling, x)
    mean, variance = fused.mean(), fused.var(correction=0)
    normalised = (fused - mean) / (variance + 1e-5).sqrt() * model.norm.weight + model.norm.bias
    return model.classifier.weight @ normalised + model.classifier.bias


def test_logits_loss_and_gradients_are_those_of_the_reference(model):
    """A padded batch, against each question alone."""
    samples = questions()
    inputs = batch(model, samples)
    expected = torch.stack([reference(model, sample) for sample in samples])
    torch.testing.assert_close(model(inputs), expected, rtol=0, atol=1e-10)
    p, y = expected.sigmoid(), inputs['targets']
    loss = -(y * p.log() + (1 - y) * (1 - p).log()).sum()  # over answers and batch
    found = model(inputs, mode='loss')['loss']
    torch.testing.assert_close(found, loss, rtol=1e-12, atol=0)
    gradients = [torch.autograd.grad(each, [*model.parameters()]) for each in (found, loss)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)


def test_all_attention_drops_weights():
    """Between words, between regions (by an option of theirs), and from regions to words: MHAtt of mcan-vqa."""
    model = MCAN(**SMALL, region_attention=dict(GSA, dropout=0.3), dropout=0.2).double().train()
    assert {layer.self_attention[0].dropout for layer in model.word_encoder.layers} == {0.2}
    assert {layer.cross_attention.dropout for layer in model.region_encoder.layers} == {0.2}
    assert {layer.self_attention[0].dropout.p for layer in model.region_encoder.layers} == {0.3}
    words, regions = (torch.randn(2, n, 16, dtype=torch.float64) for n in (4, 5))
    context = dict(relative_geometry=torch.randn(2, 5, 5, 4, dtype=torch.float64)) if model.geometry else {}
    calls = [(layer.self_attention[0], words, words, {}) for layer in model.word_encoder.layers]
    for layer in model.region_encoder.layers:
        calls += [(layer.self_attention[0], regions, regions, context), (layer.cross_attention, regions, words, {})]
    for attention, query, key, options in calls:
        assert not torch.equal(*(attention(query, key, key, **options)[0] for _ in range(2)))


def test_mcan_without_words_or_regions():
    """As with one word, or region, of zeros; other questions of the batch are not changed."""
    model = random_model(TINY).double()
    features = torch.randn(2, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    question = torch.tensor([[4, 5, 6], [1, 1, 1]])
    mask = torch.tensor([[False] * 3, [True] * 3])
    with torch.no_grad():
        both = model(dict(question=question, features=features, region_mask=mask))
        first = model(dict(question=question[:1], features=features[:1]))
        second = model(dict(question=torch.tensor([[1]]), features=features[1:, :1]))
    torch.testing.assert_close(both, torch.cat([first, second]), rtol=0, atol=1e-12)
