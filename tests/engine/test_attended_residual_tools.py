"""Networks with attended residual blocks through the tools, in float32 and in mixed precision."""

import re

import pytest
import torch

from ..forked_tools import tool
from .test_tools import ROOT, losses

pytestmark = pytest.mark.e2e

CONFIG = ROOT / 'configs/attended_residual/faster-rcnn_r50-w16-attn0010_fpn_1xb8-150_bccd-320x240.py'
SMALL = [
    *(f'{part}_dataloader.num_workers=0' for part in ('train', 'val', 'test')),
    *(f'{part}_dataloader.persistent_workers=False' for part in ('train', 'val', 'test')),
    'train_dataloader.batch_size=2',
    'train_dataloader.dataset.pipeline.4.scale=(144,120)',
    *(f'{part}_dataloader.dataset.pipeline.1.scale=(144,120)' for part in ('val', 'test')),
    'model.test_cfg.rcnn.score_thr=0.0',
    'train_cfg.max_iters=3',
    'train_cfg.val_interval=3',
    'default_hooks.checkpoint.interval=3',
    'default_hooks.logger.interval=1',
]


def weights(folder):
    return torch.load(folder / 'iter_3.pth', weights_only=False)['state_dict']


@pytest.fixture(scope='module')
def trained(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp('trained')
    return folder, run(*tool('train.py', CONFIG, '--work-dir', folder, '--cfg-options', *SMALL))


def test_the_blocks_learn(trained):
    """γ, 0 at first, moves in all of the nine."""
    folder, log = trained
    assert len(losses(log)) == 3
    gammas = [x for name, x in weights(folder).items() if name.endswith('gen_attention_block.gamma')]
    assert len(gammas) == 9
    assert all(gamma.abs() > 0 for gamma in gammas)


def test_testing_agrees_with_validation_and_draws(run, trained, tmp_path):
    folders = '--work-dir', tmp_path, '--show-dir', tmp_path / 'shown'
    log = run(*tool('test.py', CONFIG, trained[0] / 'iter_3.pth', *folders, '--cfg-options', *SMALL))
    scores = [re.findall(r'pascal_voc/AP50: (\S+)', said)[-1] for said in (log, trained[1])]
    assert scores[0] == scores[1]
    assert sorted(path.name for path in (tmp_path / 'shown').iterdir()) == ['val_0.png', 'val_1.png']


def test_mixed_precision_of_a_segmentor(run, tmp_path):
    """In float32 and in bfloat16. (mmcv's non-maximum suppression takes no bfloat16 on a CPU, so no detector does.)"""
    config = ROOT / 'configs/attended_residual/fcn_r50-d8-attn1111_8xb1-60k_cityscapes-769x769.py'
    small = [
        'train_dataloader.batch_size=2',
        'train_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False',
        'train_dataloader.dataset.pipeline.3.scale=(48,40)',
        'train_dataloader.dataset.pipeline.4.crop_size=(32,32)',
        'model.data_preprocessor.size=(32,32)',
        'model.pretrained=None',
        'model.backbone.base_channels=8',
        'model.backbone.norm_cfg.type=BN',
        'model.decode_head.in_channels=256',
        'model.decode_head.channels=16',
        'model.auxiliary_head.in_channels=128',
        'model.auxiliary_head.channels=16',
        'train_cfg.max_iters=3',
        'train_cfg.val_interval=1000',
        'default_hooks.checkpoint.interval=3',
        'default_hooks.logger.interval=1',
        'randomness.seed=0',
        'val_dataloader.dataset.pipeline.1.scale=(48,40)',
        'model.test_cfg.mode=whole',
    ]
    commands = [('--work-dir', tmp_path / str(len(amp)), *amp, '--cfg-options', *small) for amp in ([], ['--amp'])]
    logs = [run(*tool('train.py', config, *command), CUDA_VISIBLE_DEVICES='') for command in commands]
    assert 'autocast to bfloat16' in logs[1]
    full, mixed = map(losses, logs)
    assert mixed == pytest.approx(full, rel=0.05)  # the same images and weights, in 8 bits
    assert mixed != full
    gammas = [x for name, x in weights(tmp_path / '1').items() if name.endswith('gamma')]
    assert len(gammas) == 10
    assert all(gamma.isfinite() and gamma.abs() > 0 for gamma in gammas)
