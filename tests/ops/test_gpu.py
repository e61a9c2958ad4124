"""The kernels and compositions on a GPU, against float64 on the CPU."""

import pytest
import torch

from mmattn import ops
from mmattn.ops import backends, library, window_zscore
from mmattn.ops.gpu import cases
from mmattn.ops.gpu.cases import Case
from mmattn.ops.gpu.check_gpu import BACKENDS, compare_all, evaluate
from mmattn.ops.gpu.verdict import DTYPE_CLASSES

from ..golden.operator_calls import calls
from .literal import low_precision

if not torch.cuda.is_available():
    pytest.skip('there is no GPU', allow_module_level=True)
DEVICE = 'cuda'
KERNELS = [(operator, kernel) for operator in library.KERNELS for kernel in backends.available_kernels(operator)]
every_kernel = pytest.mark.parametrize(('operator', 'kernel'), KERNELS)
CALLS = [
    pytest.param(implementation, call, id=f'{implementation}, {name}')
    for name, call in calls().items()
    if call.operator in library.KERNELS
    for implementation in ('composition', *map(BACKENDS.get, backends.available_kernels(call.operator)))
]


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
    moved = {name: [y.to(device) for y in x] if isinstance(x, list) else x.to(device) for name, x in tensors.items()}
    return Case('', moved, settings)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(('implementation', 'call'), CALLS)
def test_a_call_on_a_gpu_gives_the_numbers_of_float64_on_a_cpu(implementation, call, dtype):
    operator = call.operator
    expected = evaluate(operator, case_of(call, 'cpu'), dtype, torch.float64)
    with backends.backend(implementation), backends.kernels_run() as kernels:
        actual = evaluate(operator, case_of(call, DEVICE), dtype, dtype)
    assert implementation == 'composition' or {operator, f'{operator}_backward'} <= set(kernels)
    for each, x in expected.items():
        torch.testing.assert_close(
            actual[each].cpu(), x, msg=lambda text, each=each: f'{each}: {text}', **low_precision(dtype)
        )


@every_kernel
@pytest.mark.parametrize('dtypes', DTYPE_CLASSES)
def test_the_check_finds_the_kernels_correct(operator, kernel, dtypes):
    assert compare_all(operator, kernel, dtypes, DEVICE, quick=True) == {}


@every_kernel
def test_two_calls_give_the_same_bits(operator, kernel):
    case = next(cases.cases(operator, DEVICE, True))
    with backends.backend(BACKENDS[kernel]):
        first, second = (evaluate(operator, case, torch.float16, torch.float16) for _ in range(2))
    assert all(torch.equal(x, second[name]) for name, x in first.items())


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize('operator', library.KERNELS)
def test_compositions_run_in_a_cuda_graph(operator, dtype):
    """Nothing synchronises, and no tensor comes from the host: the graph is captured, and replays the numbers."""
    case = next(cases.cases(operator, DEVICE, True))
    with backends.backend('composition'):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            expected = evaluate(operator, case, dtype, dtype)['output']
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        tensors = {
            name: [y.to(dtype) for y in x] if isinstance(x, list) else x.to(dtype) if x.is_floating_point() else x
            for name, x in case.tensors.items()
        }
        operation = getattr(ops, operator)
        with torch.no_grad(), torch.cuda.graph(graph, stream=stream):
            out = operation(**tensors, **case.settings)
        graph.replay()
    torch.testing.assert_close(out, expected)
