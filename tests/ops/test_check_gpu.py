"""The report on the kernels for GPUs, tried on the kernels for CPUs."""

import importlib
import os
import sys

import pytest
import torch

from mmattn.ops import dispatch, library, operator_calls, testing
from mmattn.ops.gpu import check_gpu
from mmattn.ops.gpu.check_gpu import DTYPE_CLASSES, Finding, check, compare_all, isolated, selected
from mmattn.utils import profiling

from .literal import one_thread

pytestmark = pytest.mark.skipif(library.UNAVAILABLE_REASON is not None, reason=str(library.UNAVAILABLE_REASON))
threads = pytest.fixture(autouse=True, scope='module')(one_thread)
ARGUMENTS = ('dynamic_conv', 'native', 'float32', 'cpu', True)


@pytest.mark.parametrize('dtypes', DTYPE_CLASSES)
@pytest.mark.parametrize('operator', library.KERNELS)
def test_the_kernels_for_cpus_are_found_correct(operator, dtypes):
    assert compare_all(operator, 'native', dtypes, 'cpu', quick=True) == (True, [])


def patch_reference(monkeypatch, operator, change, backward=False):
    """Have the reference of an operator compute something else: the kernel is compared with it."""
    declaration = importlib.import_module(f'mmattn.ops.{operator}').OPERATOR
    name = '_backward' if backward else '_forward'
    original = getattr(declaration, name)
    monkeypatch.setattr(declaration, name, lambda *args, **exact: change(original(*args, **exact)))


@pytest.mark.parametrize('operator', ['local_attention', 'dynamic_conv'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_a_wrong_number_is_found(monkeypatch, operator, dtype):
    """One number of the output, by eight times what the dtype rounds the largest one to."""

    def off(outputs):
        out = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        out.view(-1)[0] += 8 * max(torch.finfo(dtype).eps, 1e-5) * out.abs().max()
        return outputs

    call = next(operator_calls.large_calls(operator))
    call.tensors = operator_calls.each(call.tensors, torch.Tensor.contiguous)
    assert max(testing.errors(call, dtype, 'native').values()) <= 1
    patch_reference(monkeypatch, operator, off)
    assert [name for name, error in testing.errors(call, dtype, 'native').items() if error > 1] == ['output']


def test_a_wrong_gradient_is_found(monkeypatch):
    def wrong(grads):
        grads[1] = -grads[1]
        return grads

    patch_reference(monkeypatch, 'dynamic_conv', wrong, backward=True)
    finding = check(*ARGUMENTS)
    assert 'gradient of logits differs by' in finding.error
    assert finding.error.endswith('(and 5 more)')


def test_a_result_that_is_no_number_is_found(monkeypatch):
    call, evaluate = next(operator_calls.large_calls('dynamic_conv')), testing.evaluate

    def one_nan(function, tensors, dtype=None, **settings):
        results = evaluate(function, tensors, dtype, **settings)
        if dtype is None:
            results['d_value'][0, 0, 0, 0, 0] = torch.nan
        return results

    monkeypatch.setattr(testing, 'evaluate', one_nan)
    errors = testing.errors(call, torch.float32, 'native')
    assert [name for name, error in errors.items() if error > 1] == ['d_value']
    assert errors['d_value'] == torch.inf


def ends(*_):
    """A check whose process ends, as by a kernel that crashes."""
    os._exit(3)


@pytest.mark.slow
def test_a_kernel_that_ends_its_process_is_reported(monkeypatch):
    monkeypatch.setattr(check_gpu, 'check', ends)
    finding = isolated(*ARGUMENTS)
    assert 'terminated abruptly' in finding.error
    assert finding.ratios == {}
    assert not finding.is_correct


def test_a_triton_kernel_that_does_not_compile_says_why(monkeypatch):
    monkeypatch.setattr(check_gpu, 'compare_all', lambda *_: (False, []))
    key = 'dynamic_conv', torch.float32, ()
    monkeypatch.setitem(dispatch._failures, key, 'the kernel failed: no such file: ptxas')
    assert check(*ARGUMENTS) == Finding('the kernel failed: no such file: ptxas', {})


def test_the_case_with_the_largest_ratio_counts(monkeypatch):
    """Of two cases, the times of the kernel in both passes, and of the composition."""
    times = iter([2.0, 3.0, 4.0, 4.0, 9.0, 1.0, 10.0, 8.0])
    monkeypatch.setattr(profiling, 'milliseconds', lambda call, most: next(times))
    assert check_gpu.time_all(*ARGUMENTS) == {'forward': 0.9, 'backward': 0.75}


FAST, SLOW = ({'forward': x, 'backward': 0.5} for x in (0.5, 2.0))


@pytest.mark.parametrize(
    ('findings', 'expected'),
    [
        ([Finding('', FAST), Finding('', FAST)], 'dynamic_conv=native'),
        ([Finding('', FAST), Finding('', SLOW)], ''),  # in one class
        ([Finding('output differs by 3', FAST, False), Finding('', FAST)], ''),
        ([Finding('CUDA error', {}, False), Finding('', FAST)], ''),
        ([Finding('the kernel supports no case', {}), Finding('', FAST)], 'dynamic_conv=native'),
    ],
)
def test_the_last_line_selects_fast_correct_kernels(findings, expected):
    found = {('dynamic_conv', 'native'): dict(zip(DTYPE_CLASSES, findings))}
    assert selected(found) == expected


def test_an_operator_with_two_fast_kernels_is_selected_once():
    fast, slow = ({'16 bit': Finding('', {'forward': x, 'backward': x})} for x in (0.5, 2.0))
    both = {('local_attention', 'native'): fast, ('local_attention', 'triton'): fast}
    assert selected(both) == 'local_attention=native'
    assert selected({**both, ('local_attention', 'native'): slow}) == 'local_attention=triton'


@pytest.mark.slow
def test_the_whole_report_on_a_cpu(monkeypatch, capsys):
    """Its last line is a value of MMATTN_BACKEND."""
    arguments = ['--device', 'cpu', '--quick', '--operators', 'dynamic_conv', '--dtypes', 'float32']
    monkeypatch.setattr(sys, 'argv', ['check_gpu', *arguments])
    assert check_gpu.main() == 0
    *_, row, last = capsys.readouterr().out.splitlines()
    assert row.startswith('dynamic_conv, native')
    name, _, value = last.partition('=')
    assert name == 'MMATTN_BACKEND'
    with dispatch.backend(value):
        pass


def test_an_incorrect_kernel_is_an_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['check_gpu', '--device', 'cpu', '--operators', 'dynamic_conv'])
    monkeypatch.setattr(check_gpu, 'isolated', lambda *_: Finding('output differs by 3 times', {}, False))
    assert check_gpu.main() == 1
    assert 'output differs by 3 times' in capsys.readouterr().out


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(sys, 'argv', ['check_gpu'])
    with pytest.raises(SystemExit, match='finds no usable GPU'):
        check_gpu.main()
