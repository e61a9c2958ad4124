"""The check of the CUDA kernels, tried on those for CPUs: what it finds, and what it makes of it."""

import importlib
import os
import sys
import time
from contextlib import nullcontext

import pytest
import torch

from mmattn.ops import backends, library, triton
from mmattn.ops.gpu import cases, check_gpu, verdict
from mmattn.ops.gpu.check_gpu import (
    FORWARD_AND_BACKWARD,
    check,
    compare,
    compare_all,
    isolated,
    time_all,
    timed,
)

from .literal import one_thread

pytestmark = pytest.mark.skipif(library.UNAVAILABLE_REASON is not None, reason=str(library.UNAVAILABLE_REASON))
threads = pytest.fixture(autouse=True, scope='module')(one_thread)


@pytest.fixture(autouse=True)
def undecided(monkeypatch, tmp_path):
    monkeypatch.setattr(verdict, '_choice', None)
    monkeypatch.setenv('MMATTN_CACHE', str(tmp_path / 'cache'))
    return tmp_path / 'cache'


@pytest.mark.parametrize('operator', library.KERNELS)
def test_the_kernels_for_cpus_are_found_correct(operator, capsys):
    """All cases, by kernels: none was left to the reference."""
    assert compare_all(operator, 'cpu', quick=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * len([*cases.cases(operator, 'cpu', True)])
    assert all(line.endswith(': correct') for line in lines)


def patch_reference(monkeypatch, operator, change, backward=False):
    """Have the reference of an operator compute something else; it is what the kernel is compared with."""
    of = importlib.import_module(f'mmattn.ops.{operator}').OPERATOR
    name = '_backward' if backward else '_reference'
    original = getattr(of, name)
    monkeypatch.setattr(of, name, lambda *args: change(original(*args)))


@pytest.mark.parametrize('operator', ['local_attention', 'dynamic_conv'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_a_number_that_is_off_is_found(monkeypatch, operator, dtype):
    """One number of the output, by four times what the dtype rounds it to."""

    def off(out):
        i = out.abs().argmax()
        out.view(-1)[i] *= 1 + 4 * max(torch.finfo(dtype).eps, 1e-5)
        return out

    case = next(cases.cases(operator, 'cpu', True))
    for tensors in case.tensors:
        case.tensors[tensors] = case.tensors[tensors].contiguous()
    assert compare(operator, case, dtype) == (True, '')
    patch_reference(monkeypatch, operator, off)
    ran, error = compare(operator, case, dtype)
    assert ran
    assert error.startswith('output differs by')


def test_a_wrong_gradient_is_found(monkeypatch):
    def wrong(grads):
        grads[1] = -grads[1]
        return grads

    patch_reference(monkeypatch, 'dynamic_conv', wrong, backward=True)
    found = check('dynamic_conv', 'cpu', quick=True)
    assert not found['correct']
    assert found['ratio'] is None
    assert 'gradient of logits differs by' in found['message']
    assert found['message'].endswith('(and 5 more)')
    assert verdict.reason_against(found).startswith('incorrect: ')


def test_a_result_that_is_no_number_is_found(monkeypatch):
    case = next(cases.cases('dynamic_conv', 'cpu', True))
    evaluate = check_gpu.evaluate

    def one_nan(operator, case, dtype, computed):
        found = evaluate(operator, case, dtype, computed)
        if computed == dtype:
            found['gradient of value'][0, 0, 0, 0, 0] = torch.nan
        return found

    monkeypatch.setattr(check_gpu, 'evaluate', one_nan)
    assert compare('dynamic_conv', case, torch.float32)[1].startswith('gradient of value differs by inf')


def test_a_kernel_that_raises_is_incorrect_and_the_message_is_kept(monkeypatch):
    def raises(*_, **__):
        raise RuntimeError('CUDA error: an illegal memory access\nmore')

    monkeypatch.setattr('mmattn.ops.dynamic_conv', raises)
    found = check('dynamic_conv', 'cpu', quick=True)
    assert found == {
        'correct': False,
        'ratio': None,
        'alternative': '',
        'message': 'CUDA error: an illegal memory access',
    }


def test_a_kernel_that_takes_nothing_is_not_correct(monkeypatch):
    monkeypatch.setattr(backends, 'kernels_run', lambda: nullcontext(['another_operator']))
    found = check('dynamic_conv', 'cpu', quick=True)
    assert not found['correct']
    assert found['message'] == 'the kernel supports no case'


def ends(sender, *_):
    os._exit(3)


def hangs(sender, *_):
    time.sleep(60)


@pytest.mark.parametrize(
    ('target', 'timeout', 'message'),
    [(ends, 60.0, 'the process ended with exit code 3'), (hangs, 1.0, 'no result after 1 s')],
    ids=['crashes', 'hangs'],
)
def test_a_kernel_that_takes_its_process_along_is_incorrect(monkeypatch, target, timeout, message):
    monkeypatch.setattr(check_gpu, '_send', target)
    found = isolated('dynamic_conv', 'cpu', True, timeout)
    assert not found['correct']
    assert found['message'] == message


@pytest.mark.parametrize('operator', library.KERNELS)
def test_what_a_kernel_is_timed_beside_computes_the_same(operator):
    """In values and gradients; what leaves the positions out is not counted as an alternative."""
    for work in cases.workloads(operator, 'cpu', torch.float32, quick=True):
        ours = timed(work.ours, work.inputs, FORWARD_AND_BACKWARD)()
        for name, rival in work.rivals.items():
            for a, b in zip(ours, timed(rival, work.inputs, FORWARD_AND_BACKWARD)(), strict=True):
                torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3, msg=lambda text, name=name: f'{name}: {text}')
        for rival in work.less.values():
            assert rival(*work.inputs[:3]).shape == work.ours(*work.inputs).shape


def test_the_worst_ratio_to_the_best_alternative_that_computes_the_same_counts(monkeypatch, capsys):
    times = iter(
        [
            {'kernel': 3.0, 'reference': 9.0, 'unfold': 4.0},
            {'kernel': 6.0, 'reference': 4.0, 'unfold': 5.0},
            *[{'kernel': 1.0, 'reference': 2.0, 'unfold': 2.0, 'SDPA without positions': 0.1}] * 6,
        ]
    )
    monkeypatch.setattr(check_gpu, 'medians', lambda *_: next(times))
    ratio, beside = time_all('dynamic_conv', 'cpu', quick=True)
    assert ratio == 1.5
    assert beside == 'reference (17×17, 256 channels, 8 groups, 3×3, float32, forward + backward)'
    assert ' 0.75   3000.000  dynamic_conv, 17×17' in capsys.readouterr().out


def test_an_alternative_that_does_not_run_is_none(capsys):
    def raises(*_):
        raise RuntimeError('not in this version')

    value = torch.ones(1, 1, 3, 4, 2, requires_grad=True)
    work = cases.Workload('', lambda x: x * 2, [value], {'a rival': raises})
    rivals, times = check_gpu.measure(work, 'forward', 'cpu', 1)
    assert rivals == ['reference']
    assert times.keys() == {'kernel', 'reference'}
    assert capsys.readouterr().out == 'a rival does not run: not in this version\n'


def main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, 'argv', ['check_gpu', *arguments])
    return check_gpu.main()


CORRECT = {'correct': True, 'ratio': 3.0, 'alternative': '', 'message': ''}


@pytest.mark.parametrize(
    ('found', 'code'), [(CORRECT, 0), (CORRECT | {'correct': False}, 1)], ids=['slower', 'incorrect']
)
def test_the_exit_code_tells_whether_all_are_correct(monkeypatch, undecided, found, code):
    monkeypatch.setattr(check_gpu, 'isolated', lambda name, *_: found if name == 'dynamic_conv' else CORRECT)
    assert main(monkeypatch, '--device', 'cpu') == code
    assert not undecided.exists()  # a trial on a CPU is no verdict


@pytest.fixture
def gpus(monkeypatch):
    """Three GPUs of two kinds, and kernels for them."""
    kinds = [{'gpu': name, 'library': ''} for name in ('NVIDIA A', 'NVIDIA B', 'NVIDIA A')]
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 3)
    monkeypatch.setattr(verdict, 'machine', kinds.__getitem__)
    monkeypatch.setattr(verdict, 'operators', lambda: [*library.KERNELS])
    return kinds


def test_each_kind_of_gpu_is_checked_once_and_gets_a_verdict(monkeypatch, gpus, capsys):
    devices = []
    monkeypatch.setattr(check_gpu, 'isolated', lambda name, device, quick: devices.append(device) or CORRECT)
    assert main(monkeypatch) == 0
    assert sorted(set(devices)) == ['cuda:0', 'cuda:1']
    assert len(devices) == 2 * len(library.KERNELS)
    assert verdict.read(gpus[0]) == dict.fromkeys(library.KERNELS, CORRECT)
    assert 'local_attention: reference; the kernel is slower: 3.00 times' in capsys.readouterr().out
    assert main(monkeypatch, '--once') == 0
    assert len(devices) == 2 * len(library.KERNELS)
    assert main(monkeypatch, '--device', 'cuda:2') == 0
    assert devices[-1] == 'cuda:2'


def test_a_quick_check_is_no_verdict(monkeypatch, gpus):
    monkeypatch.setattr(check_gpu, 'isolated', lambda *_: CORRECT)
    assert main(monkeypatch, '--quick') == 0
    assert verdict.read(gpus[0]) is None


@pytest.mark.parametrize(
    ('missing', 'message'),
    [
        ('gpu', 'torch .* finds no usable GPU'),
        ('build', 'they were built without CUDA.*FORCE_CUDA=1 pip install'),
        ('library', r'no CUDA kernels \(not built\), and no Triton kernels \(Triton requires a C compiler\)'),
        ('device', '--device must be one of cuda:0, cuda:1, cuda:2; got cuda:3'),
    ],
)
def test_what_is_missing_is_told(monkeypatch, gpus, missing, message):
    if missing == 'gpu':
        monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    elif missing != 'device':
        monkeypatch.setattr(verdict, 'operators', verdict.triton_kernels)
        monkeypatch.setattr(triton, 'unavailable_reason', lambda: 'Triton requires a C compiler')
        if missing == 'library':
            monkeypatch.setattr(library, 'UNAVAILABLE_REASON', 'not built')
    with pytest.raises(SystemExit, match=message):
        main(monkeypatch, '--device', 'cuda:3')


def test_a_disabled_backend_is_named(monkeypatch, capsys):
    monkeypatch.setenv('MMATTN_BACKEND', 'reference')
    with pytest.raises(SystemExit, match='2'):
        main(monkeypatch, '--device', 'cpu')
    assert 'MMATTN_BACKEND=reference disables the kernels' in capsys.readouterr().err


def test_the_whole_check_on_a_cpu(run, undecided):
    """Each operator in a process of its own; nothing of OpenMMLab is needed."""
    code = (
        'import sys; sys.modules.update(dict.fromkeys(("mmengine", "mmcv", "mmseg", "mmdet"))); '
        'from mmattn.ops import library; from mmattn.utils import check_gpu; '
        'library.KERNELS = ("dynamic_conv",); sys.exit(check_gpu.main())'
    )
    said = run(sys.executable, '-c', code, '--device', 'cpu', '--quick')
    assert 'dynamic_conv, 17×19, 5×3, dilation 2, bfloat16: correct' in said
    assert 'kernel/ms' in said
    assert not undecided.exists()
