"""Optimizer wrappers whose types have a scope, or are classes, as in pure-Python configs."""

import pytest
from mmengine.config import Config
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from torch import nn

from mmattn.engine import enable_amp, prepare_for_cpu


@pytest.mark.parametrize(
    ('wrapper', 'expected'),
    [
        (dict(), 'AmpOptimWrapper'),
        (dict(type=OptimWrapper), 'AmpOptimWrapper'),
        (dict(type='mmengine.OptimWrapper'), 'AmpOptimWrapper'),
        (dict(type='mmattn.TokenOptimWrapper'), 'mmattn.AmpTokenOptimWrapper'),
        (dict(type='mmattn.AmpTokenOptimWrapper', loss_scale=512.0), 'mmattn.AmpTokenOptimWrapper'),
    ],
)
def test_mixed_precision(wrapper, expected):
    scale = wrapper.get('loss_scale', 'dynamic')
    enable_amp(wrapper)
    assert wrapper == dict(type=expected, loss_scale=scale)


def test_classes_are_replaced_on_a_cpu(monkeypatch):
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    cfg = Config(
        dict(
            optim_wrapper=dict(type=AmpOptimWrapper),
            model=dict(type='EncoderDecoder', norm_cfg=dict(type=nn.SyncBatchNorm)),
        )
    )
    prepare_for_cpu(cfg)
    assert cfg.optim_wrapper.type == 'mmattn.CPUAmpOptimWrapper'
    monkeypatch.setattr('torch.distributed.is_initialized', lambda: True)
    cfg.launcher = 'pytorch'
    prepare_for_cpu(cfg)
    assert cfg.model.norm_cfg.type == 'BN'
