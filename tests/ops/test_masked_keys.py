"""Keys and values that no query attends to may hold anything: results and gradients are as if they were 0."""

import math

import pytest
import torch

from mmattn import ops
from mmattn.ops import dispatch, export

from ..support.comparison import evaluate
from ..support.operator_calls import make
from . import literal
from .literal import arguments, assert_same
from .test_native import capabilities

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
NATIVE = [*capabilities()]


def call(operator, size, *biases, **settings):
    return make(operator, size, *biases, batch=2, heads=2, channels=5, value_channels=5, **settings)


# Sizes: several tiles of keys; whole vectors of 16 and a rest.
CALLS = {
    'global_attention': lambda: call('global_attention', (400,), 'key_bias', return_lse=True),
    'global_attention, is_causal': lambda: call('global_attention', (3, 5, 4), is_causal=True),
    'global_attention, window': lambda: call('global_attention', (9, 7), 'window_bias', window_size=3),
    'local_attention': lambda: call('local_attention', (5, 35), kernel_size=3, return_lse=True),
    'local_attention, refined': lambda: call(
        'local_attention', (6, 7), 'window_bias', kernel_size=3, iterations=2, dilation=2
    ),
}


NUMBERS = 0, math.nan, math.inf, -math.inf


def masked_call(name, mask_by, dtype):
    """Operands, settings, and by name the entries that nothing may depend on."""
    tensors, settings = literal.given(CALLS[name]())
    size = tensors['key'].shape[2:-1]
    mask = torch.rand(2, *size, generator=torch.Generator().manual_seed(1)) > 0.5
    masked = dict.fromkeys(('key', 'value'), ~mask[:, None, ..., None])
    if mask_by == 'key_mask':
        settings['key_mask'] = mask
        if 'key_bias' in tensors:
            masked['key_bias'] = ~mask[:, None]
    else:
        tensors.pop('key_bias', None)
        settings['key_bias'] = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -math.inf)[:, None]
    return {name: x.to(dtype) for name, x in tensors.items()}, settings, masked


def poisoned(tensors, masked, number):
    return {name: x.masked_fill(masked[name], number) if name in masked else x for name, x in tensors.items()}


def check(op, name, mask_by, dtype):
    tensors, settings, masked = masked_call(name, mask_by, dtype)
    expected = evaluate(op, poisoned(tensors, masked, 0), **settings)
    assert all(x.isfinite().all() for key, x in expected.items() if key != 'lse')
    for key, entries in masked.items():
        assert not expected[f'd_{key}'].masked_select(entries).any(), key
    for number in NUMBERS[1:]:
        assert_same(evaluate(op, poisoned(tensors, masked, number), **settings), expected, 0, 0)


CASES = [('key_mask', name) for name in CALLS] + [('key_bias', name) for name in CALLS if 'global' in name]
PATHS = [(path, dtype) for path in NATIVE for dtype in (torch.float32, torch.bfloat16, torch.float64)]
PATHS += [(path, dtype) for path in ('reference', 'composition') for dtype in (torch.float32, torch.float64)]


@pytest.mark.parametrize(('mask_by', 'name'), CASES)
@pytest.mark.parametrize(('path', 'dtype'), PATHS, ids=str)
def test_masked_keys_and_values_reach_nothing(path, dtype, mask_by, name):
    op = getattr(ops, name.partition(',')[0])
    if path not in NATIVE:
        with dispatch.backend(path):
            check(op, name, mask_by, dtype)
        return
    chosen = torch.ops.mmattn_native.cpu_capability()
    torch.ops.mmattn_native.set_cpu_capability(path)
    try:
        check(op, name, mask_by, dtype)
    finally:
        torch.ops.mmattn_native.set_cpu_capability(chosen)


@pytest.mark.parametrize(('mask_by', 'name'), CASES)
def test_masked_keys_and_values_reach_nothing_in_an_exported_graph(mask_by, name):
    operator = name.partition(',')[0]
    composition = export.COMPOSITIONS[dispatch.OPERATORS[operator].run]
    tensors, settings, masked = masked_call(name, mask_by, torch.float32)
    expected, *found = (
        composition(*arguments(operator, **poisoned(tensors, masked, number), **settings)) for number in NUMBERS
    )
    for outputs in found:
        assert all(map(torch.equal, outputs, expected))
