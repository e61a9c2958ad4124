"""The kernels and compositions on a GPU, against float64 on the CPU.

Without a GPU, the compositions run on the CPU as they do on a GPU, beside the kernels for CPUs, so that this file is
right when a GPU comes. In Triton's interpreter, its kernels run, too: ``test_triton.py``.
"""

import functools
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from mmattn import layers, ops
from mmattn.ops import dispatch, library, table_attention
from mmattn.ops.dispatch import HALF, kernels_of

from ..support.comparison import differences, errors, evaluate
from ..support.operator_calls import all_calls, each, large_calls, randn
from . import literal
from .literal import low_precision

pytestmark = pytest.mark.kernels
one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
GPU = torch.cuda.is_available()
DEVICE = torch.device('cuda' if GPU else 'cpu')
DTYPES = [torch.float32, *HALF]
KERNELS = [(operator, kernel) for operator in library.KERNELS for kernel in kernels_of(operator, DEVICE)]
every_kernel = pytest.mark.parametrize(('operator', 'kernel'), KERNELS)
every_dtype = pytest.mark.parametrize('dtype', DTYPES, ids=str)
IMPLEMENTATIONS = [
    (operator, x) for operator in library.KERNELS for x in ('composition', *kernels_of(operator, DEVICE))
]
FURTHER = [
    pytest.param(implementation, call, id=f'{implementation}, {operator}: {call.title}')
    for operator, implementation in IMPLEMENTATIONS
    for call in [*all_calls(operator)][1:]
]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """The compositions call PyTorch's attention."""
    monkeypatch.setattr(table_attention, 'uses_sdpa', lambda device: True)


def supported(call, kernel, dtype):
    """Whether a kernel should run a call."""
    if kernel == 'triton':
        dtypes = HALF if GPU else (torch.float32, torch.float16)  # its interpreter's bfloat16 is wrong
        return dtype in dtypes and call.settings.get('iterations', 1) == 1
    if kernel == 'native' and not GPU:
        return dtype != torch.float16
    if kernel == 'native':
        given = {**call.tensors, **call.settings}
        return not any(name in given for name in dispatch.OPERATORS[call.operator].cuda_lacks)
    return True


def assert_as_in_float64(call, implementation, dtype, layout=lambda x: x):
    """Outputs and all gradients of a call on the CPU; the kernel runs if it should."""
    found = errors(call, dtype, implementation, DEVICE, layout)
    runs = supported(call, implementation, dtype)
    if runs or GPU:  # on a CPU, the table selects a kernel for CPUs
        assert (found is not None) == runs
    found = errors(call, dtype, 'auto', DEVICE, layout) if found is None else found
    assert {name: x for name, x in found.items() if x > 1} == {}


@every_dtype
@pytest.mark.parametrize(('operator', 'implementation'), IMPLEMENTATIONS)
def test_a_call_on_a_gpu_gives_the_numbers_of_float64_on_a_cpu(operator, implementation, dtype):
    assert_as_in_float64(next(all_calls(operator)), implementation, dtype)


@every_dtype
@pytest.mark.parametrize(('implementation', 'call'), FURTHER)
def test_further_calls(implementation, call, dtype):
    """Each has sizes and options of its own, so that Triton compiles it: gpu_run.sh has a part for them."""
    assert_as_in_float64(call, implementation, dtype)


LAYOUTS = {
    'a view from an odd element on': lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
    'channels first': lambda x: x.movedim(-1, 2).contiguous().movedim(2, -1) if x.dim() > 3 else x,
    'half of the channels': lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
}


@every_dtype
@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize(('operator', 'implementation'), IMPLEMENTATIONS)
def test_operands_of_any_layout(operator, implementation, layout, dtype):
    """A view of another storage gives the numbers of a copy."""
    assert_as_in_float64(next(large_calls(operator)), implementation, dtype, LAYOUTS[layout])


@every_kernel
def test_two_calls_give_the_same_bits(operator, kernel):
    call = next(large_calls(operator, DEVICE.type))
    dtype = torch.float16 if GPU or kernel == 'triton' else torch.float32
    with dispatch.backend(f'{operator}={kernel}'):
        first, second = (evaluate(getattr(ops, operator), call.tensors, dtype, **call.settings) for _ in range(2))
    assert all(torch.equal(x, second[name]) for name, x in first.items())


def prepared(operator, dtype):
    """What a call on the GPU gives: output and gradients."""
    call = next(large_calls(operator, DEVICE.type))

    def both(run=lambda function: function()):
        def function(**arguments):
            return run(functools.partial(getattr(ops, operator), **arguments))

        return evaluate(function, call.tensors, dtype, **call.settings)

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


def assert_close(actual, expected):
    for name, x in actual.items():
        torch.testing.assert_close(x, expected[name])


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
        assert_close(actual, expected)


@some_dtypes
@every_operator
def test_another_thread_and_deterministic_algorithms(operator, dtype):
    both = prepared(operator, dtype)
    expected = both()
    with ThreadPoolExecutor(1) as pool:
        assert_close(pool.submit(both).result(60), expected)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        first, second = both(), both()
    finally:
        torch.use_deterministic_algorithms(False)
    assert_close(first, expected)
    assert all(torch.equal(x, second[name]) for name, x in first.items())


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize(
    ('layer', 'shape'),
    [
        (partial(layers.BilateralNonLocal2d, 32, window_size=7), (2, 32, 13, 12)),
        (partial(layers.BilateralCrissCrossAttention, 32, window_size=7), (2, 32, 13, 12)),
        (partial(layers.LocalBilateralAttention, 32, share=True, iterations=3), (2, 32, 13, 12)),
        (partial(layers.TransformerAttention2d, 32, 4, '1111'), (2, 32, 9, 8)),
        (partial(layers.GridAttention3d, 32), (1, 3, 6, 7, 32)),
        (partial(layers.StridedAttention3d, 32), (1, 3, 6, 7, 32)),
    ],
    ids=lambda x: x.func.__name__ if isinstance(x, partial) else '',
)
def test_a_layer_under_autocast_is_itself_in_float64_on_a_cpu(layer, shape, dtype):
    torch.manual_seed(0)
    layer = layer()
    for parameter in layer.parameters():
        if parameter.numel() == 1:
            torch.nn.init.ones_(parameter)  # the initial 0 would make the layer the identity
    tensors = {'x': randn(*shape), **dict(layer.named_parameters())}

    def call(x, **parameters):
        frames = {'frame_numbers': torch.arange(x.shape[1], device=x.device)[None]} if x.dim() == 5 else {}
        return torch.func.functional_call(layer, parameters, (x,), frames)

    layer.double()  # its buffers
    expected = evaluate(call, tensors, torch.float64)
    layer.float().to(DEVICE)
    autocast = torch.autocast(DEVICE.type, dtype, enabled=dtype != torch.float32)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        actual = evaluate(autocast(call), each(tensors, lambda x: x.to(DEVICE, torch.float32)))
    limit = 1e-3 if dtype == torch.float32 else 0.2
    assert {name: x for name, x in differences(actual, expected).items() if not x <= limit} == {}


@some_dtypes
@every_operator
def test_compositions_run_in_a_cuda_graph(operator, dtype):
    """Nothing synchronises, and no tensor comes from the host: the graph is captured, and replays the numbers."""
    drawn = next(large_calls(operator, DEVICE.type))
    tensors = each(drawn.tensors, lambda x: x.to(dtype))
    call = functools.partial(getattr(ops, operator), **tensors, **drawn.settings)
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
