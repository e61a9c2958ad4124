"""SAN, ETA and their ensemble: parameters, equalities, sampling and self-critical gradients."""

import pytest
import torch
from mmengine.structures import BaseDataElement
from torch.nn.utils.rnn import pad_sequence

from mmattn.language.captioning import CaptionEnsemble, CiderReward, ETACaptioner, SANCaptioner
from mmattn.language.captioning.eta import EntangledDecoder

from ..failing import failing
from ..models.torch_weights import from_torch
from ..world import batch, random_regions

NORMALISED = dict(type='mmattn.RegionAttention', query_norm='instance', geometry='query_dependent', geometry_dim=4)
PLAIN = dict(type='mmattn.RegionAttention')
SMALL = dict(vocab_size=30, num_features=6, num_layers=2, embed_dim=16, num_heads=2, feedforward_dim=24)


@pytest.mark.parametrize(('kind', 'beam'), [(SANCaptioner, 3), (ETACaptioner, 5)])
def test_how_wide_they_search(kind, beam):
    assert kind(**SMALL).test_cfg['beam'] == beam


def images(count=3, attributes=(3, 0, 2)):
    """Return images with 5, 4 and 3 regions and three captions each, one image per dict, in float64."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for number in range(count):
        words = [torch.randint(4, 30, (2 + (number + k) % 4,), generator=generator) for k in range(3)]
        captions = [torch.cat([each, torch.tensor([2])]) for each in words]
        found.append(
            dict(
                random_regions(5 - number % 3, generator),
                attributes=torch.randint(4, 30, (attributes[number % 3],), generator=generator),
                captions=pad_sequence(captions, batch_first=True, padding_value=1),
            )
        )
    return found


MODELS = {
    'SAN': (SANCaptioner, dict(encoder_attention=PLAIN)),
    'NG-SAN': (SANCaptioner, dict(encoder_attention=NORMALISED)),
    'absolute': (SANCaptioner, dict(positions='absolute')),
    'sinusoidal': (SANCaptioner, dict(positions='sinusoidal')),
    'pre-norm': (SANCaptioner, dict(norm_first=True)),
    'nn.Transformer': (SANCaptioner, dict(stack='Torch')),
    'ETA': (ETACaptioner, {}),
    'stacked_v, no encoder': (
        ETACaptioner,
        dict(entangled=dict(type='mmattn.EntangledAttention', mode='stacked_v'), encoders=False),
    ),
    'T_v': (ETACaptioner, dict(sources='visual')),
    'T_s': (ETACaptioner, dict(sources='semantic')),
}


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(0)
    build, options = MODELS[request.param]
    found = build(**SMALL, **options).double().eval()
    torch.nn.init.normal_(found.output.bias)
    return found


@torch.no_grad()
@pytest.mark.parametrize('norm_first', [False, True])
def test_san_equals_the_layers_of_torch(norm_first):
    """With the same weights: logits of a batch with padding, and captions."""
    torch.manual_seed(0)
    ours, theirs = (
        SANCaptioner(**SMALL, stack=stack, norm_first=norm_first).double().eval() for stack in ('Sequence', 'Torch')
    )
    for parameter in theirs.parameters():  # norms and biases, too
        torch.nn.init.normal_(parameter, std=0.3)
    ours.load_state_dict(from_torch(theirs))
    inputs = batch(ours, images())
    keep = inputs['captions'].flatten(0, 1) != 1
    torch.testing.assert_close(ours(inputs)[keep], theirs(inputs)[keep], rtol=0, atol=1e-10)
    found, expected = (model.describe(inputs, max_length=6) for model in (ours, theirs))
    assert [[h.tokens for h in each] for each in found] == [[h.tokens for h in each] for each in expected]


@torch.no_grad()
def test_an_image_alone_is_as_in_a_batch(model):
    """Images have different numbers of regions and attributes, one has none."""
    samples = images()
    inputs = batch(model, samples)
    together, found = model(inputs), model.describe(inputs, max_length=5)
    for number, sample in enumerate(samples):
        alone = batch(model, [sample])
        longest = alone['captions'].shape[2]
        logits = model(alone)
        keep = alone['captions'].flatten(0, 1) != 1
        torch.testing.assert_close(together[3 * number :][:3, :longest][keep], logits[keep], rtol=0, atol=1e-10)
        (expected,) = model.describe(alone, max_length=5)
        assert [h.tokens for h in found[number]] == [h.tokens for h in expected]


@torch.no_grad()
def test_a_score_is_the_log_probability_of_the_caption(model):
    """Incremental decoding, reordered by the beams, is decoding of the whole caption."""
    for sample in images():
        inputs = batch(model, [sample])
        (hypotheses,) = model.describe(inputs, beam=4, max_length=6)
        assert len(hypotheses) == 4
        for tokens, score in hypotheses:
            assert 3 not in tokens
            caption = torch.tensor([*tokens, 2])
            log_p = model({**inputs, 'captions': caption[None, None]})[0].log_softmax(-1)
            assert log_p[range(len(caption)), caption].sum().item() == pytest.approx(score, abs=1e-10)


def test_the_loss_is_the_cross_entropy_of_all_words():
    torch.manual_seed(0)
    model = SANCaptioner(**SMALL).double().eval()
    inputs = batch(model, images())
    captions = inputs['captions'].flatten(0, 1)
    logits, keep = model(inputs), captions != 1
    found = model(inputs, mode='loss')
    torch.testing.assert_close(found['loss'], torch.nn.functional.cross_entropy(logits[keep], captions[keep]))
    assert found['num_tokens'] == keep.sum()


def test_samples_have_the_frequencies_of_the_model():
    """Of the first word, and of the second after the most frequent first one, within five deviations."""
    torch.manual_seed(0)
    model = SANCaptioner(**{**SMALL, 'vocab_size': 8}, test_cfg=dict(max_length=3)).double().eval()
    inputs = batch(model, images(1))
    count = 4000
    found = model.sample(*model.encode(inputs), count)
    assert found.shape[0] == count
    assert found.shape[1] <= 4
    for prefix in ([], [int(found[:, 0].mode().values)]):
        rows = found[(found[:, : len(prefix)] == torch.tensor(prefix)).all(1), len(prefix)]
        caption = torch.tensor([*prefix, 2])
        logits = model({**inputs, 'captions': caption[None, None]})[0, -1].detach()
        p = logits.index_fill(0, torch.tensor([1]), -torch.inf).softmax(-1)  # padding is never drawn
        if prefix == [2]:
            p = torch.zeros(8).index_fill(0, torch.tensor([1]), 1.0)
        frequency = torch.bincount(rows, minlength=8) / len(rows)
        assert (abs(frequency - p) <= 5 * (p * (1 - p) / len(rows)).sqrt() + 1e-9).all()
    # Nothing follows the end.
    after = (found == 2).cumsum(1) - (found == 2).long() > 0
    assert (found[after] == 1).all()
    assert not (found[~after] == 1).any()


SAMPLES = [BaseDataElement(metainfo=dict(index=n)) for n in range(3)]


@pytest.mark.parametrize('baseline', ['greedy', 'mean'])
def test_self_critical_gradient(baseline, monkeypatch):
    """−Σ (r − b) ∇log p / tokens, for samples that are drawn here; dropout is off, so that p is a function."""
    torch.manual_seed(0)
    options = dict(self_critical=dict(samples=3, baseline=baseline), dropout=0.0)
    attention = dict(PLAIN, dropout=0.0)
    model = SANCaptioner(**SMALL, **options, encoder_attention=attention).double()
    samples = images()
    inputs = batch(model, samples)
    references = [[row[row != 1].tolist() for row in sample['captions']] for sample in samples]
    model.reward = CiderReward(references)
    drawn = []
    sample = model.sample
    monkeypatch.setattr(model, 'sample', lambda *args: drawn.append(sample(*args)) or drawn[-1])
    # The model must draw words of the references: else every reward is 0.
    with torch.no_grad():
        for row in references:
            for word in {word for caption in row for word in caption}:
                model.output.bias[word] += 4
    found = model(inputs, SAMPLES, mode='loss')
    found['loss'].backward()
    gradient = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    (tokens,) = drawn
    reward = model.reward(tokens, torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2]))
    if baseline == 'mean':
        base = torch.stack([(reward[3 * (n // 3) :][:3].sum() - reward[n]) / 2 for n in range(9)])
        assert abs((reward - base).sum()) < 1e-12
    else:
        greedy = [torch.tensor([*each[0].tokens, 2]) for each in model.eval().describe(inputs, beam=1)]
        base = model.reward(pad_sequence(greedy, batch_first=True, padding_value=1), torch.arange(3))
        base = base.repeat_interleave(3)
    assert reward.std() > 0
    total, count = 0.0, 0
    for row in range(9):
        caption = tokens[row][: int((tokens[row] != 1).sum())]
        one = {name: x[row // 3][None] for name, x in inputs.items()}
        logits = model({**one, 'captions': caption[None, None]})[0]
        log_p = logits.index_fill(1, torch.tensor([1]), -torch.inf).log_softmax(-1)  # padding is never drawn
        total = total - (reward[row] - base[row]) * log_p[range(len(caption)), caption].sum()
        count += len(caption)
    model.zero_grad()
    expected = total / count
    torch.testing.assert_close(found['loss'], expected)
    expected.backward()
    torch.testing.assert_close(gradient, [p.grad for p in model.parameters() if p.grad is not None])
    assert found['num_tokens'] == count


def test_the_greedy_baseline_changes_no_mode():
    model = SANCaptioner(**SMALL).double().train()
    model.encoder.eval()  # frozen
    before = [module.training for module in model.modules()]
    model.greedy(batch(model, images()))
    assert [module.training for module in model.modules()] == before


@torch.no_grad()
def test_an_ensemble_has_the_mean_of_the_probabilities():
    torch.manual_seed(0)
    members = [dict(type='mmattn.SANCaptioner', **SMALL), dict(type='mmattn.ETACaptioner', **SMALL)]
    ensemble = CaptionEnsemble(members).double().eval()
    inputs = batch(ensemble, images())
    for number, hypotheses in enumerate(ensemble.describe(inputs, max_length=6)):
        one = {name: x[number][None] for name, x in inputs.items()}
        for tokens, score in hypotheses:
            caption = torch.tensor([*tokens, 2])
            each = [model({**one, 'captions': caption[None, None]})[0].softmax(-1) for model in ensemble.members]
            p = sum(each) / 2
            assert p[range(len(caption)), caption].log().sum().item() == pytest.approx(score, abs=1e-10)
    twice = CaptionEnsemble(members[:1] * 2).double().eval()
    twice.members[1].load_state_dict(twice.members[0].state_dict())
    found, expected = (model.describe(inputs) for model in (twice, twice.members[0]))
    assert [[h.tokens for h in each] for each in found] == [[h.tokens for h in each] for each in expected]
    samples = twice(inputs, [BaseDataElement() for _ in range(3)])
    assert [sample.pred_tokens for sample in samples] == [each[0].tokens for each in found]


@torch.no_grad()
@pytest.mark.parametrize('positions', ['sinusoidal', 'absolute'])
def test_positions_are_added_to_the_regions(positions):
    """Sines and cosines of a region's number, or of 100 times its centre and sides relative to the image."""
    torch.manual_seed(0)
    model, plain = (SANCaptioner(**SMALL, positions=kind).double().eval() for kind in (positions, 'none'))
    plain.load_state_dict(model.state_dict())
    inputs = batch(model, images())
    boxes, (width, height) = inputs['boxes'], inputs['sizes'].T[..., None]
    added = torch.zeros(*boxes.shape[:2], 16, dtype=torch.float64)
    numbers = [torch.arange(boxes.shape[1]).expand(boxes.shape[:2])]
    if positions == 'absolute':
        x1, y1, x2, y2 = boxes.unbind(-1)
        numbers = [50 * (x1 + x2) / width, 50 * (y1 + y2) / height, 100 * (x2 - x1) / width, 100 * (y2 - y1) / height]
    size = 16 // len(numbers)
    for part, number in enumerate(numbers):
        for c in range(0, size, 2):
            angle = number / 10000 ** (c / size)
            added[..., part * size + c], added[..., part * size + c + 1] = angle.sin(), angle.cos()
    x = plain.region_embedding(inputs['features']) + added
    torch.testing.assert_close(model.encode(inputs)[0], plain.encoder(x, inputs['region_mask']), rtol=0, atol=1e-6)


test_failures = failing(
    # sines and cosines of four sides share the channels
    (lambda: SANCaptioner(9, embed_dim=12, num_heads=2, positions='absolute'), 'embed_dim'),
    (lambda: SANCaptioner(**SMALL, self_critical={})({}, SAMPLES, mode='loss'), 'reward'),
    (lambda: SANCaptioner(**SMALL, self_critical=dict(baseline='sum')), 'baseline'),
    (lambda: SANCaptioner(**SMALL, self_critical=dict(samples=1, baseline='mean')), 'self_critical.samples'),
    (lambda: SANCaptioner(**SMALL, stack='Torch', encoder_attention=NORMALISED), 'encoder_attention'),
    (lambda: SANCaptioner(**SMALL, test_cfg=dict(length_penalty=11)), '11'),
    (lambda: SANCaptioner(**SMALL, test_cfg=dict(penalty_kind='sum')), 'sum'),
    (lambda: SANCaptioner(**SMALL, test_cfg=dict(beams=3)), 'beams'),
    (lambda: SANCaptioner(**SMALL, self_critical=dict(samples=0)), 'self_critical.samples'),
    (lambda: SANCaptioner(**SMALL, self_critical=dict(sample=2)), 'samples'),
    (lambda: SANCaptioner(**SMALL, test_cfg=dict(banned=(2,))), 'test_cfg.banned'),
    (lambda: EntangledDecoder(1, dict(embed_dim=8, num_heads=2, feedforward_dim=8, norm_first=True)), 'norm_first'),
    (lambda: ensemble_of(), 'members'),
    (lambda: ensemble_of(30, 31), 'vocabulary'),
    (lambda: ensemble_of(30)({}, mode='loss'), 'mode'),
    error=(RuntimeError, ValueError),
)


def ensemble_of(*sizes):
    return CaptionEnsemble([dict(SMALL, type='mmattn.SANCaptioner', vocab_size=size) for size in sizes])
