"""The command lines: captions, page and ensembles by real files; killed and called again; errors before any work."""

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from PIL import Image

from mmattn.language.captioning import CaptionInferencer
from mmattn.language.regions.region_store import RegionStore

from ...forked_tools import run_command
from ..interruption import killing
from .tiny_models import ETA, FEATURES, IDS, SAN, SIZE, SYMBOLS, write_model, write_store

ROOT = Path(__file__).parents[3]
TOOL = ROOT / 'tools/caption_demo.py'
ENSEMBLE = ROOT / 'tools/misc/ensemble_checkpoints.py'


@pytest.fixture
def arguments(tiny):
    return [
        *(tiny.eta.config, tiny.eta.checkpoint, '--regions', tiny.store, '--attributes', tiny.attributes),
        *('--device', 'cpu', '--batch-size', 2),
    ]


@pytest.fixture(scope='module')
def predictions(tiny):
    """The predictions of these arguments, from Python, by image."""
    inferencer = CaptionInferencer(tiny.eta.config, tiny.eta.checkpoint, 'cpu', batch_size=2)
    found = inferencer(tiny.store, attributes=tiny.attributes, n_best=2)['predictions']
    return {each['image_id']: each for each in found}


@pytest.fixture
def call(monkeypatch):
    """``call(*arguments)`` runs the tool in this process."""

    def call(*arguments, tool=TOOL):
        monkeypatch.setattr(sys, 'argv', [str(tool), *map(str, arguments)])
        monkeypatch.syspath_prepend(str(tool.parent))
        runpy.run_path(str(tool))['main']()

    return call


def read(path):
    return json.loads(path.read_text(encoding='utf-8'))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def expected_page(tiny, ids, references):
    """What a page shows: the words of each caption, its strongest boxes, the references."""
    inferencer = CaptionInferencer(tiny.eta.config, tiny.eta.checkpoint, 'cpu', batch_size=2)
    images = inferencer.images(tiny.store, IDS, tiny.attributes)
    captions = {
        each['image_id']: each['caption'] for each in inferencer(tiny.store, None, tiny.attributes)['predictions']
    }
    for image in images:
        if image.image_id in ids:
            picture = Image.new('RGB', SIZE)
            figure = inferencer.visualize(image, captions[image.image_id], picture, references.get(image.image_id, ()))
            yield re.sub('data:image[^"]*', '', figure)


@pytest.mark.e2e
def test_captions_in_the_format_of_coco(arguments, predictions, tmp_path):
    done = run_command([sys.executable, TOOL, *arguments, '--out', tmp_path / 'new' / 'one'])
    assert done.returncode == 0, done.stderr
    records = read(tmp_path / 'new/one/captions.json')
    assert records == [dict(image_id=int(name), caption=predictions[name]['caption']) for name in IDS]
    assert names(tmp_path / 'new/one') == ['captions.json']


def test_n_best_and_options_of_the_search(tiny, arguments, tmp_path, call):
    options = dict(beam=2, length_penalty=0.2, n_best=2)
    call(*arguments, '--out', tmp_path, '--beam', 2, '--length-penalty', 0.2, '--n-best', 2, '--num-attributes', 1)
    inferencer = CaptionInferencer(tiny.eta.config, tiny.eta.checkpoint, 'cpu', batch_size=2)
    found = inferencer(tiny.store, None, tiny.attributes, 1, **options)['predictions']
    assert read(tmp_path / 'captions.json') == [
        dict(image_id=int(each['image_id']), caption=each['caption'], n_best=each['n_best']) for each in found
    ]


def test_chosen_images_in_their_order(tiny, arguments, predictions, tmp_path, call):
    arguments[-1] = 1  # rounding depends on the batch

    def captions(*more):
        call(*arguments, '--out', tmp_path, '--overwrite', *more)
        return {str(each['image_id']): each['caption'] for each in read(tmp_path / 'captions.json')}

    assert [*captions('--ids', 8, 12)] == ['8', '12']
    assert [*captions('--ann-file', tiny.annotations, '--split', 'val')] == IDS[4:]
    assert [*captions('--ann-file', tiny.annotations, '--split', 'val', '--ids', *IDS[:3:-1])] == IDS[:3:-1]
    with pytest.raises(ValueError, match=rf'--ids: not in .*, split val: 1 fault:\n  {IDS[0]}$'):
        captions('--ann-file', tiny.annotations, '--split', 'val', '--ids', IDS[0])
    found = captions('--ann-file', tiny.annotations, '--split', 'test')
    assert found == {name: predictions[name]['caption'] for name in IDS[:4]}


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
        captions[name] = read(tmp_path / 'all' / name / 'captions.json')
        assert captions[name] == read(tmp_path / name / 'captions.json')
    page = (tmp_path / 'all/captions.html').read_text(encoding='utf-8')
    assert 'Captions of T_v, T_s, ETA: all images' in page
    figures = re.findall(r'<figure>.*?</figure>', page, re.DOTALL)
    assert len(figures) == 4
    inferencers = {name: CaptionInferencer(model.config, model.checkpoint, 'cpu') for name, model in models.items()}
    for number, figure in enumerate(figures):
        lines = re.findall(r'<p class="caption"><small>(.*?)</small> (.*?)</p>', figure)
        assert [name for name, _ in lines] == [*models]
        shown = {name: re.sub('<.*?>', '', line) for name, line in lines}
        assert shown == {name: records[number]['caption'] for name, records in captions.items()}
        assert '<span' not in dict(lines)['T_s']
        boxes = re.findall(r'<rect class="w(\d+) further" x="(.*?)"', figure)
        assert len(boxes) == figure.count('<rect')
        k, expected = 0, []
        for name in ('T_v', 'ETA'):
            attributes = None if name == 'T_v' else tiny.attributes
            image = inferencers[name].images(tiny.store, IDS[:4], attributes)[number]
            boxes_of_image = image.store[IDS[number]].boxes
            for row in inferencers[name].region_weights(image, shown[name]):
                best = row.sort(descending=True, stable=True).indices[:3]
                expected += [(str(k), f'{boxes_of_image[index][0].item():.1f}') for index in best]
                k += 1
        assert boxes == expected
    assert f'.w{k - 1} ' in page


def test_faults_of_several_models(tiny, arguments, tmp_path, call, monkeypatch):
    def fail(*args, **options):
        raise AssertionError('the model ran')

    monkeypatch.setattr(CaptionInferencer, 'forward', fail)
    pair, rest = arguments[:2], [*arguments[2:], '--out', tmp_path / 'out']
    san = [tiny.san.config, tiny.san.checkpoint]
    with pytest.raises(ValueError, match='a CHECKPOINT must follow each CONFIG; got 3 paths'):
        call(*pair, tiny.san.config, *rest)
    with pytest.raises(ValueError, match='--attributes: none of these models reads attributes'):
        call(*san, *san, '--names', 'a', 'b', *rest)
    with pytest.raises(ValueError, match='attributes must be the path of a file: this ETACaptioner reads them'):
        call(*san, *pair, *[x for x in rest if x not in ('--attributes', tiny.attributes)])
    assert not (tmp_path / 'out').exists()


def test_a_picture_is_turned_as_its_orientation_requires(tiny, tmp_path, call):
    store = write_store(tmp_path / 'regions', ['turned'])
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / 'pictures').mkdir()
    Image.new('RGB', SIZE[::-1]).save(tmp_path / 'pictures/turned.jpg', exif=exif)
    arguments = [tiny.san.config, tiny.san.checkpoint, '--regions', store, '--out', tmp_path / 'out', '--device', 'cpu']
    call(*arguments, '--images', tmp_path / 'pictures')
    assert f'viewBox="0 0 {SIZE[0]} {SIZE[1]}"' in (tmp_path / 'out/captions.html').read_text(encoding='utf-8')
    assert read(tmp_path / 'out/captions.json')[0]['image_id'] == 'turned'


def test_output_that_exists_is_an_error_before_any_work(tiny, arguments, tmp_path, call, monkeypatch):
    def fail(*args, **options):
        raise AssertionError('the model was built')

    monkeypatch.setattr(CaptionInferencer, '__init__', fail)
    for name, message in (
        ('captions.json', 'this file exists; --overwrite replaces it'),
        ('captions.html', 'this file exists; --overwrite replaces it'),
        ('captions.json.part', 'an interrupted run left this file; --resume continues it'),
    ):
        (tmp_path / name).write_bytes(b'precious')
        with pytest.raises(FileExistsError, match=message) as caught:
            call(*arguments, '--out', tmp_path, '--images', tiny.pictures)
        assert caught.value.filename == str(tmp_path / name)
        assert (tmp_path / name).read_bytes() == b'precious'
        (tmp_path / name).unlink()
    part = shutil.copyfile(tiny.attributes, tmp_path / 'captions.json.part')
    with pytest.raises(ValueError, match=r'--out \S+captions\.json\.part would replace an input'):
        call(*arguments, '--attributes', part, '--out', tmp_path, '--overwrite')


def test_faults_of_the_input_are_listed_before_any_work(tiny, arguments, tmp_path, call, monkeypatch):
    def fail(*args, **options):
        raise AssertionError('the model ran')

    monkeypatch.setattr(CaptionInferencer, 'forward', fail)
    out = ['--out', tmp_path / 'out']
    with pytest.raises(ValueError, match=r'2 faults:\n  image 99 is not in the store\n  image 98'):
        call(*arguments, *out, '--ids', 99, 7, 98)
    with pytest.raises(ValueError, match='5 features per region, but the model has 6'):
        call(*arguments, *out, '--regions', write_store(tmp_path / 'narrow', width=FEATURES - 1))
    other = write_model(tmp_path, 'other', dict(ETA, vocab_size=23), SYMBOLS[1:])
    with pytest.raises(
        ValueError, match=r'other\.pth: its vocabulary has 23 symbols, .* vocab_size of the model is 24'
    ):
        call(tiny.eta.config, other.checkpoint, *arguments[2:], *out)
    without = [*arguments[:4], '--device', 'cpu', *out]
    with pytest.raises(ValueError, match='attributes must be the path of a file: this ETACaptioner reads them'):
        call(*without)
    with pytest.raises(ValueError, match=r"split must be of \['test', 'val'\]; got None"):
        call(*arguments, *out, '--ann-file', tiny.annotations)
    with pytest.raises(FileNotFoundError, match='no such folder'):
        call(*arguments[:3], tmp_path / 'none', *out)
    semantic = write_model(tmp_path, 'semantic', dict(ETA, sources='semantic'))
    with pytest.raises(ValueError, match='this ETACaptioner reads no regions'):
        call(semantic.config, semantic.checkpoint, *arguments[2:], *out, '--images', tiny.pictures)
    assert not (tmp_path / 'out').exists()


def test_faults_of_pictures_are_listed_before_any_work(tiny, arguments, tmp_path, call):
    folder = tmp_path / 'pictures'
    out = ['--out', tmp_path / 'out', '--images', folder]
    with pytest.raises(NotADirectoryError, match='no such folder of pictures'):
        call(*arguments, *out)
    folder.mkdir()
    for name in IDS[:4]:
        Image.new('RGB', (23, 15)).save(folder / f'{name}.png')  # reduced, and rounded
    Image.new('RGB', SIZE[::-1]).save(folder / '12.png')
    (folder / '5.png').write_bytes((folder / '7.png').read_bytes()[:45])
    with pytest.raises(ValueError, match=r'3 faults:\n.*no picture of image 41\n.*image 3\n.*image 8'):
        call(*arguments, *out)
    with pytest.raises(
        ValueError, match=r'2 faults:\n.*12\.png: 40×60 pixels; image 12 .* 60×40, has another shape\n.*5\.png: unread'
    ):
        call(*arguments, *out, '--page-images', 3)
    assert not (tmp_path / 'out').exists()


def test_usage_errors(arguments, tmp_path, capsys, call):
    for more, message in (
        (['--split', 'val'], '--split requires --ann-file'),
        (['--page-images', 0], '--page-images must be at least 1; got 0'),
    ):
        with pytest.raises(SystemExit) as caught:
            call(*arguments, '--out', tmp_path, *more)
        assert caught.value.code == 2
        assert message in capsys.readouterr().err


def test_interrupted_between_batches_and_resumed(tiny, arguments, tmp_path, call, monkeypatch):
    whole, out, forward, ran = tmp_path / 'whole', tmp_path / 'out', CaptionInferencer.forward, []
    arguments += ['--n-best', 2, '--images', tiny.pictures]
    call(*arguments, '--out', whole)

    def limited(self, batch, **options):
        ran.append(batch.indices)
        if len(ran) == 3:
            raise ValueError('stopped')
        return forward(self, batch, **options)

    monkeypatch.setattr(CaptionInferencer, 'forward', limited)
    with pytest.raises(ValueError, match='stopped'):
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


@pytest.mark.slow
def test_killed_and_resumed(arguments, predictions, tmp_path):
    words = [str(each) for each in (*arguments, '--out', tmp_path)]
    env = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'}
    killed = subprocess.run([sys.executable, '-c', killing(TOOL), *words], env=env, capture_output=True, timeout=300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert names(tmp_path) == ['captions.json.part']
    assert len((tmp_path / 'captions.json.part').read_bytes().splitlines()[-1]) == 20
    done = run_command([sys.executable, TOOL, *words, '--resume'])
    assert done.returncode == 0, done.stderr
    assert {str(each['image_id']): each['caption'] for each in read(tmp_path / 'captions.json')} == {
        name: each['caption'] for name, each in predictions.items()
    }
    assert names(tmp_path) == ['captions.json']


# Ensembles.


@pytest.fixture(scope='module')
def members(tmp_path_factory):
    """Three models of one vocabulary, two of them of the same kind."""
    folder = tmp_path_factory.mktemp('members')
    configs = dict(a=SAN, b=dict(ETA, sources='visual'), c=SAN)
    return [write_model(folder, name, config, seed=seed) for seed, (name, config) in enumerate(configs.items())]


def by_hand(tiny, members, beam=3):
    """Captions of the mean probabilities of the models, built one by one, by a plain beam search of whole captions."""
    models = [CaptionInferencer(each.config, each.checkpoint, 'cpu').model.double() for each in members]
    store = RegionStore(tiny.store)
    found = {}
    for image_id in IDS:
        regions = store[image_id]
        inputs = dict(features=regions.features[None].double(), boxes=regions.boxes[None].double())
        beams, ended = [((), 0.0)], []
        for length in range(8):
            candidates = []
            for tokens, score in beams:
                target = torch.tensor([[*tokens, 4]])  # the last token is not read
                with torch.no_grad():
                    p = sum(
                        model.logits(model.decode(*model.encode(inputs), target))[0, -1].softmax(0) for model in models
                    ) / len(models)
                p[[0, 1, 3]] = 0  # <s>, <pad>, <unk>
                if length == 7:
                    p[4:] = 0  # max_length
                candidates += [((*tokens, token), score + value) for token, value in enumerate(p.log().tolist())]
            candidates.sort(key=lambda each: -each[1])
            beams = []
            for place, (tokens, score) in enumerate(candidates[: 2 * beam]):
                if tokens[-1] == 2:
                    if place < beam:
                        ended.append((tokens[:-1], score))
                elif len(beams) < beam:
                    beams.append((tokens, score))
            if len(ended) >= beam:
                break
        best = max(ended, key=lambda each: each[1])[0]
        found[image_id] = ' '.join(SYMBOLS[token - 4] for token in best)
    return found


def test_an_ensemble_captions_as_the_three_models_built_by_hand(tiny, members, tmp_path, call):
    """By tools/caption_demo.py and tools/test.py."""
    call(*(each.checkpoint for each in members), '--out', tmp_path / 'ensemble.pth', tool=ENSEMBLE)
    configs = [Config.fromfile(each.config).model.to_dict() for each in members]
    dataset = dict(
        type='mmattn.COCOCaptionDataset',
        ann_file=str(tiny.annotations),
        regions=str(tiny.store),
        split='test',
        min_count=0,
        test_mode=True,
    )
    config = dict(
        default_scope='mmengine',
        model=dict(type='mmattn.CaptionEnsemble', members=configs, test_cfg=dict(beam=3, max_length=7)),
        test_dataloader=dict(
            batch_size=3,
            dataset=dataset,
            sampler=dict(type='DefaultSampler', shuffle=False),
            collate_fn=dict(type='pseudo_collate'),
        ),
        test_evaluator=dict(
            type='mmattn.CaptionMetric',
            tokenizer='simple',
            use_meteor=False,
        ),
        test_cfg=dict(),
        work_dir=str(tmp_path / 'work'),
    )
    Config(config).dump(str(tmp_path / 'ensemble.py'))
    expected = by_hand(tiny, members)
    assert len(set(expected.values())) > 2
    arguments = [tmp_path / 'ensemble.py', tmp_path / 'ensemble.pth']
    call(*arguments, '--regions', tiny.store, '--out', tmp_path / 'out', '--device', 'cpu', '--images', tiny.pictures)
    found = {str(each['image_id']): each['caption'] for each in read(tmp_path / 'out/captions.json')}
    assert found == expected
    done = run_command([sys.executable, ROOT / 'tools/test.py', *arguments, '--out', tmp_path / 'results'])
    assert done.returncode == 0, done.stderr[-3000:]
    found = {str(each['image_id']): each['caption'] for each in read(tmp_path / 'results/captions.json')}
    assert found == {name: expected[name] for name in IDS[:4]}


def test_the_checkpoint_of_an_ensemble(members, tmp_path, call):
    paths = [each.checkpoint for each in members]
    call(*paths, '--out', tmp_path / 'ensemble.pth', tool=ENSEMBLE)
    found = torch.load(tmp_path / 'ensemble.pth')
    assert found['meta'] == torch.load(paths[0])['meta']
    for number, path in enumerate(paths):
        for name, x in torch.load(path)['state_dict'].items():
            torch.testing.assert_close(found['state_dict'].pop(f'members.{number}.{name}'), x, rtol=0, atol=0)
    assert not found['state_dict']


def test_checkpoints_that_are_no_ensemble(members, tmp_path, call):
    first, out = members[0].checkpoint, tmp_path / 'ensemble.pth'
    other = write_model(tmp_path, 'other', SAN, [*SYMBOLS[:-2], SYMBOLS[-1], SYMBOLS[-2]]).checkpoint
    with pytest.raises(ValueError, match=r'other\.pth and .*a\.pth have different vocabularies, of 20 and 20 symbols'):
        call(first, other, '--out', out, tool=ENSEMBLE)
    torch.save(dict(state_dict={}), tmp_path / 'bare.pth')
    with pytest.raises(ValueError, match=r'bare\.pth: meta.dataset_meta has no symbols'):
        call(first, tmp_path / 'bare.pth', '--out', out, tool=ENSEMBLE)
    torch.save(dict(meta=dict(dataset_meta=dict(symbols=['a'], codes=['a b'])), state_dict={}), tmp_path / 'text.pth')
    with pytest.raises(ValueError, match=r'text\.pth is not of a captioning model: meta.dataset_meta has codes'):
        call(tmp_path / 'text.pth', tmp_path / 'text.pth', '--out', out, tool=ENSEMBLE)
    torch.save(dict(meta={}), tmp_path / 'empty.pth')
    with pytest.raises(ValueError, match=r"empty\.pth has no 'state_dict'"):
        call(first, tmp_path / 'empty.pth', '--out', out, tool=ENSEMBLE)
    assert not out.exists()
    out.write_bytes(b'mine')
    with pytest.raises(FileExistsError, match='exists'):
        call(first, first, '--out', out, tool=ENSEMBLE)
    assert out.read_bytes() == b'mine'
