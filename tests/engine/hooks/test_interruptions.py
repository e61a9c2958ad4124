"""A run that is interrupted at any of its hooks' calls, and resumed, ends as if it had not been: weights and scores."""

import math
from functools import cache
from pathlib import Path

import pytest
import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import EarlyStoppingHook, EMAHook, Hook
from mmengine.model import BaseModel
from mmengine.optim import ReduceOnPlateauLR
from mmengine.runner import Runner
from mmengine.visualization import Visualizer
from torch import nn
from torch.utils.data import DataLoader

from mmattn.engine import CheckpointHook, DefaultSampler, InfiniteSampler, latest_checkpoint
from mmattn.engine.hooks.checkpoint import _RemoveLater

from ..trainer import differences

STAGES = (
    *('before_train_iter', 'after_train_iter', 'before_save_checkpoint', 'before_val', 'before_val_iter'),
    *('after_val_epoch', 'after_val', 'after_train_epoch', 'after_train'),
)


class Net(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs, mode='tensor'):
        outputs = self.layer(nn.functional.dropout(torch.stack(inputs), 0.5, mode == 'loss'))
        return dict(loss=outputs.square().mean()) if mode == 'loss' else [dict(output=x) for x in outputs]


class Score(BaseMetric):
    """A number that rises and falls, and depends on every bit of the weights."""

    def process(self, data_batch, data_samples):
        self.results += [sample['output'].double().sum().item() for sample in data_samples]

    def compute_metrics(self, results):
        return dict(score=math.sin(1e3 * sum(results)))


class Interrupted(BaseException):
    pass


class Interrupter(Hook):
    """Raises at a call, after the other hooks: before a checkpoint is written, or before an older one is removed."""

    priority = 'LOWEST'

    def __init__(self, calls, last=None):
        Interrupter.latest, self.calls, self.last = self, calls, last
        for stage in STAGES:
            setattr(self, stage, lambda *_, stage=stage, **__: self.count(stage))

    def count(self, stage):
        self.calls.append(stage)
        if len(self.calls) == self.last:
            raise Interrupted


def collate(samples):
    return dict(inputs=[torch.tensor([1.0, sample, sample**2]) / 4 for sample in samples])


@cache
def visualizer():
    return Visualizer()


def train(folder, name, loop, checkpoint, *, interrupt=None, resume=False, patience=9, ema=False):
    """Train until the call ``interrupt``, if any. Return all calls."""
    by_epoch, calls = 'max_epochs' in loop, []
    sampler = (DefaultSampler if by_epoch else InfiniteSampler)(range(4), shuffle=True, seed=3)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    hooks = [
        CheckpointHook(by_epoch=by_epoch, save_best='score', rule='greater', **checkpoint),
        EarlyStoppingHook('score', rule='greater', min_delta=0.0, patience=patience),
        *([EMAHook()] if ema else []),
        Interrupter(calls, interrupt),
    ]
    runner = Runner(
        model,
        str(folder),
        train_dataloader=DataLoader(range(4), 2, sampler=sampler, collate_fn=collate),
        train_cfg=loop,
        val_dataloader=DataLoader(range(4), 2, collate_fn=collate),
        val_cfg=dict(),
        val_evaluator=Evaluator(Score()),
        optim_wrapper=dict(optimizer=optimizer),
        param_scheduler=[ReduceOnPlateauLR(optimizer, 'score', rule='greater', patience=1)],
        default_hooks=dict(checkpoint=None, logger=None),
        custom_hooks=hooks,
        resume=resume,
        randomness=dict(seed=3),
        log_level='ERROR',
        visualizer=visualizer(),
        experiment_name=f'{name} {interrupt} {resume}',
    )
    try:
        runner.train()
    except Interrupted:
        assert interrupt is not None
    return calls


def end(folder):
    """What a run leaves: its last checkpoint, its best ones, and the scores of all validations."""
    last = torch.load(latest_checkpoint(folder), weights_only=False)
    hub = last['message_hub']
    info = {key: Path(str(value)).name for key, value in hub['runtime_info'].items() if 'ckpt' in key}
    return dict(
        {key: last[key] for key in ('state_dict', 'optimizer', 'param_schedulers', 'ema_state_dict') if key in last},
        info=info,
        best=hub['runtime_info'].get('best_score'),
        to_resume=hub['runtime_info']['to_resume'],
        scores=hub['log_scalars']['val/score'].data,
        losses=hub['log_scalars']['train/loss'].data,
        files={path.name: torch.load(path, weights_only=False)['state_dict'] for path in sorted(folder.glob('*.pth'))},
    )


ITERATIONS = dict(by_epoch=False, max_iters=4, val_interval=2)
EPOCHS = dict(by_epoch=True, max_epochs=2)
LONG = pytest.mark.slow


@pytest.mark.parametrize(
    ('loop', 'checkpoint', 'options'),
    [
        (ITERATIONS, dict(interval=2, max_keep_ckpts=1), dict(ema=True)),
        (EPOCHS, dict(interval=1), dict(patience=1)),
        pytest.param(dict(ITERATIONS, max_iters=8), dict(interval=3), dict(patience=1), marks=LONG),
        # a best checkpoint between two regular ones, after a resumption
        pytest.param(dict(ITERATIONS, max_iters=8, val_interval=1), dict(interval=3), {}, marks=LONG),
        pytest.param(dict(ITERATIONS, val_interval=1, dynamic_intervals=[(3, 2)]), dict(interval=1), {}, marks=LONG),
        pytest.param(dict(EPOCHS, max_epochs=4, val_interval=2), dict(interval=1), dict(ema=True), marks=LONG),
    ],
)
def test_interrupted_anywhere(tmp_path, monkeypatch, loop, checkpoint, options):
    """From the first checkpoint on. An interrupted validation is repeated, also the last one."""
    monkeypatch.setattr('mmengine.runner.runner.collect_env', dict)  # which starts compilers
    flush = _RemoveLater.flush
    monkeypatch.setattr(_RemoveLater, 'flush', lambda *args: (Interrupter.latest.count('flush'), flush(*args)))
    name = f'{loop} {checkpoint} {options}'
    calls = train(tmp_path / 'whole', name, loop, checkpoint, **options)
    whole = end(tmp_path / 'whole')
    for number in range(calls.index('before_save_checkpoint') + 1, len(calls) + 1):
        folder = tmp_path / str(number)
        train(folder, name, loop, checkpoint, interrupt=number, **options)
        train(folder, f'{name} {number}', loop, checkpoint, resume=True, **options)
        assert differences(end(folder), whole) == [], calls[number - 5 : number]
