"""What a run resumes from, and the learning rate that it has, with a network of one weight."""

import re
import runpy

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric
from mmengine.logging import MessageHub
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, METRICS, MODELS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import nn

from mmattn.engine import count_accumulated

from ...forked_tools import ROOT


@DATASETS.register_module()
class Numbers(BaseDataset):
    def load_data_list(self):
        return [dict(x=float(i)) for i in range(12)]


@MODELS.register_module()
class OneWeight(BaseModel):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x, sample_idx=None, mode='tensor'):
        x = torch.as_tensor(x)
        return dict(loss=(self.weight - x).square().mean()) if mode == 'loss' else [BaseDataElement()] * len(x)


@METRICS.register_module()
class Listed(BaseMetric):
    """Validation by iteration: 1, 5, and 3 from then on."""

    scores = {1: 1.0, 2: 5.0}

    def process(self, data_batch, data_samples):
        self.results += data_samples

    def compute_metrics(self, results):
        validations.append(MessageHub.get_current_instance().get_info('iter') + 1)
        return dict(score=self.scores.get(validations[-1], 3.0))


validations = []


@pytest.fixture(autouse=True)
def _log_little(monkeypatch):
    """The log of a run has its environment and its config in order: most of the time of such a short run."""
    monkeypatch.setattr('mmengine.runner.runner.collect_env', dict)
    monkeypatch.setattr('yapf.yapflib.yapf_api.FormatCode', lambda text, **options: (text, False))


def config(tmp_path, **settings):
    sampler = dict(type='mmattn.InfiniteSampler', shuffle=True)
    cfg = Config(
        dict(
            model=dict(type='OneWeight'),
            work_dir=str(tmp_path),
            train_dataloader=dict(batch_size=2, num_workers=0, dataset=dict(type='Numbers'), sampler=sampler),
            train_cfg=dict(by_epoch=False, max_iters=6),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
            param_scheduler=[dict(type='ConstantLR', factor=1.0, by_epoch=False)],
            default_hooks=dict(checkpoint=dict(type='mmattn.CheckpointHook', by_epoch=False, interval=3)),
            default_scope='mmengine',
            log_level='WARNING',
            randomness=dict(seed=0),
            experiment_name=str(tmp_path),
        )
    )
    cfg.merge_from_dict(settings)
    return cfg


def run(cfg):
    Runner.from_cfg(cfg).train()


def validated(tmp_path, max_iters, hook=(), **settings):
    """The config of a run that validates after each iteration, with momentum and a schedule over 6 iterations."""
    cfg = config(tmp_path)
    cfg.train_cfg.update(max_iters=max_iters, val_interval=1)
    cfg.optim_wrapper.optimizer.momentum = 0.9
    cfg.param_scheduler = [dict(type='PolyLR', begin=0, end=6, by_epoch=False)]
    cfg.default_hooks.checkpoint.update(dict(interval=1, save_best='score', rule='greater') | dict(hook))
    sampler = dict(type='DefaultSampler', shuffle=False)
    cfg.val_dataloader = dict(batch_size=4, num_workers=0, dataset=dict(type='Numbers'), sampler=sampler)
    cfg.update(val_cfg=dict(), val_evaluator=dict(type='Listed'), **settings)
    return cfg


def test_a_checkpoint_without_the_state_of_a_run_is_not_resumed(tmp_path):
    """Such as a best one. mmengine would go on, without the momentum and at the start of the schedule."""
    run(validated(tmp_path, 3))
    best, partly = tmp_path / 'best_score_iter_2.pth', tmp_path / 'partly.pth'
    whole = torch.load(tmp_path / 'iter_2.pth', weights_only=False)
    torch.save({key: value for key, value in whole.items() if key != 'param_schedulers'}, partly)
    for path, missing in ((best, 'optimizer'), (partly, 'param_schedulers')):
        with pytest.raises(ValueError, match=f'{path} .*{missing}'):
            run(validated(tmp_path, 6, resume=True, load_from=str(path)))


def test_a_run_without_a_checkpoint_starts_anew(tmp_path):
    """It may have a best one, which is written again."""
    run(validated(tmp_path, 2, dict(interval=-1, save_last=False)))
    assert [path.name for path in tmp_path.glob('*.pth')] == ['best_score_iter_2.pth']
    run(validated(tmp_path, 3, resume=True))
    assert torch.load(tmp_path / 'iter_3.pth', weights_only=False)['meta']['iter'] == 3


def test_early_stopping_goes_on_where_it_was(tmp_path):
    stopping = dict(custom_hooks=[dict(type='EarlyStoppingHook', monitor='score', rule='greater', patience=3)])
    validations.clear()
    for length in (3, 12, 12):
        run(validated(tmp_path, length, resume=True, **stopping))
    assert validations == [1, 2, 3, 4, 5]


@pytest.mark.parametrize('runner', [{}, dict(runner_type='FlexibleRunner', env_cfg={})])
def test_a_scaled_learning_rate_counts_accumulated_samples(tmp_path, monkeypatch, runner):
    """Also in a run from the config that the run has written."""
    train = runpy.run_path(str(ROOT / 'tools' / 'train.py'))['main']
    monkeypatch.setenv('LOCAL_RANK', '0')

    def rate(name, **settings):
        scaling = dict(enable=True, base_batch_size=8)
        settings = {'train_cfg.max_iters': 1, 'optim_wrapper.type': 'OptimWrapper', **settings, **runner}
        config(tmp_path, auto_scale_lr=scaling, **settings).dump(tmp_path / f'{name}.py')
        for generation in ('first', 'second'):
            path = tmp_path / (f'{name}.py' if generation == 'first' else f'first/{name}.py')
            monkeypatch.setattr('sys.argv', ['train.py', str(path), '--work-dir', str(tmp_path / generation)])
            train()
            checkpoint = torch.load(tmp_path / generation / 'iter_1.pth', weights_only=False)
            yield checkpoint['optimizer']['param_groups'][0]['lr']

    assert [*rate('each')] == pytest.approx([0.1 * 2 / 8] * 2)
    assert [*rate('accumulated', **{'optim_wrapper.accumulative_counts': 2})] == pytest.approx([0.1 * 4 / 8] * 2)


def test_a_learning_rate_is_not_scaled_by_a_number_that_changes(tmp_path):
    scaled = config(tmp_path, auto_scale_lr=dict(enable=True, base_batch_size=8))
    optimizers = {name: dict(optimizer=dict(type='SGD'), accumulative_counts=n) for name, n in (('a', 1), ('b', 2))}
    for key, value, named in (
        ('train_dataloader.batch_sampler', dict(type='mmattn.TokenBatchSampler', max_tokens=9), 'max_tokens'),
        ('optim_wrapper', optimizers, 'accumulative_counts'),
    ):
        cfg = Config(scaled.to_dict())
        cfg.merge_from_dict({key: value})
        with pytest.raises(ValueError, match=named):
            count_accumulated(cfg)


@pytest.mark.parametrize(
    ('settings', 'count'),
    [
        (dict(optim_wrapper=dict(accumulative_counts=4)), 4),
        (dict(strategy=dict(gradient_accumulation_steps=4)), 4),
        (dict(), 1),
    ],
)
def test_iterations_that_an_update_accumulates_are_told_where_they_count(monkeypatch, settings, count):
    """Not where the learning rate is not scaled."""
    logged = []
    monkeypatch.setattr('mmattn.engine.command_line.print_log', lambda text, *_: logged.append(text))
    for enable in (False, True):
        cfg = Config(dict(auto_scale_lr=dict(enable=enable, base_batch_size=8), **settings))
        assert count_accumulated(cfg) == (count if enable else 1)
        assert [re.findall(r'\d+', text) for text in logged] == ([[str(count)]] if enable and count > 1 else [])
