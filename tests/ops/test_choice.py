"""When a kernel runs and when the reference does; the native library missing or broken."""

import importlib
import os
import re
import subprocess
import sys
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mmattn.ops import native

of_global = importlib.import_module('mmattn.ops.global_attention')


def test_what_cuda_kernels_take(monkeypatch):
    monkeypatch.setattr(native, 'has_kernel', lambda name, device: device in ('cpu', 'cuda'))
    monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda device: capability)
    capability = 8, 0
    with FakeTensorMode():
        x = torch.empty(2, 3, dtype=torch.float16, device='cuda')
        assert native.takes('grid_attention', x, None, x.float(), x.bfloat16())
        assert not native.takes('grid_attention', x, x.double())
        assert not native.takes('grid_attention', x, torch.empty(2, 3))
        assert not native.takes('grid_attention', torch.empty(0, 3, dtype=torch.float16, device='cuda'))
        assert not native.takes('grid_attention', torch.empty(2, 3, device='meta'))
        capability = 7, 5
        assert not native.takes('grid_attention', x)


@pytest.mark.parametrize('capability', [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)], ids=str)
def test_what_cuda_takes_of_global_attention(monkeypatch, capability):
    """Positions of up to 512 bytes, whatever the logits, or of 256 with less shared memory; else the reference."""
    monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda device: capability)
    large = capability[1] == 0 and capability[0] < 12
    monkeypatch.setattr(native, 'has_kernel', lambda name, device: device in ('cpu', 'cuda'))
    kernel = mock.Mock(side_effect=lambda query, *_: (query, query))
    monkeypatch.setattr(torch.ops, 'mmattn_native', mock.Mock(global_attention=kernel))
    monkeypatch.setattr(of_global, 'global_attention_reference', lambda rows: (rows.query, rows.query))
    half, whole = torch.float16, torch.float32
    with FakeTensorMode():
        for dtype, channels, value_channels, logits, taken in (
            (half, 256, 1, whole, large),
            (torch.bfloat16, 0, 256, half, large),
            (half, 257, 64, half, False),
            (half, 128, 128, half, True),
            (half, 64, 512, half, False),
            (half, 64, 64, torch.float64, False),
            (whole, 128, 128, whole, large),
            (whole, 64, 129, whole, False),
            (whole, 64, 64, whole, True),
        ):
            query, value = (torch.empty(1, 1, 5, n, dtype=dtype, device='cuda') for n in (channels, value_channels))
            key_bias = torch.empty(5, dtype=logits, device='cuda')
            kernel.reset_mock()
            of_global._global_attention._init_fn(
                *of_global._arguments(query, query, value, scale=1.0, key_bias=key_bias)
            )
            assert kernel.called == taken


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
    env = {'MMATTN_WITH_OPS': '0'}
    assert run('-c', CALL, **env).stdout == 'tensor(24.)\n'
    said = run('-m', 'mmattn.utils.collect_env', **env).stdout
    assert 'native operators: MMATTN_WITH_OPS=0' in said
    assert re.search('^local_attention: reference$', said, re.MULTILINE)


@pytest.mark.parametrize(
    ('name', 'value'), [('MMATTN_WITH_OPS', 'off'), ('MMATTN_CPU_CAPABILITY', 'AVX2'), ('MMATTN_CPU_CAPABILITY', '')]
)
def test_a_variable_that_means_nothing(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f'{name} must be one of .*; got {value!r}'):
        native._load()


@pytest.mark.skipif(native.WHY_NOT is not None, reason=str(native.WHY_NOT))
def test_the_library_can_be_imported():
    """As tools do that import every module of a package."""
    assert run('-c', 'import torch, mmattn._C; print(torch.ops.mmattn_native.torch_version())').stdout


def test_a_library_that_does_not_load_is_told(monkeypatch, tmp_path):
    """As of an extension that was built against another torch."""
    broken = tmp_path / '_C.so'
    broken.write_bytes(b'no library')
    monkeypatch.delenv('MMATTN_WITH_OPS', raising=False)
    monkeypatch.setattr(native, 'find_spec', lambda name: type('Spec', (), {'origin': str(broken)}))
    with pytest.warns(UserWarning, match=r'pip install --no-build-isolation \.'):
        file, reason = native._load()
    assert file == str(broken)
    assert torch.__version__ in reason
    monkeypatch.setattr(native, 'find_spec', lambda name: None)
    assert 'not built' in native._load()[1]
