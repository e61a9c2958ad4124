"""Training and tests of captions through the tools: kill and resume, two processes, the self-critical stage."""

import json
import signal
import sys

import pytest
import torch

from mmattn.utils import config_path

from ...engine.hooks.test_resume import KILLED, ROOT, Trainer, assert_same_end, load
from ...forked_tools import run_command
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
SGD = """
_base_ = './config.py'
model = dict(dropout=0.0, attention_dropout=0.0, encoder_attention=dict(dropout=0.0))
optim_wrapper = dict(optimizer=dict(_delete_=True, type='SGD', lr=0.1))
param_scheduler = None
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
    (folder / 'sgd.py').write_text(SGD, encoding='utf-8')
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


@pytest.mark.parametrize('workers', [0, 1])
def test_killed_and_resumed(train, uninterrupted, tmp_path, workers):
    """In the third epoch: bit by bit the same weights, optimizer and schedule."""
    assert train(tmp_path, workers=workers, kill='step 10') == [-signal.SIGKILL], train.log
    assert (tmp_path / 'last_checkpoint').read_text(encoding='utf-8') == str(tmp_path / 'epoch_2.pth')
    assert train(tmp_path, workers=workers, resume=True) == [0], train.log
    assert 'Epoch(train) [2]' not in train.log
    assert 'Epoch(train) [3][1/4]' in train.log
    assert_same_end(tmp_path, uninterrupted, 'epoch_3.pth')


def test_killed_and_resumed_in_self_critical_training(train, uninterrupted, self_critical, tmp_path):
    """The sampled captions are the same, too."""
    options = (f'load_from={uninterrupted}/epoch_3.pth',)
    assert train(tmp_path, *options, config='self_critical.py', kill='step 10') == [-signal.SIGKILL], train.log
    assert train(tmp_path, config='self_critical.py', resume=True) == [0], train.log
    assert_same_end(tmp_path, self_critical, 'epoch_3.pth')


def test_two_processes_end_as_one(train, tmp_path):
    """Two processes with a batch each are one process that accumulates two: the same mean over all tokens."""
    # Adam would move the biases of keys, whose gradient is 0 but for rounding, by the learning rate.
    assert train(tmp_path / 'two', config='sgd.py', processes=2) == [0, 0], train.log
    assert train(tmp_path / 'one', 'optim_wrapper.accumulative_counts=2', config='sgd.py') == [0], train.log
    two, one = (load(tmp_path / name / 'epoch_3.pth')['state_dict'] for name in ('two', 'one'))
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('amp', [False, True])
def test_trains_and_tests(train, uninterrupted, tmp_path, amp):
    """Through both tools. Mixed precision ends close to full precision."""
    folder = uninterrupted
    if amp:
        folder = tmp_path / 'amp'
        assert train(folder, 'optim_wrapper.type=mmattn.CPUAmpTokenOptimWrapper') == [0], train.log
        this, other = (load(path / 'epoch_3.pth')['state_dict'] for path in (folder, uninterrupted))
        gaps = [(this[name] - other[name]).abs().max() for name in this]
        assert 0 < max(gaps) < 0.1
    command = [sys.executable, ROOT / 'tools/test.py', train.folder / 'plain.py', folder / 'epoch_3.pth']
    done = run_command([*command, '--work-dir', tmp_path, '--out', tmp_path / 'out'])
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / 'out/captions.json').read_text(encoding='utf-8'))
    assert [each['image_id'] for each in found] == [110, 111]
    assert {word for each in found for word in each['caption'].split()} <= {*WORDS}
    assert 'CIDEr-D' in done.stdout


def test_self_critical_training_starts_from_the_first_stage(train, uninterrupted, self_critical, tmp_path):
    """It moves the weights; without a learning rate, they remain. The log has the rewards."""
    first = load(uninterrupted / 'epoch_3.pth')['state_dict']
    moved = load(self_critical / 'epoch_3.pth')['state_dict']
    assert any(not torch.equal(first[name], moved[name]) for name in first)
    lines = log_of(self_critical)
    assert len(lines) == 12
    assert all(0 <= line[name] <= 10 for line in lines for name in ('reward', 'baseline'))
    assert any(line['loss'] != 0 for line in lines)
    options = f'load_from={uninterrupted}/epoch_3.pth', 'optim_wrapper.optimizer.lr=0', 'train_cfg.max_epochs=1'
    assert train(tmp_path, *options, config='self_critical.py') == [0], train.log
    same = load(tmp_path / 'epoch_1.pth')['state_dict']
    assert all(torch.equal(first[name], same[name]) for name in first)


def test_self_critical_training_in_two_processes(train, uninterrupted, tmp_path):
    """Each process has the reward of all images; their weights remain the same."""
    options = f'load_from={uninterrupted}/epoch_3.pth', 'train_cfg.max_epochs=1'
    assert train(tmp_path, *options, config='self_critical.py', processes=2) == [0, 0], train.log
    assert len(log_of(tmp_path)) == 2
    assert sum(line['reward'] for line in log_of(tmp_path)) > 0


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ([], 'self-critical training requires load_from, a checkpoint that was trained by cross-entropy'),
        (['model.self_critical=None'], 'SelfCriticalHook requires a captioner with self_critical; got SANCaptioner'),
        (['custom_hooks=[]'], 'self-critical training requires a reward: add dict(type="mmattn.SelfCriticalHook")'),
    ],
)
def test_errors_of_self_critical_training(train, uninterrupted, tmp_path, options, message):
    """Before the first iteration."""
    if options:
        options = [*options, f'load_from={uninterrupted}/epoch_3.pth']
    assert train(tmp_path, *options, config='self_critical.py') == [1], train.log
    assert message in train.log
    assert 'Epoch(train)' not in train.log


def test_a_checkpoint_of_another_vocabulary_is_an_error(train, uninterrupted, tmp_path):
    """Of the same size, and of another one."""
    captions(tmp_path / 'data', 'coco')
    path = tmp_path / 'data/dataset_coco.json'
    text = path.read_text(encoding='utf-8')
    for number, words in enumerate(('"wolf"', '"small", "wolf"')):
        path.write_text(text.replace('"dog"', words), encoding='utf-8')
        options = [f'{part}_dataloader.dataset.data_root={tmp_path}/data' for part in ('train', 'val', 'test')]
        options += [f'load_from={uninterrupted}/epoch_3.pth', f'model.vocab_size={4 + len(WORDS) + number}']
        assert train(tmp_path / f'run_{number}', *options, config='self_critical.py') == [1], train.log
        assert 'dataset_coco.json: the vocabulary does not fit the checkpoint' in train.log
        assert 'Epoch(train)' not in train.log


def test_faults_of_data_are_an_error_before_training(train, tmp_path):
    """Of the annotations and the width of the features, at once."""
    captions(tmp_path / 'data', 'coco')
    path = tmp_path / 'data/dataset_coco.json'
    content = json.loads(path.read_text(encoding='utf-8'))
    content['images'].append(dict(content['images'][0], cocoid=7))
    path.write_text(json.dumps(content), encoding='utf-8')
    options = [f'{part}_dataloader.dataset.data_root={tmp_path}/data' for part in ('train', 'val', 'test')]
    assert train(tmp_path / 'run', *options, 'model.num_features=99') == [1], train.log
    assert f'{tmp_path}/data/regions: 6 features per region, but the model has 99 ' in train.log
    assert 'image 7 is not in the store' in train.log
    assert 'Epoch(train)' not in train.log
