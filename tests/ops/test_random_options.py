"""Two thousand random calls of the operators: each agrees with the reference in float64.

Most tensors are in some layout, or are views of one storage: expanded, transposed, overlapping, offset.
"""

import inspect
import random

import pytest
import torch

from mmattn import ops
from mmattn.ops import library

from ..support.comparison import evaluate
from ..support.operator_calls import operator, random_call
from . import literal
from .literal import LAYOUTS, assert_same, low_precision

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
STORAGE = {dtype: literal.randn(2**20, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)}
VIEWS = ('transposed', 'expanded', 'overlapping', 'the last one')


def views(chance, dtype):
    """Draw tensors of any layout in memory, or views of one storage."""
    last = None

    def draw(*shape, **_):
        nonlocal last
        layout = chance.choice(('contiguous', *LAYOUTS, *VIEWS))
        if layout in VIEWS:
            if layout != 'the last one' or last is None or last.shape != shape:
                last = view(shape, layout)
            return last
        x = literal.randn(*shape, seed=chance.randrange(2**16), dtype=dtype)
        return x if layout == 'contiguous' or x.dim() != 5 else LAYOUTS[layout](x)

    def view(shape, kind):
        """A view of a shape: any dimension may be expanded, in any order in memory, by steps that overlap or skip."""
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
        limit = STORAGE[dtype].numel() - offset - 1
        if sum(stride * (side - 1) for stride, side in zip(strides, shape)) > limit:  # a skipping step of many numbers
            strides = [0] * len(shape)
        return STORAGE[dtype].as_strided(shape, strides, offset)

    return draw


def check_calls(name, check, count):
    """Call ``check`` with each of ``count`` random calls of an operator."""
    for number in range(count):
        chance = random.Random(number)
        call = random_call(name, chance, views(chance, chance.choice((torch.float32, torch.bfloat16))))
        try:
            check(operator(name), call)
        except Exception as error:
            raise AssertionError(f'call {number} of {name}: {call.settings}') from error


@pytest.mark.kernels
@pytest.mark.parametrize('name', library.KERNELS)
def test_four_hundred_calls(name):
    def check(op, call):
        actual = evaluate(op, call.tensors, **call.settings)
        expected = evaluate(op, call.tensors, torch.float64, **call.settings)
        tolerance = low_precision(call.tensors['value'].dtype)
        for key, x in expected.items():
            # Logits of many channels are above order 1, and a sum is rounded by the size of its summands.
            atol = 4 * tolerance['atol'] * literal.largest(x)
            assert_same({key: actual[key]}, {key: x}, **tolerance | {'atol': atol})

    check_calls(name, check, 400)


@pytest.mark.parametrize('name', library.KERNELS)
def test_random_calls_have_every_option(name):
    """Each tensor that may be absent is there and not there, and each setting has several values."""
    found = {}
    for number in range(200):
        call = random_call(name, random.Random(number))
        for option in inspect.signature(getattr(ops, name)).parameters.values():
            value = call.settings.get(option.name, option.name in call.tensors or option.default)
            found.setdefault(option.name, set()).add(value)
    always = {'value', 'logits'} | ({'query', 'key'} if name != 'local_attention' else set())
    assert {option for option, values in found.items() if len(values) < 2} <= always
