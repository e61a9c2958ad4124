"""The learning rate against its equation: as the Runner builds it, and stopped and resumed."""

from itertools import count

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.registry import PARAM_SCHEDULERS
from mmengine.runner import Runner
from torch import nn

from mmattn.language import InverseRootLR

names = count()


def optimizer(*rates):
    groups = [dict(params=[nn.Parameter(torch.zeros(1))], lr=rate) for rate in rates]
    return torch.optim.SGD(groups)


def rates(schedule, iterations):
    """The rates of the next iterations, the first of which the schedule has set."""
    found = []
    for _ in range(iterations):
        found.append([group['lr'] for group in schedule.optimizer.param_groups])
        schedule.step()
    return found


def test_values_of_the_recipe():
    """lr 5e-4 after a warm-up of 4,000 from 1e-7; half of it at 16,000."""
    found = [rate for (rate,) in rates(InverseRootLR(optimizer(5e-4), by_epoch=False), 16_000)]
    assert found[0] == pytest.approx(1e-7 + (5e-4 - 1e-7) / 4000, rel=1e-12)
    assert found[1999] == pytest.approx((5e-4 + 1e-7) / 2, rel=1e-12)
    assert found[3999] == pytest.approx(5e-4, rel=1e-12)
    assert found[15_999] == pytest.approx(2.5e-4, rel=1e-12)
    assert max(found) == found[3999]


@pytest.mark.parametrize('warmup', [1, 3, 10])
@pytest.mark.parametrize('start', [0, 0.01])
def test_equation(warmup, start):
    """Of each group of parameters with its own rate."""
    found = rates(InverseRootLR(optimizer(1.0, 0.5), warmup, start, by_epoch=False), 25)
    for n, each in enumerate(found, 1):
        for lr, rate in zip((1.0, 0.5), each, strict=True):
            expected = start + (lr - start) * n / warmup if n <= warmup else lr * (warmup / n) ** 0.5
            assert rate == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize('done', [1, 3, 4, 5, 17])
def test_stopped_and_resumed(done):
    whole = rates(InverseRootLR(optimizer(0.3), 4, by_epoch=False), 30)
    stopped = InverseRootLR(optimizer(0.3), 4, by_epoch=False)
    rates(stopped, done)
    resumed = InverseRootLR(optimizer(0.3), 4, by_epoch=False)
    resumed.load_state_dict(stopped.state_dict())
    resumed.optimizer.load_state_dict(stopped.optimizer.state_dict())
    assert rates(resumed, 30 - done) == whole[done:]


class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.rates = []

    def forward(self, inputs, mode):
        return dict(loss=self.weight.sum())

    def train_step(self, data, optim_wrapper):
        self.rates += optim_wrapper.get_lr()['lr']
        return super().train_step(data, optim_wrapper)


def run(folder, schedule, iterations=20, **options):
    model = Model()
    runner = Runner(
        model,
        str(folder),
        train_dataloader=dict(dataset=[dict(inputs=1)], sampler=dict(type='InfiniteSampler'), batch_size=1),
        train_cfg=dict(by_epoch=False, max_iters=iterations),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.5)),
        param_scheduler=schedule,
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=5)),
        experiment_name=f'schedule {next(names)}',
        log_level='ERROR',
        **options,
    )
    runner.train()
    return model.rates


def test_runner(tmp_path):
    """From a config, in the whole run; a second, longer run resumes the first one."""
    schedule = dict(type='mmattn.InverseRootLR', warmup=4, warmup_start=0.1, by_epoch=False)
    expected = [0.1 + 0.4 * n / 4 if n <= 4 else 0.5 * (4 / n) ** 0.5 for n in range(1, 21)]
    assert run(tmp_path, schedule, 10) == pytest.approx(expected[:10], rel=1e-12)
    assert run(tmp_path, schedule, 20, resume=True) == pytest.approx(expected[10:], rel=1e-12)


def test_a_config_without_by_epoch_is_refused(tmp_path):
    """The Runner would end the schedule at the number of epochs, 1, so the rate would stay at its first value."""
    with pytest.raises(ValueError, match='set by_epoch=False'):
        run(tmp_path, dict(type='mmattn.InverseRootLR', warmup=4))


@pytest.mark.parametrize(
    ('options', 'error', 'message'),
    [
        (dict(warmup=0), ValueError, 'warmup'),
        (dict(warmup=4.5), TypeError, 'warmup'),
        (dict(by_epoch=True), ValueError, 'by_epoch must be False'),
    ],
)
def test_invalid_options(options, error, message):
    config = {**dict(type='mmattn.InverseRootLR', optimizer=optimizer(0.1), by_epoch=False), **options}
    with pytest.raises(error, match=message):
        PARAM_SCHEDULERS.build(config)
