"""The CUDA and Triton kernels on a GPU, against float64 on the CPU."""

import pytest
import torch

from mmattn.ops import backends, triton, window_zscore
from mmattn.ops.gpu import cases, verdict
from mmattn.ops.gpu.cases import Case
from mmattn.ops.gpu.check_gpu import compare_all, evaluate

from ..golden.operator_calls import calls
from .literal import low_precision

KERNELS = [x for x in verdict.operators() if not (x.endswith(verdict.TRITON) and triton.unavailable_reason())]
pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not KERNELS, reason='there is no GPU, or no kernels for it'
)
DEVICE = 'cuda'
CALLS = [
    (kernel, name, call)
    for kernel in KERNELS
    for name, call in calls().items()
    if call.operator == kernel.removesuffix(verdict.TRITON)
]


@pytest.fixture(autouse=True)
def kernels_run(monkeypatch, request):
    """The kernel of the test runs, regardless of verdicts, and no other one."""
    before = verdict.current_choice()
    kernel = request.getfixturevalue('kernel')
    verdict.apply_choice({each: '' if each == kernel else verdict.NOT_VERIFIED for each in verdict.operators()})
    yield
    verdict.apply_choice(dict.fromkeys(verdict.operators(), verdict.NOT_VERIFIED) if before is None else before)
    monkeypatch.setattr(verdict, '_choice', before)


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
@pytest.mark.parametrize(('kernel', 'call'), [pytest.param(x, y, id=f'{x}, {name}') for x, name, y in CALLS])
def test_a_call_on_a_gpu_gives_the_numbers_of_float64_on_a_cpu(kernel, call, dtype):
    operator = call.operator
    expected = evaluate(operator, case_of(call, 'cpu'), dtype, torch.float64)
    with backends.kernels_run() as kernels:
        actual = evaluate(operator, case_of(call, DEVICE), dtype, dtype)
    assert {operator, f'{operator}_backward'} <= set(kernels)
    for each, x in expected.items():
        torch.testing.assert_close(
            actual[each].cpu(), x, msg=lambda text, each=each: f'{each}: {text}', **low_precision(dtype)
        )


@pytest.mark.parametrize('kernel', KERNELS)
def test_the_check_finds_the_kernels_correct(kernel):
    assert compare_all(kernel.removesuffix(verdict.TRITON), DEVICE, quick=True)


@pytest.mark.parametrize('kernel', KERNELS)
def test_two_calls_give_the_same_bits(kernel):
    operator = kernel.removesuffix(verdict.TRITON)
    case = next(cases.cases(operator, DEVICE, True))
    first, second = (evaluate(operator, case, torch.float16, torch.float16) for _ in range(2))
    assert all(torch.equal(x, second[name]) for name, x in first.items())
