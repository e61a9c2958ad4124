"""Triton's kernels in its interpreter, on the CPU: the calls of the contract that they support, from the equations.

The interpreter must be chosen before Triton is imported, so another process evaluates all calls.
"""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from mmattn.ops import triton

from . import literal
from .literal import assert_same, evaluate, low_precision, randn
from .test_contract import ALL, given

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(find_spec('triton') is None, reason='Triton is not installed'),
]
one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
DTYPES = {'float32': torch.float32, 'float16': torch.float16}  # the interpreter's products of bfloat16 are wrong


def large(size, key_size=None, channels=5, window=None, **settings):
    """A call of several tiles: tensors and settings."""
    shapes = {'query': (*size, channels), 'key': (*(key_size or size), channels), 'value': (*(key_size or size), 17)}
    if window:
        entries = window ** len(size)
        shapes['window_bias'] = (*size, (entries + 1) // 2 if settings.get('is_causal') else entries)
        shapes['outside_bias'] = size
        settings['window_size'] = window
    return {name: randn(2, 1, *shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}, settings


def on_axes(size):
    return tuple(randn(2, 1, *size, n, seed=9 + axis) for axis, n in enumerate(size))


def cases():
    """Tensors and settings by title."""
    found = {name: given(call) for name, call in ALL.items() if call.operator == 'global_attention'}
    found['tiles, 1d'] = large((150,), window=5)
    found['tiles, 1d, causal'] = large((150,), window=5, is_causal=True)
    found['tiles, 2d'] = large((13, 11), window=3)
    found['tiles, 2d, few queries'] = large((3, 11), key_size=(13, 11), window=3, is_causal=True)
    found['tiles, 3d, axis logits'] = large((3, 5, 9), window=3)
    found['tiles, 3d, axis logits'][0]['axis_bias'] = on_axes((3, 5, 9))
    found['tiles, key at other positions'] = large((9, 8), key_size=(5, 20))
    return found


CASES = cases()


def evaluate_all(path):
    """Write outputs, gradients and the names of the kernels that ran; in the interpreter."""
    from mmattn.ops import native

    from . import zscored

    found = {}
    for name, (tensors, settings) in CASES.items():
        for dtype in DTYPES.values():
            with native.backend('triton'), native.kernels_run() as kernels:
                result = evaluate(zscored.global_attention, rounded(tensors, dtype), **settings)
            found[name, dtype] = result, kernels
    torch.save(found, path)


def rounded(tensors, dtype):
    return {name: tuple(y.to(dtype) for y in x) if isinstance(x, tuple) else x.to(dtype)
            for name, x in tensors.items()}  # fmt: skip


@pytest.fixture(scope='module')
def interpreted(tmp_path_factory):
    path = tmp_path_factory.mktemp('triton') / 'found.pt'
    code = f'from {__name__} import evaluate_all; evaluate_all({str(path)!r})'
    done = subprocess.run(
        [sys.executable, '-c', code],
        env={**os.environ, 'TRITON_INTERPRET': '1', 'OMP_NUM_THREADS': '1'},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    return torch.load(path)


@pytest.mark.slow
@pytest.mark.parametrize('dtype', DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize('name', CASES)
def test_values_and_gradients_are_those_of_the_equation(interpreted, name, dtype):
    tensors, settings = CASES[name]
    actual, kernels = interpreted[name, dtype]
    assert kernels == ['global_attention', 'global_attention_backward']
    expected = evaluate(literal.global_attention, rounded(tensors, dtype), torch.float64, **settings)
    largest = max(1, *(x.abs().max().item() for x in expected.values()))
    tolerance = low_precision(dtype)
    if dtype == torch.float16:
        # weights and gradients of logits are rounded before they are multiplied
        tolerance['atol'] *= 2
    # the z-score of few keys multiplies its gradients
    assert_same(actual, expected, **tolerance | {'atol': 4 * tolerance['atol'] * largest})
