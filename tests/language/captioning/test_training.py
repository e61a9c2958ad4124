"""Training and tests of captions through the tools: kill and resume, two processes, the self-critical stage."""

import json
import signal

import pytest
import torch

from mmattn.utils import config_path

from ...engine.trainer import KILLED, Trainer, assert_same_end, load
from ...tiny_data import FEATURES, WORDS, captions

pytestmark = pytest.mark.e2e

# Of eight images; their captions are chosen at random.
CONFIG = """
_base_ = [
    '{configs}/_base_/models/san.py',
    '{configs}/_base_/datasets/coco_captions.py',
    '{configs}/_base_/schedules/san_15e.py',
    '{configs}/_base_/default_runtime_captions.py',
]
data = dict(data_root='{data}', min_count=0)
model = dict(
    vocab_size={symbols}, num_features={features}, num_layers=3, embed_dim=16, num_heads=2, feedforward_dim=24,
    encoder_attention=dict(query_norm='instance', geometry='query_dependent', geometry_dim=4),
    test_cfg=dict(beam=2, max_length=4))
train_dataloader = dict(batch_size=2, dataset=dict(data, captions_per_image=3))
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=data)
test_dataloader = dict(num_workers=0, persistent_workers=False, dataset=data)
val_evaluator = dict(tokenizer='simple')
test_evaluator = dict(tokenizer='simple')
train_cfg = dict(max_epochs=3, val_interval=3)
default_hooks = dict(checkpoint=dict(save_best=None, max_keep_ckpts=-1), logger=dict(interval=1))
randomness = dict(seed=0)
"""


SELF_CRITICAL = """
_base_ = './config.py'
model = dict(self_critical=dict(samples=3))
optim_wrapper = dict(optimizer=dict(lr=1e-4))
param_scheduler = [dict(type='ConstantLR', factor=1.0, by_epoch=True)]
custom_hooks = [dict(type='Killer'), dict(type='mmattn.SelfCriticalHook')]
"""


@pytest.fixture(scope='module')
def train(tmp_path_factory):
    folder = tmp_path_factory.mktemp('trainer')
    trainer = Trainer(folder, {})
    captions(folder / 'data', 'coco', train=8)
    values = dict(configs=config_path(), data=folder / 'data', symbols=4 + len(WORDS), features=FEATURES)
    (folder / 'plain.py').write_text(CONFIG.format(**values), encoding='utf-8')
    (folder / 'config.py').write_text(KILLED, encoding='utf-8')
    (folder / 'self_critical.py').write_text(SELF_CRITICAL, encoding='utf-8')
    yield trainer
    trainer.close()


@pytest.fixture(scope='module')
def self_critical(train, uninterrupted, tmp_path_factory):
    """The work dir of the second stage."""
    folder = tmp_path_factory.mktemp('self_critical')
    assert train(folder, f'load_from={uninterrupted}/epoch_3.pth', config='self_critical.py') == [0], train.log
    return folder


def log_of(folder):
    """The lines of the log of a run that have a loss."""
    (path,) = folder.glob('*/vis_data/scalars.json')
    lines = map(json.loads, path.read_text(encoding='utf-8').splitlines())
    return [line for line in lines if 'loss' in line]


def test_killed_and_resumed_in_self_critical_training(train, uninterrupted, self_critical, tmp_path):
    """The sampled captions are the same, too."""
    options = (f'load_from={uninterrupted}/epoch_3.pth',)
    assert train(tmp_path, *options, config='self_critical.py', kill='step 10') == [-signal.SIGKILL], train.log
    assert train(tmp_path, config='self_critical.py', resume=True) == [0], train.log
    assert_same_end(tmp_path, self_critical, 'epoch_3.pth')


def test_self_critical_training_starts_from_the_first_stage(train, uninterrupted, self_critical, tmp_path):
    """It moves the weights; with a learning rate that is 0 in float32, they remain. The log has the rewards."""
    first = load(uninterrupted / 'epoch_3.pth')['state_dict']
    moved = load(self_critical / 'epoch_3.pth')['state_dict']
    assert any(not torch.equal(first[name], moved[name]) for name in first)
    lines = log_of(self_critical)
    assert len(lines) == 12
    assert all(0 <= line[name] <= 10 for line in lines for name in ('reward', 'baseline'))
    assert any(line['loss'] != 0 for line in lines)
    options = f'load_from={uninterrupted}/epoch_3.pth', 'optim_wrapper.optimizer.lr=1e-50', 'train_cfg.max_epochs=1'
    assert train(tmp_path, *options, config='self_critical.py') == [0], train.log
    same = load(tmp_path / 'epoch_1.pth')['state_dict']
    assert all(torch.equal(first[name], same[name]) for name in first)


def test_self_critical_training_in_two_processes(train, uninterrupted, tmp_path):
    """Each process has the reward of all images; their weights remain the same."""
    options = f'load_from={uninterrupted}/epoch_3.pth', 'train_cfg.max_epochs=1'
    assert train(tmp_path, *options, config='self_critical.py', processes=2) == [0, 0], train.log
    assert len(log_of(tmp_path)) == 2
    assert sum(line['reward'] for line in log_of(tmp_path)) > 0
