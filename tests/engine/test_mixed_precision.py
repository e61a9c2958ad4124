"""Optimizer wrappers whose types have a scope, or are classes, as in pure-Python configs."""

from contextlib import nullcontext

import pytest
from mmengine.config import Config
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from torch import nn

from mmattn.engine import enable_amp, enable_test_amp, prepare_for_cpu


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


@pytest.mark.parametrize(
    ('scope', 'loop', 'expected'),
    [
        ('mmseg', dict(), None),
        ('mmseg', dict(type='TestLoop'), None),
        ('mmseg', dict(type='ValLoop'), None),
        ('mmseg', dict(type='EpochBasedTrainLoop'), 'EpochBasedTrainLoop'),
        ('mmdet', dict(type='TestLoop'), 'float32'),
    ],
)
def test_tests_in_mixed_precision(monkeypatch, scope, loop, expected):
    monkeypatch.setattr('mmattn.engine.mixed_precision.get_device', lambda: 'cpu')
    cfg = Config(dict(default_scope=scope, test_cfg=loop))
    with pytest.raises(ValueError, match=expected) if expected else nullcontext():
        enable_test_amp(cfg)
    assert cfg.test_cfg.get('fp16', False) == (expected is None)


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
