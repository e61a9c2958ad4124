"""R@k of phrase grounding against a literal reference."""

import pytest
import torch

from mmattn.language.grounding import PhraseRecall

from ..files import read_json

SIZE = (60, 50)
TYPES = (['people'], ['people', 'animals'], ['scene'], ['other'])


def random_boxes(generator, count):
    corner = torch.randint(0, 30, (count, 2), generator=generator).float()
    return torch.cat([corner, corner + torch.randint(1, 25, (count, 2), generator=generator)], 1)


def samples(count=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        regions = random_boxes(generator, number % 13)
        phrases = []
        for k in range(1 + number % 3):
            boxes = random_boxes(generator, 1 + (number + k) % 3)
            if len(regions):
                boxes[0] = regions[int(torch.randint(len(regions), (), generator=generator))]
            phrases.append(dict(text='it', types=TYPES[(number + k) % 4], boxes=boxes))
        phrases[0]['boxes'] = torch.tensor([[0.0, 0.0, 50.0, 48.0]]) if number % 7 == 0 else phrases[0]['boxes']
        # Few different scores: of regions with the same score, the first is better.
        scores = torch.randint(0, 5, (len(phrases), len(regions)), generator=generator).float()
        found.append(dict(caption_id=f'{number:02}#0', size=SIZE, regions=regions, phrases=phrases, pred_scores=scores))
    return found


def iou(a, b):
    width, height = (min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in (0, 1))
    if width <= 0 or height <= 0:
        return 0
    areas = [(x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)]
    return width * height / (sum(areas) - width * height)


def reference(data):
    """Figure by figure, phrase by phrase."""
    found = {}
    kinds = ('', *sorted({f'/{each}' for types in TYPES for each in types}))
    for kind in kinds:
        for rule in ('', ' union'):
            hits = {name: [] for name in ('R@1', 'R@5', 'R@10', 'upper bound', 'whole image')}
            for sample in data:
                for phrase, scores in zip(sample['phrases'], sample['pred_scores'].tolist()):
                    if kind and kind[1:] not in phrase['types']:
                        continue
                    boxes = phrase['boxes'].tolist()
                    if rule:
                        boxes = [[f(box[i] for box in boxes) for i, f in enumerate((min, min, max, max))]]
                    regions = sample['regions'].tolist()
                    order = sorted(range(len(regions)), key=lambda j: -scores[j])
                    correct = [max(iou(regions[j], box) for box in boxes) >= 0.5 for j in order]
                    for k in (1, 5, 10):
                        hits[f'R@{k}'].append(any(correct[:k]))
                    hits['upper bound'].append(any(correct))
                    hits['whole image'].append(max(iou((0, 0, *SIZE), box) for box in boxes) >= 0.5)
            found.update({f'{name}{rule}{kind}': 100 * sum(each) / len(each) for name, each in hits.items()})
    return found


def evaluate(metric, data):
    for sample in data:
        metric.process({}, [sample])
    return metric.evaluate(len({sample['caption_id'] for sample in data}))


def test_all_figures_are_those_of_the_reference(tmp_path):
    data = samples()
    found = evaluate(PhraseRecall(output_dir=str(tmp_path)), data)
    expected = reference(data)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name
    assert 0 < found['R@1'] < found['R@5'] < found['R@10'] <= found['upper bound'] < 100
    assert found['whole image'] > 0
    assert found['R@1'] != found['R@1 union']
    # The file has the scores of each phrase; their means are the figures.
    scores = read_json(tmp_path / 'scores.json')['scores']
    assert list(scores)[:4] == ['00#0/0', '01#0/0', '01#0/1', '02#0/0']
    assert len(scores) == sum(len(sample['phrases']) for sample in data)
    for name in ('R@1', 'upper bound union'):
        assert sum(each[name] for each in scores.values()) / len(scores) == pytest.approx(found[name], abs=1e-12)


def test_a_phrase_without_a_correct_region_is_a_miss():
    """Also in an image without regions; −∞ is a score like others."""
    phrase = dict(text='it', types=['other'], boxes=torch.tensor([[0.0, 0.0, 5.0, 5.0]]))
    far = torch.tensor([[20.0, 20.0, 30.0, 30.0]])
    sample = dict(size=SIZE, phrases=[phrase])
    data = [
        dict(sample, caption_id='1', regions=far, pred_scores=torch.zeros(1, 1)),
        dict(sample, caption_id='2', regions=far[:0], pred_scores=torch.zeros(1, 0)),
        dict(
            sample,
            caption_id='3',
            regions=torch.cat([far, phrase['boxes']]),
            pred_scores=torch.tensor([[-torch.inf, 1.0]]),
        ),
    ]
    found = evaluate(PhraseRecall(), data)
    assert found['R@1'] == found['R@10'] == found['upper bound'] == pytest.approx(100 / 3)


def test_wrong_scores_are_an_error():
    sample = samples(6)[5]
    for scores in (sample['pred_scores'][:, 1:], sample['pred_scores'] * torch.nan):
        with pytest.raises(ValueError, match='caption 05#0: pred_scores'):
            PhraseRecall().process({}, [dict(sample, pred_scores=scores)])
