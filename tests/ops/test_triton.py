"""Triton's kernels in its interpreter, on the CPU; and compiled without a GPU.

The interpreter must be chosen before Triton is imported, so other processes run the tests: ``in_triton.py``, and the
rows of Triton in ``test_contract.py`` and ``test_gpu.py``.
"""

import os
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from mmattn.ops import triton
from mmattn.ops.autograd import list_tensors

from ..conftest import CACHE
from . import literal

TOOL = Path(__file__).parents[2] / 'tools/benchmarks/compile_triton.py'
pytestmark = [
    pytest.mark.skipif(find_spec('triton') is None, reason='Triton is not installed'),
    pytest.mark.skipif('older' in triton.unavailable_reason(), reason=triton.unavailable_reason()),
]
one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
# What runs there: by default, a call with all operands, and calls that the kernels refuse.
ROWS = {
    'default': ('(Triton and everything) or refuse', ['test_contract.py', 'in_triton.py']),
    'all': ('(Triton and not everything) or tiles', ['test_contract.py', 'in_triton.py']),
    'as on a GPU': ('triton and (everything or odd or table) and not bfloat16', ['test_gpu.py']),
}


@pytest.mark.parametrize('rows', ['default', *(pytest.param(x, marks=pytest.mark.slow) for x in [*ROWS][1:])])
def test_the_rows_of_triton_pass_in_its_interpreter(rows):
    if tuple(map(int, triton.version().split('.')[:2])) < (3, 7):
        pytest.skip('before 3.7, the interpreter fails with this numpy')
    some, files = ROWS[rows]
    paths = [Path(__file__).with_name(file) for file in files]
    done = subprocess.run(
        [sys.executable, '-m', 'pytest', '-n', '0', '-p', 'no:cacheprovider', '--all-cases', '-k', some, *paths],
        env={**os.environ, 'TRITON_INTERPRET': '1', 'OMP_NUM_THREADS': '1'},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    assert ' passed' in done.stdout


KERNELS = ['forward_kernel', 'query_gradients', 'key_gradients', 'axis_gradients']


@pytest.fixture(scope='module')
def tool():
    spec = spec_from_file_location('compile_triton', TOOL)
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize('channels', [128, 256])
def test_no_kernel_spills_registers_in_16_bit(tool, channels):
    """Every kernel is compiled, without a GPU, and fits into shared memory, and nothing depends on the order of sums.

    With tiles of 128 rows and 8 warps, every product is wgmma.
    """
    compiled = {x.kernel: x for x in tool.compile_call(torch.float16, channels)}
    assert list(compiled) == KERNELS
    for each in compiled.values():
        assert each.registers > 48  # the sums alone: the compiler has not removed the products
        assert each.spilled == 0 or (each.kernel, channels) == ('key_gradients', 256)
        assert each.shared <= tool.SHARED * 1024
        assert not {'atom', 'red'} & {*each.products.split(', ')}
        if each.kernel not in ('key_gradients', 'axis_gradients'):
            assert each.products == 'wgmma'


@pytest.mark.kernels
def test_a_size_does_not_compile_a_kernel_again(monkeypatch):
    """What Triton derives from the arguments is equal for other sizes, also where they are divisible by 16, and for
    other numbers: a scale that depends on the size is an argument."""
    from mmattn.ops.triton import global_attention as module
    from mmattn.ops.triton import launch

    if tuple(map(int, triton.version().split('.')[:2])) < (3, 7):
        pytest.skip('older versions derive it elsewhere')
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    backend = type(make_backend(GPUTarget('cuda', 90, 32)))
    keys = []

    def record(kernel, programs, *arguments, **constants):
        seen = [native_specialize_impl(backend, launch.encode(x), False, True, True) for x in arguments]
        keys[-1].append((kernel.__name__, str(seen), str(constants)))

    monkeypatch.setattr(launch, 'launch', record)
    monkeypatch.setattr(module, 'supports', lambda *arguments: True)
    for height, width in ((20, 17), (32, 48), (97, 64), (50, 60), (65, 33), (128, 31), (1, 17)):
        keys.append([])
        x = torch.empty(2, 3, height, width, 32, dtype=torch.float16)
        window = dict(window_bias=x.new_empty(2, 3, height, width, 25), window_size=5)
        arguments = literal.arguments('global_attention', x, x, x, scale=1 / height, **window, outside_bias=x[..., 0])
        out, lse = module.forward(*arguments)
        module.backward(out, lse, out, lse, *arguments, True, [True] * len(list_tensors(arguments)))
    *some, line = keys
    assert all(key == some[0] for key in some)
    assert line != some[0]


OLDEST = CACHE / 'triton-3.6.0'  # run_tests.sh --all installs it


@pytest.mark.slow
@pytest.mark.skipif(not (OLDEST / 'triton').exists(), reason='Triton 3.6.0 is not installed for the tests')
def test_the_oldest_triton_compiles_all_kernels():
    options = ['--channels', '64', '--dtypes', 'bfloat16']
    path = os.pathsep.join([str(OLDEST), os.environ.get('PYTHONPATH', '')])
    code = 'import runpy, sys, triton; assert triton.__version__ == "3.6.0"; sys.argv = sys.argv[1:]; '
    code += 'runpy.run_path(sys.argv[0], run_name="__main__")'
    done = subprocess.run(
        [sys.executable, '-c', code, TOOL, *options],
        env={**os.environ, 'PYTHONPATH': path},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split('|')[3].strip() for line in done.stdout.splitlines()[2:]]
    assert rows == KERNELS
