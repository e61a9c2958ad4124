"""Training through tools/train.py: a killed and resumed run, and two processes, end as one uninterrupted process."""

import random
import signal
import sys

import pytest
import torch

from mmattn.utils import config_path

from ..engine.trainer import KILLED, ROOT, Trainer, assert_same_end, load
from ..forked_tools import run_command
from .files import write_json

pytestmark = pytest.mark.e2e

CONFIG = """
_base_ = [
    '{configs}/_base_/models/transformer_tiny.py',
    '{configs}/_base_/datasets/parallel_text.py',
    '{configs}/_base_/default_runtime_text.py',
    '{configs}/_base_/schedules/inverse_root_tiny.py',
]
attention = dict(type='mmattn.BilateralMultiheadAttention', window_size=5)
model = dict(vocab_size=14, encoder_attention=attention, decoder_attention=attention)
train_dataloader = dict(batch_sampler=dict(max_tokens=40), dataset=dict(data_root='{data}'))
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(data_root='{data}'))
test_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(data_root='{data}'))
param_scheduler = [dict(type='mmattn.InverseRootLR', warmup=4, by_epoch=False)]
train_cfg = dict(max_iters=12, val_interval=6)
default_hooks = dict(checkpoint=dict(interval=4, max_keep_ckpts=-1), logger=dict(interval=1))
"""
SGD = """
_base_ = './config.py'
model = dict(dropout=0.0)
optim_wrapper = dict(optimizer=dict(_delete_=True, type='SGD', lr=0.1))
param_scheduler = None
"""


def write_corpus(folder, pairs=24, symbols='abcdefghij'):
    """A corpus of random words; the target is the source in capitals of the same vocabulary, backwards."""
    rng = random.Random(0)
    folder.mkdir(parents=True)
    for split, count in (('train', pairs), ('val', 3), ('test', 3)):
        lines = [rng.choices(symbols, k=rng.randint(1, 7)) for _ in range(count)]
        for language, sides in (('en', lines), ('de', [line[::-1] for line in lines])):
            text = ''.join(' '.join(side) + '\n' for side in sides)
            (folder / f'{split}.{language}').write_text(text, encoding='utf-8')
            if split != 'train':
                (folder / f'{split}.raw.{language}').write_text(text, encoding='utf-8')
    (folder / 'vocabulary.txt').write_text(''.join(f'{symbol} 1\n' for symbol in symbols), encoding='utf-8')
    (folder / 'bpe.codes').write_text('#version: 0.2\na b\n', encoding='utf-8')
    about = dict(source='en', target='de', lowercase=True, moses={})
    write_json(folder / 'corpus.json', about)
    return folder


@pytest.fixture(scope='module')
def train(tmp_path_factory):
    folder = tmp_path_factory.mktemp('trainer')
    trainer = Trainer(folder, {})
    data = write_corpus(folder / 'corpus')
    (folder / 'plain.py').write_text(CONFIG.format(configs=config_path(), data=data), encoding='utf-8')
    (folder / 'config.py').write_text(KILLED, encoding='utf-8')
    yield trainer
    trainer.close()


def test_killed_and_resumed(train, uninterrupted, tmp_path):
    """In the second epoch, with a worker: bit by bit the weights, optimizer and schedule of a run without either."""
    assert train(tmp_path, workers=1, kill='step 10') == [-signal.SIGKILL], train.log
    assert (tmp_path / 'last_checkpoint').read_text(encoding='utf-8') == str(tmp_path / 'iter_8.pth')
    assert train(tmp_path, workers=1, resume=True) == [0], train.log
    assert 'Iter(train) [ 8/12]' not in train.log
    assert 'Iter(train) [ 9/12]' in train.log
    assert_same_end(tmp_path, uninterrupted, 'iter_12.pth')


def test_two_processes_end_as_one(train, tmp_path):
    """Two processes with a batch each are one process that accumulates two: the same mean over all tokens."""
    # Adam would move the biases of keys, whose gradient is 0 but for rounding, by the learning rate.
    (train.folder / 'sgd.py').write_text(SGD, encoding='utf-8')
    accumulated = 'optim_wrapper.accumulative_counts=2', 'train_cfg.max_iters=24'
    assert train(tmp_path / 'two', config='sgd.py', processes=2) == [0, 0], train.log
    assert train(tmp_path / 'one', *accumulated, config='sgd.py') == [0], train.log
    two, one = (load(tmp_path / name)['state_dict'] for name in ('two/iter_12.pth', 'one/iter_24.pth'))
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('amp', [False, True])
def test_trains_and_tests(train, uninterrupted, tmp_path, amp):
    """Through both tools. Mixed precision ends close to full precision."""
    folder = uninterrupted
    if amp:
        folder = tmp_path / 'amp'
        assert train(folder, 'optim_wrapper.type=mmattn.CPUAmpTokenOptimWrapper') == [0], train.log
        this, other = (load(path / 'iter_12.pth')['state_dict'] for path in (folder, uninterrupted))
        gaps = [(this[name] - other[name]).abs().max() for name in this]
        assert 0 < max(gaps) < 0.1
    command = [sys.executable, ROOT / 'tools/test.py', train.folder / 'plain.py', folder / 'iter_12.pth']
    done = run_command([*command, '--work-dir', tmp_path, '--out', tmp_path / 'out'])
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / 'out/translations.txt').read_text(encoding='utf-8').split('\n')) == 4
