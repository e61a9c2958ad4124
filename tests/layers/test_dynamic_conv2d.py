"""DynamicConv2d against Eq. 5 to 7 with its own weights, and its counts (Table 3)."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmattn.layers import DynamicConv2d

from ..ops import literal
from .common import assert_equal_with_gradients, pointwise, randomised

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)

BN = dict(type='BN')
OPTIONS = {
    'k3': dict(kernel_size=3, groups=2),
    '3x5': dict(kernel_size=(3, 5), groups=4),
    'k13': dict(kernel_size=13, groups=1),
    'norm': dict(kernel_size=3, groups=2, norm_cfg=BN),
}


def literally(layer, x):
    wide, gate = pointwise(layer.glu, x.movedim(1, -1)).chunk(2, -1)
    u = wide / (1 + torch.exp(-gate))
    value, logits = (torch.stack(y.chunk(layer.groups, -1), 1) for y in (u, pointwise(layer.kernel, u)))
    y = literal.dynamic_conv(value, logits, kernel_size=layer.kernel_size)
    y = pointwise(layer.output, torch.cat(y.unbind(1), -1)).movedim(-1, 1)
    return x + layer.gamma * y


@pytest.mark.parametrize('options', OPTIONS.values(), ids=OPTIONS)
def test_layer_is_the_equation(options):
    layer = randomised(DynamicConv2d(4, **options))
    x = literal.randn(2, 4, 4, 5).requires_grad_()
    assert_equal_with_gradients(layer(x), literally(layer, x), x, layer)


@pytest.mark.parametrize(('channels', 'kernel_size', 'groups'), [(32, 3, 16), (64, 13, 16), (8, (3, 5), 2)], ids=str)
def test_parameters(channels, kernel_size, groups):
    """Three matrices, two biases and γ; each norm has two numbers a channel, in place of a bias."""
    entries = groups * math.prod(literal.as_tuple(kernel_size, 2))

    def count(**options):
        return sum(p.numel() for p in DynamicConv2d(channels, kernel_size, groups, **options).parameters())

    weights = channels * (2 * channels + entries + channels)
    assert count() == weights + 3 * channels + 1
    assert count(norm_cfg=BN) == weights + 2 * (3 * channels + entries) + 1


def macs(channels, kernel_size, height, width):
    """Without computing anything."""
    with torch.device('meta'), FlopCounterMode(display=False) as counter:
        DynamicConv2d(channels, kernel_size)(torch.empty(1, channels, height, width))
    assert counter.get_total_flops() % 2 == 0
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(
    ('n', 'detection', 'segmentation'),
    [(13, 244.3, 584.3), (19, 270.6, 692.1), (25, 306.8, 840.4), (31, 352.9, 1029.0)],
)
def test_multiply_accumulates_of_table_3(n, detection, segmentation):
    """In 6 + 3 bottlenecks, at 800×1344 compared with 213.7 G, and at 768×768 with 449.5 G and one more at the end."""

    def formula(channels, height, width):
        positions = height * width
        return positions * channels * (16 * n**2 + n**2 + 2 * channels + channels)

    sizes = [(256, 50, 84), (512, 25, 42), (256, 96, 96), (512, 96, 96)]
    counted = [macs(channels, n, *size) for channels, *size in sizes]
    assert counted == [formula(*size) for size in sizes]
    conv4, conv5, wide_conv4, wide_conv5 = (count / 1e9 for count in counted)
    assert 213.7 + 6 * conv4 + 3 * conv5 == pytest.approx(detection, abs=0.1)
    assert 449.5 + 6 * wide_conv4 + 4 * wide_conv5 == pytest.approx(segmentation, abs=0.1)
