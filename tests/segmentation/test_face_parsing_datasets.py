"""The data sets of face parsing: what they load, what their configs do to it, and that faults are told beforehand."""

from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.evaluator import Evaluator
from mmengine.registry import TRANSFORMS, init_default_scope
from mmengine.runner import Runner

from mmattn.registry import DATASETS
from mmattn.segmentation.face_parsing import FaceParsingMetric, HELENDataset, LFWPLDataset
from mmattn.utils import config_path

from ..requirements import real_data, requires

FASSEG = real_data('fasseg')
SETS = {'helen': (12, 11), 'lfw_pl': (12, 3), 'fasseg': (8, 6)}  # batch size, classes


@pytest.fixture
def config(request, tiny_data, monkeypatch):
    for name, value in tiny_data.items():
        monkeypatch.setenv(name, value)
    init_default_scope('mmseg')
    return lambda name: Config.fromfile(config_path(f'_base_/datasets/{name}.py'))


def exchanged(labels):
    """Left for right."""
    names = HELENDataset.METAINFO['classes']
    other = [name.replace('left', '?').replace('right', 'left').replace('?', 'right') for name in names]
    return np.array([names.index(name) for name in other] + [255] * (256 - len(names)))[labels]


def test_classes_are_the_labels_of_the_releases():
    """Smith et al. number their labels, Kae et al. paint theirs."""
    helen = 'background skin left_brow right_brow left_eye right_eye nose upper_lip inner_mouth lower_lip hair'
    assert HELENDataset.METAINFO['classes'] == (*helen.split(),)
    red, green, blue = np.diag([255] * 3).tolist()
    lfw_pl = LFWPLDataset.METAINFO
    assert dict(zip(lfw_pl['classes'], lfw_pl['palette'])) == dict(hair=red, skin=green, background=blue)


@pytest.mark.parametrize('name', SETS)
def test_configs_load_batches(config, name):
    """Every loader of its own folder, through the whole pipeline and the collate function."""
    cfg = config(name)
    batch, classes = SETS[name]
    assert cfg.train_dataloader.batch_size == batch
    for loader, part in (('train', 'train'), ('val', 'val'), ('test', 'val' if name == 'fasseg' else 'test')):
        loader_cfg = cfg[f'{loader}_dataloader']
        loader_cfg.update(num_workers=0, persistent_workers=False)
        loader = Runner.build_dataloader(loader_cfg, seed=0)
        assert Path(loader.dataset.data_prefix['img_path']).parts[-2:] == ('img_dir', part)
        assert len(loader.dataset) == (4 if part == 'train' else 2)
        assert len(loader.dataset.metainfo['classes']) == classes
        data = next(iter(loader))
        assert len(data['inputs']) == loader_cfg.batch_size
        for image, sample in zip(data['inputs'], data['data_samples']):
            labels = sample.gt_sem_seg.data
            assert set(labels.unique().tolist()) <= {*range(classes), 255}
            if part == 'train':
                assert image.shape[1:] == labels.shape[1:]
                assert max(labels.shape[1:]) <= max(cfg.crop_size)
            else:
                assert labels.shape[1:] == sample.ori_shape


@pytest.mark.parametrize('name', SETS)
def test_columns_are_classes_and_groups(config, name):
    cfg = config(name)
    classes = DATASETS.build(cfg.val_dataloader.dataset).metainfo['classes']
    assert cfg.test_evaluator == cfg.val_evaluator
    evaluator = Evaluator(cfg.val_evaluator)
    assert isinstance(evaluator.metrics[0], FaceParsingMetric)
    evaluator.dataset_meta = dict(classes=classes)  # else an error


@pytest.mark.parametrize('name', ['helen', 'lfw_pl'])
def test_a_mirrored_face_has_left_and_right_exchanged(config, name):
    """Where the classes tell them apart. In tests, mmseg's SegTTAModel would average scores of both sides."""
    labels = np.random.default_rng(0).choice([*range(11 if name == 'helen' else 3), 255], (30, 40)).astype(np.uint8)
    [flip] = [dict(step, prob=1.0) for step in config(name).train_pipeline if step['type'] == 'RandomFlip']
    image = np.repeat(labels[..., None], 3, -1)
    found = TRANSFORMS.build(flip)(dict(img=image.copy(), gt_seg_map=labels.copy(), seg_fields=['gt_seg_map']))
    np.testing.assert_array_equal(found['img'], image[:, ::-1])
    expected = exchanged(labels) if name == 'helen' else labels
    np.testing.assert_array_equal(found['gt_seg_map'], expected[:, ::-1])
    np.testing.assert_array_equal(exchanged(np.arange(11)), [0, 1, 3, 2, 5, 4, 6, 7, 8, 9, 10])
    assert ('RandomFlip' in str(config(name).tta_pipeline)) == (name == 'lfw_pl')


@pytest.mark.slow
@requires('fasseg')
def test_real_data_are_as_the_config_says(config, monkeypatch):
    monkeypatch.setenv('FASSEG_ROOT', str(FASSEG))
    cfg = config('fasseg')
    seen = set()
    for loader, count in ((cfg.train_dataloader, 156), (cfg.val_dataloader, 26)):
        dataset = DATASETS.build(loader.dataset)
        assert len(dataset) == count
        for i in range(0, count, 13):
            sample = dataset[i]['data_samples']
            assert sample.ori_shape[0] == 256
            labels = set(sample.gt_sem_seg.data.unique().tolist())
            assert labels <= {*range(6), 255}
            seen |= labels
    assert seen >= set(range(6))
