"""Captions of a region store, from Python and by the command lines: values, in any batch and after any stop; errors."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from PIL import Image

from mmattn.language.captioning import CaptionEnsemble, CaptionInferencer
from mmattn.language.regions.region_store import RegionStore

from ..files import names, read_json, write_json
from ..interruption import Stop, stop_once
from .tiny_models import ETA, IDS, SAN, SIZE, SYMBOLS, write_model, write_store

ROOT = Path(__file__).parents[3]
TOOL = ROOT / 'tools/caption_demo.py'
ENSEMBLE = ROOT / 'tools/misc/ensemble_checkpoints.py'


def make(trained, **options):
    return CaptionInferencer(trained.config, trained.checkpoint, 'cpu', **options)


def test_a_store_may_be_several_folders(tiny, tmp_path):
    inferencer = make(tiny.san)
    more = write_store(tmp_path / 'more', ['a', 'b'], seed=1)
    both = inferencer([tiny.store, more])['predictions']
    assert [each['image_id'] for each in both] == [*IDS, 'a', 'b']
    assert inferencer(RegionStore(more))['predictions'][0]['caption'] == both[-2]['caption']


def test_the_best_attributes_are_used(tiny, tmp_path):
    inferencer = make(tiny.eta)
    images = inferencer.images(tiny.store, IDS, tiny.attributes, num_attributes=2)
    assert [image.attributes for image in images] == [[4 + n + k for k in range(min(n % 4, 2))] for n in range(7)]
    found = inferencer(tiny.store, IDS, tiny.attributes, 1)
    assert found != inferencer(tiny.store, IDS, tiny.attributes)
    rows = [[SYMBOLS[max(n - 18, 0)], 1 - n / 100] for n in range(22)]  # the first word 19 times, then others
    path = write_json(tmp_path / 'attributes.json', {IDS[0]: rows})
    assert inferencer.images(tiny.store, IDS[:1], path)[0].attributes == [4, 5]  # of the best 20
    trained = make(write_model(tmp_path, 'two', ETA, num_attributes=2))
    assert trained(tiny.store, IDS, tiny.attributes) == inferencer(tiny.store, IDS, tiny.attributes, 2)
    assert trained(tiny.store, IDS, tiny.attributes, 1) == found


def with_sources(folder, sources):
    return make(write_model(folder, sources, dict(ETA, sources=sources)))


def test_a_model_that_reads_no_regions_takes_any_store(tiny, tmp_path):
    wide = write_store(tmp_path / 'wide', width=9)
    found = with_sources(tmp_path, 'semantic')(wide, attributes=tiny.attributes)
    assert len(found['predictions']) == len(IDS)
    with pytest.raises(ValueError, match='attributes must be None'):
        with_sources(tmp_path, 'visual')(tiny.store, attributes=tiny.attributes)


# The command lines.


@pytest.fixture
def arguments(tiny):
    return [
        *(tiny.eta.config, tiny.eta.checkpoint, '--regions', tiny.store, '--attributes', tiny.attributes),
        *('--device', 'cpu', '--batch-size', 2),
    ]


@pytest.fixture(scope='module')
def predictions(tiny):
    """The predictions of these arguments, from Python, by image."""
    inferencer = make(tiny.eta, batch_size=2)
    found = inferencer(tiny.store, attributes=tiny.attributes, n_best=2)['predictions']
    return {each['image_id']: each for each in found}


@pytest.fixture
def call(run_tool):
    """``call(*arguments)`` runs the tool in this process."""
    return lambda *arguments, tool=TOOL: run_tool(tool, *arguments)


def expected_page(tiny, ids, references):
    """What a page shows: the words of each caption, its strongest boxes, the references."""
    inferencer = make(tiny.eta, batch_size=2)
    images = inferencer.images(tiny.store, IDS, tiny.attributes)
    captions = {
        each['image_id']: each['caption'] for each in inferencer(tiny.store, None, tiny.attributes)['predictions']
    }
    for image in images:
        if image.image_id in ids:
            picture = Image.new('RGB', SIZE)
            figure = inferencer.visualize(image, captions[image.image_id], picture, references.get(image.image_id, ()))
            yield re.sub('data:image[^"]*', '', figure)


def test_n_best_and_options_of_the_search(tiny, arguments, tmp_path, call):
    options = dict(beam=2, length_penalty=0.2, n_best=2)
    out = tmp_path / 'new/out'
    call(*arguments, '--out', out, '--beam', 2, '--length-penalty', 0.2, '--n-best', 2, '--num-attributes', 1)
    assert names(out) == ['captions.json']
    inferencer = make(tiny.eta, batch_size=2)
    found = inferencer(tiny.store, None, tiny.attributes, 1, **options)['predictions']
    assert read_json(out / 'captions.json') == [
        dict(image_id=int(each['image_id']), caption=each['caption'], n_best=each['n_best']) for each in found
    ]


def test_chosen_images_in_their_order(tiny, arguments, predictions, tmp_path, call):
    arguments[-1] = 1  # rounding depends on the batch

    def captions(*more):
        call(*arguments, '--out', tmp_path, '--overwrite', *more)
        return {str(each['image_id']): each['caption'] for each in read_json(tmp_path / 'captions.json')}

    assert [*captions('--ids', 8, 12)] == ['8', '12']
    assert [*captions('--ann-file', tiny.annotations, '--split', 'val')] == IDS[4:]
    assert [*captions('--ann-file', tiny.annotations, '--split', 'val', '--ids', *IDS[:3:-1])] == IDS[:3:-1]
    found = captions('--ann-file', tiny.annotations, '--split', 'test')
    assert found == {name: predictions[name]['caption'] for name in IDS[:4]}


def test_ids_that_begin_with_a_minus(tiny, tmp_path, call):
    store = write_store(tmp_path / 'store', ['-x0_a', '--b', 'c'])
    words = [tiny.san.config, tiny.san.checkpoint, '--regions', store, '--device', 'cpu', '--out', tmp_path]
    call(*words, '--ids=--b', '--ids=-x0_a')
    assert [each['image_id'] for each in read_json(tmp_path / 'captions.json')] == ['--b', '-x0_a']


def test_page_of_pictures(tiny, arguments, tmp_path, call):
    call(*arguments, '--out', tmp_path / 'all', '--images', tiny.pictures)
    page = (tmp_path / 'all/captions.html').read_text(encoding='utf-8')
    figures = [*expected_page(tiny, IDS, {})]
    assert re.findall(r'<figure>.*?</figure>', re.sub('data:image[^"]*', '', page), re.DOTALL) == figures
    assert len(re.findall('data:image/jpeg;base64,', page)) == len(IDS)
    assert 'all images' in page
    call(
        *(*arguments, '--out', tmp_path / 'two', '--images', tiny.pictures, '--page-images', 2),
        *('--ann-file', tiny.annotations, '--split', 'test'),
    )
    page = (tmp_path / 'two/captions.html').read_text(encoding='utf-8')
    references = {name: [f'Word{n} & word{k}.' for k in range(20)] for n, name in enumerate(IDS)}
    figures = [*expected_page(tiny, IDS[:2], references)]
    assert re.findall(r'<figure>.*?</figure>', re.sub('data:image[^"]*', '', page), re.DOTALL) == figures
    assert 'the first 2 of 4 images' in page
    assert names(tmp_path / 'two') == ['captions.html', 'captions.json']


def test_captions_of_several_models(tiny, arguments, tmp_path, call):
    """Each model's file as of the model alone. The page has a line per model; without regions, words have no boxes."""
    semantic = write_model(tmp_path, 'semantic', dict(ETA, sources='semantic'))
    models = dict(T_v=tiny.san, T_s=semantic, ETA=tiny.eta)
    pairs = [path for model in models.values() for path in (model.config, model.checkpoint)]
    options = [*arguments[2:], '--ann-file', tiny.annotations, '--split', 'test', '--n-best', 2]
    call(*pairs, '--names', *models, *options, '--images', tiny.pictures, '--out', tmp_path / 'all')
    assert names(tmp_path / 'all') == ['ETA', 'T_s', 'T_v', 'captions.html']
    captions = {}
    for name, model in models.items():
        reads = [] if name != 'T_v' else ['--attributes']
        alone = [x for x in options if not reads or x not in ('--attributes', tiny.attributes)]
        call(model.config, model.checkpoint, *alone, '--out', tmp_path / name)
        assert names(tmp_path / 'all' / name) == ['captions.json']
        captions[name] = read_json(tmp_path / 'all' / name / 'captions.json')
        assert captions[name] == read_json(tmp_path / name / 'captions.json')
    page = (tmp_path / 'all/captions.html').read_text(encoding='utf-8')
    assert 'Captions of T_v, T_s, ETA: all images' in page
    figures = re.findall(r'<figure>.*?</figure>', page, re.DOTALL)
    assert len(figures) == 4
    inferencers = {name: make(model) for name, model in models.items()}
    for number, figure in enumerate(figures):
        words, boxes = 0, []
        lines = re.findall(r'<p class="caption"><small>(.*?)</small> (.*?)</p>', figure)
        for (shown, line), (name, inferencer) in zip(lines, inferencers.items(), strict=True):
            caption = captions[name][number]['caption']
            assert (shown, re.sub('<.*?>', '', line)) == (name, caption)
            assert ('<span' in line) == (name != 'T_s' and caption != '')
            if name == 'T_s':
                continue
            attributes = None if name == 'T_v' else tiny.attributes
            image = inferencer.images(tiny.store, IDS[:4], attributes)[number]
            for row in inferencer.region_weights(image, caption):
                best = row.sort(descending=True, stable=True).indices[:3]
                boxes += [(str(words), f'{image.store[IDS[number]].boxes[index][0].item():.1f}') for index in best]
                words += 1
        assert re.findall(r'<rect class="w(\d+) further" x="(.*?)"', figure) == boxes
        assert figure.count('<rect') == len(boxes)
    assert f'.w{words - 1} ' in page


def test_a_picture_is_turned_as_its_orientation_requires(tiny, tmp_path, call):
    store = write_store(tmp_path / 'regions', ['turned'])
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / 'pictures').mkdir()
    Image.new('RGB', SIZE[::-1]).save(tmp_path / 'pictures/turned.jpg', exif=exif)
    arguments = [tiny.san.config, tiny.san.checkpoint, '--regions', store, '--out', tmp_path / 'out', '--device', 'cpu']
    call(*arguments, '--images', tmp_path / 'pictures')
    assert f'viewBox="0 0 {SIZE[0]} {SIZE[1]}"' in (tmp_path / 'out/captions.html').read_text(encoding='utf-8')
    assert read_json(tmp_path / 'out/captions.json')[0]['image_id'] == 'turned'


@pytest.mark.parametrize(
    ('more', 'words'),
    [
        (['--split', 'val'], '--ann-file'),
        (['--page-images', 0], '--page-images'),
        (['--ids', 99, 7], 'image 99'),
        (['--ann-file', 'dataset.json'], 'split'),
        (['--ann-file', 'dataset.json', '--split', 'val', '--ids', 7], '--ids.* 7$'),
        (['--attributes', 'out/captions.json.part', '--overwrite'], 'captions.json.part'),
        (['--images', 'none'], 'none'),
        (['--images', 'spoilt'], 'image 41\n.*image 3\n.*image 8'),
        (['--images', 'spoilt', '--page-images', 3], '12.png: 40×60.*\n.*5.png'),
    ],
)
def test_failures_of_the_command_line(tiny, arguments, tmp_path, refuse, monkeypatch, more, words):
    """Nothing is written."""
    monkeypatch.setattr(CaptionInferencer, 'forward', None)
    for folder in ('spoilt', 'out'):
        (tmp_path / folder).mkdir()
    for name in IDS[:4]:
        Image.new('RGB', (23, 15)).save(tmp_path / f'spoilt/{name}.png')  # reduced, and rounded
    Image.new('RGB', SIZE[::-1]).save(tmp_path / 'spoilt/12.png')
    (tmp_path / 'spoilt/5.png').write_bytes(b'')
    shutil.copyfile(tiny.annotations, tmp_path / 'dataset.json')
    if '--attributes' in more:
        shutil.copyfile(tiny.attributes, tmp_path / 'out/captions.json.part')
    before = {*tmp_path.rglob('*')}
    monkeypatch.chdir(tmp_path)
    refuse(words, TOOL, *arguments, '--out', 'out', *more)
    assert {*tmp_path.rglob('*')} == before


def test_output_that_exists_is_kept(tiny, arguments, tmp_path, call, monkeypatch):
    monkeypatch.setattr(CaptionInferencer, '__init__', None)
    for name in ('captions.json', 'captions.html', 'captions.json.part'):
        (tmp_path / name).write_bytes(b'precious')
        with pytest.raises(FileExistsError) as caught:
            call(*arguments, '--out', tmp_path, '--images', tiny.pictures)
        assert caught.value.filename == str(tmp_path / name)
        assert (tmp_path / name).read_bytes() == b'precious'
        (tmp_path / name).unlink()


def test_interrupted_between_batches_and_resumed(tiny, arguments, tmp_path, call, monkeypatch):
    whole, out = tmp_path / 'whole', tmp_path / 'out'
    arguments += ['--n-best', 2, '--images', tiny.pictures]
    call(*arguments, '--out', whole)
    ran = stop_once(CaptionInferencer, 2, monkeypatch)
    with pytest.raises(Stop):
        call(*arguments, '--out', out)
    assert names(out) == ['captions.json.part']
    with pytest.raises(ValueError, match='differs in beam'):
        call(*arguments, '--out', out, '--resume', '--beam', 2)
    call(*arguments, '--out', out, '--resume')
    assert ran == [[0, 1], [2, 3], [4, 5], [4, 5], [6]]
    assert names(out) == ['captions.html', 'captions.json']
    assert [(out / name).read_bytes() for name in names(out)] == [(whole / name).read_bytes() for name in names(out)]
    (out / 'captions.json.part').write_bytes(b'of another run\n')
    call(*arguments, '--out', out, '--overwrite')
    assert names(out) == ['captions.html', 'captions.json']


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
def test_an_ensemble_captions_with_the_mean_of_the_three_models(tiny, members, tmp_path, call):
    """Its checkpoint has all weights in this order, and the meta of the first."""
    paths, configs = zip(*((each.checkpoint, Config.fromfile(each.config).model.to_dict()) for each in members))
    call(*paths, '--out', tmp_path / 'ensemble.pth', tool=ENSEMBLE)
    merged, states = torch.load(tmp_path / 'ensemble.pth'), [torch.load(path)['state_dict'] for path in paths]
    assert merged['meta'] == torch.load(paths[0])['meta'] != torch.load(paths[-1])['meta']
    expected = {f'members.{i}.{name}': x for i, state in enumerate(states) for name, x in state.items()}
    torch.testing.assert_close(merged['state_dict'], expected, rtol=0, atol=0)
    options = dict(members=[*configs], test_cfg=dict(beam=3, max_length=7))
    Config(dict(model=dict(options, type='mmattn.CaptionEnsemble'))).dump(str(tmp_path / 'ensemble.py'))
    arguments = [tmp_path / 'ensemble.py', tmp_path / 'ensemble.pth', '--regions', tiny.store, '--device', 'cpu']
    call(*arguments, '--out', tmp_path / 'out', '--images', tiny.pictures, '--batch-size', 1)
    ensemble, store = CaptionEnsemble(**options).eval(), RegionStore(tiny.store)
    for model, state in zip(ensemble.members, states, strict=True):
        model.load_state_dict(state)
    expected = []
    for image_id in IDS:
        ((best, *_),) = ensemble.describe(
            dict(features=store[image_id].features[None], boxes=store[image_id].boxes[None])
        )
        expected.append(' '.join(SYMBOLS[token - 4] for token in best.tokens))
    assert [each['caption'] for each in read_json(tmp_path / 'out/captions.json')] == expected
    assert len(set(expected)) > 2


def test_a_model_of_another_vocabulary_than_that_of_its_checkpoint(tiny, tmp_path):
    checkpoint = torch.load(tiny.san.checkpoint)
    checkpoint['meta']['dataset_meta']['symbols'].pop()
    torch.save(checkpoint, tmp_path / 'shorter.pth')
    with pytest.raises(ValueError, match=f'vocabulary has {len(SYMBOLS) + 3} symbols.* is {len(SYMBOLS) + 4}'):
        CaptionInferencer(tiny.san.config, tmp_path / 'shorter.pth')


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


def test_faults_of_several_models(tiny, arguments, tmp_path, refuse, monkeypatch):
    monkeypatch.setattr(CaptionInferencer, 'forward', None)
    pair, rest = arguments[:2], [*arguments[2:], '--out', tmp_path / 'out']
    san = [tiny.san.config, tiny.san.checkpoint]
    without = [word for word in rest if word not in ('--attributes', tiny.attributes)]
    for words, message in (
        ([*pair, tiny.san.config, *rest], 'CHECKPOINT'),
        ([*san, *san, '--names', 'a', 'b', *rest], '--attributes'),
        ([*san, *pair, *without], 'attributes must'),
    ):
        refuse(message, TOOL, *words)
    assert not (tmp_path / 'out').exists()
