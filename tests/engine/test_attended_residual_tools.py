"""Networks with attended residual blocks through the tools: in one process, in mixed precision, in two processes."""

import re
import socket
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / 'configs/attended_residual/faster-rcnn_r50-w16-attn0010_fpn_1xb8-150_bccd-320x240.py'
SMALL = [
    'train_dataloader.batch_size=2',
    'train_dataloader.num_workers=0',
    'train_dataloader.persistent_workers=False',
    'val_dataloader.num_workers=0',
    'val_dataloader.persistent_workers=False',
    'test_dataloader.num_workers=0',
    'test_dataloader.persistent_workers=False',
    'train_dataloader.dataset.pipeline.4.scale=(144,120)',
    'val_dataloader.dataset.pipeline.1.scale=(144,120)',
    'test_dataloader.dataset.pipeline.1.scale=(144,120)',
    'model.test_cfg.rcnn.score_thr=0.0',
    'train_cfg.max_iters=3',
    'train_cfg.val_interval=3',
    'default_hooks.checkpoint.interval=3',
    'default_hooks.logger.interval=1',
]


def losses(log):
    return [float(loss) for loss in re.findall(r'  loss: (\S+)', log)]


def weights(folder):
    return torch.load(folder / 'iter_3.pth', weights_only=False)['state_dict']


@pytest.fixture(scope='module')
def trained(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp('trained')
    return folder, run(sys.executable, ROOT / 'tools/train.py', CONFIG, '--work-dir', folder, '--cfg-options', *SMALL)


def test_the_blocks_learn(trained):
    """γ, 0 at first, moves in all of the nine."""
    folder, log = trained
    assert len(losses(log)) == 3
    gammas = [x for name, x in weights(folder).items() if name.endswith('gen_attention_block.gamma')]
    assert len(gammas) == 9
    assert all(gamma.abs() > 0 for gamma in gammas)


def test_testing_agrees_with_validation_and_draws(run, trained, tmp_path):
    log = run(
        sys.executable,
        ROOT / 'tools/test.py',
        CONFIG,
        trained[0] / 'iter_3.pth',
        '--work-dir',
        tmp_path,
        '--show-dir',
        tmp_path / 'shown',
        '--cfg-options',
        *SMALL,
    )
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
    logs = [
        run(
            sys.executable,
            ROOT / 'tools/train.py',
            config,
            '--work-dir',
            tmp_path / str(len(amp)),
            *amp,
            '--cfg-options',
            *small,
            CUDA_VISIBLE_DEVICES='',
        )
        for amp in ([], ['--amp'])
    ]
    assert 'autocast to bfloat16' in logs[1]
    full, mixed = map(losses, logs)
    assert mixed == pytest.approx(full, rel=0.05)  # the same images and weights, in 8 bits
    assert mixed != full
    gammas = [x for name, x in weights(tmp_path / '1').items() if name.endswith('gamma')]
    assert len(gammas) == 10
    assert all(gamma.isfinite() and gamma.abs() > 0 for gamma in gammas)


def test_two_processes(run, tmp_path):
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = str(probe.getsockname()[1])
    log = run(
        'bash',
        ROOT / 'tools/dist_train.sh',
        CONFIG,
        2,
        '--work-dir',
        tmp_path,
        '--cfg-options',
        *SMALL,
        CUDA_VISIBLE_DEVICES='',
        PORT=port,
    )
    assert 'GPU number: 2' in log
    assert len(losses(log)) == 3
    assert all(x.isfinite().all() for x in weights(tmp_path).values())
