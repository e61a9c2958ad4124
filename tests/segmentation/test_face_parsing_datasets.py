"""The data sets of face parsing: what they load, what their configs do to it, and that faults are told beforehand."""

from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import TRANSFORMS, init_default_scope
from mmengine.runner import Runner
from PIL import Image

from mmattn.registry import DATASETS
from mmattn.segmentation.face_parsing import HELENDataset, LFWPLDataset
from mmattn.utils import config_path

from ..real_data import missing, real_data

FASSEG = real_data('fasseg')
SETS = {'helen': (12, 11), 'lfw_pl': (12, 3), 'fasseg': (8, 6)}  # batch size, classes


@pytest.fixture
def config(request, tiny_data, monkeypatch):
    for name, value in tiny_data.items():
        monkeypatch.setenv(name, value)
    init_default_scope('mmseg')
    return lambda name: Config.fromfile(config_path(f'_base_/datasets/{name}.py'))


def write(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def exchanged(labels):
    """Left for right."""
    names = HELENDataset.METAINFO['classes']
    other = [name.replace('left', '?').replace('right', 'left').replace('?', 'right') for name in names]
    return np.array([names.index(name) for name in other] + [255] * (256 - len(names)))[labels]


@pytest.mark.parametrize('dataset', [HELENDataset, LFWPLDataset])
def test_colours_can_be_told_apart(dataset):
    palette = np.array(dataset.METAINFO['palette'])
    assert palette.shape == (len(dataset.METAINFO['classes']), 3)
    assert min(np.linalg.norm(a - b) for a, b in combinations(palette, 2)) > 60


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
    evaluator = cfg.val_evaluator
    assert cfg.test_evaluator == evaluator
    assert evaluator.type == 'mmattn.FaceParsingMetric'
    known = [*classes, *evaluator.get('groups', {}), 'overall', 'accuracy']
    assert set(evaluator.columns) | set(evaluator.get('overall', ())) <= set(known)
    assert {part for parts in evaluator.get('groups', {}).values() for part in parts} <= set(classes)


def flip(cfg, labels):
    """What the config's flip makes of labels when it flips."""
    [flip] = [dict(t) for t in cfg.train_pipeline if t['type'] == 'RandomFlip']
    flip['prob'] = 1.0
    image = np.repeat(labels[..., None], 3, -1)
    results = TRANSFORMS.build(flip)(dict(img=image.copy(), gt_seg_map=labels.copy(), seg_fields=['gt_seg_map']))
    np.testing.assert_array_equal(results['img'], image[:, ::-1])
    return results['gt_seg_map']


def test_a_mirrored_face_has_left_and_right_exchanged(config):
    labels = np.random.default_rng(0).choice([*range(11), 255], (30, 40)).astype(np.uint8)
    found = flip(config('helen'), labels)
    np.testing.assert_array_equal(found, exchanged(labels)[:, ::-1])
    assert Counter(found.ravel().tolist())[2] == Counter(labels.ravel().tolist())[3] > 0
    np.testing.assert_array_equal(exchanged(np.arange(11)), [0, 1, 3, 2, 5, 4, 6, 7, 8, 9, 10])


def test_training_samples_of_helen_are_consistent(config, tmp_path):
    """The left brow is red here and the right one green, and so they are after the pipeline, mirrored or not."""
    cfg = config('helen')
    image, labels = np.zeros((60, 60, 3), np.uint8), np.zeros((60, 60), np.uint8)
    image[10:50, 5:25], labels[10:50, 5:25] = (0, 255, 0), 3
    image[10:50, 35:55], labels[10:50, 35:55] = (255, 0, 0), 2
    write(tmp_path / 'img_dir/train/a.png', image)
    write(tmp_path / 'ann_dir/train/a.png', labels)
    dataset_cfg = cfg.train_dataloader.dataset
    dataset_cfg.update(data_root=str(tmp_path), img_suffix='.png')
    keep = ('LoadImageFromFile', 'LoadAnnotations', 'RandomResize', 'RandomFlip', 'PackSegInputs')
    dataset_cfg.pipeline = [t for t in dataset_cfg.pipeline if t['type'] in keep]
    dataset = DATASETS.build(dataset_cfg)
    flips = set()
    for _ in range(12):
        sample = dataset[0]
        image, labels = sample['inputs'].numpy(), sample['data_samples'].gt_sem_seg.data[0].numpy()
        flips.add(sample['data_samples'].flip)
        left, right = (np.nonzero(labels == label)[1].mean() for label in (2, 3))
        assert left > right, 'the left brow is on the right in every picture'
        red, green = image[2], image[1]  # of BGR
        seen = red if not sample['data_samples'].flip else green
        assert (seen[labels == 2] > 100).mean() > 0.9
    assert flips == {False, True}


def test_lfw_pl_flips_without_exchange(config):
    labels = np.random.default_rng(0).integers(0, 3, (7, 8)).astype(np.uint8)
    np.testing.assert_array_equal(flip(config('lfw_pl'), labels), labels[:, ::-1])


def test_no_flips_when_testing_helen(config):
    """mmseg's SegTTAModel would average scores of the left eye with those of the right."""
    assert 'RandomFlip' not in str(config('helen').tta_pipeline)
    assert 'RandomFlip' in str(config('lfw_pl').tta_pipeline)


class NeverTrained(BaseModel):
    """A model that must not see a batch."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, *args, **kwargs):
        raise AssertionError('training began')


def test_faults_are_told_together_before_training(config, tmp_path):
    """By the check that all our schedules have on."""
    root = tmp_path / 'helen'
    for part in ('train', 'val'):
        for name in ('sound', 'no_mask', 'size', 'label'):
            write(root / 'img_dir' / part / f'{name}.jpg', np.zeros((40, 48, 3), np.uint8))
            write(root / 'ann_dir' / part / f'{name}.png', np.resize(np.arange(11, dtype=np.uint8), (40, 48)))
        (root / 'ann_dir' / part / 'no_mask.png').unlink()
        write(root / 'ann_dir' / part / 'size.png', np.zeros((40, 47), np.uint8))
        write(root / 'ann_dir' / part / 'label.png', np.full((40, 48), 11, np.uint8))
    cfg = config('helen')
    schedule = Config.fromfile(config_path('_base_/schedules/sgd_80k.py'))
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.update(num_workers=0, persistent_workers=False)
        loader.dataset.data_root = str(root)
    runner = Runner(
        NeverTrained(),
        str(tmp_path / 'work'),
        train_dataloader=cfg.train_dataloader,
        val_dataloader=cfg.val_dataloader,
        val_evaluator=dict(type='mmseg.IoUMetric'),
        val_cfg=dict(),
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=1),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=1)),
        custom_hooks=[schedule.default_hooks.data_check],
        default_scope='mmseg',
        cfg=cfg,
        log_level='ERROR',
        experiment_name='faults',
    )
    with pytest.raises(ValueError, match='found 6 faults') as caught:
        runner.train()
    for part in ('train', 'val'):
        images, masks = root / 'img_dir' / part, root / 'ann_dir' / part
        assert f'{images}/no_mask.jpg: no mask {masks}/no_mask.png' in str(caught.value)
        assert f'{masks}/size.png: 47×40, but its image {images}/size.jpg 48×40' in str(caught.value)
        assert f'{masks}/label.png: labels 11 are not among 0…10, 255' in str(caught.value)


@pytest.mark.skipif(not FASSEG.is_dir(), reason=missing('fasseg', FASSEG))
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
