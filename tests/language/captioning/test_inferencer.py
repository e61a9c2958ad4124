"""Captions of a region store: equal to the model's search for single images, in any batch and after any stop."""

import os
import shutil
from functools import partial

import numpy as np
import pytest
import torch

from mmattn.language.captioning import CaptionInferencer
from mmattn.language.regions.region_store import RegionStore
from mmattn.language.text.vocabulary import Vocabulary

from ..failing import failing
from ..files import read_json
from ..interruption import assert_no_other_run_continues, in_double
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
    attributes = read_json(tiny.attributes)
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
    inferencer = make(tiny.san)
    more = write_store(tmp_path / 'more', ['a', 'b'], seed=1)
    both = inferencer([tiny.store, more])['predictions']
    assert [each['image_id'] for each in both] == [*IDS, 'a', 'b']
    assert inferencer(RegionStore(more))['predictions'][0]['caption'] == both[-2]['caption']


def test_the_best_attributes_are_used(tiny):
    inferencer = make(tiny.eta)
    images = inferencer.images(tiny.store, IDS, tiny.attributes, num_attributes=2)
    assert [image.attributes for image in images] == [[4 + n + k for k in range(min(n % 4, 2))] for n in range(7)]
    found = inferencer(tiny.store, IDS, tiny.attributes, 1)
    assert found != inferencer(tiny.store, IDS, tiny.attributes)


def with_meta(tiny, folder, **meta):
    """The inferencer of a checkpoint with other facts about the data."""
    torch.save(dict(torch.load(tiny.san.checkpoint), meta=dict(dataset_meta=meta)), folder / 'other.pth')
    return CaptionInferencer(tiny.san.config, folder / 'other.pth', 'cpu')


def with_sources(folder, sources):
    return make(write_model(folder, sources, dict(ETA, sources=sources)))


@pytest.fixture
def stuck(san, monkeypatch):
    """An inferencer whose model must not run."""
    monkeypatch.setattr(san.model, 'describe', None)
    return san


test_failures_before_the_model_runs = failing(
    (lambda stuck, tiny: stuck(tiny.store, ['7', '99', 'x']), 'image 99'),
    (lambda stuck, tiny: stuck(tiny.store, ['7', '12', '7']), 'image_ids'),
    (lambda stuck, tiny: stuck(tiny.store, '7'), 'image_ids'),
    (lambda stuck: stuck(torch.zeros(3, 6)), 'inputs'),
    (lambda stuck, tmp_path: stuck(tmp_path / 'none'), 'none'),
    (lambda stuck, tmp_path: stuck(write_store(tmp_path / 'narrow', width=5)), '5 features'),
    (lambda stuck, tiny: stuck(tiny.store, n_best=4), 'n_best'),
    (lambda stuck, tiny: stuck(tiny.store, attributes=tiny.attributes), 'attributes'),
    (lambda tiny, tmp_path: with_sources(tmp_path, 'visual')(tiny.store, attributes=tiny.attributes), 'attributes'),
    (lambda tiny: make(tiny.eta)(tiny.store), 'attributes'),
    (lambda tiny, tmp_path: with_meta(tiny, tmp_path), 'other.pth: .*symbols'),
    (lambda tiny, tmp_path: with_meta(tiny, tmp_path, symbols=SYMBOLS[1:]), 'other.pth: .*vocabulary'),
    (lambda tiny: CaptionInferencer(tiny.eta.config, tiny.san.checkpoint, 'cpu'), 'encoder'),
    error=(OSError, RuntimeError, TypeError, ValueError),
)


def test_a_model_that_reads_no_regions_takes_any_store(tiny, tmp_path):
    wide = write_store(tmp_path / 'wide', width=9)
    found = with_sources(tmp_path, 'semantic')(wide, attributes=tiny.attributes)
    assert len(found['predictions']) == len(IDS)


def test_no_other_run_continues_a_progress_file(tiny, tmp_path):
    store, path = shutil.copytree(tiny.store, tmp_path / 'regions'), tmp_path / 'new' / 'out.part'
    call = partial(make(tiny.eta), inputs=store, attributes=tiny.attributes)
    changes = [(dict(beam=2), 'beam'), (dict(n_best=np.int64(3)), 'n_best'), (dict(num_attributes=1), 'attributes')]
    assert_no_other_run_continues(call, path, [*changes, (dict(image_ids=IDS[:3]), 'image_ids, attributes')])
    os.utime(store / 'features.npy', (1, 1))  # another file
    with pytest.raises(ValueError, match='differs in regions'):
        call(progress_file=path)
