"""Two processes with half of the batch each train as one process with all of it: one model of each task, on CPUs.

The samplers hand the processes the samples that the one process has in a batch, augmented alike. Beyond that, equality
asks for layers and losses that look at one sample at a time, or share out evenly, and for no random numbers:

* batch norms keep their statistics and dropout is off (``Frozen``);
* segmentation: crops of one size, as mmseg's cross-entropy is a mean over all pixels;
* detection: as many sampled anchors and boxes in each image, and always the same (``FirstSampler``), as mmdet's losses
  are means over them;
* video: one object in each clip (nothing pasted in), as the loss is a mean over objects.
"""

import json
from pathlib import Path

import pytest
import torch

from ..requirements import requires
from .trainer import TRAIN, differences, load

pytestmark = pytest.mark.e2e

CONFIGS = Path(__file__).parents[2] / 'configs'
TEST = TRAIN.with_name('test.py')
MODULE = """
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from torch import nn

@HOOKS.register_module()
class Frozen(Hook):
    def before_train_iter(self, runner, *args, **kwargs):
        for module in runner.model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd):
                module.eval()
"""
DETECTION_MODULE = """
from mmdet.models.task_modules import RandomSampler
from mmdet.registry import TASK_UTILS

@TASK_UTILS.register_module()
class FirstSampler(RandomSampler):
    def random_choice(self, gallery, num):
        return gallery[:num]
"""
TWO_STEPS = """
custom_imports = dict(imports={imports})
custom_hooks = [dict(type='Frozen')]
optim_wrapper = dict(_delete_=True, type='OptimWrapper', optimizer=dict(type='SGD', lr=0.001, momentum=0.9))
train_cfg = dict(max_iters=2, val_begin=3)
default_hooks = dict(checkpoint=dict(interval=2), logger=dict(interval=1))
env_cfg = dict(cudnn_benchmark=False)
randomness = dict(seed=1)
"""
SEGMENTATION = """
_base_ = './config.py'
"""
DETECTION = """
_base_ = '{configs}/attended_residual/faster-rcnn_r50-w16-attn0010_fpn_1xb8-150_bccd-320x240.py'
model = dict(train_cfg=dict(
    rpn=dict(sampler=dict(type='FirstSampler', num=64)), rcnn=dict(sampler=dict(type='FirstSampler', num=16))))
train_dataloader = dict(dataset=dict(pipeline=[
    dict(type='mmattn.SeedAugmentation'),
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='FilterAnnotations', min_gt_bbox_wh=(1, 1)),
    dict(type='Resize', scale=(144, 120), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5, direction=['horizontal', 'vertical']),
    dict(type='PackDetInputs')
]))
"""
VIDEO = """
_base_ = '{configs}/sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py'
model = dict(backbone=dict(base_channels=8, stem_channels=8), in_channels=16, embed_dims=16,
             attention=dict(num_heads=2), encoder_layers=1, decoder_layers=1)
train_dataloader = dict(dataset=dict(pipeline=[
    dict(type='mmattn.SeedAugmentation'),
    dict(type='mmattn.SampleClip', num_frames=3, reference='random'),
    dict(type='mmattn.LoadClipFrames'),
    dict(type='mmattn.LoadClipMasks'),
    dict(type='mmattn.ClipRandomCrop', crop_size=(32, 32)),
    dict(type='mmattn.ClipRandomFlip', prob=0.5),
    dict(type='mmattn.PackClip')
]))
"""


@pytest.fixture(scope='module', autouse=True)
def _modules(train):
    (train.folder / 'frozen.py').write_text(MODULE)
    (train.folder / 'first_sampler.py').write_text(DETECTION_MODULE)


def gradients(folder):
    """Return the sum of the gradients of both steps, the first one times the momentum, by parameter."""
    checkpoint = load(folder / 'iter_2.pth')
    return [state['momentum_buffer'] for _, state in sorted(checkpoint['optimizer']['state'].items())]


@pytest.mark.parametrize(
    ('task', 'config', 'imports'),
    [
        ('segmentation', SEGMENTATION, ['frozen', 'sabotage']),
        ('detection', DETECTION, ['frozen', 'first_sampler']),
        ('video', VIDEO, ['frozen']),
    ],
    ids=['segmentation', 'detection', 'video'],
)
def test_two_processes_train_as_one(train, tmp_path, task, config, imports):
    """Within the rounding of float32: each tensor's gradients to 1e-4 of the largest one in it."""
    text = config.format(configs=CONFIGS) + TWO_STEPS.format(imports=imports)
    (train.folder / f'{task}.py').write_text(text)
    one, two, half = (tmp_path / name for name in ('one', 'two', 'half'))
    assert train(one, 'train_dataloader.batch_size=2', config=f'{task}.py') == [0], train.log
    assert train(two, 'train_dataloader.batch_size=1', config=f'{task}.py', processes=2) == [0, 0], train.log
    assert 'Distributed training: True' in train.log
    assert train(half, 'train_dataloader.batch_size=1', config=f'{task}.py') == [0], train.log
    expected, found, other = map(gradients, (one, two, half))
    largest = max(x.abs().max().item() for x in expected)
    assert len(expected) > 50
    for this, that in zip(expected, found, strict=True):
        torch.testing.assert_close(that, this, rtol=0, atol=1e-4 * max(this.abs().max().item(), 1e-4 * largest))
    # Another batch is far from it, or the comparison would say nothing.
    assert max(((x - y).abs().max() / x.abs().max().clamp(min=1e-9)).item() for x, y in zip(expected, other)) > 0.1
    weights = [load(folder / 'iter_2.pth')['state_dict'] for folder in (one, two)]
    assert list(weights[0]) == list(weights[1])
    for name, tensor in weights[0].items():
        assert torch.allclose(weights[1][name], tensor, rtol=1e-5, atol=1e-6), name


VALIDATED = """
_base_ = './config.py'
custom_hooks = {hooks}
optim_wrapper = dict(optimizer=dict(lr=0.1))  # an accuracy that differs by norms
train_cfg = dict(max_iters=4, val_interval=2)
default_hooks = dict(checkpoint=dict(interval=2))
"""
AVERAGE = "dict(type='EMAHook', begin_iter=1, "


@pytest.mark.parametrize(
    'hooks',
    ['', AVERAGE + 'momentum=0.3)', AVERAGE + "ema_type='StochasticWeightAverage', update_buffers=True)"],
    ids=['plain', 'ema', 'average of norms'],
)
def test_two_processes_validate_what_the_checkpoint_holds(train, tmp_path, hooks):
    """The processes train on different images, so that the statistics of their norms differ."""
    (train.folder / 'validated.py').write_text(VALIDATED.format(hooks=f'[{hooks}]'))
    assert train(tmp_path, config='validated.py', processes=2) == [0, 0], train.log
    (log,) = tmp_path.glob('*/vis_data/scalars.json')
    logged = [line for line in map(json.loads, log.read_text().splitlines()) if 'mIoU' in line]
    assert [line['step'] for line in logged] == [2, 4]
    for line in logged:
        test = tmp_path / f'test_{line["step"]}'
        checkpoint = tmp_path / f'iter_{line["step"]}.pth'
        assert train(test, tool=TEST, config='validated.py', checkpoint=checkpoint) == [0], train.log
        (metrics,) = test.glob('*/*.json')
        tested = json.loads(metrics.read_text())
        names = 'aAcc', 'mIoU', 'mAcc'
        assert [tested[name] for name in names] == [line[name] for name in names]


@pytest.fixture(scope='module')
def by_ddp(train, tmp_path_factory):
    """The work dir of two processes. By mmengine 0.10.7 the stock Runner's start from other weights."""
    folder = tmp_path_factory.mktemp('by_ddp')
    options = ('runner_type=FlexibleRunner', 'strategy.type=DDPStrategy')
    assert train(folder, *options, processes=2) == [0, 0], train.log
    return folder


@pytest.mark.parametrize(
    'strategy', [['DDPStrategy'], ['FSDPStrategy', 'strategy.state_dict_cfg=full']], ids=['DDP', 'FSDP']
)
def test_strategies(train, by_ddp, tmp_path, strategy):
    """mmengine's, on two CPU processes: FSDP as DDP, to the bit, and DDP stopped and resumed as never stopped.

    mmengine 0.10 cannot resume FSDP: it calls `optim_state_dict_to_load` with arguments in an order that torch changed.
    """
    options = ('runner_type=FlexibleRunner', f'strategy.type={strategy[0]}', *strategy[1:])
    runs = [dict(kill='step 3', signals='SIGTERM', signalled='1'), dict(resume=True)] if len(strategy) == 1 else [{}]
    for run in runs:
        assert train(tmp_path, *options, processes=2, **run) == [75 if 'kill' in run else 0] * 2, train.log
    this, other = (
        {name.removeprefix('module.'): tensor for name, tensor in load(path)['state_dict'].items()}
        for path in (tmp_path / 'iter_6.pth', by_ddp / 'iter_6.pth')
    )
    assert differences(this, other) == []


DEEPSPEED = """
import os

os.environ['TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'] = '1'  # its checkpoints hold objects of its own
_base_ = './config.py'
runner_type = 'FlexibleRunner'
strategy = dict(type='DeepSpeedStrategy', zero_optimization=dict(stage=2),
                config=dict(zero_allow_untested_optimizer=True))  # it calls all but Adam so
optim_wrapper = dict(_delete_=True, type='DeepSpeedOptimWrapper', optimizer=dict(type='SGD', lr=0.01, momentum=0.9))
default_hooks = dict(checkpoint=dict(interval=2, max_keep_ckpts=1, save_best=None))
"""


@requires('deepspeed')
def test_deepspeed(train, tmp_path):
    """Two CPU processes: as without it, and stopped and resumed as never stopped.

    mmengine's strategy calls no hooks for checkpoints and resumes one iteration late, which our hook corrects.
    """
    (train.folder / 'by_deepspeed.py').write_text(DEEPSPEED)
    found = {}
    for name, runs in {
        'whole': [{}],
        'stopped': [dict(kill='step 3', signals='SIGTERM', signalled='1'), dict(resume=True)],
    }.items():
        for run in runs:
            codes = train(tmp_path / name, config='by_deepspeed.py', processes=2, **run)
            assert codes == [75 if 'kill' in run else 0] * 2, train.log
        found[name] = dict(load(tmp_path / name / 'iter_6.pth/mp_rank_00_model_states.pt')['module'])
        assert [path.name for path in (tmp_path / name).glob('iter_*')] == ['iter_6.pth']
    assert differences(found['whole'], found['stopped']) == []
    assert train(
        tmp_path / 'ddp',
        'runner_type=Runner',
        'strategy=None',
        'optim_wrapper.type=OptimWrapper',
        config='by_deepspeed.py',
        processes=2,
    ) == [0, 0], train.log
    for name, tensor in load(tmp_path / 'ddp/iter_6.pth')['state_dict'].items():
        torch.testing.assert_close(found['whole'][name], tensor, rtol=1e-4, atol=1e-6, msg=name)
