"""The phrase grounder against a literal double loop over phrases and regions, in float64, and its invariances."""

import math

import pytest
import torch
from mmengine.structures import BaseDataElement
from torch.nn import functional as F

from mmattn.language.grounding import PhraseGrounder

from ..layers.sequences import assert_same_with_gradients
from ..layers.test_bilinear_attention_network import lin
from ..world import batch, random_regions

TINY = dict(vocab_size=20, num_features=6, embed_dim=5, question_encoder=dict(type='mmattn.QuestionGRU', word_dim=7))
SCORERS = {
    'bilinear': dict(scorer=dict(type='mmattn.BilinearLogits')),
    'concat': dict(scorer=dict(type='mmattn.ConcatLogits', embed_dim=9)),
    'boxes': dict(reads='boxes'),
}


@pytest.fixture(params=SCORERS)
def model(request):
    torch.manual_seed(0)
    return PhraseGrounder(**TINY, **SCORERS[request.param]).double().eval()


def captions(words=(5, 2, 7), phrases=(2, 1, 3), regions=(4, 1, 6), seed=1):
    """One sample per caption, with different numbers of words, phrases and regions."""
    generator = torch.Generator().manual_seed(seed)
    return [
        dict(
            random_regions(boxes, generator),
            caption=torch.randint(4, 20, (length,), generator=generator),
            phrases=torch.randint(0, length, (count,), generator=generator),
            targets=torch.randint(0, 2, (count, boxes), generator=generator).double(),
        )
        for length, count, boxes in zip(words, phrases, regions, strict=True)
    ]


def pair_logit(model, x, y):
    """L of a phrase and a region, by the formula."""
    scorer = model.scorer
    if hasattr(scorer, 'glimpses'):
        parameters = scorer.glimpses.parametrizations.weight
        p = (parameters.original0 * parameters.original1 / parameters.original1.square().sum().sqrt())[0]
        a, b = lin(scorer.word_proj, x), lin(scorer.region_proj, y)
        return sum(p[k] * a[k] * b[k] for k in range(len(p))) + scorer.glimpses.bias[0]
    both = torch.cat([scorer.word_proj.weight, scorer.region_proj.weight], 1) @ torch.cat([x, y])
    last = scorer.output[2]
    return last.weight[0] @ torch.relu(both + scorer.word_proj.bias) + last.bias[0]


def region_of(model, sample, j):
    if model.reads == 'features':
        return sample['features'][j]
    width, height = sample['sizes'].tolist()
    x1, y1, x2, y2 = sample['boxes'][j]
    x1, y1, x2, y2 = x1 / width, y1 / height, x2 / width, y2 / height
    return torch.stack([x1, y1, x2, y2, (x2 - x1) * (y2 - y1)])


def reference(model, samples):
    """Logits and loss by loops over captions, phrases and regions, without padding: −t ln σ(L) − (1−t) ln(1 − σ(L))."""
    logits, loss = [], 0
    for sample in samples:
        outputs = model.question_encoder.gru(model.question_encoder.embedding(sample['caption'])[None])[0][0]
        rows = []
        for i, last in enumerate(sample['phrases']):
            row = [
                pair_logit(model, outputs[last], region_of(model, sample, j)) for j in range(len(sample['features']))
            ]
            for j, logit in enumerate(row):
                probability = 1 / (1 + torch.exp(-logit))
                target = sample['targets'][i, j]
                loss = loss - target * probability.log() - (1 - target) * (1 - probability).log()
            rows.append(torch.stack(row))
        logits.append(torch.stack(rows))
    return logits, loss / len(samples)


def test_logits_loss_and_gradients_are_those_of_the_double_loop(model):
    samples = captions()
    inputs = batch(model, samples)
    logits, loss = reference(model, samples)
    assert_same_with_gradients(model(inputs, mode='loss')['loss'], loss, [], model, 1e-12)
    elements = [BaseDataElement(metainfo=dict(number=number)) for number in range(3)]
    for number, (sample, expected) in enumerate(zip(model(inputs, elements, 'predict'), logits, strict=True)):
        assert sample.number == number
        torch.testing.assert_close(sample.pred_scores, expected, rtol=0, atol=1e-12)


def test_padding_and_nan_in_it_change_nothing(model):
    samples = captions()
    inputs = batch(model, samples)
    loss = model(inputs, mode='loss')['loss']
    scores = [each.pred_scores for each in model(inputs, mode='predict')]
    alone = [model(batch(model, [each]), mode='predict')[0].pred_scores for each in samples]
    torch.testing.assert_close(scores, alone, rtol=0, atol=1e-12)
    more = {name: x.clone() for name, x in inputs.items()}
    more['features'] = F.pad(more['features'], (0, 0, 0, 3))
    more['region_mask'] = F.pad(more['region_mask'], (0, 3), value=True)
    more['boxes'] = F.pad(more['boxes'], (0, 0, 0, 3))
    more['features'][more['region_mask']] = math.nan
    more['boxes'][more['region_mask']] = math.nan
    more['phrases'] = F.pad(more['phrases'], (0, 2))
    more['phrase_mask'] = F.pad(more['phrase_mask'], (0, 2), value=True)
    more['caption'] = F.pad(more['caption'], (0, 4), value=1)
    more['targets'] = F.pad(more['targets'], (0, 3, 0, 2), value=math.nan)
    assert_same_with_gradients(model(more, mode='loss')['loss'], loss, [], model, 1e-12)
