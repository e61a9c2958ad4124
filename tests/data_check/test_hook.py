"""What the hooks share: the checks that data sets bring, and what the config says of metrics and classes."""

from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.model import MMDistributedDataParallel
from mmengine.registry import DATASETS
from torch import nn

from mmattn.data_check import hook
from mmattn.data_check.data_sets import data_sets
from mmattn.data_check.hook import DataCheckHook


class Sentences(BaseDataset):
    """A data set with a check of its own."""

    def load_data_list(self):
        return [dict(sentence='a')]

    def check_for_model(self, model, faults):
        faults.add(self.ann_file, f'not for {type(model).__name__}', 'empty', 'empty')


class Hook(DataCheckHook):
    def check_data(self, runner, loaders, faults):
        faults.extend((where, 'seen by the hook') for where, _ in data_sets(runner.cfg, loaders, BaseDataset))


@pytest.fixture
def runner(tmp_path):
    wrapped = dict(type='RepeatDataset', times=2, dataset=dict(type=Sentences, ann_file='b.txt'))
    train = dict(type='ConcatDataset', datasets=[dict(type=Sentences, ann_file='a.txt'), wrapped])
    val = dict(type=BaseDataset, metainfo=dict(CLASSES=['a']))
    cfg = dict(
        train_dataloader=dict(dataset=train),
        val_dataloader=dict(dataset=val),
        val_evaluator=dict(type='IoUMetric', iou_metrics=['mIOU']),
    )
    runner = SimpleNamespace(model=nn.Linear(1, 1), work_dir=str(tmp_path), cfg=Config(cfg))
    runner.train_dataloader = SimpleNamespace(dataset=DATASETS.build(train))
    return runner


def test_data_sets_bring_their_own_check(runner):
    of_hook = {
        'train_dataloader.dataset.datasets.0': ['seen by the hook'],
        'train_dataloader.dataset.datasets.1.dataset': ['seen by the hook'],
    }
    of_data_sets = {f'{name}.txt': ['not for Linear', 'empty'] for name in 'ab'}
    faults = Hook().faults_by_path(runner, ('train_dataloader',))
    assert faults.pop('val_evaluator.iou_metrics')
    assert faults == of_hook | of_data_sets
    runner.model = MMDistributedDataParallel.__new__(MMDistributedDataParallel)
    nn.Module.__init__(runner.model)
    runner.model.module = nn.Linear(1, 1)
    wrapped = Hook().faults_by_path(runner, ('train_dataloader',))
    assert {path: wrapped[path] for path in of_data_sets} == of_data_sets


def test_a_hook_says_what_is_wrong_with_the_config(runner, tmp_path):
    with pytest.raises(ValueError, match='found 3 faults'):
        Hook().before_val(runner)
    assert (tmp_path / 'data_check.txt').read_text(encoding='utf-8').splitlines() == [
        'val_dataloader.dataset: seen by the hook',
        "val_evaluator.iou_metrics: 'mIOU' (did you mean 'mIoU'?) is none of mDice, mFscore, mIoU",
        "val_dataloader.dataset.metainfo: 'CLASSES' is not read: write 'classes'",
    ]


def test_every_process_raises_what_the_main_one_found(runner, monkeypatch):
    sent = []

    def broadcast(objects):
        if hook.is_main_process():
            sent.extend(objects)
        else:
            objects[:] = sent

    monkeypatch.setattr(hook, 'broadcast_object_list', broadcast)
    for is_main in (True, False):
        monkeypatch.setattr(hook, 'is_main_process', lambda is_main=is_main: is_main)
        with pytest.raises(ValueError, match='found 3 faults'):
            Hook().before_val(runner)


LONG_CHECK = """
import os, time
from datetime import timedelta
from types import SimpleNamespace
import torch.distributed as dist
from mmengine.config import Config
from mmattn.data_check.hook import DataCheckHook

class Hook(DataCheckHook):
    def check_data(self, runner, loaders, faults):
        time.sleep(2)
        faults.add('a.txt', f'seen by process {{dist.get_rank()}}')

rank = int(os.fork() == 0)
dist.init_process_group('gloo', f'file://{folder}/store', timedelta(seconds=1), rank=rank, world_size=2)
runner = SimpleNamespace(model=None, work_dir='{folder}', cfg=Config())
for part in 'val', 'test':
    try:
        getattr(Hook(), f'before_{{part}}')(runner)
    except ValueError as error:
        assert 'a.txt: seen by process 0' in str(error), error
        print('raised', flush=True)
dist.destroy_process_group()
if rank == 0:
    assert os.wait()[1] == 0
"""


@pytest.mark.slow
def test_a_check_may_take_longer_than_the_timeout_of_the_process_group(run_python, tmp_path):
    assert run_python(LONG_CHECK.format(folder=tmp_path)).split() == ['raised'] * 4


@pytest.mark.parametrize('error', [None, ValueError, OSError])
def test_other_processes_build_what_the_main_one_builds_for_its_check(runner, monkeypatch, error):
    """The sampler may exchange its seed. Only the main process says why one cannot be built."""
    built = []

    class Loaders(SimpleNamespace):
        @property
        def train_dataloader(self):
            built.append(hook.is_main_process())
            if error:
                raise error('no seed')
            return loader

        @property
        def val_dataloader(self):
            raise AssertionError('no data set of it has a check of its own')

    loader = vars(runner).pop('train_dataloader')
    monkeypatch.setattr(hook, 'broadcast_object_list', lambda objects: None)
    for is_main in (True, False):
        monkeypatch.setattr(hook, 'is_main_process', lambda is_main=is_main: is_main)
        with pytest.raises(ValueError, match='train_dataloader') if is_main else nullcontext():
            Hook().before_loops(Loaders(**vars(runner)))
    assert built == [True, False]


def test_a_hook_that_is_off_checks_nothing(runner, tmp_path):
    Hook(enabled=False).before_loops(runner)
    assert not (tmp_path / 'data_check.txt').exists()


@pytest.mark.parametrize('classes', [['road', 'car'], ['car', 'road'], None])
def test_a_test_on_other_classes_than_those_of_the_checkpoint_is_a_warning(runner, classes):
    runner.test_dataloader = SimpleNamespace(dataset=SimpleNamespace(metainfo=dict(classes=classes)))
    runner._load_from, runner.cfg.val_evaluator = 'a.pth', None
    checked = Hook()
    checked.after_load_checkpoint(runner, dict(meta=dict(dataset_meta=dict(classes=('road', 'car')))))
    with patch('mmattn.data_check.hook.print_log') as said:
        checked.before_test(runner)
    assert said.called == (classes != ['road', 'car'])
