"""Faults of annotations, region features and attributes, reported all at once before the data sets are built."""

import re
from contextlib import suppress

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.runner import Runner

from mmattn.utils import config_path

from ...tiny_data import WORDS, captions
from ..files import read_json, write_json

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
        content = read_json(path)
        function(content)
        write_json(path, content)


@pytest.mark.parametrize('name', [SAN, ETA])
def test_correct_data_have_no_faults(check, data, name):
    assert check(name) == ''
    assert check(name, hook='before_test_loop') == ''


def test_faults_of_all_files_are_reported_at_once(check, data):
    """Of training and validation, not of the test, whose images are checked before the test."""

    def spoil(content):
        content['images'][0]['sentences'][1]['tokens'] = []
        content['images'][1]['sentences'] = []

    change(data / 'dataset_coco.json', spoil)
    (data / 'regions/sizes.npy').unlink()
    captions, regions = check(ETA).splitlines()
    assert re.search(rf'{data}/dataset_coco.json: image 100: .*; image 101: ', captions)
    assert f'{data}/regions/sizes.npy' in regions


NO_ATTRIBUTES = {f'{part}_dataloader.dataset.attributes': None for part in ('train', 'val', 'test')}
MISSING = dict.fromkeys(NO_ATTRIBUTES, 'none.json')
ORACLE = {'test_dataloader.dataset.oracle_attributes': True}


@pytest.mark.parametrize(
    ('name', 'hook', 'options', 'names'),
    [
        (SAN, 'before_loops', dict(num_features=2048), 'regions: .*--cfg-options model.num_features=6'),
        (SAN, 'before_test_loop', dict(num_features=2048), 'regions: .*--cfg-options model.num_features=6'),
        (ETA, 'before_loops', {'num_features': 2048, 'model.sources': 'semantic'}, None),  # it reads no regions
        (ETA, 'before_loops', NO_ATTRIBUTES, 'dataset_coco.json: .*option attributes'),
        (ETA, 'before_loops', {**NO_ATTRIBUTES, 'model.sources': 'visual'}, None),
        (ETA, 'before_loops', MISSING, 'none.json'),
        (ETA, 'before_test_loop', NO_ATTRIBUTES | ORACLE, None),
        (SAN, 'before_loops', {'val_dataloader.dataset.split': 'dev'}, 'dataset_coco.json: split'),
        (SAN, 'before_loops', {'train_dataloader.dataset.regions': 'nowhere'}, 'nowhere'),
        (SAN, 'before_loops', {'train_dataloader.dataset.ann_file': 'none.json'}, 'none.json'),
    ],
)
def test_what_fits_neither_model_nor_files(check, data, name, hook, options, names):
    faults = check(name, hook=hook, **options)
    assert faults == '' if names is None else re.search(names, faults)


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
    assert found.startswith(f'{data}/regions: image 100: boxes are outside')
    assert all(f'; image {number}' in found for number in (101, 103, 7))
    assert 'image 109' not in found
    assert 'image 109: boxes are outside the image' in check(hook='before_test_loop')
