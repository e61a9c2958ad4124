"""The check of the kernels for GPUs, tried on the kernels for CPUs; and which kernel its findings select."""

import importlib
import json
import os
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from mmattn.ops import backends, library, triton
from mmattn.ops.gpu import cases, check_gpu, verdict
from mmattn.ops.gpu.check_gpu import check, compare, compare_all, isolated, time_all
from mmattn.ops.gpu.verdict import Finding, Key

from .literal import one_thread

pytestmark = pytest.mark.skipif(library.UNAVAILABLE_REASON is not None, reason=str(library.UNAVAILABLE_REASON))
threads = pytest.fixture(autouse=True, scope='module')(one_thread)
ARGUMENTS = ('dynamic_conv', 'cuda', ['float32'], 'cpu', True)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv('MMATTN_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(backends, '_selection', None)
    return tmp_path / 'cache'


# What is found


@pytest.mark.parametrize('dtypes', verdict.DTYPE_CLASSES)
@pytest.mark.parametrize('operator', library.KERNELS)
def test_the_kernels_for_cpus_are_found_correct(operator, dtypes):
    assert compare_all(operator, 'cuda', dtypes, 'cpu', quick=True) == {}


def patch_reference(monkeypatch, operator, change, backward=False):
    """Have the reference of an operator compute something else: the kernel is compared with it."""
    declaration = importlib.import_module(f'mmattn.ops.{operator}').OPERATOR
    name = '_backward' if backward else '_reference'
    original = getattr(declaration, name)
    monkeypatch.setattr(declaration, name, lambda *args: change(original(*args)))


@pytest.mark.parametrize('operator', ['local_attention', 'dynamic_conv'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_a_wrong_number_is_found(monkeypatch, operator, dtype):
    """One number of the output, by four times what the dtype rounds it to. Then the gradients are wrong, too."""

    def off(out):
        i = out.abs().argmax()
        out.view(-1)[i] *= 1 + 4 * max(torch.finfo(dtype).eps, 1e-5)
        return out

    case = next(cases.cases(operator, 'cpu', True))
    for tensors in case.tensors:
        case.tensors[tensors] = case.tensors[tensors].contiguous()
    assert compare(operator, case, dtype) == (True, {})
    patch_reference(monkeypatch, operator, off)
    ran, errors = compare(operator, case, dtype)
    assert ran
    assert errors.keys() == set(verdict.PASSES)
    assert errors['forward'].startswith('output differs by')


def test_a_wrong_gradient_is_an_error_of_the_backward_pass_alone(monkeypatch):
    def wrong(grads):
        grads[1] = -grads[1]
        return grads

    patch_reference(monkeypatch, 'dynamic_conv', wrong, backward=True)
    findings = check(*ARGUMENTS)
    forward, backward = (findings[Key('dynamic_conv', 'cuda', 'float32', x)] for x in verdict.PASSES)
    assert forward.state in ('faster', 'slower')
    assert backward.state == 'incorrect'
    assert 'gradient of logits differs by' in backward.message
    assert backward.message.endswith('(and 2 more)')


def test_a_result_that_is_no_number_is_found(monkeypatch):
    case = next(cases.cases('dynamic_conv', 'cpu', True))
    evaluate = check_gpu.evaluate

    def one_nan(operator, case, dtype, computed):
        results = evaluate(operator, case, dtype, computed)
        if computed == dtype:
            results['gradient of value'][0, 0, 0, 0, 0] = torch.nan
        return results

    monkeypatch.setattr(check_gpu, 'evaluate', one_nan)
    errors = compare('dynamic_conv', case, torch.float32)[1]
    assert errors == {'backward': 'gradient of value differs by inf times the tolerance'}


def raising(error):
    def function(*_, **__):
        raise error

    return function


@pytest.mark.parametrize(
    ('where', 'error', 'state', 'message'),
    [
        (
            'mmattn.ops.dynamic_conv',
            RuntimeError('CUDA error: an illegal memory access\nmore'),
            'incorrect',
            'CUDA error: an illegal memory access',
        ),
        ('mmattn.ops.dynamic_conv', torch.cuda.OutOfMemoryError('CUDA: tried'), 'not measured', 'out of memory'),
        (
            'mmattn.ops.dynamic_conv',
            RuntimeError('mmattn::x has no kernel for these tensors'),
            'not measured',
            'the kernel supports no case',
        ),
        (
            'mmattn.ops.gpu.check_gpu.medians',
            RuntimeError('the composition fails'),
            'not measured',
            'the composition fails',
        ),
        ('mmattn.ops.gpu.check_gpu.medians', torch.cuda.OutOfMemoryError('tried'), 'not measured', 'out of memory'),
    ],
    ids=['kernel fails', 'memory', 'no support', 'composition fails', 'memory of the times'],
)
def test_only_a_kernel_is_incorrect(monkeypatch, where, error, state, message):
    monkeypatch.setattr(where, raising(error))
    findings = check(*ARGUMENTS)
    assert set(findings.values()) == {Finding(state, message=message)}


def ends(sender, *_):
    os._exit(3)


def hangs(sender, *_):
    time.sleep(60)


@pytest.mark.parametrize(
    ('target', 'timeout', 'finding'),
    [
        (ends, 60.0, Finding('incorrect', message='the process ended with exit code 3')),
        (hangs, 1.0, Finding('not measured', message='no result after 1 s')),
    ],
    ids=['crashes', 'hangs'],
)
def test_a_kernel_whose_process_ends(monkeypatch, target, timeout, finding):
    monkeypatch.setattr(check_gpu, '_send', target)
    findings = isolated(*ARGUMENTS, timeout)
    assert set(findings.values()) == {finding}
    assert len(findings) == 2


def test_the_worst_workload_counts(monkeypatch):
    times = iter(
        [
            {'kernel': 3.0, 'composition': 9.0},
            {'kernel': 1.0, 'composition': 2.0},
            {'kernel': 2.0, 'composition': 5.0},
            {'kernel': 3.0, 'composition': 2.0},
        ]
    )
    monkeypatch.setattr(check_gpu, 'medians', lambda *_: next(times))
    second = '17×17, 256 channels, 16 groups, 5×5'
    assert time_all('dynamic_conv', 'cuda', 'float32', 'cpu', quick=True) == {
        'forward': Finding('faster', 2.0, 5.0, second),
        'backward': Finding('slower', 3.0, 2.0, second),
    }


# What is selected

FAST, FASTEST = Finding('faster', 4.0, 8.0, 'P1'), Finding('faster', 3.0, 8.0, 'P1')
SLOW, WRONG = Finding('slower', 9.0, 8.0, 'P1'), Finding('incorrect', message='off by 3')
UNKNOWN = Finding('not measured', message='out of memory')


@pytest.mark.parametrize(
    ('cuda', 'triton', 'selected', 'reasons'),
    [
        (FAST, None, 'cuda', {'triton': 'not checked on this GPU'}),
        (None, FAST, 'triton', {'cuda': 'not checked on this GPU'}),
        (FAST, FASTEST, 'triton', {'cuda': 'slower than triton: 0.50 and 0.38 times the time of the composition'}),
        (FASTEST, FAST, 'cuda', {'triton': 'slower than cuda: 0.50 and 0.38 times the time of the composition'}),
        (SLOW, FAST, 'triton', {'cuda': 'slower: 1.12 times the time of the composition'}),
        (WRONG, FAST, 'triton', {'cuda': 'incorrect: off by 3'}),
        (UNKNOWN, FAST, 'triton', {'cuda': 'not measured: out of memory'}),
        (
            SLOW,
            WRONG,
            'composition',
            {'cuda': 'slower: 1.12 times the time of the composition', 'triton': 'incorrect: off by 3'},
        ),
        (None, UNKNOWN, 'composition', {'cuda': 'not checked on this GPU', 'triton': 'not measured: out of memory'}),
        (None, None, 'composition', {'cuda': 'not checked on this GPU', 'triton': 'not checked on this GPU'}),
    ],
)
def test_the_fastest_correct_kernel_replaces_a_slower_composition(cuda, triton, selected, reasons):
    key = ('global_attention', 'float32', 'backward')
    findings = {
        Key(key[0], kernel, *key[1:]): finding
        for kernel, finding in (('cuda', cuda), ('triton', triton))
        if finding is not None
    }
    assert verdict.select(findings, *key, ['cuda', 'triton']) == (selected, reasons)
    # Other passes, dtype classes and operators were not checked; a kernel that is not installed is not selected.
    for other in (
        ('global_attention', 'float32', 'forward'),
        ('global_attention', '16 bit', 'backward'),
        ('grid_attention', 'float32', 'backward'),
    ):
        assert verdict.select(findings, *other, ['cuda', 'triton'])[0] == 'composition'
    assert verdict.select(findings, *key, []) == ('composition', {})


# Files

KIND = {'gpu': 'NVIDIA Fake/1', 'capability': '9.0', 'torch': '2.13.0', 'cuda': '13.0', 'triton': '3.7.0'}
CUDA, TRITON = (
    Key('global_attention', 'cuda', 'float32', 'forward'),
    Key('grid_attention', 'triton', '16 bit', 'forward'),
)


def test_findings_are_added_to_a_verdict():
    path = verdict.write(KIND, {CUDA: SLOW})
    verdict.write(KIND, {TRITON: FAST})
    assert verdict.read(KIND) == {CUDA: SLOW, TRITON: FAST}
    assert path.name.startswith('NVIDIA-Fake-1-')
    verdict.write(KIND, {CUDA: FAST})
    assert verdict.read(KIND) == {CUDA: FAST, TRITON: FAST}


@pytest.mark.parametrize('changed', KIND)
def test_a_verdict_is_valid_for_one_kind_of_gpu_and_its_software(changed):
    verdict.write(KIND, {CUDA: FAST})
    assert verdict.read(KIND | {changed: 'other'}) == {}


@pytest.mark.parametrize(('changed', 'kept'), [('cuda', TRITON), ('triton', CUDA)])
def test_a_finding_is_valid_for_the_sources_of_its_kernel(monkeypatch, changed, kept):
    verdict.write(KIND, {CUDA: FAST, TRITON: FAST})
    hashes = verdict.sources() | {changed: 'other sources'}
    monkeypatch.setattr(verdict, 'sources', lambda: hashes)
    assert verdict.read(KIND) == {kept: FAST}


def test_the_sources_are_hashed(monkeypatch, tmp_path):
    for name in ('csrc/checks.h', 'csrc/cuda/tiles.cu', 'triton/launch.py'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('a')
    monkeypatch.setattr(verdict, 'OPS', tmp_path)
    before = verdict.sources.__wrapped__()
    (tmp_path / 'csrc/cuda/tiles.cu').write_text('b')
    after = verdict.sources.__wrapped__()
    assert before['cuda'] != after['cuda']
    assert before['triton'] == after['triton']


def test_a_verdict_of_the_package_is_used_and_the_users_comes_first(monkeypatch, tmp_path):
    path = verdict.write(KIND, {CUDA: FAST, TRITON: FAST})
    monkeypatch.setattr(verdict, 'SHIPPED', tmp_path)
    path.rename(tmp_path / 'any.json')
    assert verdict.read(KIND) == {CUDA: FAST, TRITON: FAST}
    verdict.write(KIND, {CUDA: SLOW})
    assert verdict.read(KIND) == {CUDA: SLOW, TRITON: FAST}
    path.write_text('half a fi')  # not a verdict
    assert verdict.read(KIND) == {CUDA: FAST, TRITON: FAST}


def test_a_failed_write_leaves_the_verdict_as_it_was(monkeypatch):
    path = verdict.write(KIND, {CUDA: FAST})
    before = path.read_bytes()
    monkeypatch.setattr(os, 'replace', raising(OSError(28, 'No space left on device')))
    with pytest.raises(OSError, match='No space left on device'):
        verdict.write(KIND, {CUDA: SLOW})
    assert [file.read_bytes() for file in path.parent.iterdir()] == [before]
    assert json.loads(before)['machine'] == KIND


def test_the_cache_is_that_of_the_system(monkeypatch, tmp_path):
    monkeypatch.delenv('MMATTN_CACHE')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'xdg'))
    assert verdict.verdict_path(KIND).parent == tmp_path / 'xdg/mmattn/verdicts'
    monkeypatch.delenv('XDG_CACHE_HOME')
    monkeypatch.setenv('HOME', str(tmp_path))
    assert verdict.verdict_path(KIND).parent == tmp_path / '.cache/mmattn/verdicts'


# The command


def main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, 'argv', ['check_gpu', *arguments])
    return check_gpu.main()


@pytest.mark.parametrize(('finding', 'code'), [(SLOW, 0), (WRONG, 1)], ids=['slower', 'incorrect'])
def test_the_exit_code_says_whether_all_are_correct(monkeypatch, cache, finding, code):
    def isolated(operator, kernel, dtypes, *_):
        return {Key(operator, kernel, each, x): finding for each in dtypes for x in verdict.PASSES}

    monkeypatch.setattr(check_gpu, 'isolated', isolated)
    assert main(monkeypatch, '--device', 'cpu') == code
    assert not cache.exists()  # a trial on a CPU is no verdict


@pytest.fixture
def checked(monkeypatch):
    """Three GPUs of two kinds, and kernels for them. Lists what is checked; all kernels are found faster."""
    gpus = [SimpleNamespace(name=name, major=9, minor=0) for name in ('NVIDIA A', 'NVIDIA B', 'NVIDIA A')]
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 3)
    monkeypatch.setattr(torch.cuda, 'get_device_properties', gpus.__getitem__)
    monkeypatch.setattr(triton, 'unavailable_reason', lambda: '')
    monkeypatch.setattr(triton, 'version', lambda: '3.7.0')
    monkeypatch.setattr(library, 'has_kernel', lambda name, device='cpu': True)
    calls = []

    def isolated(operator, kernel, dtypes, device, quick):
        calls.append((operator, kernel, *dtypes, device))
        return {Key(operator, kernel, each, x): FAST for each in dtypes for x in verdict.PASSES}

    monkeypatch.setattr(check_gpu, 'isolated', isolated)
    return calls


BOTH = verdict.DTYPE_CLASSES


def test_by_default_the_kernels_that_may_be_faster_are_checked(monkeypatch, checked, capsys):
    assert main(monkeypatch, '--device', 'cuda:1') == 0
    assert checked == [
        ('dynamic_conv', 'cuda', *BOTH, 'cuda:1'),
        ('global_attention', 'triton', *BOTH, 'cuda:1'),
        ('grid_attention', 'triton', *BOTH, 'cuda:1'),
        ('local_attention', 'cuda', *BOTH, 'cuda:1'),
        ('strided_attention', 'triton', *BOTH, 'cuda:1'),
    ]
    assert 'dynamic_conv, cuda                          0.50 ' in capsys.readouterr().out


def test_options_select_operators_kernels_and_dtypes(monkeypatch, checked):
    assert main(monkeypatch, '--kernels', 'cuda', '--operators', 'grid_attention', '--dtypes', 'float32') == 0
    assert main(monkeypatch, '--kernels', 'triton', '--device', 'cuda:2', '--operators', 'grid_attention') == 0
    assert checked == [
        ('grid_attention', 'cuda', 'float32', 'cuda:0'),  # each kind of GPU once
        ('grid_attention', 'cuda', 'float32', 'cuda:1'),
        ('grid_attention', 'triton', *BOTH, 'cuda:2'),
    ]


def test_an_interrupted_check_is_resumed(monkeypatch, checked, capsys):
    """What was found is written after each kernel; dtype classes that were not checked are checked."""
    isolated, interrupted = check_gpu.isolated, iter([False, True])

    def once(*arguments):
        if next(interrupted):
            raise KeyboardInterrupt
        return isolated(*arguments)

    monkeypatch.setattr(check_gpu, 'isolated', once)
    with pytest.raises(KeyboardInterrupt, match='Run the same command again to resume'):
        main(monkeypatch, '--device', 'cuda:1', '--dtypes', 'float32')
    monkeypatch.setattr(check_gpu, 'isolated', isolated)
    checked.clear()
    arguments = '--device', 'cuda:1', '--operators', 'dynamic_conv', 'local_attention'
    assert main(monkeypatch, *arguments, '--dtypes', 'float32') == 0
    assert checked == [('local_attention', 'cuda', 'float32', 'cuda:1')]
    assert 'dynamic_conv, cuda: checked before' in capsys.readouterr().out
    assert main(monkeypatch, *arguments) == 0
    assert main(monkeypatch, *arguments) == 0
    assert main(monkeypatch, *arguments, '--again') == 0
    assert [dtypes for _, _, *dtypes, _ in checked[1:]] == [['16 bit']] * 2 + [[*BOTH]] * 2


def test_a_quick_check_is_no_verdict(monkeypatch, checked, cache):
    assert main(monkeypatch, '--quick') == 0
    assert checked
    assert not cache.exists()


@pytest.mark.parametrize(
    ('missing', 'message'),
    [
        ('gpu', 'torch .* finds no usable GPU'),
        ('kernels', 'there is no kernel to check.*FORCE_CUDA=1 pip install'),
        ('device', '--device must be one of cuda:0, cuda:1, cuda:2; got cuda:3'),
    ],
)
def test_what_is_missing_is_said(monkeypatch, checked, missing, message, capsys):
    if missing == 'gpu':
        monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    elif missing == 'kernels':
        monkeypatch.setattr(library, 'has_kernel', lambda name, device='cpu': False)
        monkeypatch.setattr(triton, 'unavailable_reason', lambda: 'Triton requires a C compiler')
    with pytest.raises(SystemExit, match=message):
        main(monkeypatch, *([] if missing == 'kernels' else ['--device', 'cuda:3']))
    if missing == 'kernels':
        assert 'strided_attention, triton: Triton requires a C compiler\n' in capsys.readouterr().out


def test_a_disabled_backend_is_named(monkeypatch, capsys):
    monkeypatch.setenv('MMATTN_BACKEND', 'reference')
    with pytest.raises(SystemExit, match='2'):
        main(monkeypatch, '--device', 'cpu')
    assert 'MMATTN_BACKEND=reference disables the kernels' in capsys.readouterr().err


def test_the_whole_check_on_a_cpu(run_python, cache):
    """Each kernel in a process of its own; nothing of OpenMMLab is needed."""
    code = (
        'import sys; sys.modules.update(dict.fromkeys(("mmengine", "mmcv", "mmseg", "mmdet"))); '
        'sys.argv += ["--device", "cpu", "--quick", "--operators", "dynamic_conv"]; '
        'from mmattn.utils import check_gpu; sys.exit(check_gpu.main())'
    )
    output = run_python(code)
    assert '1 of 1: dynamic_conv, cuda' in output
    assert '16 bit backward: ' in output
    assert not cache.exists()
