"""The converter of Flickr8k and the detector of attributes, on small data, and on Flickr8k where it is there."""

import json
import re

import numpy as np
import pytest
import torch
from torch import nn

from common import caption_attributes as attributes
from mmattn.language import Regions, RegionStore, RegionWriter
from mmattn.language.captioning import COCOCaptionDataset
from mmattn.language.captioning.annotations import read_annotations, read_attributes
from mmattn.language.text.vocabulary import Vocabulary

from ..requirements import real_data, requires
from ..support.language_releases import region_archive as archive
from ..support.releases import write_json
from .conftest import scripts

flickr8k, attributes_tool = scripts('flickr8k', 'caption_attributes')

REAL = real_data('flickr8k_entities')


def image(name, split, *captions):
    sentences = [dict(raw=f'{text.capitalize()} .', tokens=text.split()) for text in captions]
    return dict(filename=f'{name}.jpg', split=split, sentences=sentences)


def annotate(path, images):
    return write_json(path, dict(dataset='flickr8k', images=images))


# Flickr8k.

IMAGES = [
    image(1, 'train', 'a dog runs', 'the dog'),
    image(2, 'train', 'a café'),
    image(3, 'val', 'a cat'),
    image(4, 'val', 'two cats'),
    image(5, 'train', 'a man'),
    image(6, 'val', 'a girl', 'the girl'),
]


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / 'source'
    folder.mkdir()
    annotate(folder / 'dataset_flickr8k.json.gz', IMAGES)
    archive(folder / 'features_train.npz', image_id=np.array([5, 1, 2]))
    archive(folder / 'features_val.npz', image_id=np.array([3, 4, 6]), feat=np.full((3, 4, 6), 9, np.int8))
    return folder


def test_the_release_is_found_beside_the_output(command, source):
    source.rename(source.parent / 'z')
    for _ in range(2):
        code, _, said = command(flickr8k, source.parent, '--overwrite', '--out-dir', source, out=None)
        assert (code, said) == (0, [])


def test_a_test_set_for_a_trained_model(command, source, out, tmp_path):
    """The vocabulary is that of the data that the model was trained on."""
    assert command(flickr8k, source)[0] == 0
    trained = out.rename(tmp_path / 'trained')
    annotate(source / 'dataset_flickr8k.json.gz', [dict(each, split='test') for each in IMAGES[2:4]])
    code, said, warnings = command(flickr8k, source)
    assert (code, said[-2]) == (0, 'test: 2 images, 2 captions')
    assert warnings == ['warning: no split train: a test set for a trained model, see docs/datasets.md']
    options = dict(vocab_splits=('train',), min_count=0, test_mode=True, data_root=str(trained))
    old = COCOCaptionDataset('dataset_flickr8k.json', 'regions', 'test', **options)
    path, store = out / 'dataset_flickr8k.json', str(out / 'regions')
    new = COCOCaptionDataset(str(path), store, 'test', vocab_file='dataset_flickr8k.json', **options)
    assert new.image_ids == ['3', '4']
    assert new.metainfo == old.metainfo


# Attributes: the parts.


def reference_average_precision(scores, targets):
    """By the definition, image by image: among all images with at least its score, the share of those with the word."""
    found = []
    for score, target in zip(scores.T.tolist(), targets.T.tolist()):
        precision = [
            sum(t for s, t in zip(score, target) if s >= mine) / sum(s >= mine for s in score)
            for mine, hit in zip(score, target)
            if hit
        ]
        found.append(sum(precision) / len(precision) if precision else float('nan'))
    return torch.tensor(found)


def test_average_precision():
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(40, 30, generator=generator)
    scores[:, 10:20] = (scores[:, 10:20] * 6).floor()  # ties
    scores[:, 20] = 0.5
    targets = torch.rand(40, 30, generator=generator) < 0.2
    targets[:, 3] = False
    found = attributes.average_precision(scores, targets)
    torch.testing.assert_close(found, reference_average_precision(scores, targets), equal_nan=True)
    assert found[3].isnan()
    torch.testing.assert_close(found[20], targets[:, 20].float().mean())
    assert attributes.average_precision(targets.double(), targets).nansum() == 29
    assert (attributes.average_precision(scores[:1], targets[:1])[targets[0]] == 1).all()


def test_quality():
    scores = torch.tensor([[0.9, 0.1, 0.5], [0.2, 0.8, 0.7], [0.3, 0.2, 0.1]])
    targets = torch.tensor([[1, 1, 0], [0, 0, 1], [0, 0, 0]], dtype=torch.bool)
    average, precision, recall = attributes.quality(scores, targets, 2)
    # the words are at ranks 1, 3 and 1; the best two contain 1, 1 and 0 words of 2, 1 and 0
    assert (average, precision, recall) == pytest.approx(((1 + 1 / 3 + 1) / 3, (1 + 1 + 0) / 6, (1 / 2 + 1) / 2))


def test_words_are_counted_once_per_image(tmp_path):
    captions = ['a dog dog dog in the sun', 'a dog'], ['cat on a mat', 'the cat'], ['a cat sees the sun'], ['the']
    images = [image(number, 'train', *texts) for number, texts in enumerate(captions, 1)]
    found = read_annotations(annotate(tmp_path / 'a.json', images))
    words = attributes.attribute_words(found, 5)
    assert words == ['cat', 'sun', 'dog', 'mat', 'sees']
    assert attributes.attribute_words(found, 2) == words[:2]
    expected = [[0, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 1, 0, 0, 1], [0, 0, 0, 0, 0]]
    assert attributes.word_targets(found, words).int().tolist() == expected


def write_regions(path, features):
    """Write a store of features ``(images, regions, D)``; the second region is the largest."""
    with RegionWriter(path) as writer:
        for i, each in enumerate(features):
            boxes = torch.tensor([[0, 0, 5, 5]]).repeat(len(each), 1).float()
            boxes[1, 2] = 9
            writer.write(str(i), Regions(each, boxes, (10, 10)))
    return RegionStore(path)


def test_pooled_regions(tmp_path):
    features = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    store = write_regions(tmp_path / 'regions', features)
    expected = torch.cat([features.mean(1), features.max(1).values, features[:, 1]], 1)[[2, 0]]
    torch.testing.assert_close(attributes.pool_regions(store, ['2', '0']), expected)


class Seen(nn.Module):
    """A classifier that knows which images have trained it."""

    def __init__(self, inputs, words):
        super().__init__()
        self.rows, self.words = inputs.tolist(), words

    def forward(self, inputs):
        return torch.tensor([[99.0 if row in self.rows else -99.0] * self.words for row in inputs.tolist()])


def test_no_classifier_has_seen_the_image_whose_attributes_it_detects(monkeypatch):
    torch.manual_seed(0)
    inputs, targets = torch.randn(33, 2), torch.rand(33, 4) < 0.5
    training, validation = torch.arange(33)[5:28], torch.arange(5)
    trained = []

    def train(inputs, targets, val_inputs, val_targets, name):
        trained.append((inputs, targets, val_inputs, val_targets))
        return Seen(inputs, targets.shape[1])

    monkeypatch.setattr(attributes, 'train', train)
    scores = attributes.cross_predict(inputs, targets, training, validation)
    assert scores.max() < 1e-30
    mean, deviation = inputs[5:28].mean(0), inputs[5:28].std(0)
    every = ((inputs - mean) / deviation).tolist()
    counts = dict.fromkeys(range(33), 0)
    for rows, labels, val_rows, val_labels in trained:
        torch.testing.assert_close(val_rows, torch.tensor(every[:5]))
        assert torch.equal(val_labels, targets[:5])
        for row, label in zip(rows.tolist(), labels):
            number = min(range(33), key=lambda i: abs(every[i][0] - row[0]) + abs(every[i][1] - row[1]))
            assert torch.equal(label, targets[number])
            counts[number] += 1
    assert counts == {i: 4 if 5 <= i < 28 else 0 for i in range(33)}


def test_scores_of_other_splits_are_the_mean_of_the_classifiers(monkeypatch):
    constants = iter([0.1, 0.2, 0.4, 0.8, 0.9])

    def train(inputs, targets, *others):
        model = nn.Linear(inputs.shape[1], targets.shape[1])
        nn.init.zeros_(model.weight)
        nn.init.constant_(model.bias, torch.tensor(next(constants)).logit().item())
        return model

    monkeypatch.setattr(attributes, 'train', train)
    scores = attributes.cross_predict(
        torch.randn(14, 3), torch.ones(14, 2).bool(), torch.arange(10), torch.tensor([12])
    )
    torch.testing.assert_close(scores[10:], torch.full((4, 2), 0.48))
    expected = torch.tensor([0.1, 0.2, 0.4, 0.8, 0.9]).repeat_interleave(2)
    torch.testing.assert_close(scores[:10, 0].sort().values, expected)


def test_the_best_epoch_is_used(monkeypatch):
    torch.manual_seed(0)
    averages = iter([0.1, 0.5, 0.7, 0.7, 0.2])
    epochs = []

    def average_precision(scores, targets):
        epochs.append(scores)
        return torch.tensor([next(averages), float('nan')])

    monkeypatch.setattr(attributes, 'average_precision', average_precision)
    monkeypatch.setattr(attributes, 'EPOCHS', 5)
    inputs, targets = torch.randn(30, 3), torch.rand(30, 2) < 0.4
    model = attributes.train(inputs, targets, inputs[:7], targets[:7], 'name')
    found = attributes.predict(model.eval(), inputs[:7])
    torch.testing.assert_close(found, epochs[2], rtol=0, atol=0)
    assert not any(torch.equal(found, epochs[i]) for i in (0, 1, 3, 4))


def test_a_classifier_learns_as_in_a_literal_loop(monkeypatch):
    """A perceptron with dropout, whose first scores are the frequencies, in batches, by AdamW."""
    averages = iter([0.1, 0.2, 0.3])  # the last epoch is the best
    monkeypatch.setattr(attributes, 'average_precision', lambda *_: torch.tensor(next(averages)))
    for name, value in dict(EPOCHS=3, BATCH=8, HIDDEN=16).items():
        monkeypatch.setattr(attributes, name, value)
    inputs, targets = torch.randn(20, 5), torch.rand(20, 3) < 0.4
    torch.manual_seed(1)
    found = attributes.predict(attributes.train(inputs, targets, inputs, targets, 'name'), inputs)
    torch.manual_seed(1)
    hidden, output = nn.Linear(5, 16), nn.Linear(16, 3)
    output.weight.data.zero_()
    output.bias.data = ((targets.sum(0) + 1) / 22).logit()  # as if of two more images, one with the word
    model = nn.Sequential(nn.Dropout(0.2), hidden, nn.ReLU(), nn.Dropout(0.5), output)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    for _ in range(3):
        for batch in torch.randperm(20).split(8):
            optimizer.zero_grad()
            chances = model(inputs[batch]).sigmoid()
            chances.where(targets[batch], 1 - chances).log().sum(1).mean().neg().backward()
            optimizer.step()
    torch.testing.assert_close(found, model.eval()(inputs).sigmoid(), rtol=0, atol=1e-5)


# Attributes: the command.

WORDS = ('dog', 'cat', 'red', 'blue', 'runs', 'sits')


@pytest.fixture
def data(tmp_path):
    """Images whose words depend on one region, and 'zebra', which is in all captions of the validation and test."""
    torch.manual_seed(0)
    codes = torch.rand(260, len(WORDS)) < 0.3
    features = torch.randn(260, 3, 8) * 0.1
    features[:, 2, : len(WORDS)] += codes * 3.0
    write_regions(tmp_path / 'regions', features)
    splits = ['train'] * 180 + ['restval'] * 20 + ['val'] * 30 + ['test'] * 30
    images = [
        image(i, split, ' '.join(['a', *(word for word, there in zip(WORDS, code) if there), *extra]))
        for i, (split, code) in enumerate(zip(splits, codes.tolist()))
        for extra in [['zebra'] if split in ('val', 'test') else ['the']]
    ]
    return annotate(tmp_path / 'dataset.json', images), tmp_path / 'regions', codes


def run(ann_file, regions, out, *options):
    attributes_tool.main([*map(str, (ann_file, regions, '--out', out, *options))])


@pytest.mark.slow
def test_attributes_that_can_be_learned(data, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(attributes, 'BATCH', 16)
    monkeypatch.setattr(attributes, 'EPOCHS', 12)
    ann_file, regions, codes = data
    out = tmp_path / 'new/attributes.json'
    run(ann_file, regions, out, '--num-attributes', 4)
    found = json.loads(out.read_bytes())
    assert list(found) == [str(i) for i in range(260)]
    assert {word for each in found.values() for word, _ in each} == set(WORDS)  # no zebra, and no function word
    for each in found.values():
        scores = [score for _, score in each]
        assert len(each) == 4
        assert scores == sorted(scores, reverse=True)
        assert 0 <= scores[-1] <= scores[0] <= 1
    right = total = 0
    for i, code in enumerate(codes.tolist()):  # the words that are there are before those that are not
        there = {word for word, yes in zip(WORDS, code) if yes}
        right += sum(word in there for word, _ in found[str(i)][: len(there)])
        total += min(len(there), 4)
    assert right > 0.9 * total
    numbers = read_attributes(out, ['0', '259'], Vocabulary(WORDS), 2)
    assert [len(numbers[name]) for name in ('0', '259')] == [2, 2]
    said = capfd.readouterr().out
    for split, count, least in (('train', 200, 0.9), ('val', 30, 1), ('test', 30, 1)):
        [average] = re.findall(rf'{split}, {count} images, classifier: mean average precision (\S+);', said)
        assert float(average) >= least
    [prior] = re.findall(r'train, 200 images, frequency: mean average precision (\S+);', said)
    assert float(prior) == pytest.approx(float(codes[:200].float().mean()), abs=1e-4)
    again = tmp_path / 'again.json'
    torch.manual_seed(5)
    run(ann_file, regions, again, '--num-attributes', 4)
    assert again.read_bytes() == out.read_bytes()


@pytest.mark.slow
@requires('flickr8k_entities')
def test_attributes_of_flickr8k(command, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(attributes, 'EPOCHS', 6)  # of 30, for time
    code, said, _ = command(flickr8k, REAL)
    assert code == 0
    assert said[-4:-1] == [
        'train: 6,000 images, 30,000 captions',
        'val: 250 images, 1,250 captions',
        'test: 250 images, 1,250 captions',
    ]
    folder = tmp_path / 'data/out'
    run(folder / 'dataset_flickr8k.json', folder / 'regions', folder / 'attributes.json')
    figures = {
        (split, name): tuple(map(float, numbers))
        for split, name, *numbers in re.findall(
            r'(\w+), \S+ images, (\w+): mean average precision (\S+); best 20: precision (\S+), recall (\S+)',
            capfd.readouterr().out,
        )
    }
    for split in ('train', 'val', 'test'):
        assert figures[split, 'classifier'][0] > 5 * figures[split, 'frequency'][0]
        assert figures[split, 'classifier'][2] > 1.5 * figures[split, 'frequency'][2]
    # recall does not depend on the number of images; that of a classifier on its own training images is higher by 0.17
    assert abs(figures['train', 'classifier'][2] - figures['test', 'classifier'][2]) < 0.05
