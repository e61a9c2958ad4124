"""dynamic_conv against the equations written out, and what must hold for it.

The source is *An Empirical Study of Spatial Attention Mechanisms in Deep Networks*.
"""

import pytest
import torch
from torch.nn import functional as F

from mmattn.ops import dispatch, dynamic_conv

from . import literal
from .literal import assert_same, evaluate, with_logits

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)

# size, kernel_size, batch, groups
MAPS = {
    'k3': ((4, 5), 3, 2, 2),
    'k5': ((6, 4), 5, 1, 3),
    'k13': ((3, 4), 13, 2, 1),
    '3x5': ((5, 6), (3, 5), 2, 1),
    '5x1': ((6, 3), (5, 1), 1, 2),
    'k1': ((3, 4), 1, 1, 2),
    'row': ((1, 6), 3, 2, 2),
    'column': ((6, 1), 5, 1, 2),
    'single': ((1, 1), 3, 2, 2),
    'k7, inside': ((9, 8), 7, 2, 2),
    '3x5, inside': ((9, 8), (3, 5), 2, 2),
}


def to_map(x):
    """(B, groups, H, W, C) to (B, groups · C, H, W)."""
    return x.movedim(-1, 2).flatten(1, 2)


@pytest.mark.parametrize('dilation', [1, 2, 3])
@pytest.mark.parametrize('arguments', MAPS.values(), ids=MAPS)
def test_literal(arguments, dilation):
    tensors, settings = with_logits(*arguments, dilation=dilation)
    actual = evaluate(dynamic_conv, tensors, **settings)
    assert_same(actual, evaluate(literal.dynamic_conv, tensors, **settings))


@pytest.mark.parametrize(('kernel_size', 'dilation'), [(3, 1), (3, 2), ((3, 5), 1), (13, 1)], ids=str)
def test_one_kernel_for_all_positions_is_a_depth_wise_convolution(kernel_size, dilation):
    """PyTorch's, with zero padding."""
    tensors, settings = with_logits((6, 7), kernel_size, dilation=dilation)
    kernels = tensors['logits'][:1, :, :1, :1]
    sizes = literal.as_tuple(kernel_size, 2)
    weight = kernels[0, :, 0, 0].softmax(-1).view(2, 1, *sizes).repeat_interleave(3, 0)
    expected = F.conv2d(
        to_map(tensors['value']), weight, padding=[dilation * (k // 2) for k in sizes], dilation=dilation, groups=6
    )
    actual = dynamic_conv(tensors['value'], kernels.expand_as(tensors['logits']), **settings)
    torch.testing.assert_close(to_map(actual), expected, atol=1e-12, rtol=1e-12)


def test_autocast():
    tensors, settings = with_logits((4, 5), 3, dtype=torch.float32)
    with torch.autocast('cpu', torch.bfloat16):
        actual = evaluate(dynamic_conv, tensors, **settings)
    assert_same(actual, evaluate(dynamic_conv, tensors, **settings), 0, 0)


@pytest.mark.parametrize('backend', ['auto', 'reference'])
def test_a_dilation_beyond_the_map_leaves_the_centre(backend):
    """Its memory does not grow with the dilation."""
    tensors, settings = with_logits((4, 5), 3, dilation=2**40, dtype=torch.float32)
    with dispatch.backend(backend):
        found = evaluate(dynamic_conv, tensors, **settings)
        assert_same(found, evaluate(dynamic_conv, tensors, **{**settings, 'dilation': 5}))
