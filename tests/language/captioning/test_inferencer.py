"""Captions of a region store: equal to the model's search for single images, in any batch and after any stop."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from mmengine.config import Config

from mmattn.language.captioning import CaptionInferencer
from mmattn.language.regions.region_store import RegionStore
from mmattn.language.text.vocabulary import Vocabulary

from ..interruption import Stop, in_double, stop_after
from .tiny_models import ETA, IDS, SAN, SYMBOLS, random_model, write_model, write_store


def make(trained, **options):
    return CaptionInferencer(trained.config, trained.checkpoint, 'cpu', **options)


@pytest.fixture(scope='module')
def san(tiny):
    return make(tiny.san, batch_size=3)


@pytest.fixture(scope='module', params=['san', 'eta'])
def case(request, tiny):
    """The model, the attributes that it reads and, by image, its hypotheses for the image alone, by hand."""
    model = random_model(dict(san=SAN, eta=ETA)[request.param]).double()
    store = RegionStore(tiny.store)
    attributes = json.loads(tiny.attributes.read_text(encoding='utf-8'))
    expected = {}
    for image_id in IDS:
        regions = store[image_id]
        inputs = dict(features=regions.features[None].double(), boxes=regions.boxes[None].double())
        if request.param == 'eta':
            words = [word for word, _ in attributes[image_id]]
            inputs['attributes'] = torch.tensor([[4 + SYMBOLS.index(word) for word in words]], dtype=torch.int64)
        with torch.no_grad():
            (expected[image_id],) = model.describe(inputs, beam=3)
    return getattr(tiny, request.param), tiny.attributes if request.param == 'eta' else None, expected


@pytest.mark.parametrize(('batch_size', 'n_best'), [(1, 1), (3, 3), (50, 2)])
def test_batches_equal_single_images_in_the_order_of_the_ids(tiny, case, batch_size, n_best, monkeypatch):
    trained, attributes, expected = case
    inferencer = in_double(make(trained, batch_size=batch_size), monkeypatch)
    assert len({tuple(found[0].tokens) for found in expected.values()}) > 4  # the model is no constant
    for ids in (None, IDS[::-2]):
        predictions = inferencer(tiny.store, ids, attributes, n_best=n_best)['predictions']
        assert [each['image_id'] for each in predictions] == (ids or IDS)
        for found in predictions:
            hypotheses = expected[found['image_id']][:n_best]
            texts = [Vocabulary(SYMBOLS).decode(each.tokens) for each in hypotheses]
            assert [each['caption'] for each in found['n_best']] == texts
            scores = [each['score'] for each in found['n_best']]
            torch.testing.assert_close(scores, [each.score for each in hypotheses], rtol=0, atol=1e-10)
            assert (found['caption'], found['score']) == (texts[0], scores[0])


def test_a_store_may_be_several_folders(tiny, tmp_path):
    inferencer = CaptionInferencer(tiny.san.config, tiny.san.checkpoint, 'cpu')
    more = write_store(tmp_path / 'more', ['a', 'b'], seed=1)
    both = inferencer([tiny.store, more])['predictions']
    assert [each['image_id'] for each in both] == [*IDS, 'a', 'b']
    assert inferencer(RegionStore(more))['predictions'][0]['caption'] == both[-2]['caption']


def test_options_of_the_search_replace_those_of_the_config(tiny):
    cfg = Config.fromfile(tiny.san.config)
    cfg.model.test_cfg.update(beam=2, length_penalty=0.7)
    found = CaptionInferencer(tiny.san.config, tiny.san.checkpoint, 'cpu')(tiny.store, beam=2, length_penalty=0.7)
    assert found == CaptionInferencer(cfg, tiny.san.checkpoint, 'cpu')(tiny.store)
    assert found != CaptionInferencer(tiny.san.config, tiny.san.checkpoint, 'cpu')(tiny.store)


def test_the_best_attributes_are_used(tiny):
    inferencer = CaptionInferencer(tiny.eta.config, tiny.eta.checkpoint, 'cpu')
    images = inferencer.images(tiny.store, IDS, tiny.attributes, num_attributes=2)
    assert [image.attributes for image in images] == [
        [4 + n + k for k in range(min(n % 4, 2))] for n in range(len(IDS))
    ]
    found = inferencer(tiny.store, IDS, tiny.attributes, 1)
    assert found != inferencer(tiny.store, IDS, tiny.attributes)


def other_checkpoint(trained, folder, **meta):
    """The path of a config, and of its checkpoint with other facts about the data."""
    torch.save(dict(torch.load(trained.checkpoint), meta=dict(dataset_meta=meta)), folder / 'other.pth')
    return trained.config, folder / 'other.pth', 'cpu'


def with_sources(folder, sources):
    return make(write_model(folder, sources, dict(ETA, sources=sources)))


@pytest.mark.parametrize(
    ('call', 'names'),
    [
        (lambda san, tiny, _: san(tiny.store, ['7', '99', 'x']), 'image 99'),
        (lambda san, tiny, _: san(tiny.store, ['7', '12', '7']), 'image_ids'),
        (lambda san, tiny, _: san(tiny.store, '7'), 'image_ids'),
        (lambda san, *_: san(torch.zeros(3, 6)), 'inputs'),
        (lambda san, _, folder: san(folder / 'none'), 'none'),
        (lambda san, _, folder: san(write_store(folder / 'narrow', width=5)), '5 features'),
        (lambda san, tiny, _: san(tiny.store, n_best=4), 'n_best'),
        (lambda san, tiny, _: san(tiny.store, attributes=tiny.attributes), 'attributes'),
        (lambda _, tiny, folder: with_sources(folder, 'visual')(tiny.store, attributes=tiny.attributes), 'attributes'),
        (lambda _, tiny, folder: make(tiny.eta)(tiny.store), 'attributes'),
        (lambda _, tiny, folder: CaptionInferencer(*other_checkpoint(tiny.san, folder)), 'other.pth: .*symbols'),
        (
            lambda _, tiny, folder: CaptionInferencer(*other_checkpoint(tiny.san, folder, symbols=SYMBOLS[1:])),
            'other.pth: .*vocabulary',
        ),
        (lambda _, tiny, folder: CaptionInferencer(tiny.eta.config, tiny.san.checkpoint, 'cpu'), 'encoder'),
    ],
)
def test_failures_before_the_model_runs(tiny, san, tmp_path, monkeypatch, call, names):
    monkeypatch.setattr(san.model, 'describe', None)
    with pytest.raises((OSError, RuntimeError, TypeError, ValueError), match=names):
        call(san, tiny, tmp_path)


def test_a_model_that_reads_no_regions_takes_any_store(tiny, tmp_path):
    wide = write_store(tmp_path / 'wide', width=9)
    found = with_sources(tmp_path, 'semantic')(wide, attributes=tiny.attributes)
    assert len(found['predictions']) == len(IDS)


def test_an_interrupted_run_continues_with_the_next_batch_and_no_other_run_does(tiny, tmp_path, monkeypatch):
    store, path = shutil.copytree(tiny.store, tmp_path / 'regions'), tmp_path / 'new' / 'out.part'
    eta = CaptionInferencer(tiny.eta.config, tiny.eta.checkpoint, 'cpu', batch_size=2)
    options = dict(attributes=tiny.attributes, n_best=2)
    whole = eta(store, **options)
    with monkeypatch.context() as patch:
        before = stop_after(eta, 2, patch)
        with pytest.raises(Stop):
            eta(store, **options, progress_file=path)
    for ids, changed, names in (
        (None, dict(beam=2), 'beam'),
        (None, dict(n_best=np.int64(3)), 'n_best'),
        (IDS[:3], {}, 'image_ids, attributes'),
        (None, dict(num_attributes=1), 'attributes'),
    ):
        with pytest.raises(ValueError, match=rf'out\.part .*differs in {names}$'):
            eta(store, ids, **{**options, **changed}, progress_file=path)
    after = stop_after(eta, -1, monkeypatch)
    assert eta(store, **options, progress_file=path) == whole  # exact, in float32, too
    assert [*before, *after] == [[0, 1], [2, 3], [4, 5], [6]]
    os.utime(store / 'features.npy', (1, 1))  # another file
    with pytest.raises(ValueError, match='differs in regions'):
        eta(store, **options, progress_file=path)
