"""What runs an operator: kernel, composition or reference, and why; on GPUs that have a capability and nothing else."""

import importlib
import os
import re
import subprocess
import sys
import warnings
from contextlib import nullcontext

import pytest
import torch
from torch._subclasses import fake_tensor

from mmattn import engine, ops
from mmattn.ops import dispatch, global_attention, library, local_attention, reports, triton
from mmattn.utils.collect_env import collect_env

from ..requirements import requires
from . import literal


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
        with dispatch.kernels_run() as ran:
            global_attention(y, y, y, key_bias=torch.ones(1, 1, 3, 4, dtype=bias), key_mask=mask)
        assert bool(ran) == (taken and library.UNAVAILABLE_REASON is None)


@requires('native operators')
def test_backends():
    x = torch.ones(1, 1, 3, 4, 2)
    with dispatch.backend('reference'), dispatch.kernels_run() as ran:
        local_attention(x, x, x)
    assert not ran
    with dispatch.backend('native'):
        local_attention(x, x, x)
        with dispatch.backend('reference'):
            local_attention(*[x.double()] * 3)
        with pytest.raises(RuntimeError, match='mmattn::local_attention has no kernel for these tensors'):
            local_attention(*[x.double()] * 3)
    local_attention(*[x.double()] * 3)


@requires('native operators')
def test_a_backend_of_one_operator_leaves_the_others():
    x, logits = torch.ones(1, 1, 3, 4, 2), torch.ones(1, 1, 3, 4, 9)

    def ran():
        with dispatch.kernels_run() as names:
            local_attention(x, x, x)
            ops.dynamic_conv(x, logits, kernel_size=3)
        return names

    assert ran() == ['local_attention', 'dynamic_conv']
    with dispatch.backend('local_attention=reference'):
        assert ran() == ['dynamic_conv']
        with dispatch.backend('dynamic_conv=composition'):
            assert ran() == []
        with dispatch.backend('local_attention=native, dynamic_conv=reference'):
            assert ran() == ['local_attention']
    assert ran() == ['local_attention', 'dynamic_conv']


@pytest.mark.parametrize(
    ('implementation', 'ran', 'has_backward', 'result'),
    [
        ('native', ['local_attention', 'local_attention_backward'], True, 3),
        ('native', ['local_attention'], True, None),
        ('native', ['local_attention'], False, 3),
        ('native', ['local_attention_backward'], True, None),
        ('composition', [], True, 3),
    ],
)
def test_a_kernel_that_does_not_run_each_pass_gives_no_result(monkeypatch, implementation, ran, has_backward, result):
    monkeypatch.setattr(dispatch, 'kernels_run', lambda: nullcontext(ran))
    assert dispatch.run_by(implementation, 'local_attention', lambda: 3, has_backward=has_backward) == result


def test_a_kernel_that_declines_a_call_gives_no_result_and_other_errors_are_raised():
    def fail(said):
        raise RuntimeError(said)

    assert dispatch.run_by('native', 'local_attention', lambda: fail(dispatch.NO_KERNEL)) is None
    with pytest.raises(RuntimeError, match='other'):
        dispatch.run_by('native', 'local_attention', lambda: fail('other'))


@pytest.mark.parametrize(
    'text', ['fast', '', 'local_attention=fast', 'local=native', 'native,triton', 'local_attention=']
)
def test_a_backend_that_does_not_exist(text):
    with pytest.raises(ValueError, match=r'must be one of auto, native, .*local_attention=native') as error:
        dispatch.backend(text).__enter__()
    assert repr(text) in str(error.value)


CALL = """
import torch
from mmattn.ops import local_attention
x = torch.ones(1, 1, 3, 4, 2)
print(local_attention(x, x, x).sum())
"""


@pytest.mark.slow
def test_without_native_operators(run_python):
    assert run_python(CALL, MMATTN_BACKEND='reference') == 'tensor(24.)\n'
    collect_env = 'import runpy; runpy.run_module("mmattn.utils.collect_env", run_name="__main__")'
    said = run_python(collect_env, MMATTN_BACKEND='reference')
    assert 'native operators: MMATTN_BACKEND=reference' in said
    assert re.search('^local_attention: reference$', said, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'value'), [('MMATTN_BACKEND', 'off'), ('MMATTN_CPU_CAPABILITY', 'AVX2'), ('MMATTN_CPU_CAPABILITY', '')]
)
def test_a_variable_that_means_nothing(name, value):
    done = subprocess.run(
        [sys.executable, '-c', 'import mmattn.ops'], env={**os.environ, name: value}, text=True, capture_output=True
    )
    assert re.search(f'ValueError: {name} must be one of .*; got {value!r}', done.stderr)


@pytest.mark.slow
@requires('native operators')
def test_the_library_can_be_imported(run_python):
    """As tools do that import every module of a package."""
    assert run_python('import torch, mmattn._C; print(torch.ops.mmattn_native.torch_version())')


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
    monkeypatch.setattr(library, 'UNAVAILABLE_REASON', 'not built')
    with pytest.raises(RuntimeError, match="MMATTN_BACKEND 'native' requires native kernels: not built"):
        dispatch.parse_backends('native', 'MMATTN_BACKEND')


# GPUs

GPU = torch.device('cuda', 0)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@pytest.fixture
def gpu(monkeypatch):
    """A machine with an H200, and all kernels. Set ``capability`` of the result to have another GPU."""

    class Machine:
        capability = (9, 0)

    machine = Machine()
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'current_device', lambda: 0)
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda device: 'NVIDIA Fake')
    monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda device: machine.capability)
    for name in ('init_cuda_context', 'init_gpu_context'):  # of torch 2.4 and later, with CUDA but without a driver
        monkeypatch.setattr(fake_tensor, name, lambda *_: None, raising=False)
    monkeypatch.setattr(library, 'UNAVAILABLE_REASON', None)
    monkeypatch.setattr(library, 'has_kernel', lambda name, device='cpu': name != 'global_attention' or device == 'cpu')
    monkeypatch.setattr(triton, 'unavailable_reason', lambda: '')
    monkeypatch.setattr(dispatch, '_failures', {})
    dispatch.choose.cache_clear()
    yield machine
    dispatch.choose.cache_clear()


def first(name, dtype, channels=None):
    return next(x for x, reason in dispatch.choose(name, GPU, dtype, channels) if not reason)


def test_what_runs_on_a_gpu_is_what_its_row_says(gpu):
    """Of the GPU that it was verified on, in both passes; else the composition, and so for float64."""
    rows = {(row.operator, dtype): row for row in dispatch.TABLE if row.device == 'cuda' for dtype in row.dtypes}
    for operator in library.KERNELS:
        for dtype in DTYPES:
            row = rows.get((operator, dtype))
            for channels in (None, 4, 32, 64):
                taken = row is not None and row.channels in (None, channels)
                expected = (row.forward, row.backward) if taken else ('composition', 'composition')
                assert (first(operator, dtype, channels), first(f'{operator}_backward', dtype, channels)) == expected
    assert first('local_attention', torch.bfloat16) == 'native'
    assert first('global_attention', torch.float16) == 'triton'
    assert first('bilinear_pooling', torch.float32) == 'reference'  # it is written in PyTorch's operators, in chunks


@pytest.mark.parametrize('capability', [(8, 0), (10, 0), (12, 0)])
def test_local_attention_alone_runs_on_gpus_on_which_nothing_was_verified(gpu, capability):
    gpu.capability = capability
    kernels = {(name, dtype) for name in library.KERNELS for dtype in DTYPES if first(name, dtype) != 'composition'}
    assert kernels == {('local_attention', dtype) for dtype in DTYPES if dtype != torch.float64}
    assert reports.describe('local_attention', GPU) == 'native, not verified on this GPU'
    assert reports.describe('dynamic_conv', GPU) == 'composition'
    with dispatch.backend('local_attention=composition'):
        assert reports.describe('local_attention', GPU) == 'composition'
    gpu.capability = (7, 5)
    dispatch.choose.cache_clear()
    assert reports.describe('local_attention', GPU) == 'composition'


def test_a_row_has_one_line_per_operator_device_and_dtype():
    keys = [(row.operator, row.device, dtype) for row in dispatch.TABLE for dtype in row.dtypes]
    assert len(keys) == len(set(keys))
    assert {row.operator for row in dispatch.TABLE} == set(library.KERNELS)


def test_without_cuda_kernels_or_triton_compositions_run_and_the_reason_is_said(gpu, monkeypatch):
    monkeypatch.setattr(library, 'has_kernel', lambda name, device='cpu': device == 'cpu')
    monkeypatch.setattr(triton, 'unavailable_reason', lambda: 'Triton 3.4.1 is older than 3.6')
    assert {first(name, torch.bfloat16) for name in library.KERNELS} == {'composition'}
    assert reports.describe('local_attention', GPU) == 'composition (native: no kernel was built for cuda)'
    assert 'triton: Triton 3.4.1 is older than 3.6' in reports.describe('global_attention', GPU)
    with pytest.raises(RuntimeError, match=r"'triton' is not available: Triton 3\.4\.1 is older"):
        dispatch.backend('triton').__enter__()


def test_what_selects_a_backend_decides_alone(gpu):
    gpu.capability = (8, 0)
    for name in ('reference', 'composition', 'triton', 'native'):
        with dispatch.backend(name):
            assert first('dynamic_conv', torch.bfloat16) == (name if name != 'triton' else 'composition')
            if name != 'native':  # it has no CUDA kernel
                assert first('global_attention', torch.bfloat16) == name
    with dispatch.backend('local_attention=native'):
        assert first('local_attention', torch.bfloat16) == 'native'
        assert first('grid_attention', torch.bfloat16) == 'composition'


def on_gpu(*shape):
    with fake_tensor.FakeTensorMode():
        return torch.empty(shape, device='cuda', dtype=torch.bfloat16)


def failing(error):
    """A function that raises an error."""

    def fails(*arguments, **options):
        raise error

    return fails


@pytest.fixture
def calls(monkeypatch):
    """What calls of two operators run; the functions do nothing."""
    calls = []

    for name in ('global_attention', 'grid_attention'):
        for compute in ('compute', 'compute_backward'):
            monkeypatch.setattr(dispatch.OPERATORS[name], compute, lambda by, x: calls.append((by, x[-1])))
    monkeypatch.setattr(triton, 'run', lambda name, arguments, always: calls.append(('triton', arguments[-1])))
    monkeypatch.setattr(torch.ops.mmattn_cuda.grid_attention, 'default', lambda *x: calls.append(('native', x[-1])))
    return calls


def test_a_call_that_a_cuda_kernel_does_not_support_comes_to_the_composition(gpu, calls, monkeypatch):
    dispatch.run('grid_attention', (*[on_gpu(2)] * 5, [], 0.0, 1.0, False))
    monkeypatch.setattr(torch.ops.mmattn_cuda.grid_attention, 'default', failing(NotImplementedError('no kernel')))
    dispatch.run('grid_attention', (*[on_gpu(2)] * 5, [], 0.0, 1.0, False))
    assert calls == [('native', False), ('composition', False)]
    with dispatch.backend('grid_attention=native'), pytest.raises(RuntimeError, match='no kernel for these tensors'):
        dispatch.run('grid_attention', (*[on_gpu(2)] * 5, [], 0.0, 1.0, False))


@pytest.mark.parametrize(('channels', 'expected'), [((32, 32), 'native'), ((4, 4), 'other'), ((32, 64), 'other')])
def test_strided_attention_in_16_bit_has_a_kernel_for_the_channels_that_were_measured(
    gpu, monkeypatch, channels, expected
):
    """In both passes, by the channels of query and value."""
    ran = []
    for name in ('strided_attention', 'strided_attention_backward'):
        monkeypatch.setattr(getattr(torch.ops.mmattn_cuda, name), 'default', lambda *x: ran.append('native'))
    for compute in ('compute', 'compute_backward'):
        monkeypatch.setattr(dispatch.OPERATORS['strided_attention'], compute, lambda *x: ran.append('other'))
    with fake_tensor.FakeTensorMode():
        query, value, lse = (
            torch.empty(1, 1, 4, 4, count, device='cuda', dtype=torch.bfloat16) for count in (*channels, 1)
        )
        call = (*literal.arguments('strided_attention', query, query, value, pattern='block', step=2), False)
        dispatch.run('strided_attention', call)
        dispatch.run('strided_attention_backward', (value, None, value, lse, *call, [True] * 3))
        text = ops.explain(ops.strided_attention, query, query, value, pattern='block', step=2)
    assert ran == [expected] * 2
    assert ('forward: native\nbackward: native' in text) == (expected == 'native')


def test_kernels_that_run_after_a_block_are_not_listed(gpu, calls):
    call = (*[on_gpu(2)] * 12, False)
    with dispatch.kernels_run() as names:
        dispatch.run('global_attention', call)
        assert names == ['global_attention']
    dispatch.run('global_attention', call)
    assert names == ['global_attention']
    assert len(calls) == 2


def test_a_triton_kernel_that_fails_is_replaced_and_reported_once(gpu, calls, monkeypatch):
    """As one that the compiler refuses, or for which the cache's disk is full. The training goes on, and calls of other
    sizes try the kernel."""
    run = triton.run
    monkeypatch.setattr(triton, 'run', failing(OSError(28, 'No space left on device')))
    with pytest.warns(UserWarning, match=r'Triton kernel of global_attention failed.*No space left on device'):
        dispatch.run('global_attention', (*[on_gpu(2)] * 12, False))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        dispatch.run('global_attention', (*[on_gpu(2)] * 12, False))
    assert calls == [('composition', False)] * 2  # its own backward pass does not need the log-sum-exp
    assert 'No space left' in reports.describe('global_attention', GPU)
    monkeypatch.setattr(triton, 'run', run)
    dispatch.run('global_attention', (*[on_gpu(2)] * 12, False))
    assert calls[2:] == [('composition', False)]
    dispatch.run('global_attention', (*[on_gpu(40)] * 12, False))
    assert calls[3:] == [('triton', False)]


def test_a_composition_computes_the_log_sum_exp_for_a_kernels_backward_pass(gpu, calls, monkeypatch):
    """Where the kernel of the forward pass does not support the call, that of the backward pass may."""
    monkeypatch.setattr(triton, 'run', lambda name, arguments, always: NotImplemented)
    dispatch.run('global_attention', (*[on_gpu(2)] * 12, False))
    assert calls == [('composition', True)]


@pytest.mark.skipif(bool(triton.unavailable_reason()), reason=triton.unavailable_reason())
def test_triton_runs_where_it_is_faster_or_selected(gpu, monkeypatch):
    """With biases, and for many pairs of a query and a key."""
    module = importlib.import_module('mmattn.ops.triton.global_attention')
    ran = []
    monkeypatch.setattr(module, 'forward', lambda *arguments: ran.append('forward'))
    monkeypatch.setattr(module, 'backward', lambda *arguments: ran.append('backward'))
    monkeypatch.setattr(
        dispatch.OPERATORS['global_attention'], 'compute', lambda implementation, _: ran.append(implementation)
    )
    with fake_tensor.FakeTensorMode():
        x, small = (torch.empty(2, 1, n, n, 8, device='cuda', dtype=torch.bfloat16) for n in (64, 8))
        window, narrow = x.new_empty(2, 1, 64, 64, 9), x.new_empty(2, 1, 8, 8, 9)
        large = literal.arguments('global_attention', x, x, x, window_bias=window, window_size=3)
        few = literal.arguments('global_attention', small, small, small, window_bias=narrow, window_size=3)
        content = literal.arguments('global_attention', x, x, x)
        dispatch.run('global_attention_backward', (x, x, x, *large, False, [True] * 4))
    for call in (large, few, content):
        dispatch.run('global_attention', (*call, False))
    assert ran == ['backward', 'forward', 'composition', 'composition']
    with dispatch.backend('global_attention=triton'):
        dispatch.run('global_attention', (*few, False))
    assert ran[-1] == 'forward'


def test_why_the_cuda_kernel_does_not_run_local_attention(gpu):
    x = on_gpu(1, 1, 4, 4, 8)
    assert 'forward: native\nbackward: native' in ops.explain(local_attention, x, x, x)
    with fake_tensor.FakeTensorMode():
        mask = torch.empty(1, 4, 4, device='cuda', dtype=torch.bool)
    for name, value in (('return_lse', True), ('key_mask', mask)):
        text = ops.explain(local_attention, x, x, x, **{name: value})
        assert f'forward: composition\n    not native: no {name}' in text


def test_running_out_of_memory_is_no_failure_of_a_kernel(gpu, calls, monkeypatch):
    monkeypatch.setattr(triton, 'run', failing(torch.cuda.OutOfMemoryError('CUDA out of memory')))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        dispatch.run('global_attention', (*[on_gpu(2)] * 12, False))
    assert first('global_attention', torch.bfloat16) == 'triton'


# Reports


def test_explain_says_what_runs_a_call_and_why(gpu, monkeypatch):
    x = torch.ones(1, 1, 3, 4, 2)
    text = ops.explain(global_attention, x.double(), x.double(), x.double())
    assert text == 'global_attention, torch.float64 on cpu\nforward: reference\nbackward: reference'
    monkeypatch.setattr(triton, 'unavailable_reason', lambda: 'Triton is not installed')
    with fake_tensor.FakeTensorMode():
        x = torch.empty(1, 1, 3, 4, 2, device='cuda', dtype=torch.bfloat16)
        text = ops.explain(global_attention, x, x, x)
    assert 'forward: composition\n    not triton: Triton is not installed' in text
    for function, arguments in (
        (ops.strided_offsets, ((3, 4), 2, 'block')),
        (ops.projection, (torch.ones(2, 2), torch.ones(2, 2))),
    ):
        with pytest.raises(ValueError, match=rf'one of mmattn\.ops with kernels.*got {function.__name__}'):
            ops.explain(function, *arguments)


def test_the_log_and_collect_env_say_what_runs(gpu, monkeypatch):
    env = collect_env()
    assert env['local_attention on NVIDIA Fake'] == 'native'
    assert env['strided_attention on NVIDIA Fake'] == (
        '16 bit forward and 16 bit backward: composition, float32 forward and float32 backward and '
        '16 bit with 32 channels forward and 16 bit with 32 channels backward: native'
    )
    lines = []
    monkeypatch.setattr('mmattn.engine.operators.print_log', lambda message, *_: lines.append(message))
    engine.log_operators()
    assert 'Operators on the NVIDIA Fake: dynamic_conv: native, global_attention: 16 bit forward' in lines[0]
