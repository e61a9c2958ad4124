"""Captions of a region store: what is captioned, by which attributes and models; the page of pictures; ensembles."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from PIL import Image

from mmattn.language.captioning import CaptionEnsemble, CaptionInferencer
from mmattn.language.regions.region_store import RegionStore

from ..files import names, read_json, write_json
from ..world import ETA, IDS, SAN, SIZE, SYMBOLS, write_model, write_store

ROOT = Path(__file__).parents[3]
TOOL = ROOT / 'tools/caption_demo.py'
ENSEMBLE = ROOT / 'tools/misc/ensemble_checkpoints.py'


def make(trained, **options):
    return CaptionInferencer(trained.config, trained.checkpoint, 'cpu', **options)


def test_a_store_may_be_several_folders(world, tmp_path):
    inferencer = make(world.san)
    more = write_store(tmp_path / 'more', ['a', 'b'], seed=1)
    both = inferencer([world.store, more])['predictions']
    assert [each['image_id'] for each in both] == [*IDS, 'a', 'b']
    assert inferencer(RegionStore(more))['predictions'][0]['caption'] == both[-2]['caption']


def test_the_best_attributes_are_used(world, tmp_path):
    inferencer = make(world.eta)
    images = inferencer.images(world.store, IDS, world.attributes, num_attributes=2)
    assert [image.attributes for image in images] == [[4 + n + k for k in range(min(n % 4, 2))] for n in range(7)]
    found = inferencer(world.store, IDS, world.attributes, 1)
    assert found != inferencer(world.store, IDS, world.attributes)
    rows = [[SYMBOLS[max(n - 18, 0)], 1 - n / 100] for n in range(22)]  # the first word 19 times, then others
    path = write_json(tmp_path / 'attributes.json', {IDS[0]: rows})
    assert inferencer.images(world.store, IDS[:1], path)[0].attributes == [4, 5]  # of the best 20
    trained = make(write_model(tmp_path, 'two', ETA, num_attributes=2))
    assert trained(world.store, IDS, world.attributes) == inferencer(world.store, IDS, world.attributes, 2)
    assert trained(world.store, IDS, world.attributes, 1) == found


def with_sources(folder, sources):
    return make(write_model(folder, sources, dict(ETA, sources=sources)))


def test_a_model_that_reads_no_regions_takes_any_store(world, tmp_path):
    wide = write_store(tmp_path / 'wide', width=9)
    found = with_sources(tmp_path, 'semantic')(wide, attributes=world.attributes)
    assert len(found['predictions']) == len(IDS)
    with pytest.raises(ValueError, match='attributes must be None'):
        with_sources(tmp_path, 'visual')(world.store, attributes=world.attributes)


# The command line.


@pytest.fixture
def call(run_tool):
    """``call(models, out, *more)`` runs the tool for models in this process, and returns the captions that it wrote."""

    def run(models, out, *more):
        trained = [path for each in models for path in (each.config, each.checkpoint)]
        run_tool(TOOL, *trained, *more, '--device', 'cpu', '--out', out, '--overwrite')
        return {path.parent.name: read_json(path) for path in out.rglob('captions.json')}

    return run


def figures(out):
    """The page and its figures, without the pixels."""
    page = (out / 'captions.html').read_text(encoding='utf-8')
    assert len(re.findall('data:image/jpeg;base64,', page)) == page.count('<figure>')
    page = re.sub('data:image[^"]*', '', page)
    return page, re.findall(r'<figure>.*?</figure>', page, re.DOTALL)


@pytest.fixture
def arguments(world):
    return ['--regions', world.store, '--attributes', world.attributes]


@pytest.fixture
def predictions(world):
    """Those from Python; rounding depends on the batch."""
    return make(world.eta, batch_size=1)(world.store, attributes=world.attributes)['predictions']


def test_chosen_images_in_their_order(world, arguments, predictions, tmp_path, call):
    def captions(*more):
        [found] = call([world.eta], tmp_path / 'out', *arguments, '--batch-size', 1, *more).values()
        return {str(each['image_id']): each['caption'] for each in found}

    split = ['--ann-file', world.annotations, '--split']
    assert [*captions('--ids', 8, 12)] == ['8', '12']
    assert [*captions(*split, 'val')] == IDS[4:]
    assert [*captions(*split, 'val', '--ids', *IDS[:3:-1])] == IDS[:3:-1]
    assert captions(*split, 'test') == {each['image_id']: each['caption'] for each in predictions[:4]}
    store = write_store(tmp_path / 'store', ['-x0_a', '--b', 'c'])
    [found] = call([world.san], tmp_path / 'out', '--regions', store, '--ids=--b', '--ids=-x0_a').values()
    assert [each['image_id'] for each in found] == ['--b', '-x0_a']


@pytest.mark.parametrize('part', [[], ['--page-images', 2, '--split', 'test']], ids=['all', 'two'])
def test_page_of_pictures(world, arguments, predictions, tmp_path, call, part):
    """The words of each caption, its strongest boxes, and the references of the chosen images."""
    chosen = ['--ann-file', world.annotations, *part] if part else []
    call([world.eta], tmp_path, *arguments, '--images', world.photos, '--batch-size', 1, *chosen)
    page, found = figures(tmp_path)
    inferencer, expected = make(world.eta), []
    for number, image in enumerate(inferencer.images(world.store, IDS[: 2 if part else 7], world.attributes)):
        references = [f'Word{number} & word{k}.' for k in range(20)] if part else ()
        caption = predictions[number]['caption']
        figure = inferencer.visualize(image, caption, Image.new('RGB', SIZE), references)
        expected.append(re.sub('data:image[^"]*', '', figure))
    assert found == expected
    assert ('the first 2 of 4 images' if part else 'all images') in page
    assert names(tmp_path) == ['captions.html', 'captions.json']


def test_captions_of_several_models(world, arguments, tmp_path, call):
    """Each model's file as of the model alone. The page has a line per model; without regions, words have no boxes."""
    semantic = write_model(tmp_path, 'semantic', dict(ETA, sources='semantic'))
    models = dict(T_v=world.san, T_s=semantic, ETA=world.eta)
    options = ['--ann-file', world.annotations, '--split', 'test', '--n-best', 2]
    more = ['--names', *models, '--images', world.photos]
    captions = call(models.values(), tmp_path / 'all', *arguments, *options, *more)
    assert names(tmp_path / 'all') == ['ETA', 'T_s', 'T_v', 'captions.html']
    for name, model in models.items():
        reads = arguments[:2] if name == 'T_v' else arguments
        assert call([model], tmp_path / name, *reads, *options) == {name: captions[name]}
    page, found = figures(tmp_path / 'all')
    assert 'Captions of T_v, T_s, ETA: all images' in page
    assert len(found) == 4
    inferencers = {name: make(model) for name, model in models.items()}
    for number, figure in enumerate(found):
        words, boxes = 0, []
        lines = re.findall(r'<p class="caption"><small>(.*?)</small> (.*?)</p>', figure)
        for (shown, line), (name, inferencer) in zip(lines, inferencers.items(), strict=True):
            caption = captions[name][number]['caption']
            assert (shown, re.sub('<.*?>', '', line)) == (name, caption)
            assert ('<span' in line) == (name != 'T_s' and caption != '')
            if name == 'T_s':
                continue
            image = inferencer.images(world.store, IDS[:4], None if name == 'T_v' else world.attributes)[number]
            for row in inferencer.region_weights(image, caption):
                best = row.sort(descending=True, stable=True).indices[:3]
                boxes += [(str(words), f'{image.store[IDS[number]].boxes[index][0].item():.1f}') for index in best]
                words += 1
        assert re.findall(r'<rect class="w(\d+) further" x="(.*?)"', figure) == boxes
        assert figure.count('<rect') == len(boxes)
    assert f'.w{words - 1} ' in page


def test_a_picture_is_turned_as_its_orientation_requires(world, tmp_path, call):
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / 'pictures').mkdir()
    Image.new('RGB', SIZE[::-1]).save(tmp_path / 'pictures/turned.jpg', exif=exif)
    store = write_store(tmp_path / 'regions', ['turned'])
    call([world.san], tmp_path / 'out', '--regions', store, '--images', tmp_path / 'pictures')
    assert f'viewBox="0 0 {SIZE[0]} {SIZE[1]}"' in figures(tmp_path / 'out')[0]


# Ensembles.


@pytest.fixture(scope='module')
def members(tmp_path_factory):
    """Three models of one vocabulary, two of them of the same kind."""
    folder = tmp_path_factory.mktemp('members')
    configs = dict(a=SAN, b=SAN, c=dict(ETA, sources='visual'))
    written = [write_model(folder, name, config, seed=seed) for seed, (name, config) in enumerate(configs.items())]
    for epoch, each in enumerate(written):
        content = torch.load(each.checkpoint)
        content['meta']['epoch'] = epoch
        torch.save(content, each.checkpoint)
    return written


@torch.no_grad()
def test_an_ensemble_captions_with_the_mean_of_the_three_models(world, members, tmp_path, call, run_tool):
    """Its checkpoint has all weights in this order, and the meta of the first."""
    paths, configs = zip(*((each.checkpoint, Config.fromfile(each.config).model.to_dict()) for each in members))
    run_tool(ENSEMBLE, *paths, '--out', tmp_path / 'ensemble.pth')
    merged, states = torch.load(tmp_path / 'ensemble.pth'), [torch.load(path)['state_dict'] for path in paths]
    assert merged['meta'] == torch.load(paths[0])['meta'] != torch.load(paths[-1])['meta']
    expected = {f'members.{i}.{name}': x for i, state in enumerate(states) for name, x in state.items()}
    torch.testing.assert_close(merged['state_dict'], expected, rtol=0, atol=0)
    options = dict(members=[*configs], test_cfg=dict(beam=3, max_length=7))
    Config(dict(model=dict(options, type='mmattn.CaptionEnsemble'))).dump(str(tmp_path / 'ensemble.py'))
    trained = SimpleNamespace(config=tmp_path / 'ensemble.py', checkpoint=tmp_path / 'ensemble.pth')
    words = '--regions', world.store, '--images', world.photos, '--batch-size', 1
    [found] = call([trained], tmp_path / 'out', *words).values()
    ensemble, store = CaptionEnsemble(**options).eval(), RegionStore(world.store)
    for model, state in zip(ensemble.members, states, strict=True):
        model.load_state_dict(state)
    expected = []
    for image_id in IDS:
        ((best, *_),) = ensemble.describe(
            dict(features=store[image_id].features[None], boxes=store[image_id].boxes[None])
        )
        expected.append(' '.join(SYMBOLS[token - 4] for token in best.tokens))
    assert [each['caption'] for each in found] == expected
    assert len(set(expected)) > 2


@pytest.mark.parametrize(
    ('checkpoint', 'words'),
    [
        (dict(state_dict={}), 'symbols'),
        (dict(meta=dict(dataset_meta=dict(symbols=SYMBOLS[::-1])), state_dict={}), ' and .*a.pth .*vocabular'),
        (dict(meta=dict(dataset_meta=dict(symbols=SYMBOLS, codes=['a b'])), state_dict={}), 'codes'),
        (dict(meta={}), 'state_dict'),
    ],
)
def test_checkpoints_that_are_no_ensemble(members, tmp_path, refuse, checkpoint, words):
    torch.save(checkpoint, tmp_path / 'other.pth')
    arguments = members[0].checkpoint, tmp_path / 'other.pth', '--out', tmp_path / 'ensemble.pth'
    refuse(f'other.pth.*{words}', ENSEMBLE, *arguments)
    assert not (tmp_path / 'ensemble.pth').exists()
