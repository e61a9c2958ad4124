"""Runs that are resumed with other settings than they had, with a network of one weight."""

import re

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, MODELS
from mmengine.runner import Runner
from torch import nn

import mmattn.engine  # noqa: F401


@DATASETS.register_module()
class Numbers(BaseDataset):
    def load_data_list(self):
        return [dict(x=float(i)) for i in range(12)]


@MODELS.register_module()
class OneWeight(BaseModel):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seen = []

    def forward(self, x, sample_idx=None, mode='tensor'):
        self.seen += map(int, x)
        return dict(loss=(self.weight - torch.tensor(x)).square().mean())


def config(tmp_path, by_epoch, **settings):
    sampler, interval = ('mmattn.DefaultSampler', 1) if by_epoch else ('mmattn.InfiniteSampler', 3)
    cfg = Config(
        dict(
            model=dict(type='OneWeight'),
            work_dir=str(tmp_path),
            train_dataloader=dict(
                batch_size=2, num_workers=0, dataset=dict(type='Numbers'), sampler=dict(type=sampler, shuffle=True)
            ),
            train_cfg=dict(by_epoch=True, max_epochs=3) if by_epoch else dict(by_epoch=False, max_iters=6),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
            param_scheduler=[dict(type='ConstantLR', factor=1.0, by_epoch=by_epoch)],
            default_hooks=dict(checkpoint=dict(type='mmattn.CheckpointHook', by_epoch=by_epoch, interval=interval)),
            default_scope='mmengine',
            log_level='WARNING',
            randomness=dict(seed=0),
            experiment_name=str(tmp_path),
        )
    )
    cfg.merge_from_dict(settings)
    return cfg


def run(cfg):
    runner = Runner.from_cfg(cfg)
    warnings = []
    runner.logger.warning = warnings.append
    runner.train()
    return runner.model.seen, warnings


@pytest.mark.one_case
@pytest.mark.parametrize(
    ('by_epoch', 'settings', 'said', 'goes_on'),
    [
        (False, {}, '', True),
        (True, {}, '', True),
        (
            False,
            {'train_dataloader.batch_size': 3},
            r'repeat data: .*batch_size is 3, of 1 processes \(in training: 2, of 1\)',
            False,
        ),
        (True, {'train_dataloader.batch_size': 3}, r'train_dataloader\.batch_size is 3 \(in training: 2\)', True),
        (
            False,
            {'train_dataloader.sampler.shuffle': False},
            r'repeat data: .*sampler\.shuffle is False \(in training: True\)',
            False,
        ),
        (False, {'train_dataloader.num_workers': 1}, r'num_workers is 1 \(in training: 0\)', True),
        (False, {'train_cfg.max_iters': 8}, r'train_cfg\.max_iters is 8 \(in training: 6\)', True),
        (False, {'train_cfg.max_iters': 3}, 'Nothing is trained: .* iteration 3, and training ends at 3', True),
        (False, {'custom_hooks': [dict(type='EMAHook')]}, 'custom_hooks is .*EMAHook', True),
        (False, {'optim_wrapper.optimizer.momentum': 0.9}, r'momentum is 0\.9 .*options, continue from', True),
        (False, {'optim_wrapper.optimizer.lr': 0.5}, r'learning rate of the checkpoint, 0\.1, .* 0\.5, is not', True),
        (False, {'optim_wrapper.optimizer': dict(type='Adam')}, 'another optimizer: .*momentum.* of Adam', False),
        (False, {'param_scheduler': []}, 'the states of 1 other param_schedulers', False),
    ],
)
def test_a_run_with_other_settings(tmp_path, by_epoch, settings, said, goes_on):
    whole, _ = run(config(tmp_path, by_epoch, **{'custom_hooks': []}))
    path = tmp_path / ('epoch_2.pth' if by_epoch else 'iter_3.pth')
    cfg = config(tmp_path, by_epoch, **{'custom_hooks': [], 'resume': True, 'load_from': str(path), **settings})
    if not goes_on:
        with pytest.raises(ValueError, match=f'{path} .*{said}'):
            run(cfg)
        return
    seen, warnings = run(cfg)
    assert re.search(said, '\n'.join(warnings))
    assert any('other settings' in text for text in warnings) == bool(said)
    if 'train_cfg.max_iters' not in settings:
        rest = whole[24:] if by_epoch else whole[6:]
        assert sorted(seen) == sorted(rest)  # nothing is skipped or repeated


def test_weights_without_the_state_of_a_run_are_not_resumed(tmp_path):
    path = tmp_path / 'weights.pth'
    torch.save(dict(meta=dict(epoch=0, iter=3), state_dict=OneWeight().state_dict()), path)
    with pytest.raises(ValueError, match=f'{path} cannot be resumed: it has weights, but no state of a run'):
        run(config(tmp_path, False, resume=True, load_from=str(path)))
