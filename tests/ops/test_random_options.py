"""Two thousand random calls of the operators: each agrees with the reference in float64, or raises what is documented.

Most tensors are in some layout, or are views of one storage: expanded, transposed, overlapping, offset.
"""

import math
import random

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from mmattn.ops import dynamic_conv, local_attention, strided_attention
from mmattn.ops.patterns import PATTERNS, strided_offsets

from . import literal
from .literal import LAYOUTS, assert_same, evaluate, low_precision
from .zscored import global_attention, grid_attention

pytestmark = pytest.mark.kernels

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
SIDES = st.sampled_from((1, 2, 3, 4, 5, 7, 8, 11, 16, 17))
CHANNELS = st.sampled_from((1, 2, 3, 4, 7, 8, 16, 17))
ODD = st.sampled_from((1, 3, 5, 9, 21))
MAYBE = st.booleans()
STORAGE = {dtype: literal.randn(2**20, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)}
VIEWS = ('transposed', 'expanded', 'overlapping', 'the last one')
SCALES = st.sampled_from((None, 0.0, 0.3, 1.0))


class Call:
    """Draws the tensors and settings of a call."""

    def __init__(self, draw, axes):
        self.draw = draw
        self.axes = draw(axes)
        self.dtype = draw(st.sampled_from((torch.float32, torch.bfloat16)))
        self.tensors, self.settings, self.last = {}, {}, None
        self.batch, self.heads = draw(st.integers(1, 2)), draw(st.integers(1, 3))

    def size(self):
        """Sides of a map, of a few hundred positions at most."""
        sides = [self.draw(SIDES) for _ in range(self.axes)]
        while math.prod(sides) > 300:
            sides[sides.index(max(sides))] = 2
        return tuple(sides)

    def randn(self, *shape):
        """Numbers of a random layout in memory, or a view of one storage."""
        seed, layout = self.draw(st.integers(0, 2**16)), self.draw(st.sampled_from(('contiguous', *LAYOUTS, *VIEWS)))
        if layout in VIEWS:
            return self.view(shape, layout, random.Random(seed))
        x = literal.randn(*shape, seed=seed, dtype=self.dtype)
        if layout == 'contiguous' or x.dim() != 5:
            return x
        return LAYOUTS[layout](x)

    def view(self, shape, kind, chance):
        """A view of a shape: any dimension may be expanded, in any order in memory, by steps that overlap or skip."""
        if kind == 'the last one' and self.last is not None and self.last.shape == shape:
            return self.last
        order, strides, step = chance.sample(range(len(shape)), len(shape)), [0] * len(shape), 1
        for dim in order:
            strides[dim] = step
            step *= shape[dim]
        if kind == 'expanded':
            for dim in chance.sample(order, chance.choice((1, 1, 2, len(shape)))):
                strides[dim] = 0
        if kind == 'overlapping':
            strides = [chance.choice((0, 1, 2, 3, stride)) for stride in strides]
        offset = chance.choice((0, 0, 0, chance.randrange(100)))
        limit = STORAGE[self.dtype].numel() - offset - 1
        if sum(stride * (side - 1) for stride, side in zip(strides, shape)) > limit:  # a skipping step of many numbers
            strides = [0] * len(shape)
        self.last = STORAGE[self.dtype].as_strided(shape, strides, offset)
        return self.last

    def map(self, size, *channels):
        return self.randn(self.batch, self.heads, *size, *channels)

    def content(self, size, key_size):
        channels = self.draw(CHANNELS)
        self.tensors.update(query=self.map(size, channels), key=self.map(key_size, channels))
        self.settings.update(scale=self.draw(SCALES), return_lse=self.draw(MAYBE))

    def value(self, size):
        self.tensors['value'] = self.map(size, self.draw(CHANNELS))

    def lengths(self, of):
        """One number, or one for each axis."""
        return self.draw(of) if self.draw(MAYBE) else tuple(self.draw(of) for _ in range(self.axes))

    def window_bias(self, size, entries):
        """Window logits and what goes with them, or nothing."""
        if not self.draw(MAYBE):
            return
        window_size = self.lengths(ODD)
        self.settings['window_size'] = window_size
        self.tensors['window_bias'] = self.map(size, entries(literal.as_tuple(window_size, self.axes)))
        outside_bias = self.draw(st.sampled_from(('learned', 0.0, 0.7, -math.inf)))
        if outside_bias == 'learned':
            self.tensors['outside_bias'] = self.map(size)
        else:
            self.settings['outside_bias'] = outside_bias
        self.settings['normalize'] = outside_bias != -math.inf and self.draw(MAYBE)

    def key_mask(self, size):
        if self.draw(MAYBE):
            share = self.draw(st.sampled_from((0.0, 0.3, 0.9)))
            self.tensors['key_mask'] = self.randn(self.batch, *size).double().abs() > share

    def check(self, op):
        """Run it, or a call with something wrong in it."""
        wrong = self.draw(st.sampled_from((*[None] * 6, *FAULTS)))
        if wrong is None:
            actual = evaluate(op, self.tensors, **self.settings)
            expected = evaluate(op, self.tensors, torch.float64, **self.settings)
            tolerance = low_precision(self.dtype)
            for name, x in expected.items():
                # Logits of many channels are above order 1, and a sum is rounded by the size of its summands.
                atol = 4 * tolerance['atol'] * literal.largest(x)
                assert_same({name: actual[name]}, {name: x}, **tolerance | {'atol': atol})
        elif (changed := FAULTS[wrong](self.tensors, self.settings)) is not None:
            tensors, settings = changed
            with pytest.raises((TypeError, ValueError)):
                op(**tensors, **settings)


def change(name, to):
    """A fault in a tensor, if it is there."""
    return lambda tensors, settings: (tensors | {name: to(tensors[name])}, settings) if name in tensors else None


def even(tensors, settings):
    """An even window."""
    for name in {'window_size', 'kernel_size'} & settings.keys():
        return tensors, settings | {name: 4}
    return None


FAULTS = {
    'an even window': even,
    'keys of another dtype': change('key', lambda x: x.double()),
    'a query without channels': change('query', lambda x: x[..., 0]),
    'one entry too many': change('window_bias', lambda x: torch.cat([x, x[..., :1]], -1)),
    'entries that are integers': change('window_bias', lambda x: x.int()),
    'other heads': change('key', lambda x: torch.cat([x, x], 1)),
    'another batch': change('logits', lambda x: torch.cat([x, x], 0)),
}


@st.composite
def global_calls(draw):
    call = Call(draw, st.integers(1, 3))
    size = key_size = call.size()
    is_causal = draw(MAYBE)
    call.settings['is_causal'] = is_causal
    call.window_bias(size, lambda sizes: (math.prod(sizes) + 1) // 2 if is_causal else math.prod(sizes))
    if 'window_bias' not in call.tensors and not is_causal:
        key_size = call.size()
    call.content(size, key_size)
    call.value(key_size)
    if draw(MAYBE):
        call.tensors['axis_bias'] = tuple(call.map(size, side) for side in key_size)
    if draw(MAYBE):
        call.tensors['key_bias'] = call.map(key_size)
    call.key_mask(key_size)
    return call


@st.composite
def grid_calls(draw):
    call = Call(draw, st.integers(2, 3))
    size = call.size()
    call.content(size, size)
    call.value(size)
    call.window_bias(size, lambda sizes: sum(sizes) - len(sizes) + 1)
    return call


@st.composite
def local_calls(draw):
    call = Call(draw, st.just(2))
    size = call.size()
    content = draw(MAYBE)
    if content:
        call.content(size, size)
        call.settings['iterations'] = draw(st.sampled_from((1, 1, 2, 3)))
    else:
        call.tensors.update(query=None, key=None)
    call.value(size)
    call.settings.update(kernel_size=call.lengths(ODD), dilation=draw(st.integers(1, 4)))
    if not content or draw(MAYBE):
        entries = math.prod(literal.as_tuple(call.settings['kernel_size'], 2))
        call.tensors['window_bias'] = call.map(size, entries) if draw(MAYBE) else call.randn(call.heads, entries)
    call.key_mask(size)
    for name in ('query', 'key'):
        if call.tensors[name] is None:
            call.settings[name] = call.tensors.pop(name)
    return call


@st.composite
def strided_calls(draw):
    call = Call(draw, st.integers(1, 3))
    size, key_size = call.size(), call.size()
    step = call.lengths(st.integers(1, 9))
    if draw(MAYBE):
        key_size = size
        step = draw(st.sampled_from((step, None)))
    pattern = draw(st.sampled_from(PATTERNS))
    call.content(size, key_size)
    call.value(key_size)
    call.settings.update(pattern=pattern, step=step)
    if draw(MAYBE):
        offsets = strided_offsets(size, step, pattern, key_size)
        call.tensors['offset_bias'] = tuple(call.map(size, len(x)) for x in offsets)
    return call


@st.composite
def dynamic_conv_calls(draw):
    call = Call(draw, st.just(2))
    size = call.size()
    call.value(size)
    call.settings.update(kernel_size=call.lengths(ODD), dilation=draw(st.integers(1, 4)))
    call.tensors['logits'] = call.map(size, math.prod(literal.as_tuple(call.settings['kernel_size'], 2)))
    return call


CALLS = {
    'global_attention': (global_attention, global_calls()),
    'grid_attention': (grid_attention, grid_calls()),
    'local_attention': (local_attention, local_calls()),
    'strided_attention': (strided_attention, strided_calls()),
    'dynamic_conv': (dynamic_conv, dynamic_conv_calls()),
}


def check_calls(name, check, count):
    """Call ``check`` with an operator and each of ``count`` random calls of it."""
    operator, calls = CALLS[name]
    settings = hypothesis.settings(
        max_examples=count,
        derandomize=True,  # the same calls in every run: what fails here fails again
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    settings(hypothesis.given(calls)(lambda call: check(operator, call)))()


@pytest.mark.parametrize('name', CALLS)
def test_four_hundred_calls(name):
    check_calls(name, lambda operator, call: call.check(operator), 400)
