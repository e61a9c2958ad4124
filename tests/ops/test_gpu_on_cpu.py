"""Calls of an operator whose kernel requires a verdict, on a CPU that pretends to be a GPU."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import cpp_extension

from mmattn.ops import library

from .test_cuda_compiles import CSRC, TORCH, built

HERE = Path(__file__).parent / 'gpu_on_cpu'
pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(library.UNAVAILABLE_REASON is not None, reason=str(library.UNAVAILABLE_REASON)),
    pytest.mark.skipif(shutil.which('g++') is None, reason='there is no g++ to compile the kernel with'),
]
RUN = """
import importlib.util, json, sys
from types import SimpleNamespace
import torch

library, verified = sys.argv[1], sys.argv[2] == 'verified'
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: SimpleNamespace(origin=library) if name == 'mmattn._C' else find_spec(name)
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
torch._C._dispatch_has_kernel_for_dispatch_key = lambda name, key: has_kernel(name, key.replace('CUDA', 'CPU'))
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.get_device_properties = lambda index: SimpleNamespace(name='NVIDIA Fake', major=9, minor=0)
from mmattn.ops import backends, dynamic_conv
from mmattn.ops.gpu import verdict

device_and_dtype = backends._device_and_dtype
backends._device_and_dtype = lambda arguments: (torch.device('cuda'), device_and_dtype(arguments)[1])
if verified:
    kernels = ('dynamic_conv', 'cuda'), *((operator, 'triton') for operator in backends.triton.OPERATORS)
    classes, passes = verdict.DTYPE_CLASSES, verdict.PASSES
    keys = [verdict.Key(*kernel, dtypes, x) for kernel in kernels for dtypes in classes for x in passes]
    verdict.write(verdict.machine(0), dict.fromkeys(keys, verdict.Finding('faster', 1.0, 2.0, '')))
value, logits = (torch.zeros(1, 1, 2, 2, n, requires_grad=True) for n in (1, 9))
calls = []
for context in ('auto', 'auto', 'reference', 'auto'):
    with backends.kernels_run() as kernels, backends.backend(context):
        out = dynamic_conv(value, logits, kernel_size=3)
        grads = torch.autograd.grad(out.sum(), [value, logits])
    calls.append([kernels, [x.flatten()[0].item() for x in (out, *grads)]])
with backends.kernels_run() as kernels:
    dynamic_conv(value.double(), logits.double(), kernel_size=3)
print(json.dumps([*calls, kernels]))
"""


@pytest.fixture(scope='module')
def library():
    flags = ['-O0', '-g0', '-std=c++20', f'-I{CSRC}', f'-L{cpp_extension.TORCH_LIB_PATH}']
    sources = [HERE / 'kernel.cpp', CSRC / 'operator.cpp', CSRC / 'autograd.cpp', '-lc10', '-ltorch_cpu']
    return built(['g++', '-shared', '-fPIC', *flags, *TORCH], sources, HERE, CSRC, name='gpu_on_cpu.so')


@pytest.mark.parametrize('verdict', ['verified', 'not verified'])
def test_the_first_call_runs_the_kernel_that_a_verdict_allows(library, tmp_path, monkeypatch, verdict):
    """Forward and backward; never if the reference is requested, or for a dtype that the kernel does not support.

    Otherwise the composition runs, with the numbers of the reference.
    """
    monkeypatch.setenv('MMATTN_CACHE', str(tmp_path))
    monkeypatch.delenv('MMATTN_BACKEND', raising=False)
    done = subprocess.run([sys.executable, '-c', RUN, library, verdict], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *calls, double = json.loads(done.stdout.splitlines()[-1])
    kernel = [['dynamic_conv', 'dynamic_conv_backward'], [7, 8, 9]]
    reference = [[], [0, pytest.approx(4 / 9), 0]]
    chosen = kernel if verdict == 'verified' else reference
    assert calls == [chosen, chosen, reference, chosen]
    assert double == []
    assert done.stderr.count('run: python -m mmattn.utils.check_gpu') == (verdict != 'verified')
