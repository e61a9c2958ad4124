"""Which kernels run on a GPU; the GPUs here have names and nothing else."""

import json
import os
import socket
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import fake_tensor

from mmattn.engine.operators import describe
from mmattn.ops import backends, library, triton
from mmattn.ops.gpu import check_gpu, verdict
from mmattn.ops.gpu.collect_env import collect_env

pytestmark = pytest.mark.skipif(library.UNAVAILABLE_REASON is not None, reason=str(library.UNAVAILABLE_REASON))
NAMES = ['local_attention', 'dynamic_conv']
FOUND = {'correct': True, 'ratio': 0.5, 'alternative': 'unfold', 'message': ''}


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine whose only GPU is named 'NVIDIA Fake/1'; it records which kernels are allowed."""
    gpus = [SimpleNamespace(name='NVIDIA Fake/1', major=9, minor=0)]
    allowed = {}
    monkeypatch.setenv('MMATTN_CACHE', str(tmp_path / 'cache'))
    monkeypatch.delenv('MMATTN_BACKEND', raising=False)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, 'get_device_properties', gpus.__getitem__)
    for name in ('init_cuda_context', 'init_gpu_context'):  # of torch 2.4 and later, with CUDA but without a driver
        monkeypatch.setattr(fake_tensor, name, lambda *_: None, raising=False)
    monkeypatch.setattr(library, 'has_kernel', lambda name, device='cpu': name.removesuffix('_backward') in NAMES)
    monkeypatch.setattr(triton, 'OPERATORS', ())
    monkeypatch.setattr(verdict, '_choice', None)
    monkeypatch.setattr(torch.ops.mmattn_native, 'allow', allowed.__setitem__)
    return SimpleNamespace(gpus=gpus, allowed=allowed)


def write(**changes):
    """Write the verdict of the GPU in which the kernel of local_attention is as in FOUND, with these changes."""
    check_gpu.write(verdict.machine(0), {'local_attention': FOUND | changes, 'dynamic_conv': FOUND})


def reason():
    return verdict.reasons(verdict.machines())['local_attention']


@pytest.mark.parametrize(
    ('changes', 'expected'),
    [
        ({}, ''),
        ({'ratio': 1.1}, ''),
        ({'ratio': 1.101}, 'slower: 1.10 times the time of unfold'),
        ({'ratio': None}, 'not measured'),
        ({'correct': False, 'message': 'off by 3', 'ratio': 0.1}, 'incorrect: off by 3'),
    ],
    ids=['fast', 'as slow as may be', 'slower', 'not measured', 'incorrect'],
)
def test_a_kernel_runs_where_it_is_correct_and_at_most_a_tenth_slower(machine, changes, expected):
    write(**changes)
    assert verdict.choose_kernels() == {'local_attention': expected, 'dynamic_conv': ''}
    runs = not expected
    assert machine.allowed == {
        'local_attention': runs,
        'local_attention_backward': runs,
        'dynamic_conv': True,
        'dynamic_conv_backward': True,
    }


@pytest.mark.parametrize('changed', ['gpu', 'capability', 'torch', 'cuda', 'mmattn', 'library', 'triton'])
def test_a_verdict_holds_for_one_gpu_torch_and_build(machine, monkeypatch, tmp_path, changed):
    write()
    assert reason() == ''
    if changed == 'gpu':
        machine.gpus[0].name = 'NVIDIA Other'
    elif changed == 'capability':
        machine.gpus[0].minor = 1
    elif changed == 'torch':
        monkeypatch.setattr(torch, '__version__', '9.9')
    elif changed == 'cuda':
        monkeypatch.setattr(torch.version, 'cuda', '99.0')
    elif changed == 'mmattn':
        monkeypatch.setattr('mmattn.__version__', '9.9')
    elif changed == 'triton':
        monkeypatch.setattr(triton, 'build', lambda: 'another version')
    else:
        (tmp_path / '_C.so').write_bytes(b'another build')
        monkeypatch.setattr(library, 'FILE', str(tmp_path / '_C.so'))
        monkeypatch.setattr(verdict, '_library', verdict._library.__wrapped__)
    assert reason() == verdict.NOT_VERIFIED


def test_every_kind_of_gpu_of_a_machine_needs_a_verdict(machine):
    write()
    machine.gpus.append(machine.gpus[0])
    assert reason() == ''
    machine.gpus.append(SimpleNamespace(name='NVIDIA Other', major=8, minor=0))
    assert reason() == verdict.NOT_VERIFIED


def test_a_verdict_of_the_package_holds_too(monkeypatch, tmp_path):
    write()
    path = verdict.verdict_path(verdict.machine(0))
    monkeypatch.setattr(verdict, 'SHIPPED', tmp_path)
    path.rename(tmp_path / 'any.json')
    assert reason() == ''
    path.write_text('half a fi')  # which is none
    assert reason() == ''


def test_an_operator_that_a_verdict_does_not_name_is_not_verified():
    check_gpu.write(verdict.machine(0), {'dynamic_conv': FOUND})
    assert verdict.reasons(verdict.machines()) == {'local_attention': verdict.NOT_VERIFIED, 'dynamic_conv': ''}


def test_where_no_gpu_is_seen_nothing_is_verified(machine):
    machine.gpus.clear()
    assert reason() == verdict.NOT_VERIFIED


def test_a_failed_write_leaves_the_verdict_as_it_was(monkeypatch):
    write()
    path = verdict.verdict_path(verdict.machine(0))
    before = path.read_bytes()

    def fails(*_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'replace', fails)
    with pytest.raises(OSError, match='No space left on device'):
        write(ratio=9)
    assert [each.read_bytes() for each in path.parent.iterdir()] == [before]
    assert json.loads(before)['machine'] == verdict.machine(0)


def test_the_cache_is_that_of_the_system(monkeypatch, tmp_path):
    monkeypatch.delenv('MMATTN_CACHE')
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'xdg'))
    assert verdict.verdict_path(verdict.machine(0)).parent == tmp_path / 'xdg/mmattn/verdicts'
    monkeypatch.delenv('XDG_CACHE_HOME')
    monkeypatch.setenv('HOME', str(tmp_path))
    assert verdict.verdict_path(verdict.machine(0)).parent == tmp_path / '.cache/mmattn/verdicts'


# The first call


@pytest.fixture
def made(monkeypatch):
    """What calls run: 'reference' the function that C++ calls in place of a kernel, 'operator' the operator itself."""
    made = []
    monkeypatch.setattr(torch.ops.mmattn.local_attention, 'default', lambda x: made.append('operator'))
    return made


def build_fallback(name, made):
    return backends.build_fallback(name, lambda x: made.append('reference'))


def on_gpu():
    with fake_tensor.FakeTensorMode():
        return torch.empty(2, device='cuda')


def test_a_first_call_on_a_gpu_goes_to_the_kernel_that_the_verdict_allows(made):
    write()
    reference = build_fallback('local_attention', made)
    reference(torch.empty(2))  # on the CPU: nothing to decide
    assert verdict.current_choice() is None
    reference(on_gpu())
    assert verdict.current_choice() == {'local_attention': '', 'dynamic_conv': ''}
    reference(on_gpu())  # of tensors that the kernel does not take: no second attempt
    assert made == ['reference', 'operator', 'reference']


def test_without_a_verdict_the_reference_runs_and_one_line_names_the_command(made):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        for name in ('local_attention', 'local_attention_backward', 'dynamic_conv', 'local_attention'):
            build_fallback(name, made)(on_gpu())
    assert made == ['reference'] * 4
    (line,) = said
    assert str(line.message).endswith('to check them, run: python -m mmattn.utils.check_gpu')
    assert '\n' not in str(line.message)


def test_a_gpu_that_was_checked_is_not_warned_of(made, recwarn):
    write(ratio=2.0)
    build_fallback('local_attention', made)(on_gpu())
    assert made == ['reference']
    assert not recwarn.list


def test_a_build_without_kernels_runs_the_reference_itself(monkeypatch):
    monkeypatch.setattr(library, 'has_kernel', lambda name, device='cpu': device == 'cpu')
    reference = object()
    assert backends.build_fallback('local_attention', reference) is reference


def test_whoever_asks_for_the_kernels_gets_them(monkeypatch):
    monkeypatch.setenv('MMATTN_BACKEND', 'native')
    assert verdict.reasons(verdict.machines()) == dict.fromkeys(NAMES, '')


# Triton's kernels

KERNEL = 'global_attention (Triton)'


@pytest.fixture
def of_triton(monkeypatch):
    """global_attention has a Triton kernel, and dynamic_conv has both kernels; one has been called if it is listed."""
    calls = []
    monkeypatch.setattr(triton, 'OPERATORS', ('global_attention', 'dynamic_conv'))
    monkeypatch.setattr(triton, 'unavailable_reason', lambda: '')
    monkeypatch.setattr(triton, 'run', lambda name, arguments: calls.append(name))
    monkeypatch.setattr(backends, '_chosen', 'auto')
    return calls


def test_a_triton_kernel_needs_a_verdict_of_its_own(of_triton, made):
    check_gpu.write(verdict.machine(0), {KERNEL: FOUND})
    with backends.kernels_run() as kernels:
        build_fallback('global_attention', made)(on_gpu())
        build_fallback('dynamic_conv', made)(on_gpu())
        build_fallback('global_attention', made)(torch.empty(2))
    assert verdict.current_choice()[KERNEL] == ''
    assert verdict.current_choice()['dynamic_conv (Triton)'] == verdict.NOT_VERIFIED
    assert of_triton == kernels == ['global_attention']
    assert made == ['reference'] * 2


def test_a_call_that_a_triton_kernel_does_not_support_runs_the_reference(monkeypatch, of_triton, made):
    check_gpu.write(verdict.machine(0), {KERNEL: FOUND})
    monkeypatch.setattr(triton, 'run', lambda name, arguments: NotImplemented)
    with backends.kernels_run() as kernels:
        build_fallback('global_attention', made)(on_gpu())
    assert made == ['reference']
    assert kernels == []


def test_the_reference_runs_where_it_is_selected(of_triton, made):
    check_gpu.write(verdict.machine(0), {KERNEL: FOUND})
    with backends.backend('reference'):
        build_fallback('global_attention', made)(on_gpu())
    assert made == ['reference']
    assert of_triton == []


def test_the_environment_selects_triton_for_the_operators_that_it_has(monkeypatch, machine, of_triton):
    """Without a verdict on it; the others are decided as usual."""
    write()
    monkeypatch.setenv('MMATTN_BACKEND', 'triton')
    assert verdict.choose_kernels() == {
        'local_attention': '',
        'dynamic_conv': 'MMATTN_BACKEND=triton',
        KERNEL: '',
        'dynamic_conv (Triton)': '',
    }
    assert machine.allowed['local_attention']
    assert not machine.allowed['dynamic_conv']


@pytest.mark.parametrize('chosen', ['auto', 'triton'])
def test_where_triton_cannot_run_the_reason_is_reported(monkeypatch, of_triton, chosen):
    write()
    monkeypatch.setenv('MMATTN_BACKEND', chosen)
    monkeypatch.setattr(triton, 'unavailable_reason', lambda: 'Triton requires a C compiler')
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        found = verdict.choose_kernels()
    assert found[KERNEL] == 'Triton requires a C compiler'
    assert found['dynamic_conv'] == ''
    assert f'{KERNEL}: not used (Triton requires a C compiler)' in describe(found)
    assert describe({KERNEL: found[KERNEL]}).startswith(
        'PyTorch (the kernels were built without CUDA), global_attention'
    )
    assert collect_env()[f'{KERNEL} on CUDA'] == 'not used: Triton requires a C compiler'
    no_effect = ['mmattn: MMATTN_BACKEND=triton has no effect: Triton requires a C compiler']
    assert [str(line.message) for line in said] == (no_effect if chosen == 'triton' else [])
    with pytest.raises(RuntimeError, match="'triton' is not available: Triton requires a C compiler"):
        backends.backend('triton').__enter__()


@pytest.mark.parametrize(
    ('missing', 'expected'),
    [
        ('triton', 'Triton is not installed'),
        ('version', 'Triton 3.4.1 is older than 3.5'),
        ('compiler', 'Triton requires a C compiler'),
        ('headers', 'Triton requires the headers of Python, but there is no Python.h in /nowhere'),
        (None, ''),
    ],
)
def test_what_triton_requires(monkeypatch, missing, expected):
    monkeypatch.delenv('TRITON_INTERPRET', raising=False)
    monkeypatch.setattr(triton, 'find_spec', lambda name: None if missing == 'triton' else name)
    monkeypatch.setattr(triton, 'version', lambda: '3.4.1' if missing == 'version' else '3.10.0')
    monkeypatch.setattr(triton.shutil, 'which', lambda name: None if missing == 'compiler' else name)
    if missing == 'headers':
        monkeypatch.setattr(triton.sysconfig, 'get_paths', lambda: {'include': '/nowhere'})
    else:
        monkeypatch.setattr(triton.Path, 'is_file', lambda path: path.name == 'Python.h')
    assert triton.unavailable_reason.__wrapped__() == expected


# Reports


def test_the_log_and_collect_env_tell_what_runs_and_why():
    write(ratio=1.5)
    against = verdict.reasons(verdict.machines())
    slower = 'slower: 1.50 times the time of unfold'
    assert describe(against) == f'dynamic_conv: kernel, local_attention: PyTorch ({slower})'
    env = collect_env()
    assert env['local_attention on CUDA'] == f'reference: {slower}'
    assert env['dynamic_conv on CUDA'] == 'kernel'
    assert 'to check the CUDA kernels' not in env


def test_without_a_verdict_they_name_the_command():
    against = verdict.reasons(verdict.machines())
    assert describe(against).endswith(f'; to check the kernels, run: {verdict.COMMAND}')
    env = collect_env()
    assert env['dynamic_conv on CUDA'] == 'reference: not verified on this GPU'
    assert env['to check the CUDA kernels'] == verdict.COMMAND


def test_without_kernels_they_tell_so(monkeypatch):
    monkeypatch.setattr(library, 'has_kernel', lambda name, device='cpu': device == 'cpu')
    assert describe(verdict.reasons(verdict.machines())) == 'PyTorch (the kernels were built without CUDA)'
    assert collect_env()['CUDA kernels'] == 'not built'


# Two processes

RANK = """
import os
import sys
from types import SimpleNamespace
import torch
from torch import distributed
from mmattn.ops import backends, library, triton
from mmattn.ops.gpu import verdict

rank, port, *names = int(sys.argv[1]), *sys.argv[2:]
gpu = SimpleNamespace(name=names[rank], major=9, minor=0)
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.get_device_properties = lambda index: gpu
library.has_kernel = lambda name, device='cpu': name in ('local_attention', 'dynamic_conv')
triton.OPERATORS = ()
distributed.init_process_group('gloo', init_method=f'tcp://127.0.0.1:{port}', rank=rank, world_size=2)
found = verdict.agree_on_kernels()
assert found == verdict.current_choice()
print(found['local_attention'], flush=True)
os._exit(0)  # destroy_process_group() of torch 2.4 hangs with the functions above
"""


@pytest.mark.parametrize('verified', [0, 1], ids=['rank 0 has the verdict', 'rank 1 has the verdict'])
@pytest.mark.parametrize('other', ['NVIDIA Fake/1', 'NVIDIA Other'])
def test_rank_0_decides_for_all_and_different_gpus_run_the_reference(tmp_path, machine, verified, other):
    machine.gpus[0].name = ('NVIDIA Fake/1', other)[verified]
    write()  # to the cache of one of the two processes
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    caches = [str(tmp_path / ('cache' if rank == verified else 'empty')) for rank in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, '-c', RANK, str(rank), str(port), 'NVIDIA Fake/1', other],
            env={**os.environ, 'MMATTN_CACHE': caches[rank], 'OMP_NUM_THREADS': '1'},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    same = other == 'NVIDIA Fake/1'
    expected = verdict.DIFFERENT if not same else verdict.NOT_VERIFIED if verified == 1 else ''
    assert [out.strip() for out, _ in said] == [expected] * 2
