"""Faults of questions, answers, regions and pictures, in the data check before training and when a checkpoint loads."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from mmengine.config import Config

from mmattn.language import TextDataCheckHook
from mmattn.registry import DATASETS
from mmattn.utils import config_path

from ...tiny_data import ANSWERS, FEATURES, questions
from ..files import read_json, write_json

NAMES = dict(vqa2='VQA2', coco_qa='COCO_QA', easy_vqa='EASY_VQA')


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The folder of small data sets."""
    for name, variable in NAMES.items():
        monkeypatch.setenv(f'{variable}_ROOT', str(tmp_path / name))
    questions(tmp_path / 'vqa2', test=False, genome=True)
    questions(tmp_path / 'coco_qa', answers=1)
    questions(tmp_path / 'easy_vqa', answers=1, pictures=True)
    return tmp_path


@pytest.fixture
def faults(check):
    """Return the faults of a data set for a model, by path."""

    def run(name='vqa2', loaders=('train_dataloader', 'val_dataloader'), change=lambda cfg: None, **model):
        model = dict(num_features=FEATURES, num_answers=len(ANSWERS)) | model
        return check(f'_base_/datasets/{name}.py', loaders, change, **model)

    return run


def change(path, function):
    content = read_json(path)
    function(content['questions'])
    write_json(path, content)


def test_correct_data_have_no_faults(faults, data):
    assert faults(loaders=('test_dataloader',)) == faults('easy_vqa', num_features=None) == {}
    for name in ('vqa2', 'vqa2_trainval_genome', 'vqa2_fusion', 'coco_qa'):
        assert faults(name) == {}


def test_store_of_another_backbone_is_a_fault(faults, data):
    """Bottom-up boxes have as many channels as ResNet-152, so only the record of the store tells them apart."""
    boxes = f'{data}/vqa2/regions'

    def read_boxes(cfg):
        for loader in (cfg.train_dataloader, cfg.val_dataloader):
            loader.dataset.regions = 'regions'

    [fault] = faults('vqa2_fusion', change=read_boxes)[boxes]
    assert fault.startswith("made by 'bottom_up_features.py, trainval.tsv', but the config requires 'resnet152' and ")
    cfg = Config.fromfile(config_path('_base_/datasets/vqa2_fusion.py'))
    with pytest.raises(ValueError, match=f'{boxes}: 1 fault:\n  made by'):
        DATASETS.build(dict(cfg.val_dataloader.dataset, regions='regions'))
    assert DATASETS.build(dict(cfg.val_dataloader.dataset, regions='regions', region_source=None))

    path = data / 'vqa2/resnet152/store.json'
    record = read_json(path)
    write_json(path, dict(record, source=record['source'].replace("'grid': 14", "'grid': 7")))
    assert list(faults('vqa2_fusion')) == [f'{data}/vqa2/resnet152']
    write_json(path, dict(record, source=''))
    assert faults('vqa2_fusion') == {}


@pytest.mark.parametrize(
    ('name', 'model', 'options', 'path', 'names'),
    [
        ('vqa2', dict(num_answers=3129), {}, 'questions_train.json', '--cfg-options model.num_answers=2'),
        ('vqa2', dict(num_features=2048), {}, 'regions', '--cfg-options model.num_features=6'),
        ('vqa2', dict(num_features=None), {}, 'questions_val.json', 'pictures'),
        ('vqa2', {}, dict(min_answers=99), 'questions_train.json', 'min_answers'),
        ('easy_vqa', {}, {}, 'questions_val.json', 'regions'),
        ('easy_vqa', dict(num_features=None), {}, 'questions_train.json', 'image 101'),
        ('easy_vqa', dict(num_features=None), dict(images='nowhere'), 'nowhere', 'no such folder'),
    ],
)
def test_what_fits_neither_model_nor_files(faults, data, name, model, options, path, names):
    def change(cfg):
        for loader in (cfg.train_dataloader, cfg.val_dataloader):
            loader.dataset.update(options)

    (data / 'easy_vqa/images/101.png').unlink()
    assert names in faults(name, change=change, **model)[f'{data}/{name}/{path}'][0]


def test_faults_of_all_files_are_reported_at_once(faults, data):
    root = data / 'vqa2'
    change(root / 'questions_train.json', lambda entries: entries.append(dict(entries[0], answers=['yes'] * 9)))
    change(root / 'questions_val.json', lambda entries: entries[0].update(image_id='nowhere'))
    (root / 'questions_test.json').unlink()
    boxes = np.load(root / 'regions/boxes.npy')
    boxes[0] = (1, 1, 99, 9)
    np.save(root / 'regions/boxes.npy', boxes)
    change(root / 'questions_genome_val.json', lambda entries: [entry.pop('answers') for entry in entries])
    found = faults('vqa2_trainval_genome')
    names = ('questions_train.json', 'questions_test.json', 'questions_genome_val.json', 'regions')
    assert {*found} == {f'{root}/{name}' for name in names}
    assert len(found[f'{root}/questions_train.json']) == 2
    assert 'image nowhere is not in the store' in found[f'{root}/regions']


def test_an_image_without_regions_is_valid(faults, data):
    offsets = np.load(data / 'vqa2/regions/offsets.npy')
    offsets[1] = 0  # image 100
    np.save(data / 'vqa2/regions/offsets.npy', offsets)
    assert faults() == {}
    dataset = DATASETS.build(Config.fromfile(config_path('_base_/datasets/vqa2.py')).train_dataloader.dataset)
    assert dataset[0]['inputs']['features'].shape == (0, FEATURES)


@pytest.mark.parametrize(
    ('meta', 'message'),
    [
        ({}, None),
        ({'answers': ['yes', 'no']}, None),
        ({'answers': ['no', 'yes']}, "answer 0 is 'yes', but 'no'"),
        ({'answers': ['yes']}, "answer 1 is 'no'"),
        ({'tokens': 'skip-thought', 'max_words': 26}, "tokens is 'ban', but 'skip-thought'"),
        ({'symbols': ['emu']}, "symbol 4 is 'a', but 'emu'"),
    ],
)
def test_a_checkpoint_of_other_answers_is_an_error(data, tmp_path, meta, message):
    cfg = Config.fromfile(config_path('_base_/datasets/vqa2.py'))
    runner = SimpleNamespace(cfg=cfg, work_dir=str(tmp_path), _load_from='a.pth', _resume=False)
    symbols = DATASETS.build(cfg.val_dataloader.dataset).metainfo['symbols']
    checkpoint = dict(meta=dict(dataset_meta=dict(symbols=symbols) | meta))
    hook = TextDataCheckHook()
    if message is None:
        hook.after_load_checkpoint(runner, checkpoint)
    else:
        with pytest.raises(ValueError, match=re.escape(message)):
            hook.after_load_checkpoint(runner, checkpoint)
