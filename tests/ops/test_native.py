"""The native kernels against the reference in float64, on every instruction set that this processor has."""

import importlib
import itertools
import math

import pytest
import torch

from mmattn.ops import dispatch, dynamic_conv, library, local_attention
from mmattn.ops.gpu.collect_env import collect_env

from . import literal
from .literal import LAYOUTS, SWITCHES, assert_same, evaluate, low_precision, with_kernel

of_global = importlib.import_module('mmattn.ops.global_attention')
pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(library.UNAVAILABLE_REASON is not None, reason=str(library.UNAVAILABLE_REASON)),
]
one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)

SIZES = [(1, 1), (1, 19), (17, 1), (5, 7), (3, 16), (13, 37), (2, 65)]
KERNELS = [(3, 1), ((1, 5), 2), (5, 3), ((9, 31), 1)]  # kernel_size, dilation


def capabilities():
    """The instruction sets that the processor supports."""
    if library.UNAVAILABLE_REASON is not None:
        return []
    chosen, found = torch.ops.mmattn_native.cpu_capability(), []
    for name in library.CPU_CAPABILITIES:
        torch.ops.mmattn_native.set_cpu_capability(name)
        found.append(torch.ops.mmattn_native.cpu_capability())
    torch.ops.mmattn_native.set_cpu_capability(chosen)
    return list(dict.fromkeys(found))


@pytest.fixture(params=capabilities())
def capability(request):
    chosen = torch.ops.mmattn_native.cpu_capability()
    torch.ops.mmattn_native.set_cpu_capability(request.param)
    assert torch.ops.mmattn_native.cpu_capability() == request.param
    yield
    torch.ops.mmattn_native.set_cpu_capability(chosen)


def check(op, tensors, tolerance=None, **settings):
    """The kernels of ``op`` run, forward and backward, and give what the reference gives in float64."""
    with dispatch.kernels_run() as chosen:
        actual = evaluate(op, tensors, **settings)
    assert chosen == [op.__name__, f'{op.__name__}_backward']
    expected = evaluate(op, tensors, torch.float64, **settings)
    assert_same(actual, expected, **(tolerance or low_precision(tensors['value'].dtype)))
    return actual


def check_nan(op, tensors, **settings):
    """NaN comes out where the reference in float64 has it."""
    actual, expected = (evaluate(op, tensors, dtype, **settings) for dtype in (torch.float32, torch.float64))
    for name, x in actual.items():
        assert torch.equal(x.isnan(), expected[name].isnan()), name
    assert any(x.isnan().any() for x in actual.values())


def check_threads(run):
    """What runs with 1, 2 and 3 threads gives the same, bit by bit."""
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(run())
    torch.set_num_threads(1)
    for other in found[1:]:
        assert_same(other, found[0], 0, 0)


@pytest.fixture
def nan_first(monkeypatch):
    """Memory that torch hands out is NaN first."""
    monkeypatch.setattr(torch.utils.deterministic, 'fill_uninitialized_memory', True)
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures('capability')
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(('kernel_size', 'dilation'), KERNELS, ids=str)
@pytest.mark.parametrize('size', SIZES, ids=str)
def test_local_attention(size, kernel_size, dilation, dtype):
    for switches in SWITCHES.values():
        tensors, settings = with_kernel(size, kernel_size, 2, 2, dilation=dilation, dtype=dtype, **switches)
        check(local_attention, tensors, **settings)


def with_logits(size, kernel_size, groups=2, channels=3, dtype=torch.float32, **settings):
    """Tensors and settings of a call of ``dynamic_conv``."""
    entries = math.prod(literal.as_tuple(kernel_size, 2))
    tensors = {
        'value': literal.randn(2, groups, *size, channels, seed=1, dtype=dtype),
        'logits': literal.randn(2, groups, *size, entries, seed=2, dtype=dtype),
    }
    return tensors, {'kernel_size': kernel_size, **settings}


@pytest.mark.usefixtures('capability')
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(('kernel_size', 'dilation'), KERNELS, ids=str)
@pytest.mark.parametrize('size', SIZES, ids=str)
def test_dynamic_conv(size, kernel_size, dilation, dtype):
    for channels, layout in itertools.product((1, 18), LAYOUTS.values()):
        tensors, settings = with_logits(size, kernel_size, channels=channels, dtype=dtype, dilation=dilation)
        check(dynamic_conv, {name: layout(x) for name, x in tensors.items()}, **settings)


@pytest.mark.usefixtures('capability')
@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize('channels', [1, 4, 16, 35])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
def test_layouts(layout, channels, dtype):
    for switches in ({}, {'iterations': 3}):
        tensors, settings = with_kernel((6, 21), 3, 2, 2, value_channels=channels, dtype=dtype, **switches)
        tensors = {name: layout(x) for name, x in tensors.items()}
        out = check(local_attention, tensors, **settings)['output']
        assert out.stride() == torch.empty_like(tensors['value']).stride()


@pytest.mark.parametrize('iterations', [1, 3])
def test_one_tensor_for_keys_and_values(iterations):
    x, window_bias = literal.randn(2, 2, 6, 21, 5), literal.randn(2, 2, 6, 21, 9, seed=1)

    def shared(value, window_bias):
        return local_attention(value, value, value, window_bias=window_bias, iterations=iterations)

    shared.__name__ = 'local_attention'
    check(shared, {'value': x.float(), 'window_bias': window_bias.float()})


@pytest.mark.parametrize('fault', ['query', 'key', 'value', 'window_bias'])
def test_nan_comes_out_where_the_reference_has_it(fault):
    for iterations in (1, 3):
        tensors, settings = with_kernel((5, 21), 3, 1, 2, dtype=torch.float32, iterations=iterations)
        tensors[fault][0, 0, 2, 7, 1] = math.nan
        check_nan(local_attention, tensors, **settings)


@pytest.mark.parametrize('fault', ['value', 'logits'])
def test_nan_comes_out_of_dynamic_conv_where_the_reference_has_it(fault):
    tensors, settings = with_logits((5, 21), 3)
    tensors[fault][0, 0, 2, 7, 1] = math.nan
    check_nan(dynamic_conv, tensors, **settings)


def test_nothing_but_neg_inf_gives_0():
    tensors, settings = with_kernel((5, 21), 3, 1, 2, dtype=torch.float32)
    tensors['window_bias'][0, 0, 2] = -math.inf
    actual = check(local_attention, tensors, **settings)
    assert not actual['output'][0, 0, 2].any()
    assert all(x.isfinite().all() for x in actual.values())


@pytest.mark.usefixtures('nan_first')
def test_every_number_of_the_results_is_written():
    for size, switches in itertools.product(SIZES, SWITCHES.values()):
        tensors, settings = with_kernel(size, 3, 2, 2, dilation=2, dtype=torch.float32, **switches)
        assert all(x.isfinite().all() for x in evaluate(local_attention, tensors, **settings).values())
        tensors, settings = with_logits(size, 3, dilation=2)
        assert all(x.isfinite().all() for x in evaluate(dynamic_conv, tensors, **settings).values())


@pytest.mark.parametrize('heads', [1, 3])
def test_threads_change_no_bit(heads):
    tensors, settings = with_kernel((31, 40), 5, 1, heads, value_channels=16, dtype=torch.float32, iterations=2)
    check_threads(lambda: evaluate(local_attention, tensors, **settings))
    tensors, settings = with_logits((31, 40), 5)
    check_threads(lambda: evaluate(dynamic_conv, tensors, **settings))


@pytest.mark.parametrize('dtype', [torch.float64, torch.float16])
def test_other_dtypes_go_to_the_reference(dtype):
    tensors, settings = with_kernel((3, 4), 3, dtype=dtype)
    with dispatch.kernels_run() as chosen:
        evaluate(local_attention, tensors, **settings)
    assert not chosen


def test_maps_of_nothing_go_to_the_reference():
    assert local_attention(None, None, torch.ones(0, 2, 3, 4, 5), window_bias=torch.ones(0, 2, 3, 4, 9)).numel() == 0


def test_collect_env_tells_what_runs():
    env = collect_env()
    assert env['instruction set'] == torch.ops.mmattn_native.cpu_capability()
    assert library.FILE in env['native operators']
    assert env['local_attention'].startswith('kernel')
