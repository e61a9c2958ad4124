"""Small folders of images and masks, the config of a run on them, and what the check finds."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope

from mmattn.check.driver import find_faults

SIZE = (40, 48)  # height, width
CLASSES = ('road', 'tall tree')  # a name with a blank


def write(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), array)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache for each test."""
    monkeypatch.setenv('MMATTN_CACHE', str(tmp_path / 'cache'))
    return tmp_path / 'cache'


@pytest.fixture
def root(tmp_path):
    """Sound data: three images of training, one of validation. Masks have both classes, and ignored pixels."""
    rng = np.random.default_rng(0)
    mask = np.repeat(np.uint8([0, 1]), [20, 20])[:, None].repeat(48, 1)
    mask[0, :2] = 255
    for part, count in (('train', 3), ('val', 1)):
        for i in range(count):
            write(tmp_path / f'data/img/{part}/{part}_{i}.png', rng.integers(0, 255, (*SIZE, 3), np.uint8))
            write(tmp_path / f'data/ann/{part}/{part}_{i}.png', mask)
    return tmp_path / 'data'


def data_set(root, part='train', **options):
    return {
        'type': 'BaseSegDataset',
        'data_root': str(root),
        'img_suffix': '.png',
        'metainfo': dict(classes=CLASSES),
        'data_prefix': dict(img_path=f'img/{part}', seg_map_path=f'ann/{part}'),
        'pipeline': [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')],
        **options,
    }


@pytest.fixture
def check(root):
    """``check(change, **settings)``: what is found in the sound data, with changes of the training set and the config.

    A list of rule, place below the folder of the data, and text. Errors come as ``check.errors``.
    """
    init_default_scope('mmseg')

    def run(change=None, val=None, loaders=('train_dataloader', 'val_dataloader'), **settings):
        parts = dict(train=data_set(root, **(change or {})), val=data_set(root, 'val', **(val or {})))
        cfg = Config({f'{part}_dataloader': dict(dataset=cfg) for part, cfg in parts.items()} | settings)
        faults = find_faults(SimpleNamespace(cfg=cfg, model=None), loaders)
        faults = [fault._replace(place=fault.place.removeprefix(f'{root}/')) for fault in faults]
        return (
            {(fault.rule, fault.place): fault.text for fault in faults if fault.is_error},
            {(fault.rule, fault.place): fault.text for fault in faults if not fault.is_error},
        )

    return run
