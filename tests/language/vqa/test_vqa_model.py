"""VQAModel: losses and predictions, boxes relative to the picture, and images as inputs."""

import pytest
import torch
from mmengine.structures import BaseDataElement
from torch.nn import functional as F

from mmattn.language.text.vocabulary import PAD
from mmattn.language.vqa import VQAModel

from ..failing import failing
from ..layers.sequences import build as randomized
from ..world import batch, random_regions

V, A, D, L = 12, 5, 6, 4
GRU = dict(type='mmattn.QuestionGRU', word_dim=7, embed_dim=8)
THOUGHTS = dict(type='mmattn.SkipThoughtEncoder', word_dim=7, embed_dim=8)
COUNTER = dict(type='mmattn.ObjectCounter', num_objects=3, skip=1)
BAN = dict(type='mmattn.BANHead', num_glimpses=2, counter=COUNTER, mask_words=True)
FUSION = dict(type='mmattn.FusionHead', query_dim=4, value_dim=4, pooled_dim=6, out_dim=5)
MODELS = {
    'BAN': dict(question_encoder=GRU, head=BAN),
    'unitary': dict(question_encoder=GRU, head=dict(type='mmattn.UnitaryHead')),
    'co-attention': dict(question_encoder=GRU, head=dict(type='mmattn.CoAttentionHead', mask_words=True)),
    'MUTAN': dict(question_encoder=THOUGHTS, head=FUSION, loss='cross_entropy'),
    'concat': dict(question_encoder=GRU, head=dict(type='mmattn.ConcatHead')),
}  # fmt: skip


def build(name, **options):
    """The vector of padding is 0."""
    model = randomized(VQAModel, V, A, num_features=D, **{**MODELS[name], **options})
    model.question_encoder.embedding.weight.data[PAD] = 0
    return model


def samples(words=(3, 4, 0), regions=(5, 2, 4)):
    """One question per image, with different numbers of words and regions; the last has no word."""
    generator = torch.Generator().manual_seed(1)
    return [
        dict(
            random_regions(count, generator),
            question=F.pad(torch.randint(4, V, (length,), generator=generator), (0, L - length), value=PAD),
            targets=torch.rand(A, generator=generator, dtype=torch.float64),
            answer=torch.randint(A, (), generator=generator),
        )
        for length, count in zip(words, regions, strict=True)
    ]


def test_boxes_are_relative_to_width_and_height():
    """Twice the picture with twice the boxes is the same; another width is not."""
    model = build('BAN')
    inputs = batch(model, samples())
    expected = model(inputs)
    doubled = dict(inputs, boxes=2 * inputs['boxes'], sizes=2 * inputs['sizes'])
    torch.testing.assert_close(model(doubled), expected, rtol=0, atol=1e-12)
    relative = dict(inputs, boxes=inputs['boxes'] / torch.tensor([100, 92, 100, 92]), sizes=torch.ones(3, 2))
    torch.testing.assert_close(model(relative), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize('name', ['BAN', 'MUTAN'])
def test_loss_and_predictions_are_those_of_the_logits(name):
    model = build(name)
    inputs = batch(model, samples())
    logits = model(inputs)
    if name == 'BAN':
        p, t = logits.sigmoid(), inputs['targets']
        expected, scores = -(t * p.log() + (1 - t) * (1 - p).log()).sum(1).mean(), p
    else:
        scores = logits.exp() / logits.exp().sum(1, keepdim=True)
        expected = -scores.log()[range(3), inputs['answer']].mean()
    losses = model(inputs, mode='loss')
    torch.testing.assert_close(losses['loss'], expected, rtol=0, atol=1e-12)
    best = [row[scores[i].argmax()].item() for i, row in enumerate(inputs['targets'])]  # of the training questions
    assert losses['score'].item() == pytest.approx(100 * sum(best) / len(best))
    given = [BaseDataElement(metainfo=dict(question_id=n)) for n in range(3)]
    for data_samples in (None, given):
        found = model(inputs, data_samples, mode='predict')
        for row, sample in zip(scores, found, strict=True):
            torch.testing.assert_close(sample.pred_scores, row, rtol=0, atol=1e-12)
            assert sample.pred_label == row.argmax()
    assert [sample.question_id for sample in found] == [0, 1, 2]


@pytest.mark.parametrize('head', [dict(BAN, counter=None), FUSION], ids=['BAN', 'MUTAN'])
def test_images_are_read_by_a_network_that_is_trained_along(head):
    """Positions of the map, row by row, are the regions."""
    torch.manual_seed(0)
    encoder = dict(type='mmattn.ConvImageEncoder', channels=(3, 4, D))
    model = VQAModel(V, A, GRU, head, image_encoder=encoder).double()
    assert model.num_features is None
    inputs = dict(question=torch.tensor([[5, 6], [7, PAD]]), image=torch.rand(2, 3, 16, 24).double())
    features = model.image_encoder.layers(inputs['image'])
    assert features.shape == (2, D, 2, 3)
    regions = torch.stack([features[:, :, i, j] for i in range(2) for j in range(3)], 1)
    torch.testing.assert_close(model.image_encoder(inputs['image']), regions, rtol=0, atol=1e-12)
    model.eval()
    own = model.head(model.question_encoder(inputs['question']), model.image_encoder(inputs['image']))[0]
    torch.testing.assert_close(model(inputs), own, rtol=0, atol=1e-12)
    model.train()(dict(inputs, targets=torch.rand(2, A)), mode='loss')['loss'].backward()
    assert all(p.grad.any() for p in model.image_encoder.parameters())


def loss_without(name, missing):
    model = build(name)
    inputs = batch(model, samples())
    del inputs[missing]
    model(inputs, mode='loss')


test_missing_inputs = failing(
    (lambda: loss_without('BAN', 'targets'), "'targets'.*loss='cross_entropy'"),
    (lambda: loss_without('MUTAN', 'answer'), "'answer'.*loss='binary'"),
    (lambda: loss_without('BAN', 'boxes'), "'boxes'"),
)
test_failures = failing(
    (lambda: build('BAN', image_encoder=dict(type='mmattn.ConvImageEncoder')), 'image_encoder'),
    (lambda: build('MUTAN', image_encoder=dict(type='mmattn.ConvImageEncoder', channels=())), 'channels'),
    match='{} must',
)
