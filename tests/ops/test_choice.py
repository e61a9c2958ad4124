"""When a kernel runs and when the reference does; the native library missing or broken."""

import os
import re
import subprocess
import sys

import pytest
import torch

from mmattn.ops import backends, global_attention, library, local_attention


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
        pytest.raises(ValueError, match="backend must be one of auto, native, triton, reference; got 'fast'"),
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
