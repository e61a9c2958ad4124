"""U-Net-BA on four images as a user has it: tools/train.py, tools/test.py, tools/image_demo.py, one after the other."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ..forked_tools import ROOT, tool
from ..tiny_data import SIZE

pytestmark = pytest.mark.e2e

CONFIG = ROOT / 'configs/unet_ba/unet-ba_r18-d8-half_1xb8-480_fasseg-192x160.py'
SMALL = [
    '--cfg-options',
    'train_dataloader.batch_size=4',
    'train_dataloader.num_workers=0',
    'train_dataloader.persistent_workers=False',
    'val_dataloader.num_workers=0',
    'val_dataloader.persistent_workers=False',
    'train_dataloader.dataset.pipeline.3.scale=(48,48)',
    'train_dataloader.dataset.pipeline.4.crop_size=(32,32)',
    'model.data_preprocessor.size=(32,32)',
    'train_cfg.max_iters=2',
    'train_cfg.val_interval=2',
    'default_hooks.checkpoint.interval=2',
]


@pytest.fixture(scope='module')
def checkpoint(run, tmp_path_factory):
    """The trained model with a last layer that predicts all classes: after two iterations it predicts but one."""
    folder = tmp_path_factory.mktemp('trained')
    assert 'Data check: 12 files' in run(*tool('train.py', CONFIG, '--work-dir', folder, *SMALL))
    checkpoint = torch.load(folder / 'iter_2.pth', weights_only=False)
    weight = checkpoint['state_dict']['decode_head.conv_seg.weight']
    weight.normal_(generator=torch.Generator().manual_seed(0))
    torch.save(checkpoint, folder / 'model.pth')
    return folder / 'model.pth'


@pytest.fixture(scope='module')
def tested(run, checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp('tested')
    folders = '--work-dir', folder, '--out', folder / 'out'
    run(*tool('test.py', CONFIG, checkpoint, *folders, *SMALL[:-3]))
    return folder


def test_demo_predicts_what_test_did(run, checkpoint, tested, tiny_data, tmp_path):
    images = Path(tiny_data['FASSEG_ROOT'], 'img_dir/val')
    options = '--out-dir', tmp_path, '--device', 'cpu', '--cfg-options', 'model.data_preprocessor.size=(32,32)'
    run(*tool('image_demo.py', images, CONFIG, checkpoint, *options))
    for path in images.iterdir():
        labels = Image.open(tmp_path / 'pred' / f'{path.stem}.png')
        assert labels.size == Image.open(tmp_path / 'vis' / f'{path.stem}.png').size == SIZE
        assert labels.mode == 'P'
        assert len(np.unique(labels)) > 1
        assert np.array_equal(labels, Image.open(tested / 'out' / f'{path.stem}.png'))
