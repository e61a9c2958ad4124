"""Schedules and hooks against the length of the training, in mmengine's own loops and schedulers."""

import logging
import re
from contextlib import nullcontext

import pytest
import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.optim.scheduler.param_scheduler import _ParamScheduler
from mmengine.registry import HOOKS, LOOPS, init_default_scope
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmattn.data_check.metrics import metric_faults, monitor_faults
from mmattn.data_check.schedules import check_schedules
from mmattn.engine import load_config
from mmattn.utils import config_path

from ..requirements import required_by, requires
from .test_batches import faults_without_data

CONFIGS = sorted(path.relative_to(config_path()).as_posix() for path in config_path().glob('[!_]*/*.py'))
ITERATIONS, EPOCHS = dict(type='IterBasedTrainLoop', max_iters=100), dict(type='EpochBasedTrainLoop', max_epochs=5)


def runner_of(cfg, batches):
    """A Runner that has what training starts with, except model and data."""
    runner = Runner.__new__(Runner)
    runner.logger = logging.getLogger('schedules')
    runner.optim_wrapper = OptimWrapper(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9))
    loader = DataLoader(range(batches))
    runner._train_dataloader = loader
    runner._train_loop = LOOPS.build(cfg['train_cfg'], default_args=dict(runner=runner, dataloader=loader))
    runner._val_loop = LOOPS.build(
        dict(type='ValLoop'), default_args=dict(runner=runner, dataloader=loader, evaluator=[])
    )
    runner.param_schedulers = runner.build_param_scheduler(cfg['param_scheduler']) if cfg.get('param_scheduler') else []
    checkpoint = (cfg.get('default_hooks') or {}).get('checkpoint')
    hooks = [*filter(None, [checkpoint]), *(cfg.get('custom_hooks') or [])]
    runner._hooks = [HOOKS.build(dict(hook)) for hook in hooks]
    return runner


def poly(**options):
    return dict(type='PolyLR', **{'eta_min': 0, 'by_epoch': False, **options})


@pytest.mark.parametrize(
    ('train_cfg', 'schedule', 'said'),
    [
        (ITERATIONS, [poly(end=40)], r'param_scheduler\.0: .*PolyLR.* 39 to 100 of 100'),
        (ITERATIONS, [dict(type='CosineAnnealingLR', begin=10, end=40, by_epoch=False)], r'param_scheduler\.0: .*Cos'),
        (ITERATIONS, [dict(type='OneCycleLR', eta_max=1, total_steps=50, by_epoch=False)], 'OneCycleLR .*50'),
        (ITERATIONS, [dict(type='ExponentialLR', gamma=0.9, begin=200, by_epoch=False)], 'begin=200'),
        (ITERATIONS, [poly(by_epoch=True)], 'param_scheduler.0.by_epoch: .* lr'),
        (ITERATIONS, [poly(), dict(type='LinearMomentum', end=5)], 'param_scheduler.1.by_epoch: .* momentum'),
        (EPOCHS, [poly(by_epoch=True, end=3)], r' 40 to 100 .*max_epochs=5'),
        (EPOCHS, [poly(by_epoch=True, end=3, convert_to_iter_based=True)], ' 59 to 100 .*max_epochs=5'),
        (EPOCHS, [dict(type='LinearLR', end=10, by_epoch=False), poly(by_epoch=True, end=4)], r'param_scheduler\.1: '),
        (ITERATIONS, [dict(type='MultiStepLR', milestones=[50], gamma=0.0, by_epoch=False)], 'MultiStepLR.* 50 to 100'),
        (
            ITERATIONS,
            [poly(end=40), dict(type='ConstantLR', factor=0.5, begin=40, by_epoch=False)],
            'PolyLR.* 39 to 100',
        ),
        (ITERATIONS, [dict(type='ExponentialLR', gamma=0.7, by_epoch=False)], 'ExponentialLR.* to 100'),
        (EPOCHS, [poly(by_epoch=True, end=5)], ' 80 to 100 '),  # the last epoch
    ],
)
def test_a_learning_rate_that_is_0_or_never_changes_is_an_error(train_cfg, schedule, said):
    with pytest.raises(ValueError, match=said):
        check_schedules(runner_of(dict(train_cfg=train_cfg, param_scheduler=schedule), 20))


ONE_CYCLE = dict(type='OneCycleLR', eta_max=1, total_steps=100, by_epoch=False)


@pytest.mark.parametrize(
    ('rates', 'schedule', 'trains'),
    [
        ([0.0], [], False),
        ([0.0], [poly()], False),
        ([0.0, 0.0], [dict(type='ReduceOnPlateauLR', monitor='mIoU')], False),
        ([0.0, 0.1], [], True),  # frozen parameters
        ([0.0, 0.1], [poly()], True),
        ([0.0], [ONE_CYCLE], True),  # which has a rate of its own
    ],
)
@pytest.mark.parametrize('several', [False, True])
def test_a_training_without_a_learning_rate_is_an_error(rates, schedule, trains, several):
    """Unless it is of some parameters, or of one of several optimizers."""
    runner = runner_of(dict(train_cfg=ITERATIONS), 20)
    groups = [dict(params=[torch.nn.Parameter(torch.zeros(1))], lr=rate) for rate in rates]
    runner.optim_wrapper = OptimWrapper(torch.optim.SGD(groups, lr=max(rates), momentum=0.9))
    if schedule:
        runner.param_schedulers = runner.build_param_scheduler(schedule)
    if several:
        other = OptimWrapper(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
        runner.optim_wrapper = OptimWrapperDict(a=runner.optim_wrapper, b=other)
    with nullcontext() if trains or several else pytest.raises(ValueError, match=r'optimizer\.lr: .* 0, .* nothing'):
        check_schedules(runner)


def test_an_optimizer_that_finds_its_own_rate_trains():
    """As Adafactor does, whose groups have None in place of a rate."""
    runner = runner_of(dict(train_cfg=ITERATIONS), 20)
    optimizer = torch.optim.SGD([dict(params=[torch.nn.Parameter(torch.zeros(1))], lr=0.0) for _ in range(3)])
    optimizer.param_groups[0]['lr'] = None
    del optimizer.param_groups[1]['lr']
    runner.optim_wrapper = OptimWrapper(optimizer)
    check_schedules(runner)


@pytest.mark.parametrize(
    ('train_cfg', 'schedule', 'hooks', 'said'),
    [
        (ITERATIONS, [dict(type='LinearLR', end=500, by_epoch=False)], [], '0.end: 500'),
        (ITERATIONS, [dict(type='LinearLR', end=5e2, by_epoch=False)], [], '0.end: 500'),
        (EPOCHS, [dict(type='LinearLR', end=500, by_epoch=False)], [], '0.end: 500, but .* 100 iterations'),
        (ITERATIONS, [poly(begin=100, end=200)], [], '0.begin: 100'),
        (ITERATIONS, [dict(type='OneCycleLR', eta_max=1, total_steps=500, by_epoch=False)], [], '500'),
        (
            ITERATIONS,
            [dict(type='ExponentialLR', gamma=1.01, by_epoch=False)],
            [],
            'ends at 0.27.*, above its start, 0.1',
        ),
        (
            ITERATIONS,
            [poly(end=100), dict(type='ExponentialLR', gamma=0.99, by_epoch=False)],
            [],
            'param.*0 and .*1: both .* after iteration 1,',
        ),
        (EPOCHS, [dict(type='MultiStepLR', milestones=[3, 8, 11])], [], '0.milestones: 8, 11'),
        (EPOCHS, [dict(type='StepLR', step_size=5)], [], '0.step_size: 5'),
        (EPOCHS, [dict(type='CosineAnnealingLR', T_max=2)], [], '0.T_max: 2, but .* after 2'),
        (EPOCHS, [dict(type='CosineAnnealingLR', T_max=9)], [], '0.T_max: 9'),
        (ITERATIONS, [dict(type='mmattn.InverseRootLR', warmup=400, by_epoch=False)], [], '0.warmup: 400, .* 100'),
        (dict(ITERATIONS, val_begin=200), [], [], 'val_begin: 200'),
        (dict(EPOCHS, dynamic_intervals=[(9, 1)]), [], [], 'dynamic_intervals: 9'),
        (ITERATIONS, [], [dict(type='CheckpointHook', interval=10)], 'CheckpointHook.by_epoch: .*10 .* epochs'),
        (ITERATIONS, [], [dict(type='EMAHook', begin_iter=100)], 'EMAHook.begin_iter: 100'),
        pytest.param(
            EPOCHS,
            [],
            [dict(type='mmdet.PipelineSwitchHook', switch_epoch=7, switch_pipeline=[])],
            'switch_epoch: 7',
            marks=requires('mmcv operators'),
        ),
    ],
)
def test_what_the_training_is_too_short_for_is_a_warning(train_cfg, schedule, hooks, said, warned):
    check_schedules(runner_of(dict(train_cfg=train_cfg, param_scheduler=schedule, custom_hooks=hooks), 20))
    assert {level for level, _ in warned} == {logging.WARNING}
    assert any(re.search(said, text) for _, text in warned)


@pytest.mark.parametrize(
    ('train_cfg', 'schedule'),
    [
        (ITERATIONS, [poly(end=100)]),
        (ITERATIONS, [poly(end=50, eta_min=1e-4)]),  # the rest has a rate
        (ITERATIONS, [dict(type='CosineAnnealingLR', end=50, by_epoch=False), poly(begin=50)]),
        (ITERATIONS, [dict(type='OneCycleLR', eta_max=1, begin=20, total_steps=80, by_epoch=False)]),
        (ITERATIONS, [dict(type='ReduceOnPlateauLR', monitor='mIoU')]),  # acts after validation
        (EPOCHS, [dict(type='LinearLR', end=20, by_epoch=False), dict(type='MultiStepLR', milestones=[2, 4])]),
        (EPOCHS, [dict(type='CosineAnnealingLR', begin=1, T_max=4, convert_to_iter_based=True)]),
        (ITERATIONS, [dict(type='OneCycleLR', eta_max=1, total_steps=100, by_epoch=False)]),
        (
            ITERATIONS,
            [dict(type='CosineRestartLR', periods=[20] * 5, restart_weights=[1] * 5, eta_min=0, by_epoch=False)],
        ),
    ],
)
def test_schedules_that_fit_pass(train_cfg, schedule, warned):
    check_schedules(runner_of(dict(train_cfg=train_cfg, param_scheduler=schedule), 20))
    assert warned == []


@pytest.mark.parametrize(
    ('train_cfg', 'schedule', 'hooks'),
    [
        (ITERATIONS, [dict(type='LinearLR', end=100, by_epoch=False)], []),
        (ITERATIONS, [dict(type='MultiStepLR', milestones=[99], by_epoch=False)], []),
        (EPOCHS, [dict(type='StepLR', step_size=4)], []),
        (EPOCHS, [dict(type='CosineAnnealingLR', T_max=5, eta_min=1e-4)], []),
        (ITERATIONS, [dict(type='mmattn.InverseRootLR', warmup=100, by_epoch=False)], []),
        (dict(ITERATIONS, val_begin=100), [], []),
        (dict(EPOCHS, dynamic_intervals=[(5, 1)]), [], []),
        (ITERATIONS, [], [dict(type='EMAHook', begin_iter=99)]),
        (EPOCHS, [], [dict(type='EMAHook', begin_epoch=4), dict(type='CheckpointHook', interval=10)]),
        (ITERATIONS, [], [dict(type='CheckpointHook', interval=10, by_epoch=False)]),
        (ITERATIONS, [], [dict(type='CheckpointHook', interval=-1)]),
    ],
)
def test_what_just_fits_is_no_warning(train_cfg, schedule, hooks, warned):
    check_schedules(runner_of(dict(train_cfg=train_cfg, param_scheduler=schedule, custom_hooks=hooks), 20))
    assert warned == []


def test_a_long_training_is_not_stepped_beyond_the_end_of_its_schedules(monkeypatch):
    """Nor is a scheduler copied after its end, so that millions of iterations are checked in a moment."""
    schedules = [dict(type='LinearLR', begin=10, end=30, by_epoch=False), poly(begin=10, end=20, eta_min=1e-4)]
    runner = runner_of(dict(train_cfg=dict(ITERATIONS, max_iters=3000), param_scheduler=schedules), 20)
    steps, step = [], _ParamScheduler.step
    monkeypatch.setattr(_ParamScheduler, 'step', lambda part: steps.append(part) or step(part))
    check_schedules(runner)
    assert len(steps) == 29 + 1 + 19 + 1  # to the last one, and once for where each ends


def test_a_resumed_schedule_ends_where_its_checkpoint_says(warned):
    """The config is that of a longer run, but mmengine's schedulers take their end from the checkpoint."""
    first, second = (
        runner_of(dict(train_cfg=dict(ITERATIONS, max_iters=length), param_scheduler=[poly(end=length)]), 20)
        for length in (100, 150)
    )
    check_schedules(second)
    second.param_schedulers[0].load_state_dict(first.param_schedulers[0].state_dict())
    with pytest.raises(ValueError, match=r' 99 to 150 .*train_cfg\.max_iters'):
        check_schedules(second)


@pytest.mark.slow
@pytest.mark.parametrize('name', [pytest.param(name, marks=required_by(name)) for name in CONFIGS])
def test_shipped_configs_have_schedules_metrics_and_batches_that_fit(name, warned):
    cfg = load_config(config_path(name))  # no setting keeps a former value of a helper
    init_default_scope(cfg.default_scope)
    if 'train_cfg' in cfg:
        check_schedules(runner_of(cfg, 100_000))
    batches = faults_without_data(cfg) if cfg.default_scope == 'mmseg' else []
    assert [*metric_faults(cfg), *monitor_faults(cfg), *batches, *warned] == []
