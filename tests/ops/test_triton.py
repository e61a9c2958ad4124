"""Triton's kernels in its interpreter, on the CPU: the calls of the contract that they support, from the equations.

The interpreter must be chosen before Triton is imported, so another process evaluates all calls.
"""

import functools
import importlib
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
from mmattn.ops.operator_calls import WINDOW, cast, make
from mmattn.ops.testing import evaluate

from ..conftest import cache_folder
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
WAYS = {  # dtype, and launch.KEYS_AS_ROWS
    **{name: (dtype, False) for name, dtype in DTYPES.items()},
    'float16, keys as rows': (torch.float16, True),
}
MASKED = (
    ('global_attention, window', 'key_mask'),
    ('global_attention, window', 'key_bias'),
    ('local_attention', 'key_mask'),
)
RANDOM = {'global_attention': 12, 'grid_attention': 6, 'local_attention': 6, 'strided_attention': 6}  # calls
SOME = {
    'grid_attention': ('one table', 'outlier of −inf', '3d, learned outlier'),
    'local_attention': ('k 3×5, content and geometry', 'dilation 2, content', 'one table', 'geometry'),
    'strided_attention': ('forward, offset logits', 'step 2×3', 'centred, keys at other positions', '3d, block'),
}


def large(size, *biases, channels=5, value_channels=17, last=None, **settings):
    """A call of several tiles: tensors and settings."""
    kinds = {'kernel_size': 'local_attention', 'pattern': 'strided_attention'}
    operator = next((kinds[x] for x in settings if x in kinds), 'global_attention')
    call = make(operator, size, *biases, channels=channels, value_channels=value_channels, **settings)
    return call.tensors, call.settings | ({'last': last} if last else {})


def cases():
    """Tensors and settings by title."""
    some = [f'{operator}: {name}' for operator, names in SOME.items() for name in names]
    found = {name: given(call) for name, call in ALL.items() if call.operator == 'global_attention' or name in some}
    for title, call in {
        '1d': large((70,), *WINDOW, window_size=5),
        '1d, causal': large((70,), *WINDOW, window_size=5, is_causal=True),
        '2d': large((13, 7), *WINDOW, window_size=3),
        '2d, last queries': large((9, 7), *WINDOW, window_size=3, is_causal=True, last=2),
        '3d, axis logits': large((3, 4, 7), *WINDOW, 'axis_bias', window_size=3),
        'keys at other positions': large((9, 8), key_size=(5, 9)),
    }.items():
        found[f'global_attention: tiles, {title}'] = call
    masked = large((9, 8), 'key_mask', kernel_size=3, return_lse=True)
    found['local_attention: tiles, key mask, log-sum-exp'] = masked
    parts = large((70,), 'offset_bias', pattern='strided', step=2, return_lse=True)
    found['strided_attention: tiles, parts of an axis'] = parts
    return found


CASES = cases()


def of_the_last_queries(operator, last=None, **arguments):
    """The operator for the last rows of queries only."""
    from . import zscored

    own = {name: x[:, :, -last:] if last and name in ('query', 'window_bias', 'outside_bias') else x
           for name, x in arguments.items()}  # fmt: skip
    return zscored.operator(operator)(**own)


def equation(operator, last=None, **arguments):
    out = getattr(literal, operator)(**arguments)
    return out[:, :, -last:] if last else out


def operator_of(name):
    return name.partition(':')[0].partition(',')[0]


def runs(name, way):
    """Most operators are evaluated in one way, to save time."""
    return operator_of(name) == 'global_attention' or way == WAYS['float16']


def in_every_way(*names):
    return [pytest.param(name, way, id=f'{name}, {title}') for title, way in WAYS.items() for name in names
            if runs(name, way)]  # fmt: skip


def evaluate_all(path):
    """Write outputs, gradients and the names of the kernels that ran; in the interpreter."""
    from mmattn.ops import dispatch
    from mmattn.ops.triton import launch

    from ..fuzz import triton_kernels

    triton_kernels.speed_up_interpreter()
    found = {}
    small = functools.partial(test_masked_keys.call, 'local_attention', (3, 5), kernel_size=3, return_lse=True)
    test_masked_keys.CALLS['local_attention'] = small
    for way in WAYS.values():
        dtype, launch.KEYS_AS_ROWS = way
        for name, (tensors, settings) in CASES.items():
            if runs(name, way):
                call = functools.partial(of_the_last_queries, operator_of(name))
                with dispatch.backend('triton'), dispatch.kernels_run() as kernels:
                    result = evaluate(call, cast(tensors, dtype), **settings)
                found[name, way] = result, kernels
        for operator in triton.OPERATORS:
            if runs(operator, way):
                with dispatch.backend('triton'):
                    found[operator, way] = gradients_alone(operator, dtype)
        for name, mask_by in MASKED:
            if runs(name, way):
                with dispatch.backend('triton'), dispatch.kernels_run() as kernels:
                    try:
                        test_masked_keys.check(getattr(ops, operator_of(name)), name, mask_by, dtype)
                    except AssertionError as error:
                        kernels.append(f'wrong: {error!r}')
                found[f'{name}, {mask_by}', way] = {*kernels}
    found['random'] = [triton_kernels.check(name, i) for name, count in RANDOM.items() for i in range(count)]
    torch.save(found, path)


def gradients_alone(operator, dtype):
    """For each tensor of a call, its gradient if all are needed, and if no other one is."""
    run, leaves = flat(operator, dtype)
    if operator == 'grid_attention':  # fewer lines, of which each takes the interpreter a program
        call = make(operator, (2, 5), *WINDOW, channels=5, value_channels=17, window_size=3)
        run = lambda *leaves: ops.grid_attention(**dict(zip(call.tensors, leaves)), **call.settings)  # noqa: E731
        leaves = [x.to(dtype) for x in call.tensors.values()]
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
@pytest.mark.parametrize(('name', 'way'), in_every_way(*map(', '.join, MASKED)))
def test_masked_keys_may_hold_anything(interpreted, name, way):
    assert interpreted[name, way] == {operator_of(name), f'{operator_of(name)}_backward'}


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'way'), in_every_way(*CASES))
def test_values_and_gradients_are_those_of_the_equation(interpreted, name, way):
    tensors, settings = CASES[name]
    dtype = way[0]
    actual, kernels = interpreted[name, way]
    operator = operator_of(name)
    assert kernels == [operator, f'{operator}_backward']
    expected = evaluate(
        functools.partial(equation, operator),
        cast(tensors, dtype),
        torch.float64,
        **settings,
    )
    largest = max(1, *(x.abs().max().item() for x in expected.values()))
    tolerance = low_precision(dtype)
    if dtype == torch.float16:
        # weights and gradients of logits are rounded before they are multiplied
        tolerance['atol'] *= 2
    # the z-score of few keys multiplies its gradients
    assert_same(actual, expected, **tolerance | {'atol': 4 * tolerance['atol'] * largest})


@pytest.mark.slow
@pytest.mark.parametrize(('operator', 'way'), in_every_way(*triton.OPERATORS))
def test_a_gradient_has_the_same_bits_if_no_other_one_is_needed(interpreted, operator, way):
    for expected, alone in interpreted[operator, way]:
        assert torch.equal(alone, expected)


@pytest.mark.slow
def test_random_calls_in_random_tiles(interpreted):
    """A few of those of ``tests.fuzz.triton_kernels``."""
    calls = interpreted['random']
    assert {x['dtype'] for x in calls} == {*DTYPES, 'bfloat16'}
    assert [x for x in calls if not x['error'] <= 1] == []
    # Each of three axes takes a launch in each pass, and what all need in the backward pass another one.
    assert max(x['launches'] for x in calls if x['operator'] == 'grid_attention') == 7


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


KERNELS = {
    'global_attention': ['forward_kernel', 'query_gradients', 'key_gradients', 'axis_gradients'],
    'grid_attention': ['grid_forward', 'grid_along', 'grid_gradients'],
    'local_attention': ['local_forward', 'local_query_gradients', 'local_key_gradients'],
    'strided_attention': ['strided_forward', 'strided_query_gradients', 'strided_key_gradients'],
}
ROWS = ['key_rows values', 'key_rows keys']


@pytest.fixture(scope='module')
def tool():
    spec = spec_from_file_location('compile_triton', TOOL)
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize('keys_as_rows', [False, True], ids=['', 'keys as rows'])
@pytest.mark.parametrize(('capability', 'channels'), [(80, 256), (90, 128), (90, 256), (100, 256)])
def test_no_kernel_spills_registers_in_16_bit(tool, monkeypatch, capability, channels, keys_as_rows):
    """Every kernel is compiled, without a GPU, and fits into shared memory, and nothing depends on the order of sums.

    With tiles of 128 rows and 8 warps, every product on 9.0 is wgmma; on 10.0, those of large tiles are tcgen05.
    """
    from mmattn.ops.triton import launch

    monkeypatch.setattr(launch, 'KEYS_AS_ROWS', keys_as_rows)
    limit = tool.SHARED[120 if capability == 80 else capability]  # one table is for 8.0 and 12.0
    only = 'key_rows' if keys_as_rows else ''  # the others are compiled once
    compiled = {
        x.kernel: x for x in tool.compile_call('global_attention', torch.float16, channels, capability, only=only)
    }
    assert list(compiled) == (ROWS if keys_as_rows else KERNELS['global_attention'])
    for each in compiled.values():
        assert each.registers > 48  # the sums alone: the compiler has not removed the products
        assert each.spilled == 0 or (each.kernel, capability, channels) == ('key_gradients', 90, 256)
        assert each.shared <= limit * 1024
        assert each.columns <= tool.COLUMNS
        assert not {'atom', 'red'} & {*each.products.split(', ')}
        if capability == 90 and each.kernel not in ('key_gradients', 'axis_gradients'):
            assert each.products == 'wgmma'
        elif capability == 100 and each.kernel != 'axis_gradients':
            assert 'tcgen05' in each.products


@pytest.mark.slow
@pytest.mark.parametrize(
    ('operator', 'capability', 'channels', 'products'),
    [('local_attention', 80, 32, ''), ('local_attention', 90, 256, ''), ('strided_attention', 90, 32, 'wgmma')],
)
def test_other_operators_spill_nothing_and_have_no_atomic_sums(tool, operator, capability, channels, products):
    compiled = [*tool.compile_call(operator, torch.float16, channels, capability)]
    assert [x.kernel for x in compiled] == KERNELS[operator]
    assert {(x.spilled, x.products) for x in compiled} == {(0, products)}
    assert max(x.shared for x in compiled) <= tool.SHARED[capability] * 1024


@pytest.mark.slow
def test_grid_attention_spills_little_and_has_no_atomic_sums(tool):
    """As in Bi-CC: values have 512 channels."""
    compiled = {x.kernel: x for x in tool.compile_call('grid_attention', torch.float16, 64, 90)}
    assert list(compiled) == KERNELS['grid_attention']
    assert [x.products for x in compiled.values()] == ['wgmma', '', 'wgmma']
    assert max(x.spilled for x in compiled.values()) <= 16
    assert max(x.shared for x in compiled.values()) <= tool.SHARED[120] * 1024  # one table is for all GPUs


def test_what_grid_attention_supports():
    module = importlib.import_module('mmattn.ops.triton.grid_attention')

    def is_supported(shape=(1, 2, 4, 6, 16), dtype=torch.float16, value_channels=5, grad_stride=1):
        x = torch.empty(shape, dtype=dtype, device='meta')
        value = x.new_empty(*shape[:-1], value_channels)
        arguments = literal.arguments('grid_attention', x, x, value)
        grad = x.new_empty(1).as_strided(value.shape, (*[0] * (len(shape) - 2), grad_stride, 1))
        out = value, x[..., 0].float()
        return module.backward(grad, None, *out, *arguments, True, [False] * 3) is not NotImplemented

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.launch, 'launch', lambda *arguments, **constants: None)
        assert is_supported()
        assert is_supported((1, 2, 3, 4, 6, 256), value_channels=4096)
        assert is_supported((2**31, 2, 4, 6, 16))  # batch and heads have offsets of 64 bits
        assert not is_supported((1, 2, 4, 6, 257))
        assert not is_supported((0, 2, 4, 6, 16))
        assert not is_supported(value_channels=0)
        assert not is_supported((1, 1, 2**15, 2**15, 1), value_channels=2)
        assert not is_supported(grad_stride=2**31)
        assert not is_supported(dtype=torch.float64)


def test_what_local_attention_supports_and_how_it_reads_a_map():
    module = importlib.import_module('mmattn.ops.triton.local_attention')

    def is_supported(shape=(1, 2, 4, 6, 16), dtype=torch.float16, grad_stride=1, **settings):
        x = torch.empty(shape, dtype=dtype, device='meta')
        arguments = literal.arguments('local_attention', x, x, x, **settings)
        grad = x.new_empty(1).as_strided(shape, (0, 0, 0, grad_stride, 0))
        return module.backward(grad, None, *arguments, True, [False] * 3) is not NotImplemented

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, 'run', lambda *arguments: None)
        assert is_supported()
        assert is_supported(kernel_size=(1, 7), dilation=3)
        assert is_supported((2**31, 2, 4, 6, 256))  # batch and heads have offsets of 64 bits
        assert not is_supported(iterations=2)
        assert not is_supported((1, 2, 4, 6, 257))
        assert not is_supported((0, 2, 4, 6, 16))
        assert not is_supported((1, 2, 4, 6, 0))
        assert not is_supported((1, 1, 2**15, 2**15, 1))
        assert not is_supported((1, 2, 2**14, 2**14, 16))
        assert not is_supported(grad_stride=2**31)
        assert not is_supported(dilation=2**30)
        assert not is_supported(dtype=torch.float64)

    x = torch.empty(1, 4, 6, 2, 24, device='meta')
    assert module.describe(x.movedim(3, 1)).unit.value == 8  # as the layers call it: whole vectors
    assert module.describe(x[:, :1, :, :, :3].movedim(3, 1)).unit.value == 8
    assert module.describe(x[..., ::2].movedim(3, 1)).unit.value == 1
    assert module.describe(torch.empty(2, 2, 4, 6, 3, device='meta')).unit.value == 1


def test_what_strided_attention_supports():
    module = importlib.import_module('mmattn.ops.triton.strided_attention')

    def is_supported(shape=(1, 2, 4, 6, 16), dtype=torch.float16, values=16, key_size=(4, 6), biases=2, **settings):
        query = torch.empty(shape, dtype=dtype, device='meta')
        key = query.new_empty(*shape[:2], *key_size, shape[-1])
        value = query.new_empty(*shape[:2], *key_size, values)
        settings = {'pattern': 'forward', 'step': 1, 'offset_bias': [query.new_empty(1).float()] * biases} | settings
        arguments = literal.arguments('strided_attention', query, key, value, **settings)
        return module.supports(module.StridedArguments(*arguments, True))

    assert is_supported()
    assert is_supported((3, 1, 9, 1, 256), key_size=(2, 8))
    assert not is_supported((1, 2, 4, 6, 257))
    assert not is_supported(values=257)
    assert not is_supported(values=0)
    assert not is_supported((0, 2, 4, 6, 16))
    assert not is_supported((1, 2, 2**14, 2**14, 16))
    assert is_supported((1, 2, 7, 2**17, 2), key_size=(7, 2**17), pattern='block', step=2**17, biases=0)
    assert not is_supported((1, 2, 8, 2**17, 2), key_size=(8, 2**17), pattern='block', step=2**17, biases=0)
    wide = dict(key_size=(2, 2), pattern='strided', step=(2**13, 2**13), biases=0)
    assert is_supported((1, 2, 2**14, 2**14, 1), values=4, **wide)
    assert not is_supported((1, 2, 2**14, 2**14, 1), values=8, **wide)  # the output alone is too large
    assert not is_supported(dtype=torch.float64)
    assert not is_supported(dtype=torch.bfloat16)  # in the interpreter


@pytest.mark.parametrize('operator', triton.OPERATORS)
def test_a_size_does_not_compile_a_kernel_again(monkeypatch, operator):
    """What Triton derives from the arguments is equal for other sizes, also where they are divisible by 16."""
    from mmattn.ops.triton import launch

    if tuple(map(int, triton.version().split('.')[:2])) < (3, 7):
        pytest.skip('older versions derive it elsewhere')
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    backend = type(make_backend(GPUTarget('cuda', 90, 32)))
    keys, compiled = [], {}

    def record(kernel, programs, *arguments, **constants):
        encoded, kind = launch.encode(arguments)
        seen = [native_specialize_impl(backend, x, False, True, True) for x in encoded]
        keys[-1].append((kernel.__name__, str(seen), kind, str(constants)))
        # The launch keeps one compiled kernel by this kind, so Triton would compile the same.
        assert compiled.setdefault((kernel.__name__, kind), str(seen)) == str(seen)

    module = importlib.import_module(f'mmattn.ops.triton.{operator}')
    monkeypatch.setattr(launch, 'launch', record)
    monkeypatch.setattr(module, 'supports', lambda *arguments: True)
    for height, width, start in ((20, 17, 0), (32, 48, 0), (97, 64, 0), (1, 17, 0), (20, 1, 1), (33, 16, 1), (1, 1, 0)):
        keys.append([])
        storage = torch.empty(start + 2 * 3 * height * width * 32, dtype=torch.float16)
        x = storage[start:].view(2, 3, height, width, 32)
        windows = dict(window_bias=x.new_empty(2, 3, height, width, 9 if operator == 'grid_attention' else 25))
        settings = {
            'global_attention': dict(windows, window_size=5, outside_bias=x[..., 0]),
            'grid_attention': dict(windows, window_size=5, outside_bias=x[..., 0]),
            'local_attention': dict(windows, kernel_size=5),
            'strided_attention': dict(pattern='centred', step=5, offset_bias=[x.new_empty(1)] * 2),
        }
        arguments = literal.arguments(operator, x, x, x, **settings[operator])
        out, lse = module.forward(*arguments)
        outputs = () if operator == 'local_attention' else (out, lse)
        module.backward(out, lse, *outputs, *arguments, True, [True] * len(list_tensors(arguments)))
    assert keys[0] == keys[1] == keys[2]
    assert len({str(key) for key in keys}) > 2  # others are compiled again


OLDEST = cache_folder() / 'triton-3.6.0'  # run_tests.sh --all installs it


@pytest.mark.slow
@pytest.mark.skipif(not (OLDEST / 'triton').exists(), reason='Triton 3.6.0 is not installed for the tests')
@pytest.mark.parametrize('operator', triton.OPERATORS)
def test_the_oldest_triton_compiles_all_kernels(operator):
    options = ['--operators', operator, '--capabilities', '90', '--channels', '64', '--dtypes', 'bfloat16']
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
    rows = [line.split('|')[5].strip() for line in done.stdout.splitlines()[2:]]
    assert rows == KERNELS[operator]


@pytest.mark.slow
def test_a_kernel_is_compiled_for_each_gpu_of_a_process(tool):
    """A target after another one, whose kernels Triton keeps in memory."""
    kernels = [next(tool.compile_call('global_attention', torch.float16, 32, gpu)) for gpu in (80, 90)]
    assert kernels[0].kernel == kernels[1].kernel == 'forward_kernel'
    assert kernels[0] != kernels[1]  # registers and shared memory
