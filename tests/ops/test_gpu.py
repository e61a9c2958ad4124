"""The kernels and compositions on a GPU, against float64 on the CPU.

Without a GPU, the compositions run on the CPU as they do on a GPU, beside the kernels for CPUs, so that this file is
right when a GPU comes. In Triton's interpreter, its kernels run, too: ``test_triton.py``.
"""

import functools
from contextlib import contextmanager

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from mmattn import ops
from mmattn.ops import dispatch, library, reports, table_attention, window_zscore
from mmattn.ops.dispatch import HALF
from mmattn.ops.gpu import cases
from mmattn.ops.gpu.cases import Case
from mmattn.ops.gpu.check_gpu import (
    DTYPE_CLASSES,
    compare_all,
    errors_in_tolerances,
    evaluate,
    kernels_of,
    reference,
)

from . import literal
from .literal import low_precision
from .operator_calls import calls

pytestmark = pytest.mark.kernels
one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
GPU = torch.cuda.is_available()
DEVICE = torch.device('cuda' if GPU else 'cpu')
DTYPES = [torch.float32, *HALF]
KERNELS = [(operator, kernel) for operator in library.KERNELS for kernel in kernels_of(operator, DEVICE)]
every_kernel = pytest.mark.parametrize(('operator', 'kernel'), KERNELS)
every_dtype = pytest.mark.parametrize('dtype', DTYPES, ids=str)
CALLS = [
    pytest.param(implementation, call, id=f'{implementation}, {name}')
    for name, call in calls().items()
    if call.operator in library.KERNELS
    for implementation in ('composition', *kernels_of(call.operator, DEVICE))
]
IMPLEMENTATIONS = [
    (operator, x) for operator in library.KERNELS for x in ('composition', *kernels_of(operator, DEVICE))
]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """The compositions call PyTorch's attention."""
    monkeypatch.setattr(table_attention, 'uses_sdpa', lambda device: True)


def changed(tensors, change):
    """Change each tensor of a call, and each of a list of them."""
    return {name: [*map(change, x)] if isinstance(x, list) else change(x) for name, x in tensors.items()}


def case_of(call, device):
    """A call with the z-score computed before, as it has no kernel."""
    tensors, settings = dict(call.tensors), dict(call.settings)
    for listed in ('axis_bias', 'offset_bias'):
        if parts := [name for name in tensors if name.startswith(listed)]:
            tensors[listed] = [tensors.pop(name) for name in parts]
    if settings.pop('zscore', False):
        given = {name: settings[name] for name in ('key_mask', 'is_causal') if name in settings}
        outside = tensors.pop('outside_bias', settings.pop('outside_bias', 0.0))
        tensors['window_bias'], tensors['outside_bias'] = window_zscore(
            tensors['window_bias'],
            settings['window_size'],
            outside,
            support=call.operator.removesuffix('_attention'),
            **given,
        )
    if 'key_mask' in settings:
        tensors['key_mask'] = settings.pop('key_mask')
    return Case('', changed(tensors, lambda x: x.to(device)), settings)


def supported(operator, kernel, case, dtype):
    """Whether a kernel should run a call."""
    if kernel == 'triton':
        dtypes = HALF if GPU else (torch.float32, torch.float16)  # its interpreter's bfloat16 is wrong
        return dtype in dtypes and case.settings.get('iterations', 1) == 1
    if kernel == 'native' and not GPU:
        return dtype != torch.float16
    if kernel == 'native':
        given = {**case.tensors, **case.settings}
        return not any(name in given for name in reports.LACKING.get(operator, ()))
    return True


def assert_as_in_float64(operator, implementation, case, dtype, start=lambda x: x):
    """Outputs and all gradients of a case on the CPU; the kernel runs if it should. ``start`` changes the operands."""
    runs = supported(operator, implementation, case, dtype)
    expected, tolerances = reference(operator, case, dtype)
    moved = changed(case.tensors, lambda x: start(x.to(DEVICE, dtype if x.is_floating_point() else None)))
    # What was selected alone runs, or is an error; so elsewhere the table selects.
    backend = implementation if runs else 'auto'
    with dispatch.backend(f'{operator}={backend}'), dispatch.kernels_run() as kernels:
        actual = evaluate(operator, Case('', moved, case.settings), dtype, dtype)
    assert {name: x for name, x in errors_in_tolerances(actual, expected, tolerances).items() if x > 1} == {}
    if implementation != 'composition' and (runs or GPU):  # on a CPU, the table selects a kernel for CPUs
        assert ({operator, f'{operator}_backward'} <= set(kernels)) == runs


@every_dtype
@pytest.mark.parametrize(('implementation', 'call'), CALLS)
def test_a_call_on_a_gpu_gives_the_numbers_of_float64_on_a_cpu(implementation, call, dtype):
    assert_as_in_float64(call.operator, implementation, case_of(call, 'cpu'), dtype)


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def global_case(size=(8, 8), channels=(64, 64), window=3, **settings):
    tensors = {name: randn(2, 1, *size, c) for name, c in zip(('query', 'key', 'value'), (channels[0], *channels))}
    if window:
        tensors['window_bias'] = randn(2, 1, *size, window ** len(size))
        settings['window_size'] = window
    return Case('', tensors, settings)


def without_keys(size):
    """The second sample has no keys."""
    case = global_case(size)
    case.tensors['key_mask'] = torch.ones(2, *size, dtype=torch.bool)
    case.tensors['key_mask'][1] = False
    return case


UNUSUAL = {
    'a sample without keys, 64': ('global_attention', without_keys((8, 8))),
    'a sample without keys, 81': ('global_attention', without_keys((9, 9))),
    'blocks of keys of -inf': ('global_attention', global_case((24, 24), outside_bias=-torch.inf)),
    'odd channels': ('global_attention', global_case((9, 7), (33, 17))),
    '256 channels': ('global_attention', global_case((11, 12), (256, 256))),
    'queries without keys': (
        'strided_attention',
        Case(
            '',
            {'query': randn(1, 2, 4, 11, 16), 'key': randn(1, 2, 4, 5, 16), 'value': randn(1, 2, 4, 5, 16)},
            {'pattern': 'block', 'step': 3},
        ),
    ),
}


@every_dtype
@pytest.mark.parametrize(
    ('operator', 'implementation', 'name'),
    [(operator, x, name) for name, (operator, _) in UNUSUAL.items() for o, x in IMPLEMENTATIONS if o == operator],
)
def test_unusual_calls(operator, implementation, name, dtype):
    assert_as_in_float64(operator, implementation, UNUSUAL[name][1], dtype)


@every_dtype
@pytest.mark.parametrize(('operator', 'implementation'), IMPLEMENTATIONS)
def test_operands_that_start_anywhere(operator, implementation, dtype):
    """A view that begins at an odd element of its storage gives the numbers of a copy."""

    def shifted(x):
        return torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape)

    assert_as_in_float64(operator, implementation, next(cases.cases(operator, 'cpu', True)), dtype, shifted)


@every_kernel
@pytest.mark.parametrize('dtypes', DTYPE_CLASSES)
def test_the_report_finds_the_kernels_correct(operator, kernel, dtypes):
    ran, errors = compare_all(operator, kernel, dtypes, DEVICE.type, quick=True)
    assert ran == (kernel != 'triton' or (dtypes == '16 bit') == GPU)
    assert errors == []


@every_kernel
def test_two_calls_give_the_same_bits(operator, kernel):
    case = next(cases.cases(operator, DEVICE.type, True))
    dtype = torch.float16 if GPU or kernel == 'triton' else torch.float32
    with dispatch.backend(f'{operator}={kernel}'):
        first, second = (evaluate(operator, case, dtype, dtype) for _ in range(2))
    assert all(torch.equal(x, second[name]) for name, x in first.items())


def prepared(operator, dtype):
    """What a call on the GPU gives: output and gradients."""
    case = next(cases.cases(operator, DEVICE.type, True))
    tensors = changed(case.tensors, lambda x: x.to(dtype).requires_grad_())
    leaves = [y for x in tensors.values() for y in (x if isinstance(x, list) else [x])]

    def both(call=lambda function: function()):
        out = call(functools.partial(getattr(ops, operator), **tensors, **case.settings))
        return [out.detach(), *torch.autograd.grad(out.float().sin().sum(), leaves)]

    return both


@contextmanager
def side_stream():
    """Work within is on another stream, which waits for the current one, and the reverse."""
    if not GPU:
        yield
        return
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def captured(call):
    """What a call gives when a CUDA graph of it is replayed."""
    if not GPU:
        return call()
    with side_stream():
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    graph.replay()
    return results


some_dtypes = pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
every_operator = pytest.mark.parametrize('operator', library.KERNELS)


@some_dtypes
@every_operator
def test_side_streams_and_checkpointing(operator, dtype):
    both = prepared(operator, dtype)
    expected = both()
    with side_stream():
        aside = both()
    again = both(lambda function: checkpoint(function, use_reentrant=False))
    for actual in (aside, again):
        for x, y in zip(actual, expected):
            torch.testing.assert_close(x, y)


@some_dtypes
@every_operator
def test_compositions_run_in_a_cuda_graph(operator, dtype):
    """Nothing synchronises, and no tensor comes from the host: the graph is captured, and replays the numbers."""
    case = next(cases.cases(operator, DEVICE.type, True))
    tensors = changed(case.tensors, lambda x: x.to(dtype) if x.is_floating_point() else x)
    call = functools.partial(getattr(ops, operator), **tensors, **case.settings)
    with torch.no_grad(), dispatch.backend(f'{operator}=composition'):
        torch.testing.assert_close(captured(call), call())


def test_more_than_two_to_the_31_elements():
    batch, side, k = (3, 129, 217) if GPU else (3, 9, 5)  # 3 · 129² · 217² = 2.35e9 biases
    x = torch.randn(batch, 1, side, side, 8, device=DEVICE, dtype=torch.bfloat16)
    window = torch.randn(batch, 1, side, side, k * k, device=DEVICE, dtype=torch.bfloat16).div_(8)
    whole = ops.global_attention(x, x, x, window_bias=window, window_size=k)
    last = ops.global_attention(x[2:], x[2:], x[2:], window_bias=window[2:], window_size=k)
    torch.testing.assert_close(whole[2:], last, **low_precision(torch.bfloat16))


def test_65536_groups():
    """More than a grid of blocks has on one axis. Two of the groups are those of a small map."""
    size = (8, 16, 128, 128) if GPU else (2, 3, 6, 6)
    x = torch.randn(1, *size, 8, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
    out = ops.strided_attention(x, x, x, pattern='block', step=(1, 2, 2))
    (grad,) = torch.autograd.grad(out.float().square().sum(), x)
    y = x[:, -1:, -1:, -2:, -2:].detach().requires_grad_()
    small = ops.strided_attention(y, y, y, pattern='block', step=(1, 2, 2))
    (expected,) = torch.autograd.grad(small.float().square().sum(), y)
    torch.testing.assert_close(out[:, -1:, -1:, -2:, -2:], small, **low_precision(torch.bfloat16))
    torch.testing.assert_close(grad[:, -1:, -1:, -2:, -2:], expected, **low_precision(torch.bfloat16))
