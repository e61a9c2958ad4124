"""Faults of annotations, region features and attributes, reported all at once before the data sets are built."""

import json
import re
from contextlib import suppress

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.runner import Runner

from mmattn.utils import config_path

from ...tiny_data import WORDS, captions

ETA = 'eta/eta_1xb15-15e_coco-captions.py'
SAN = 'ng_san/ng-san_1xb10-15e_coco-captions.py'


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The folder of a tiny data set in the layout of COCO."""
    monkeypatch.setenv('COCO_CAPTIONS_ROOT', str(tmp_path / 'data'))
    captions(tmp_path / 'data', 'coco')
    return tmp_path / 'data'


@pytest.fixture
def check(tmp_path):
    """Return the faults of a config, as tools/train.py finds them, one per line; '' if there are none."""

    def run(name=SAN, num_features=6, hook='before_loops', **options):
        cfg = Config.fromfile(config_path(name))
        cfg.model.update(
            vocab_size=4 + len(WORDS), num_features=num_features, num_layers=1, embed_dim=16, feedforward_dim=8
        )
        cfg.work_dir, cfg.log_level = str(tmp_path / 'work'), 'ERROR'
        cfg.experiment_name = f'{tmp_path.name} {len(list(tmp_path.rglob("*")))}'
        cfg.merge_from_dict(options)
        runner = Runner.from_cfg(cfg)
        report = tmp_path / 'work/data_check.txt'
        with suppress(ValueError):
            runner.call_hook(hook)
            assert not report.exists()
            return ''
        return report.read_text(encoding='utf-8')

    return run


def change(path, function):
    """Replace the content of a .npy or .json file."""
    if path.suffix == '.npy':
        array = np.load(path)
        function(array)
        np.save(path, array)
    else:
        content = json.loads(path.read_text(encoding='utf-8'))
        function(content)
        path.write_text(json.dumps(content), encoding='utf-8')


@pytest.mark.parametrize('name', [SAN, ETA])
def test_correct_data_have_no_faults(check, data, name):
    assert check(name) == ''
    assert check(name, hook='before_test_loop') == ''


def test_features_of_another_width_are_a_fault_with_the_option(check, data):
    """Of a model that does not read them, they may have any width."""
    message = f'{data}/regions: 6 features per region, but the model has 2048 (--cfg-options model.num_features=6)\n'
    assert check(num_features=2048) == message
    assert check(num_features=2048, hook='before_test_loop') == message
    assert check(ETA, 2048, **{'model.sources': 'semantic'}) == ''


def test_faults_of_all_files_are_reported_at_once(check, data):
    """Of training and validation, not of the test, whose images are checked before the test."""

    def spoil(content):
        content['images'][0]['sentences'][1]['tokens'] = []
        content['images'][1]['sentences'] = []

    change(data / 'dataset_coco.json', spoil)
    (data / 'regions/sizes.npy').unlink()
    assert check(ETA).splitlines() == [
        f"{data}/dataset_coco.json: image 100: the caption 'A dog sits here.' has no words; image 101: no caption",
        f'{data}/regions: {data}/regions/sizes.npy: no such file',
    ]


def test_faults_of_regions_name_their_images(check, data):
    """Images of the test do not count before training."""

    def spoil(boxes):
        boxes[0] = (1, 1, 99, 9)  # of image 100, outside
        boxes[2] = (5, 5, 5, 9)  # of image 101, without a width
        boxes[-1] = -1  # of image 109, for the test

    def add(content):
        content['images'].append(dict(content['images'][0], cocoid=7, split='val'))

    change(data / 'regions/boxes.npy', spoil)
    change(data / 'regions/offsets.npy', lambda offsets: offsets.__setitem__(4, offsets[3]))  # image 103
    change(data / 'dataset_coco.json', add)
    found = check()
    assert found.startswith(f'{data}/regions: image 100: boxes are outside the image of 48×40: region 0; ')
    for fault in (
        'image 101: boxes have a side that is not positive: region 0',
        'image 103: no regions',
        'image 7 is not in the store',
    ):
        assert f'; {fault}' in found
    assert 'image 109' not in found
    assert 'image 109: boxes are outside the image' in check(hook='before_test_loop')


def test_many_faults_of_regions_are_counted(check, data):
    def add(content):
        content['images'] += [dict(content['images'][0], cocoid=number, split='val') for number in range(30)]

    change(data / 'dataset_coco.json', add)
    assert check().endswith('image 19 is not in the store; … and 10 more\n')


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (None, 'No such file or directory'),
        ('', 'not a JSON file: .*'),
        ('{}', 'no attribute of any of the 6 images that is in the vocabulary; no attribute of any of the 2 images .*'),
        ('{"100": [["dog", 0.5, 1]]}', r'image 100: not \[\[word, score\], …\]'),
    ],
)
def test_faults_of_attributes(check, data, content, message):
    path = data / 'attributes.json'
    path.unlink()
    if content is not None:
        path.write_text(content, encoding='utf-8')
    assert re.fullmatch(f'{re.escape(str(path))}: {message}\n', check(ETA))
    assert check(SAN) == ''


def test_a_model_that_reads_attributes_requires_them(check, data):
    none = {f'{part}_dataloader.dataset.attributes': None for part in ('train', 'val', 'test')}
    message = (
        f'{data}/dataset_coco.json: the model reads attributes, but the data set has none: set its option attributes'
    )
    assert check(ETA, **none) == f'{message}\n'
    oracle = {**none, 'test_dataloader.dataset.oracle_attributes': True}
    assert check(ETA, hook='before_test_loop', **oracle) == ''
    assert check(ETA, **{'model.sources': 'visual'}, **none) == ''


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('{"images": 3}', r"neither an object with a list 'images'"),
        (
            '{"images": [{"cocoid": 1, "sentences": [], "split": "train"}, {"filename": "a.jpg"}]}',
            r'images\[1\]: no key',
        ),
        ('[', 'not a JSON file'),
    ],
)
def test_other_layouts_are_faults_of_the_file(check, data, text, message):
    (data / 'dataset_coco.json').write_text(text, encoding='utf-8')
    found = check()
    assert re.match(f'{re.escape(str(data))}/dataset_coco.json: {message}', found)
    assert found.count(str(data)) == 1  # once, though training, validation and vocabulary read it


def test_missing_files_and_unknown_splits_are_faults(check, data):
    message = rf"{data}/dataset_coco.json: split must be of ['test', 'train', 'val']; got ['dev']"
    assert message in check(**{'val_dataloader.dataset.split': 'dev'})
    (data / 'dataset_coco.json').unlink()
    assert check() == f'{data}/dataset_coco.json: No such file or directory\n'
    assert 'no such folder; a converter such as' in check(**{'train_dataloader.dataset.regions': 'nowhere'})
