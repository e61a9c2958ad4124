"""Two thousand random calls of the operators on views of one storage: expanded, transposed, overlapping, offset.

Each gives what the reference gives for contiguous copies, forward and backward.
"""

import random

import pytest
import torch

from mmattn.ops import dispatch
from mmattn.ops.patterns import PATTERNS, strided_offsets

from . import literal, zscored
from .literal import assert_same, evaluate, low_precision

pytestmark = pytest.mark.kernels

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
CALLS = 400  # of each operator
STORAGE = {dtype: literal.randn(2**15, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)}


class Views:
    """Draws the tensors of one call, most of them views of one storage of random numbers."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.dtype = self.random.choice((torch.float32, torch.float32, torch.bfloat16))
        self.last = None

    def any(self, *options):
        return self.random.choice(options)

    def side(self):
        return self.any(1, 2, 3, 4, 5)

    def view(self, *shape):
        """A view of a shape: any dimension may be expanded, any order of them in memory, steps that overlap or skip."""
        kind = self.any('dense', 'transposed', 'transposed', 'expanded', 'expanded', 'overlapping', 'like the last')
        if kind == 'like the last' and self.last is not None and self.last.shape == shape:
            return self.last
        order = list(range(len(shape)))
        if kind != 'dense':
            self.random.shuffle(order)
        strides, step = [0] * len(shape), 1
        for dim in order:
            strides[dim] = step
            step *= shape[dim]
        if kind == 'expanded':
            for dim in self.random.sample(range(len(shape)), self.any(1, 1, 2, len(shape))):
                strides[dim] = 0
        if kind == 'overlapping':
            strides = [self.any(0, 1, 2, 3, stride) for stride in strides]
        offset = self.any(0, 0, 0, self.random.randrange(100))
        self.last = STORAGE[self.dtype].as_strided(shape, strides, offset)
        return self.last


def global_attention(draw, batch, heads, size, channels):
    is_causal = draw.any(False, True)
    key_size = size if is_causal else draw.any(size, tuple(draw.side() for _ in size))
    settings = {'is_causal': is_causal}
    position = {}
    if key_size == size and draw.any(False, True):
        window_size = draw.any(1, 3)
        entries = window_size ** len(size)
        position['window_bias'] = draw.view(batch, heads, *size, (entries + 1) // 2 if is_causal else entries)
        position['outside_bias'] = draw.view(batch, heads, *size)
        settings |= {'window_size': window_size, 'normalize': draw.any(False, True)}
    if draw.any(False, True):
        position['axis_bias'] = tuple(draw.view(batch, heads, *size, side) for side in key_size)
    if draw.any(False, True):
        position['key_bias'] = draw.view(batch, heads, *key_size)
    return content(draw, batch, heads, size, channels, key_size) | position, settings


def content(draw, batch, heads, size, channels, key_size=None):
    key_size = key_size or size
    return {
        'query': draw.view(batch, heads, *size, channels),
        'key': draw.view(batch, heads, *key_size, channels),
        'value': draw.view(batch, heads, *key_size, draw.any(channels, channels, 3)),
    }


def grid_attention(draw, batch, heads, size, channels):
    tensors, settings = content(draw, batch, heads, size, channels), {}
    if draw.any(False, True):
        window_size = draw.any(1, 3)
        tensors['window_bias'] = draw.view(batch, heads, *size, len(size) * (window_size - 1) + 1)
        tensors['outside_bias'] = draw.view(batch, heads, *size)
        settings = {'window_size': window_size, 'normalize': draw.any(False, True)}
    return tensors, settings


def local_attention(draw, batch, heads, size, channels):
    tensors = content(draw, batch, heads, size, channels)
    settings = {'kernel_size': draw.any(1, 3), 'dilation': draw.any(1, 2), 'iterations': draw.any(1, 1, 2, 3)}
    if draw.any(False, True):
        tensors['window_bias'] = draw.view(batch, heads, *size, settings['kernel_size'] ** 2)
    return tensors, settings


def strided_attention(draw, batch, heads, size, channels):
    tensors = content(draw, batch, heads, size, channels)
    settings = {'pattern': draw.any(*PATTERNS), 'step': draw.any(1, 2, 3)}
    if draw.any(False, True):
        offsets = strided_offsets(size, settings['step'], settings['pattern'])
        tensors['offset_bias'] = tuple(draw.view(batch, heads, *size, len(x)) for x in offsets)
    return tensors, settings


def dynamic_conv(draw, batch, heads, size, channels):
    tensors = {'value': draw.view(batch, heads, *size, channels), 'logits': draw.view(batch, heads, *size, 9)}
    return tensors, {'kernel_size': 3, 'dilation': draw.any(1, 2)}


AXES = {global_attention: (1, 2, 3), grid_attention: (2, 3), strided_attention: (1, 2, 3)}


def contiguous(x):
    return tuple(map(contiguous, x)) if isinstance(x, tuple) else x.double().contiguous()


@pytest.mark.parametrize('make', [global_attention, local_attention, dynamic_conv, grid_attention, strided_attention])
def test_views_of_one_storage(make):
    op = zscored.operator(make.__name__)
    for seed in range(CALLS):
        draw = Views(seed)
        size = tuple(draw.side() for _ in range(draw.any(*AXES.get(make, (2,)))))
        tensors, settings = make(draw, draw.any(1, 2), draw.any(1, 2, 3), size, draw.any(1, 2, 4))
        actual = evaluate(op, tensors, **settings)
        with dispatch.backend('reference'):
            expected = evaluate(op, {name: contiguous(x) for name, x in tensors.items()}, **settings)
        tolerance = low_precision(draw.dtype)
        for name, x in expected.items():
            # Sums of up to 25 products are rounded by the size of their summands, which may cancel.
            atol = 6 * tolerance['atol'] * max(1, x.abs().max().item())
            assert_same(
                {f'{name} of call {seed}': actual[name]}, {f'{name} of call {seed}': x}, **tolerance | {'atol': atol}
            )
