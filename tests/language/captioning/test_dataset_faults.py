"""Faults of annotations, region features and attributes, reported all at once before the data sets are built."""

import re

import numpy as np
import pytest

from ...tiny_data import FEATURES, captions
from ..files import read_json, write_json

ETA = 'eta/eta_1xb15-15e_coco-captions.py'
SAN = 'ng_san/ng-san_1xb10-15e_coco-captions.py'
TRAINING, TEST = ('train_dataloader', 'val_dataloader'), ('test_dataloader',)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The folder of a tiny data set in the layout of COCO."""
    monkeypatch.setenv('COCO_CAPTIONS_ROOT', str(tmp_path / 'data'))
    captions(tmp_path / 'data', 'coco')
    return tmp_path / 'data'


@pytest.fixture
def faults(check):
    """Return the faults of the data of a config, a path per line; '' if there are none."""

    def run(name=SAN, loaders=TRAINING, options={}, **model):
        model = dict(num_features=FEATURES, reads_attributes=name == ETA) | model
        found = check(name, loaders, lambda cfg: cfg.merge_from_dict(options), **model)
        return '\n'.join(f'{path}: {"; ".join(reasons)}' for path, reasons in found.items())

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


def test_faults_of_all_files_are_reported_at_once(faults, data):
    """Of training and validation, not of the test, whose images are checked before the test."""

    def spoil(content):
        content['images'][0]['sentences'][1]['tokens'] = []
        content['images'][1]['sentences'] = []

    change(data / 'dataset_coco.json', spoil)
    (data / 'regions/sizes.npy').unlink()
    of_captions, of_regions = faults(ETA).splitlines()
    assert re.search(rf'{data}/dataset_coco.json: image 100: .*; image 101: ', of_captions)
    assert f'{data}/regions/sizes.npy' in of_regions


NO_ATTRIBUTES = {f'{part}_dataloader.dataset.attributes': None for part in ('train', 'val', 'test')}
MISSING = dict.fromkeys(NO_ATTRIBUTES, 'none.json')
ORACLE = {'test_dataloader.dataset.oracle_attributes': True}


@pytest.mark.parametrize(
    ('name', 'loaders', 'options', 'model', 'names'),
    [
        *((name, loaders, {}, {}, None) for name in (SAN, ETA) for loaders in (TRAINING, TEST)),
        (SAN, TRAINING, {}, dict(num_features=2048), 'regions: .*--cfg-options model.num_features=6'),
        (SAN, TEST, {}, dict(num_features=2048), 'regions: .*--cfg-options model.num_features=6'),
        (ETA, TRAINING, {}, dict(num_features=None), None),  # it reads no regions
        (ETA, TRAINING, NO_ATTRIBUTES, {}, 'dataset_coco.json: .*option attributes'),
        (ETA, TRAINING, NO_ATTRIBUTES, dict(reads_attributes=False), None),
        (ETA, TRAINING, MISSING, {}, 'none.json'),
        (ETA, TEST, NO_ATTRIBUTES | ORACLE, {}, None),
        (SAN, TRAINING, {'val_dataloader.dataset.split': 'dev'}, {}, 'dataset_coco.json: split'),
        (SAN, TRAINING, {'train_dataloader.dataset.regions': 'nowhere'}, {}, 'nowhere'),
        (SAN, TRAINING, {'train_dataloader.dataset.ann_file': 'none.json'}, {}, 'none.json'),
    ],
)
def test_what_fits_neither_model_nor_files(faults, data, name, loaders, options, model, names):
    found = faults(name, loaders, options, **model)
    assert found == '' if names is None else re.search(names, found)


def test_faults_of_regions_name_their_images(faults, data):
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
    found = faults()
    assert found.startswith(f'{data}/regions: image 100: boxes are outside')
    assert all(f'; image {number}' in found for number in (101, 103, 7))
    assert 'image 109' not in found
    assert 'image 109: boxes are outside the image' in faults(loaders=TEST)
