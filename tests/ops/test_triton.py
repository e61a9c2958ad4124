"""Triton's kernels in its interpreter, on the CPU: the calls of the contract that they support, from the equations.

The interpreter must be chosen before Triton is imported, so another process evaluates all calls.
"""

import os
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

from mmattn import ops
from mmattn.ops import triton
from mmattn.ops.autograd import list_tensors

from ..conftest import CACHE
from ..support.comparison import evaluate
from ..support.operator_calls import WINDOW, cast, make
from . import literal, test_masked_keys
from .literal import assert_same, low_precision
from .test_contract import ALL, flat, given

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(find_spec('triton') is None, reason='Triton is not installed'),
    pytest.mark.skipif('older' in triton.unavailable_reason(), reason=triton.unavailable_reason()),
]
one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
TOOL = Path(__file__).parents[2] / 'tools/benchmarks/compile_triton.py'
DTYPES = {'float32': torch.float32, 'float16': torch.float16}  # the interpreter's products of bfloat16 are wrong
RUN = ['global_attention', 'global_attention_backward']
every_dtype = pytest.mark.parametrize('dtype', DTYPES.values(), ids=DTYPES)
MASKED = ('key_mask', 'key_bias')
RANDOM = 12  # calls


def large(size, *biases, last=None, **settings):
    """A call of several tiles: tensors and settings."""
    call = make('global_attention', size, *biases, channels=5, value_channels=17, **settings)
    return call.tensors, call.settings | ({'last': last} if last else {})


def cases():
    """Tensors and settings by title."""
    found = {name: given(call) for name, call in ALL.items() if call.operator == 'global_attention'}
    for title, call in {
        '1d': large((70,), *WINDOW, window_size=5),
        '1d, causal': large((70,), *WINDOW, window_size=5, is_causal=True),
        '2d': large((13, 7), *WINDOW, window_size=3),
        '2d, last queries': large((9, 7), *WINDOW, window_size=3, is_causal=True, last=2),
        '3d, axis logits': large((3, 4, 7), *WINDOW, 'axis_bias', window_size=3),
        'keys at other positions': large((9, 8), key_size=(5, 9)),
    }.items():
        found[f'global_attention: tiles, {title}'] = call
    return found


CASES = cases()


def of_the_last_queries(last=None, **arguments):
    """The operator for the last rows of queries only."""
    from . import zscored

    own = {name: x[:, :, -last:] if last and name in ('query', 'window_bias', 'outside_bias') else x
           for name, x in arguments.items()}  # fmt: skip
    return zscored.operator('global_attention')(**own)


def equation(last=None, **arguments):
    out = literal.global_attention(**arguments)
    return out[:, :, -last:] if last else out


def evaluate_all(path):
    """Write outputs, gradients and the names of the kernels that ran; in the interpreter."""
    from mmattn.ops import dispatch

    from ..fuzz import triton_kernels

    triton_kernels.speed_up_interpreter()
    found = {}
    for dtype in DTYPES.values():
        for name, (tensors, settings) in CASES.items():
            with dispatch.backend('triton'), dispatch.kernels_run() as kernels:
                result = evaluate(of_the_last_queries, cast(tensors, dtype), **settings)
            found[name, dtype] = result, kernels
        with dispatch.backend('triton'):
            found['alone', dtype] = gradients_alone(dtype)
        for mask_by in MASKED:
            with dispatch.backend('triton'), dispatch.kernels_run() as kernels:
                try:
                    test_masked_keys.check(ops.global_attention, 'global_attention, window', mask_by, dtype)
                except AssertionError as error:
                    kernels.append(f'wrong: {error!r}')
            found[mask_by, dtype] = {*kernels}
    found['random'] = [triton_kernels.check(number) for number in range(RANDOM)]
    torch.save(found, path)


def gradients_alone(dtype):
    """For each tensor of a call, its gradient if all are needed, and if no other one is."""
    run, leaves = flat('global_attention', dtype)
    together = [x.detach().requires_grad_() for x in leaves]
    expected = torch.autograd.grad(run(*together).square().sum(), together)
    found = []
    for kept in range(len(leaves)):
        some = [x.detach().requires_grad_(i == kept) for i, x in enumerate(leaves)]
        found += torch.autograd.grad(run(*some).square().sum(), [some[kept]])
    return list(zip(expected, found))


@pytest.fixture(scope='module')
def interpreted(tmp_path_factory):
    if tuple(map(int, triton.version().split('.')[:2])) < (3, 7):
        pytest.skip('before 3.7, the interpreter fails with this numpy')
    path = tmp_path_factory.mktemp('triton') / 'found.pt'
    code = f'from {__name__} import evaluate_all; evaluate_all({str(path)!r})'
    done = subprocess.run(
        [sys.executable, '-c', code],
        env={**os.environ, 'TRITON_INTERPRET': '1', 'OMP_NUM_THREADS': '1', 'PYTHONPATH': os.pathsep.join(sys.path)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    return torch.load(path)


@pytest.mark.slow
@every_dtype
@pytest.mark.parametrize('mask_by', MASKED)
def test_masked_keys_may_hold_anything(interpreted, mask_by, dtype):
    assert interpreted[mask_by, dtype] == {*RUN}


@pytest.mark.slow
@every_dtype
@pytest.mark.parametrize('name', CASES)
def test_values_and_gradients_are_those_of_the_equation(interpreted, name, dtype):
    tensors, settings = CASES[name]
    actual, kernels = interpreted[name, dtype]
    assert kernels == RUN
    expected = evaluate(equation, cast(tensors, dtype), torch.float64, **settings)
    largest = max(1, *(x.abs().max().item() for x in expected.values()))
    tolerance = low_precision(dtype)
    if dtype == torch.float16:
        # weights and gradients of logits are rounded before they are multiplied
        tolerance['atol'] *= 2
    # the z-score of few keys multiplies its gradients
    assert_same(actual, expected, **tolerance | {'atol': 4 * tolerance['atol'] * largest})


@pytest.mark.slow
@every_dtype
def test_a_gradient_has_the_same_bits_if_no_other_one_is_needed(interpreted, dtype):
    for expected, alone in interpreted['alone', dtype]:
        assert torch.equal(alone, expected)


@pytest.mark.slow
def test_random_calls_in_random_tiles(interpreted):
    """A few of those of ``tests.fuzz.triton_kernels``."""
    calls = interpreted['random']
    assert {x['dtype'] for x in calls} == {*DTYPES, 'bfloat16'}
    assert [x for x in calls if not x['error'] <= 1] == []


@pytest.mark.slow
def test_the_tests_for_gpus_pass_in_the_interpreter():
    """Some of them: the interpreter takes seconds for a call."""
    if tuple(map(int, triton.version().split('.')[:2])) < (3, 7):
        pytest.skip('before 3.7, the interpreter fails with this numpy')
    tests, some = (
        Path(__file__).with_name('test_gpu.py'),
        'triton and (everything or odd or table) and not bfloat16',
    )
    done = subprocess.run(
        [sys.executable, '-m', 'pytest', '-n', '0', '-p', 'no:cacheprovider', '--all-cases', '-k', some, tests],
        env={**os.environ, 'TRITON_INTERPRET': '1', 'OMP_NUM_THREADS': '1'},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout


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


def test_a_size_does_not_compile_a_kernel_again(monkeypatch):
    """What Triton derives from the arguments is equal for other sizes, also where they are divisible by 16."""
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
    for height, width in ((20, 17), (32, 48), (97, 64), (1, 17)):
        keys.append([])
        x = torch.empty(2, 3, height, width, 32, dtype=torch.float16)
        window = dict(window_bias=x.new_empty(2, 3, height, width, 25), window_size=5)
        arguments = literal.arguments('global_attention', x, x, x, **window, outside_bias=x[..., 0])
        out, lse = module.forward(*arguments)
        module.backward(out, lse, out, lse, *arguments, True, [True] * len(list_tensors(arguments)))
    assert keys[0] == keys[1] == keys[2] != keys[3]


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
