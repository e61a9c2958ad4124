"""What runs an operator: kernel, composition or reference, and why; on GPUs that have a name and nothing else."""

import itertools
import os
import re
import socket
import subprocess
import sys
import warnings

import pytest
import torch
from torch._subclasses import fake_tensor

from mmattn import engine, ops
from mmattn.ops import backends, global_attention, library, local_attention, registry, triton
from mmattn.ops.gpu import verdict
from mmattn.ops.gpu.collect_env import collect_env
from mmattn.ops.gpu.verdict import Finding, Key


def test_what_the_cpu_kernels_take():
    """float32 and bfloat16, mixed among biases; everything else goes to the reference."""
    x, mask = torch.ones(1, 1, 3, 4, 2), torch.ones(1, 3, 4, dtype=torch.bool)
    for dtype, bias, taken in (
        (torch.float32, torch.float32, True),
        (torch.bfloat16, torch.float32, True),
        (torch.float32, torch.bfloat16, True),
        (torch.float64, torch.float64, False),
        (torch.float16, torch.float32, False),
        (torch.float32, torch.float64, False),
    ):
        y = x.to(dtype)
        with backends.kernels_run() as ran:
            global_attention(y, y, y, key_bias=torch.ones(1, 1, 3, 4, dtype=bias), key_mask=mask)
        assert bool(ran) == (taken and library.UNAVAILABLE_REASON is None)


@pytest.mark.skipif(library.UNAVAILABLE_REASON is not None, reason=str(library.UNAVAILABLE_REASON))
def test_backends():
    x = torch.ones(1, 1, 3, 4, 2)
    with backends.backend('reference'), backends.kernels_run() as ran:
        local_attention(x, x, x)
    assert not ran
    with backends.backend('native'):
        local_attention(x, x, x)
        with backends.backend('reference'):
            local_attention(*[x.double()] * 3)
        with pytest.raises(RuntimeError, match='mmattn::local_attention has no kernel for these tensors'):
            local_attention(*[x.double()] * 3)
    local_attention(*[x.double()] * 3)
    with (
        pytest.raises(
            ValueError, match="backend must be one of auto, native, triton, composition, reference; got 'fast'"
        ),
        backends.backend('fast'),
    ):
        pass


def run(*arguments, **env):
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **env}, text=True, capture_output=True, check=True
    )


CALL = """
import torch
from mmattn.ops import local_attention
x = torch.ones(1, 1, 3, 4, 2)
print(local_attention(x, x, x).sum())
"""


def test_without_native_operators():
    env = {'MMATTN_BACKEND': 'reference'}
    assert run('-c', CALL, **env).stdout == 'tensor(24.)\n'
    said = run('-m', 'mmattn.utils.collect_env', **env).stdout
    assert 'native operators: MMATTN_BACKEND=reference' in said
    assert re.search('^local_attention: reference$', said, re.MULTILINE)


@pytest.mark.parametrize(
    ('name', 'value'), [('MMATTN_BACKEND', 'off'), ('MMATTN_CPU_CAPABILITY', 'AVX2'), ('MMATTN_CPU_CAPABILITY', '')]
)
def test_a_variable_that_means_nothing(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f'{name} must be one of .*; got {value!r}'):
        library._load()


@pytest.mark.skipif(library.UNAVAILABLE_REASON is not None, reason=str(library.UNAVAILABLE_REASON))
def test_the_library_can_be_imported():
    """As tools do that import every module of a package."""
    assert run('-c', 'import torch, mmattn._C; print(torch.ops.mmattn_native.torch_version())').stdout


def test_a_library_that_does_not_load_is_told(monkeypatch, tmp_path):
    """As of an extension that was built against another torch."""
    broken = tmp_path / '_C.so'
    broken.write_bytes(b'no library')
    monkeypatch.delenv('MMATTN_BACKEND', raising=False)
    monkeypatch.setattr(library, 'find_spec', lambda name: type('Spec', (), {'origin': str(broken)}))
    with pytest.warns(UserWarning, match=r'pip install --no-build-isolation \.'):
        file, reason = library._load()
    assert file == str(broken)
    assert torch.__version__ in reason
    monkeypatch.setattr(library, 'find_spec', lambda name: None)
    assert 'not built' in library._load()[1]
    monkeypatch.setenv('MMATTN_BACKEND', 'native')
    with pytest.raises(RuntimeError, match='MMATTN_BACKEND=native requires native kernels: not built'):
        library._load()


# GPUs

GPU = torch.device('cuda')
NATIVE = ('local_attention', 'dynamic_conv', 'global_attention')  # with a CUDA kernel
TRITON = ('global_attention', 'grid_attention')
FASTER = Finding('faster', 1.0, 2.0, 'a workload')


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU. ``gpu[...] = Finding`` sets what the check found; ``gpu.allowed`` are native kernels."""

    class Findings(dict):
        def __init__(self):
            super().__init__()
            self.allowed, self.kinds = {}, [{'gpu': 'NVIDIA Fake'}]

    findings = Findings()
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    for name in ('init_cuda_context', 'init_gpu_context'):  # of torch 2.4 and later, with CUDA but without a driver
        monkeypatch.setattr(fake_tensor, name, lambda *_: None, raising=False)
    monkeypatch.setattr(verdict, 'machines', lambda: findings.kinds)
    monkeypatch.setattr(verdict, 'read', lambda kind: findings if kind['gpu'] == 'NVIDIA Fake' else {})
    monkeypatch.setattr(library, 'UNAVAILABLE_REASON', None)
    monkeypatch.setattr(
        library, 'has_kernel', lambda name, device='cpu': name.removesuffix('_backward') in NATIVE or device == 'cpu'
    )
    monkeypatch.setattr(triton, 'OPERATORS', TRITON)
    monkeypatch.setattr(triton, 'unavailable_reason', lambda: '')
    monkeypatch.setattr(backends, '_selection', None)
    monkeypatch.setattr(backends, '_failures', {})
    monkeypatch.setattr(backends, '_orders', {})
    monkeypatch.setattr(backends, '_backend', 'auto')
    monkeypatch.setattr(
        torch.ops.mmattn_native, 'allow', lambda name, *classes: findings.allowed.__setitem__(name, classes)
    )
    return findings


def running(name, dtype=torch.bfloat16):
    return next(x.implementation for x in backends.candidates(name, GPU, dtype) if not x.reason)


def found(operator, kernel, finding, classes=verdict.DTYPE_CLASSES, passes=verdict.PASSES):
    return {Key(operator, kernel, *x): finding for x in itertools.product(classes, passes)}


def test_compositions_run_on_a_gpu_that_was_not_checked(gpu):
    """A warning, once, names what was not checked, and the command; kernels that are opt-in are not named."""
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter('always')
        backends.choose_kernels()
        backends.choose_kernels()
    assert {running(name) for name in library.KERNELS} == {'composition'}
    assert gpu.allowed.keys() == {f'{name}{x}' for name in NATIVE for x in ('', '_backward')}
    assert set(gpu.allowed.values()) == {(False, False)}
    (message,) = messages
    assert 'PyTorch runs dynamic_conv, global_attention, grid_attention, local_attention on this GPU' in str(
        message.message
    )
    assert str(message.message).endswith('to check them, run: python -m mmattn.utils.check_gpu')
    for name in ('bilinear_pooling', 'window_zscore'):
        assert running(name) == 'reference'  # it is written in PyTorch's operators, in chunks


def test_without_cuda_kernels_a_warning_says_how_to_build_them(gpu, monkeypatch):
    monkeypatch.setattr(library, 'has_kernel', lambda name, device='cpu': device == 'cpu')
    with pytest.warns(UserWarning, match='local_attention and dynamic_conv do not run.*FORCE_CUDA=1 pip install'):
        backends.choose_kernels()
    assert running('local_attention') == 'composition'


def test_where_triton_cannot_run_a_warning_gives_the_reason(gpu, monkeypatch):
    monkeypatch.setattr(triton, 'unavailable_reason', lambda: 'Triton 3.4.1 is older than 3.5')
    with pytest.warns(UserWarning, match=r'Triton kernels do not run: Triton 3\.4\.1 is older than 3\.5'):
        backends.choose_kernels()
    with pytest.raises(RuntimeError, match=r"'triton' is not available: Triton 3\.4\.1 is older"):
        backends.backend('triton').__enter__()


@pytest.mark.filterwarnings('ignore:mmattn')
def test_a_kernel_runs_where_it_is_faster_by_dtype_class_and_pass(gpu):
    gpu.update(found('local_attention', 'cuda', FASTER, ['16 bit'], ['forward']))
    gpu.update(found('grid_attention', 'triton', FASTER, ['float32']))
    backends.choose_kernels()
    assert gpu.allowed['local_attention'] == (True, False)
    assert gpu.allowed['local_attention_backward'] == (False, False)
    assert [running('local_attention', dtype) for dtype in library_dtypes()] == ['composition', 'native', 'native']
    assert [running('grid_attention', dtype) for dtype in library_dtypes()] == ['triton', 'composition', 'composition']
    assert running('grid_attention', torch.float64) == 'composition'


def library_dtypes():
    return backends.DTYPES['cuda']


@pytest.mark.filterwarnings('ignore:mmattn')
@pytest.mark.parametrize(('cuda', 'expected'), [(0.5, 'native'), (1.5, 'triton')])
def test_the_faster_kernel_runs(gpu, cuda, expected):
    gpu.update(found('global_attention', 'triton', FASTER))
    gpu.update(found('global_attention', 'cuda', Finding('faster', cuda, 2.0, '')))
    backends.choose_kernels()
    assert running('global_attention') == expected


def test_what_selects_a_backend_decides_alone(gpu):
    gpu.update(found('global_attention', 'triton', FASTER))
    backends._apply(backends.select_kernels(gpu.kinds))
    expected = {'reference': 'reference', 'composition': 'composition', 'triton': 'triton', 'native': 'native'}
    for name, implementation in expected.items():
        with backends.backend(name):
            assert running('global_attention') == implementation
            assert gpu.allowed['global_attention'] == (name == 'native',) * 2
    with backends.backend('triton'):
        assert running('local_attention') == 'composition'


def test_gpus_of_several_kinds_agree(gpu):
    gpu.update(found('global_attention', 'triton', FASTER))
    gpu.kinds = [{'gpu': 'NVIDIA Fake'}, {'gpu': 'NVIDIA Other'}]
    backends._apply(backends.select_kernels(gpu.kinds))
    assert running('global_attention') == 'composition'
    assert backends.DIFFERENT in backends.describe_on_gpu('global_attention')


def on_gpu(*shape):
    with fake_tensor.FakeTensorMode():
        return torch.empty(shape, device='cuda')


@pytest.fixture
def calls(monkeypatch):
    """What calls of global_attention run; the functions do nothing."""
    calls = []
    for name in ('global_attention', 'global_attention_backward'):
        for implementation in ('composition', 'reference'):
            monkeypatch.setitem(
                registry.FUNCTIONS[name], implementation, lambda *args, x=implementation: calls.append((x, args[-1]))
            )
    monkeypatch.setattr(triton, 'run', lambda name, arguments: calls.append(('triton', arguments[-1])))
    monkeypatch.setattr(
        torch.ops.mmattn.global_attention, 'default', lambda *args: calls.append(('operator', args[-1]))
    )
    return calls


@pytest.mark.filterwarnings('ignore:mmattn')
def test_a_first_call_on_a_gpu_chooses_and_is_repeated_for_a_native_kernel(gpu, calls):
    gpu.update(found('global_attention', 'cuda', FASTER))
    backends.run('global_attention', (*[torch.empty(2)] * 12, False))  # on the CPU: nothing to choose
    assert backends._selection is None
    backends.run('global_attention', (*[on_gpu(2)] * 12, False))
    backends.run('global_attention', (*[on_gpu(2)] * 12, False))  # the kernel does not support it: no second attempt
    assert calls == [('reference', False), ('operator', False), ('composition', True)]


@pytest.mark.filterwarnings('ignore:mmattn')
@pytest.mark.parametrize('needed', [True, False])
def test_a_composition_computes_the_log_sum_exp_for_a_kernels_backward_pass(gpu, calls, needed):
    gpu.update(found('global_attention', 'triton', FASTER, passes=['backward'] if needed else []))
    backends.run('global_attention', (*[on_gpu(2)] * 12, False))
    assert calls == [('composition', needed)]


@pytest.mark.filterwarnings('ignore:mmattn. PyTorch')
def test_a_triton_kernel_that_fails_is_replaced_and_reported_once(gpu, calls, monkeypatch):
    """As one that the compiler refuses, or for which the cache's disk is full. The training goes on."""
    gpu.update(found('global_attention', 'triton', FASTER))

    def fails(name, arguments):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(triton, 'run', fails)
    with pytest.warns(UserWarning, match=r'Triton kernel of global_attention failed.*No space left on device'):
        backends.run('global_attention', (*[on_gpu(2)] * 12, False))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        backends.run('global_attention', (*[on_gpu(2)] * 12, False))
    assert calls == [('composition', True)] * 2  # the kernel of the backward pass needs the log-sum-exp
    assert 'No space left' in backends.describe_on_gpu('global_attention')


@pytest.mark.filterwarnings('ignore:mmattn')
def test_running_out_of_memory_is_no_failure_of_a_kernel(gpu, calls, monkeypatch):
    gpu.update(found('global_attention', 'triton', FASTER))

    def fails(name, arguments):
        raise torch.cuda.OutOfMemoryError('CUDA out of memory')

    monkeypatch.setattr(triton, 'run', fails)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        backends.run('global_attention', (*[on_gpu(2)] * 12, False))
    assert running('global_attention') == 'triton'


# Reports


@pytest.mark.filterwarnings('ignore:mmattn')
def test_explain_says_what_runs_a_call_and_why(gpu):
    x = torch.ones(1, 1, 3, 4, 2)
    text = ops.explain(global_attention, x.double(), x.double(), x.double())
    assert 'global_attention, torch.float64 on cpu\nforward: reference\n' in text
    assert '    not native: no kernel for torch.float64\n' in text
    gpu.update(found('grid_attention', 'triton', Finding('slower', 3.0, 2.0, '97×97')))
    with fake_tensor.FakeTensorMode():
        x = torch.empty(1, 1, 3, 4, 2, device='cuda', dtype=torch.bfloat16)
        text = ops.explain(ops.grid_attention, x, x, x)
    assert 'forward: composition' in text
    assert 'not triton: slower: 1.50 times the time of the composition' in text
    for function, arguments in ((ops.strided_offsets, ((3, 4), 2, 'block')), (ops.window_zscore, (x, 3))):
        with pytest.raises(ValueError, match=rf'one of mmattn\.ops with kernels.*got {function.__name__}'):
            ops.explain(function, *arguments)


@pytest.mark.filterwarnings('ignore:mmattn')
def test_the_log_and_collect_env_say_what_runs(gpu, capsys, monkeypatch):
    gpu.update(found('grid_attention', 'triton', FASTER))
    gpu.update(found('local_attention', 'cuda', Finding('incorrect', None, None, 'output differs by 3')))
    env = collect_env()
    assert env['grid_attention on CUDA'] == 'triton (native: no kernel was built for cuda)'
    assert 'incorrect: output differs by 3' in env['local_attention on CUDA']
    assert env['kernels for GPUs'].endswith(verdict.COMMAND)
    lines = []
    monkeypatch.setattr('mmattn.engine.operators.print_log', lambda message, *_: lines.append(message))
    engine.choose_kernels()
    assert 'grid_attention: triton (native: no kernel was built for cuda)' in lines[0]
    assert verdict.COMMAND in lines[1]


# Two processes

RANK = """
import os
import sys
import torch
from torch import distributed
from mmattn.ops import backends, library, triton
from mmattn.ops.gpu import verdict

rank, port, finding, *names = int(sys.argv[1]), *sys.argv[2:]
verdict.machines = lambda: [{'gpu': names[rank]}]
keys = [verdict.Key('local_attention', 'cuda', *x) for x in (('16 bit', 'forward'), ('16 bit', 'backward'))]
verdict.read = lambda kind: dict.fromkeys(keys, verdict.Finding('faster', 1.0, 2.0, '')) if str(rank) == finding else {}
library.has_kernel = lambda name, device='cpu': name in ('local_attention', 'dynamic_conv')
library.UNAVAILABLE_REASON = None
backends._allow_native = lambda: None
triton.OPERATORS = ()
distributed.init_process_group('gloo', init_method=f'tcp://127.0.0.1:{port}', rank=rank, world_size=2)
backends.agree_on_kernels()
print(next(x for x in backends.candidates('local_attention', torch.device('cuda'), torch.bfloat16)), flush=True)
os._exit(0)  # destroy_process_group() of torch 2.4 hangs with the functions above
"""


@pytest.mark.parametrize('checked', [0, 1], ids=['rank 0 has the verdict', 'rank 1 has the verdict'])
@pytest.mark.parametrize('other', ['NVIDIA Fake', 'NVIDIA Other'])
def test_rank_0_chooses_for_all_and_different_gpus_run_compositions(checked, other):
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, '-c', RANK, str(rank), str(port), str(checked), 'NVIDIA Fake', other],
            env={**os.environ, 'OMP_NUM_THREADS': '1'},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    same = other == 'NVIDIA Fake'
    reason = backends.DIFFERENT if not same else verdict.NOT_CHECKED if checked == 1 else ''
    assert [out.strip() for out, _ in outputs] == [str(backends.Candidate('native', reason))] * 2
