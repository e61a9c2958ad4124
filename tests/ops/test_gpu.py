"""The CUDA kernels on a GPU, against float64 on the CPU."""

import pytest
import torch

from mmattn.ops import native, verdict, window_zscore
from mmattn.utils.check_gpu import OPERATORS, compare_all, evaluate
from mmattn.utils.gpu_cases import Case

from ..golden.operator_calls import calls
from .literal import low_precision

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not verdict.operators(), reason='there is no GPU, or no kernels for it'
)
DEVICE = 'cuda'
CALLS = {name: call for name, call in calls().items() if call.operator in OPERATORS}


@pytest.fixture(autouse=True)
def kernels_run(monkeypatch):
    """All kernels run, regardless of verdicts."""
    before = verdict.settled()
    verdict.settle(dict.fromkeys(verdict.operators(), ''))
    yield
    verdict.settle(dict.fromkeys(verdict.operators(), verdict.NOT_VERIFIED) if before is None else before)
    monkeypatch.setattr(verdict, '_settled', before)


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
@pytest.mark.parametrize('name', CALLS)
def test_a_call_on_a_gpu_gives_the_numbers_of_float64_on_a_cpu(name, dtype):
    operator = CALLS[name].operator
    expected = evaluate(operator, case_of(CALLS[name], 'cpu'), dtype, torch.float64)
    with native.kernels_run() as kernels:
        actual = evaluate(operator, case_of(CALLS[name], DEVICE), dtype, dtype)
    assert {operator, f'{operator}_backward'} <= set(kernels)
    for each, x in expected.items():
        torch.testing.assert_close(
            actual[each].cpu(), x, msg=lambda text, each=each: f'{each}: {text}', **low_precision(dtype)
        )


@pytest.mark.parametrize('operator', OPERATORS)
def test_the_check_finds_the_kernels_correct(operator):
    assert compare_all(operator, DEVICE, quick=True)
