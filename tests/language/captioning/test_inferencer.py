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

from ..interruption import Stop, stop_after
from .tiny_models import ETA, IDS, SAN, SYMBOLS, random_model, write_model, write_store


def make(trained, **options):
    inferencer = CaptionInferencer(trained.config, trained.checkpoint, 'cpu', **options)
    inferencer.model.double()
    return inferencer


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


def in_double(inferencer, monkeypatch):
    """Let the model read float64; the store has float32."""
    collated = inferencer._collated

    def double(images):
        return {name: x.double() if x.is_floating_point() else x for name, x in collated(images).items()}

    monkeypatch.setattr(inferencer, '_collated', double)
    return inferencer


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


def test_errors_come_before_the_model_runs(tiny, san, tmp_path, monkeypatch):
    def fail(*args, **options):
        raise AssertionError('the model ran')

    monkeypatch.setattr(san.model, 'describe', fail)
    with pytest.raises(ValueError, match=r'regions: 2 faults:\n  image 99 is not in the store'):
        san(tiny.store, ['7', '99', 'x'])
    with pytest.raises(ValueError, match='image_ids must be different; got 7 more than once'):
        san(tiny.store, ['7', '12', '7'])
    for wrong in ([], '7', [7]):
        with pytest.raises(ValueError, match='image_ids must be a sequence of str, not empty; got '):
            san(tiny.store, wrong)
    for wrong in (None, torch.zeros(3, 6)):
        with pytest.raises(TypeError, match='inputs must be a RegionStore, or its folder or folders; got '):
            san(wrong)
    with pytest.raises(ValueError, match='5 features per region, but the model has 6'):
        san(write_store(tmp_path / 'narrow', width=5))
    with pytest.raises(
        ValueError, match=r'attributes must be None: this SANCaptioner reads none; got .*attributes\.json'
    ):
        san(tiny.store, attributes=tiny.attributes)
    with pytest.raises(ValueError, match='n_best must be at most beam, 3; got 4'):
        san(tiny.store, n_best=4)
    for name in ('beam', 'n_best'):
        with pytest.raises(ValueError, match=f'{name} must be at least 1; got 0'):
            san(tiny.store, **{name: 0})
    with pytest.raises(FileNotFoundError, match='no such folder'):
        san(tmp_path / 'none')
    with pytest.raises(ValueError, match='batch_size must be at least 1; got 0'):
        make(tiny.san, batch_size=0)


def test_eta_requires_attributes(tiny, tmp_path):
    eta = make(tiny.eta)
    message = 'attributes must be the path of a file: this ETACaptioner reads them'
    with pytest.raises(ValueError, match=message):
        eta(tiny.store)
    (tmp_path / 'other.json').write_text('{"7": [["unknown", 0.5]]}', encoding='utf-8')
    with pytest.raises(ValueError, match=r'other\.json: .*\n?.*no attribute of any of the 7 images'):
        eta(tiny.store, attributes=tmp_path / 'other.json')
    visual = write_model(tmp_path, 'visual', dict(ETA, sources='visual'))
    with pytest.raises(ValueError, match='attributes must be None'):
        make(visual)(tiny.store, attributes=tiny.attributes)
    semantic = make(write_model(tmp_path, 'semantic', dict(ETA, sources='semantic')))
    wide = write_store(tmp_path / 'wide', width=9)  # it reads no region
    assert len(semantic(wide, attributes=tiny.attributes)['predictions']) == len(IDS)


@pytest.mark.parametrize(
    ('meta', 'message'),
    [
        (None, r'meta.dataset_meta has no symbols; .* trained with mmattn\.COCOCaptionDataset'),
        (dict(symbols=SYMBOLS[:-1]), 'its vocabulary has 23 symbols, 4 special ones included, but .* is 24'),
        (dict(symbols=[*SYMBOLS[:-1], 'word00']), "dataset_meta is invalid: symbols contains 'word00' twice"),
    ],
)
def test_checkpoints_that_do_not_fit_are_named(tiny, tmp_path, meta, message):
    checkpoint = torch.load(tiny.san.checkpoint)
    checkpoint['meta'] = {} if meta is None else dict(dataset_meta=meta)
    torch.save(checkpoint, tmp_path / 'other.pth')
    with pytest.raises(ValueError, match=rf'other\.pth: .*{message}'):
        CaptionInferencer(tiny.san.config, tmp_path / 'other.pth', 'cpu')


def test_models_that_do_not_fit(tiny):
    with pytest.raises(RuntimeError, match='encoder'):
        CaptionInferencer(tiny.eta.config, tiny.san.checkpoint, 'cpu')
    cfg = Config(dict(model=dict(type='mmattn.TokenEmbedding', vocab_size=24, embed_dim=8)))
    with pytest.raises(
        ValueError, match=r'must be a Captioner or CaptionEnsemble; the config has mmattn\.TokenEmbedding'
    ):
        CaptionInferencer(cfg, tiny.san.checkpoint, 'cpu')


@pytest.mark.parametrize('torn', [b'', b'{"index": 6, "capt', b'\xc3'])
def test_an_interrupted_run_continues_with_the_next_batch(tiny, tmp_path, torn, monkeypatch):
    inferencer = CaptionInferencer(tiny.san.config, tiny.san.checkpoint, 'cpu', batch_size=2)
    whole = inferencer(tiny.store, n_best=2)
    path = tmp_path / 'new' / 'out.part'
    with monkeypatch.context() as patch:
        before = stop_after(inferencer, 2, patch)
        with pytest.raises(Stop):
            inferencer(tiny.store, n_best=2, progress_file=path)
    path.write_bytes(path.read_bytes() + torn)
    after = stop_after(inferencer, -1, monkeypatch)
    assert inferencer(tiny.store, n_best=2, progress_file=path) == whole  # exact, in float32, too
    assert [*before, *after] == [[0, 1], [2, 3], [4, 5], [6]]
    after.clear()
    assert inferencer(tiny.store, n_best=np.int64(2), progress_file=path) == whole
    assert after == []


def test_progress_of_another_run_is_refused(tiny, tmp_path):
    eta = CaptionInferencer(tiny.eta.config, tiny.eta.checkpoint, 'cpu')
    path = tmp_path / 'out.part'
    store = tmp_path / 'regions'
    shutil.copytree(tiny.store, store)
    eta(store, attributes=tiny.attributes, progress_file=path)
    content = path.read_bytes()
    options = dict(attributes=tiny.attributes, progress_file=path)
    for key, value in (('beam', 2), ('n_best', 2), ('length_penalty', 0.5)):
        with pytest.raises(ValueError, match=rf'out\.part .* of another run, which differs in {key}$'):
            eta(store, **options, **{key: value})
    with pytest.raises(ValueError, match=r'differs in image_ids, attributes$'):
        eta(store, IDS[:3], **options)
    with pytest.raises(ValueError, match=r'differs in attributes$'):
        eta(store, num_attributes=1, **options)
    other = CaptionInferencer(tiny.eta.config, tiny.eta.checkpoint, 'cpu', batch_size=2)
    with pytest.raises(ValueError, match=r'differs in batch_size$'):
        other(store, **options)
    os.utime(store / 'features.npy', (1, 1))  # another file
    with pytest.raises(ValueError, match=r'differs in regions$'):
        eta(store, **options)
    assert path.read_bytes() == content
