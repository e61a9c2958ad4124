"""Learning rates of the shipped schedules of captioning, grounding and visual questions, epoch by epoch."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import PARAM_SCHEDULERS

from mmattn.utils import config_path


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        ('san_15e', [1e-4, 2e-4, *[3e-4] * 4, *[1.5e-4] * 3, *[7.5e-5] * 3, *[3.75e-5] * 3]),
        ('caption_small', [1e-3 / 3, *[1e-3] * 4, *[5e-4] * 3, *[2.5e-4] * 2]),
        ('ban_13e', [1e-3, 2e-3, 3e-3, *[4e-3] * 7, 1e-3, 1e-3, 2.5e-4]),
        ('ban_26e', [5e-4, 1e-3, 1.5e-3, *[2e-3] * 17, *[5e-4] * 4, 1.25e-4, 1.25e-4]),
        ('ban_13e_bs256', [5e-4, 1e-3, 1.5e-3, *[2e-3] * 7, 5e-4, 5e-4, 1.25e-4]),
        ('mcan_13e', [2.5e-5, 5e-5, 7.5e-5, *[1e-4] * 7, 2e-5, 2e-5, 4e-6]),
        ('fusion_100e', [1e-4] * 100),
        ('fusion_20e', [4e-4] * 20),
    ],
)
def test_rate_of_each_epoch(name, expected):
    cfg = Config.fromfile(config_path(f'_base_/schedules/{name}.py'))
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=cfg.optim_wrapper.optimizer.lr)
    schedulers = [PARAM_SCHEDULERS.build(dict(each, optimizer=optimizer)) for each in cfg.param_scheduler]
    found = []
    for _ in range(cfg.train_cfg.max_epochs):
        found.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    assert found == pytest.approx(expected, rel=1e-12)
