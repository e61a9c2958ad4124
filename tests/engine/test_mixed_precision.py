"""Mixed precision of a config, also where types have a scope, or are classes, as in pure-Python configs."""

from contextlib import nullcontext

import pytest
from mmengine.config import Config
from mmengine.optim import OptimWrapper

from mmattn.engine import enable_amp, enable_test_amp, inference_precision


@pytest.mark.parametrize(
    ('wrapper', 'expected'),
    [
        (dict(), 'AmpOptimWrapper'),
        (dict(type=OptimWrapper), 'AmpOptimWrapper'),
        (dict(type='mmengine.OptimWrapper'), 'AmpOptimWrapper'),
        (dict(type='mmattn.CPUAmpOptimWrapper'), 'AmpOptimWrapper'),  # as a run on a CPU has written it
        (dict(type='mmattn.CPUAmpTokenOptimWrapper'), 'mmattn.AmpTokenOptimWrapper'),
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


def test_another_optimizer_wrapper_is_refused():
    with pytest.raises(ValueError, match='OtherWrapper'):
        enable_amp(dict(type='OtherWrapper'))


@pytest.mark.parametrize('device', ['cpu', 'cuda'])
def test_products_are_timed_before_an_inference_in_mixed_precision_on_a_cpu(monkeypatch, device):
    """So that a slow processor is told, and mmcv's operators take bfloat16."""
    timed = []
    monkeypatch.setattr('mmattn.engine.mixed_precision.get_device', lambda: device)
    monkeypatch.setattr('mmattn.engine.mixed_precision.prepare_cpu_amp', lambda: timed.append(device))
    inference_precision(device, amp=False)
    assert timed == []
    for count, prepare in enumerate((enable_test_amp, lambda _: inference_precision(device, amp=True)), 1):
        prepare(Config(dict(test_cfg={})))
        assert timed == ['cpu'] * count * (device == 'cpu')
