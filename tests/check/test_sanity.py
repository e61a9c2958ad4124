"""One batch of the validation before training: what it finds, what it leaves as it was, and where it is passed over."""

import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.dataset import DefaultSampler
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.model import BaseModel
from mmengine.runner import Runner, ValLoop
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from mmattn.check import sanity
from mmattn.check.sanity import sanity_validation
from mmattn.engine.hooks.checkpoint import get_rng_state

from ..engine.trainer import assert_same_end, differences
from ..language.test_training import CONFIG as TRANSLATION
from ..language.test_training import write_corpus
from ..requirements import requires


class Numbers(Dataset):
    """Samples that are drawn by all generators, and a note of which."""

    def __init__(self, fault=None):
        self.fault, self.read = fault, []

    def __len__(self):
        return 5

    def get_data_info(self, index):
        return dict(img_path=f'/data/{index}.png')

    def __getitem__(self, index):
        self.read.append(index)
        if self.fault:
            raise self.fault
        return torch.rand(3) + random.random() + np.random.rand()


class Net(BaseModel):
    """Counts its calls, with norms and dropout, of which one part is frozen."""

    def __init__(self, fault=None):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.BatchNorm1d(4).eval())
        self.fault, self.calls = fault, []

    def forward(self, inputs, mode='tensor'):
        self.calls.append((mode, self.layers[0].training, torch.is_grad_enabled(), torch.is_autocast_enabled('cpu')))
        random.random(), np.random.rand()
        x = nn.functional.dropout(self.layers(torch.stack(inputs)))  # draws in evaluation, too
        if self.fault and mode == 'predict':
            raise self.fault
        return dict(loss=x.sum()) if mode == 'loss' else [*x]

    def val_step(self, data):
        return self(data, mode='predict')

    def train_step(self, data, optim_wrapper):
        loss = self(data, mode='loss')['loss']
        optim_wrapper.update_params(loss)
        return dict(loss=loss.detach())


class Metric(BaseMetric):
    def __init__(self, fault=None, output_dir=None):
        super().__init__()
        self.fault, self.output_dir, self.seen = fault, output_dir, [[]]

    def process(self, data_batch, data_samples):
        if self.fault:
            raise self.fault
        self.results.append(1)
        self.seen[0].append(len(data_samples))
        PROCESSED.append((self, len(data_samples)))

    def compute_metrics(self, results):
        pytest.fail('metrics are not computed')


class Owner(Metric):
    def __del__(self):
        pass


class Loop(ValLoop):
    pass


class Loader(DataLoader):
    pass


class Stream(IterableDataset):
    def __len__(self):
        return 4

    def __iter__(self):
        pytest.fail('the stream is not read')


PROCESSED = []


@pytest.fixture(autouse=True)
def _nothing_processed():
    PROCESSED.clear()


def loader(dataset, kind=DataLoader, **options):
    sampler = {} if isinstance(dataset, IterableDataset) else dict(sampler=DefaultSampler(dataset, shuffle=False))
    return kind(dataset, batch_size=2, collate_fn=list, **{**sampler, **options})


@pytest.fixture
def build(tmp_path):
    """Build a Runner as it is when ``before_train`` is called."""

    def build(model=None, data=None, metric=None, val_cfg=ConfigDict(), train_cfg=None, resume=False, check=None):  # noqa: B008
        no_val = val_cfg is None
        runner = Runner(
            model or Net(),
            str(tmp_path),
            train_dataloader=loader(Numbers()),
            val_dataloader=None if no_val else loader(Numbers()) if data is None else data,
            val_evaluator=None if no_val else Evaluator(metric or Metric()),
            val_cfg=None if no_val else {**val_cfg},
            train_cfg=dict(train_cfg or dict(by_epoch=True, max_epochs=2)),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
            resume=resume,
            cfg=dict(check=check) if check else None,
            experiment_name=f'sanity{next(NAMES)}',
        )
        runner._train_loop = runner.build_train_loop(runner._train_loop)
        return runner

    return build


NAMES = iter(range(1000))


def state(runner):
    """What must stay as it is."""
    metric = runner.val_loop.evaluator.metrics[0]
    return [
        {name: x.clone() for name, x in runner.model.state_dict().items()},
        [module.training for module in runner.model.modules()],
        [x.grad for x in runner.model.parameters()],
        get_rng_state(),
        [[*metric.results], [*metric.seen[0]]],
        vars(runner.visualizer).get('dataset_meta'),
    ]


@pytest.mark.parametrize('fp16', [False, True])
def test_one_batch_is_validated_and_nothing_changes(build, tmp_path, fp16):
    runner = build(val_cfg=dict(fp16=fp16))
    before, files = state(runner), {*tmp_path.rglob('*')}
    sanity_validation(runner)
    after = state(runner)
    assert all(map(torch.equal, before[0].values(), after[0].values()))
    assert before[1:3] == after[1:3]
    assert differences(before[3], after[3]) == []
    assert before[4:] == after[4:] == [[[], []], None]
    assert runner.model.calls == [('predict', False, False, fp16)]
    assert runner.val_loop.dataloader.dataset.read == [0, 1]
    [(metric, count)] = PROCESSED
    assert count == 2
    assert metric is not runner.val_loop.evaluator.metrics[0]
    assert {*tmp_path.rglob('*')} == files
    assert not runner.val_loop.val_loss


ERROR = ValueError('two\n boxes')


@pytest.mark.parametrize(
    'faulty', [dict(model=Net(ERROR)), dict(data=loader(Numbers(ERROR))), dict(metric=Metric(ERROR))]
)
def test_an_error_names_the_batch_the_loader_and_the_switch(build, faulty):
    """And keeps its cause. Model and generators are as they were, and with the switch as printed, the run goes on."""
    runner = build(**faulty)
    before = state(runner)
    with pytest.raises(ValueError, match=r'sanity.*val_dataloader.*/data/0\.png, /data/1\.png: .*two boxes') as e:
        sanity_validation(runner)
    assert repr(e.value.__cause__) == repr(ERROR)
    after = state(runner)
    assert before[1] == after[1]
    assert differences(before[3], after[3]) == []
    printed = {}
    exec(next(line for line in str(e.value).splitlines() if line.startswith('check =')), printed)
    sanity_validation(build(**faulty, check=printed['check']))


def test_metrics_that_write_are_left_out(build, tmp_path):
    """A copy of one that removes its files in the end would remove those of the run."""
    owner = Owner()
    runner = build(metric=[owner, Metric(output_dir=str(tmp_path / 'out')), Metric()])
    sanity_validation(runner)
    assert [count for _, count in PROCESSED] == [2]


@pytest.mark.parametrize(
    ('options', 'said'),
    [
        (dict(val_cfg=None), 'val_cfg'),
        (dict(resume=True), 'resumed'),
        (dict(val_cfg=dict(type=Loop)), 'Loop'),
        (dict(data=loader(Numbers(), Loader)), 'val_dataloader'),
        (dict(data=loader(Stream())), 'val_dataloader'),
        (dict(data=DataLoader(Numbers(), batch_size=None)), 'val_dataloader'),
        (dict(train_cfg=dict(by_epoch=True, max_epochs=2, val_begin=3)), 'no validation'),
        (dict(train_cfg=dict(by_epoch=False, max_iters=2, val_begin=3)), 'no validation'),
    ],
)
def test_it_is_passed_over_with_a_line_in_the_log(build, monkeypatch, options, said):
    logged = []
    monkeypatch.setattr(sanity, 'print_log', lambda text, *_: logged.append(text))
    runner = build(**options)
    sanity_validation(runner)
    assert [said in text for text in logged] == [True]
    assert not PROCESSED
    assert not runner.model.calls


def test_an_evaluator_that_cannot_be_copied_is_a_warning(build, monkeypatch):
    logged = []
    monkeypatch.setattr(sanity, 'print_log', lambda *args: logged.append(args))
    runner = build(metric=Metric(fault=(x for x in '')))
    sanity_validation(runner)
    assert [('Traceback' in text, level) for text, _, level in logged] == [(True, 30)]


def test_a_sampler_with_a_state_and_an_empty_data_set(build):
    class Batches:
        def __init__(self):
            self.dataset, self.left = data, [[3, 4], [0]]

        def __len__(self):
            return 2

        def __iter__(self):
            while self.left:
                yield self.left.pop(0)

    data = Numbers()
    batches = Batches()
    sanity_validation(build(data=DataLoader(data, batch_sampler=batches, collate_fn=list)))
    assert data.read == [3, 4]
    assert batches.left == [[3, 4], [0]]
    empty = build(data=DataLoader(data, batch_sampler=[], collate_fn=list))
    sanity_validation(empty)
    assert not empty.model.calls


def test_workers_read_where_the_run_has_workers(build):
    """So what a data set opens at its first sample is not shared with those that start later."""
    data = Numbers()
    sanity_validation(build(data=loader(data, num_workers=2, persistent_workers=True)))
    assert data.read == []
    [(_, count)] = PROCESSED
    assert count == 2


# Trainings by tools/train.py, with and without it.

SECOND = """
from mmengine.dist import get_rank
from mmengine.registry import TRANSFORMS
from mmseg.datasets.transforms import LoadAnnotations

@TRANSFORMS.register_module()
class FailsInSecondProcess(LoadAnnotations):
    def transform(self, results):
        if get_rank() == 1:
            raise ValueError('second process')
        return super().transform(results)
"""
FAILS = """
_base_ = './config.py'
custom_imports = dict(imports=['second', 'sabotage'])
val_dataloader = dict(dataset=dict(pipeline=[
    dict(type='LoadImageFromFile'), dict(type='FailsInSecondProcess'), dict(type='PackSegInputs')]))
"""


@pytest.fixture(scope='module')
def configs(train):
    folder, shipped = train.folder, Path(__file__).parents[2] / 'configs'
    (folder / 'second.py').write_text(SECOND)
    data = write_corpus(folder / 'corpus')
    (folder / 'translation.py').write_text(TRANSLATION.format(configs=shipped, data=data))
    (folder / 'detection.py').write_text(
        f"_base_ = '{shipped}/attended_residual/faster-rcnn_r50-w16-attn0010_fpn_1xb8-150_bccd-320x240.py'\n"
        'train_cfg = dict(max_iters=2, val_interval=2)\ntrain_dataloader = dict(batch_size=1)\n'
    )
    (folder / 'fails.py').write_text(FAILS)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ('config', 'processes', 'workers', 'last'),
    [
        ('config', 1, 0, 'iter_6.pth'),
        ('config', 2, 2, 'iter_6.pth'),
        ('translation', 1, 0, 'iter_12.pth'),
        pytest.param('detection', 1, 0, 'iter_2.pth', marks=requires('mmcv operators')),
    ],
)
def test_a_training_ends_with_the_same_bits(train, configs, tmp_path, config, processes, workers, last):
    workers = f'val_dataloader.num_workers={workers}', f'val_dataloader.persistent_workers={workers > 0}'
    for name, options in (('with', ()), ('without', ['check=None'])):
        done = train(tmp_path / name, *workers, *options, config=f'{config}.py', processes=processes)
        assert done == [0] * processes, train.log
        assert ('Sanity validation of one batch' in train.log) == (name == 'with')
    assert_same_end(tmp_path / 'with', tmp_path / 'without', last)


@pytest.mark.e2e
def test_an_error_of_one_process_ends_both(train, configs, tmp_path):
    """With the name of the image that only the second process reads."""
    assert train(tmp_path, config='fails.py', processes=2) == [1, 1], train.log
    assert re.search(r'fails on .*\.(png|jpg): ValueError: second process', train.log), train.log
    assert 'Iter(train)' not in train.log
