"""The CUDA kernels, executed on the CPU by the headers in ``cuda_on_cpu``, against the references in float64."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from mmattn.ops.autograd import list_tensors

from ..requirements import requires
from . import literal
from .literal import LAYOUTS, LEARNED, SWITCHES, low_precision, with_kernel, with_logits, with_offsets
from .test_cuda_compiles import CSRC, OPERATOR, TORCH, built
from .test_grid_attention import MAPS as GRIDS
from .test_grid_attention import with_window
from .test_native import KERNELS
from .test_strided_attention import MAPS, OTHER_KEYS, PATTERNS

HERE = Path(__file__).parent / 'cuda_on_cpu'
SIZES = [(1, 1), (1, 19), (17, 1), (5, 7), (3, 33)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
OPERATORS = ('local_attention', 'dynamic_conv', 'grid_attention', 'strided_attention')
# The last argument. Kernels of local attention compute no log-sum-exp.
RETURN_LSE = {'local_attention': False, 'grid_attention': True, 'strided_attention': True}
OUTSIDE = [
    pytest.param(outside, id=name)
    for name, outside in (('content', None), ('learned', LEARNED), ('zero', 0.0), ('neg_inf', -math.inf))
]
MOST_SHARED = 163 << 10  # of cuda_on_cpu/cuda_runtime.h

pytestmark = [
    pytest.mark.kernels,
    requires('g++'),
]
one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)


@pytest.fixture(autouse=True, scope='module')
def on_cpu():
    """Load the raw operators, with the schemas of the dispatcher operators. What torch hands out is NaN first."""
    flags = ['-O2', '-g0', '-std=c++20', '-U_FORTIFY_SOURCE', '-Wall', '-Wextra', '-Werror', '-Wno-unknown-pragmas']
    command = ['g++', '-shared', '-fPIC', *flags, f'-I{HERE}', f'-I{CSRC}', *TORCH]
    sources = [HERE / 'calls.cpp', '-x', 'c++', *sorted((CSRC / 'cuda').glob('*.cu'))]
    libraries = [f'-L{cpp_extension.TORCH_LIB_PATH}', '-lc10', '-ltorch_cpu']
    torch.ops.load_library(built(command, [*sources, *libraries], HERE, CSRC / 'cuda', *OPERATOR, name='on_cpu.so'))
    library = torch.library.Library('cuda_on_cpu', 'DEF')
    for name in OPERATORS:
        for operator in (name, f'{name}_backward'):
            library.define(str(getattr(torch.ops.mmattn, operator).default._schema).removeprefix('mmattn::'))
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
    library._destroy()


def wide(x):
    """A copy of the operands, float64."""
    if isinstance(x, (list, tuple)):
        return type(x)(map(wide, x))
    return x.double() if torch.is_tensor(x) and x.is_floating_point() else x


def results(operators, name, arguments, needed=None):
    """Output, and log-sum-exp where there is one, and gradients."""
    outputs = getattr(operators, name)(*arguments)
    needed = needed or [x.is_floating_point() for x in list_tensors(arguments)]
    if not RETURN_LSE.get(name):
        outputs = outputs if torch.is_tensor(outputs) else outputs[0]
    grad_lse = literal.cotangent(outputs[1]) if RETURN_LSE.get(name) else None
    given = literal.backward_arguments(name, outputs, arguments, needed, grad_lse)
    return [*(outputs if RETURN_LSE.get(name) else [outputs]), *getattr(operators, f'{name}_backward')(*given)]


def kernels(name, arguments, needed=None):
    return results(torch.ops.cuda_on_cpu, name, arguments, needed)


def both(name, arguments):
    """What the kernels of an operator give, and the reference in float64."""
    actual = kernels(name, arguments)
    expected = results(torch.ops.mmattn, name, wide(arguments))  # float64 has no kernels
    assert len(actual) == len(expected)
    return actual, expected


def check(name, arguments, tolerance=None):
    """The kernels of an operator give what the reference gives in float64."""
    actual, expected = both(name, arguments)
    tolerance = tolerance or low_precision(actual[0].dtype)
    for i, (x, y) in enumerate(zip(actual, expected)):
        torch.testing.assert_close(x, y, **tolerance, msg=lambda text, i=i: f'result {i}: {text}')
    return actual


def call(name, tensors, settings, layout=lambda x: x, **more):
    """The arguments of a call of an operator."""
    tensors = literal.each(tensors, lambda x: layout(x) if x.dtype != torch.bool else x)
    return_lse = [RETURN_LSE[name]] if name in RETURN_LSE else []
    return (*literal.arguments(name, **(settings | tensors | more)), *return_lse)


def local_arguments(*arguments, layout=lambda x: x, **settings):
    return call('local_attention', *with_kernel(*arguments, **settings), layout)


def conv_arguments(*arguments, layout=lambda x: x, dilation=1, **settings):
    return call('dynamic_conv', *with_logits(*arguments, **settings), layout, dilation=dilation)


def grid_arguments(*arguments, layout=lambda x: x, scale=None, **settings):
    return call('grid_attention', *with_window(*arguments, **settings), layout, scale=scale)


def strided_arguments(*arguments, layout=lambda x: x, scale=None, **settings):
    return call('strided_attention', *with_offsets(*arguments, **settings), layout, scale=scale)


def order_of(name, value):
    """The order of dimensions that the output has: that of the value, unless it is expanded."""
    apart = name == 'grid_attention' and value.stride(-1) != 1  # the channels of a position
    return in_order(value.contiguous()) if apart or 0 in value.stride() else in_order(value)


def in_order(x):
    """Dimensions from that of the largest stride to that of the least; those of one position are nowhere."""
    return [dim for dim in sorted(range(x.dim()), key=lambda dim: -x.stride(dim)) if x.shape[dim] > 1]


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize(('kernel_size', 'dilation'), KERNELS, ids=str)
@pytest.mark.parametrize('size', SIZES, ids=str)
def test_local_attention(size, kernel_size, dilation, dtype):
    for switches in SWITCHES.values():
        check('local_attention', local_arguments(size, kernel_size, 1, 2, dilation=dilation, dtype=dtype, **switches))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('size', SIZES, ids=str)
def test_dynamic_conv(size, dtype):
    for channels, (kernel_size, dilation) in itertools.product((1, 18), KERNELS):
        check(
            'dynamic_conv', conv_arguments(size, kernel_size, value_channels=channels, dtype=dtype, dilation=dilation)
        )


@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize('channels', [1, 4, 16, 35, 160])
@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_layouts_of_local_attention(layout, channels, dtype):
    for switches in ({}, {'iterations': 3}):
        arguments = local_arguments((3, 11), 3, 2, 2, value_channels=channels, dtype=dtype, layout=layout, **switches)
        out = check('local_attention', arguments)[0]
        assert out.stride() == torch.empty_like(arguments[2]).stride()
    check('dynamic_conv', conv_arguments((3, 11), 3, value_channels=channels, dtype=dtype, layout=layout))


@pytest.mark.parametrize('fault', [0, 1, 2, 3])
def test_nan_comes_out_where_the_reference_has_it(fault):
    """Of strided attention: where it has one for a key that is attended to; beyond, 0 · NaN is a NaN or not."""
    calls = [
        ('local_attention', local_arguments((5, 13), 3, 1, 2, dtype=torch.float32, iterations=iterations))
        for iterations in (1, 3)
    ]
    calls += [('grid_attention', grid_arguments((5, 13), 3, dtype=torch.float32))]
    calls += [
        ('strided_attention', strided_arguments((5, 13), 3, pattern, dtype=torch.float32))
        for pattern in ('block', 'strided')
    ]
    for name, arguments in calls:
        operands = [*arguments[:3], *(arguments[3] if isinstance(arguments[3], list) else arguments[3:4])]
        operand = operands[fault] = operands[fault].clone()
        operand[0, 0, 2, 7, 1] = math.nan
        logits = operands[3:] if isinstance(arguments[3], list) else operands[3]
        arguments = (*operands[:3], logits, *arguments[4:])
        actual, expected = both(name, arguments)
        for x, y in zip(actual, expected):
            assert torch.equal(x.isnan(), y.isnan()), name


def test_nothing_but_neg_inf_gives_0():
    arguments = local_arguments((5, 13), 3, 1, 2, dtype=torch.float32)
    arguments[3][0, 0, 2] = -math.inf
    actual = check('local_attention', arguments)
    assert not actual[0][0, 0, 2].any()
    assert all(x.isfinite().all() for x in actual)


def test_logits_of_1e4():
    rounded = {'atol': 2e-3, 'rtol': 1e-3, 'check_dtype': False}  # a float32 of 1e4 has steps of 1e-3
    for sign in (1e4, -1e4):
        arguments = local_arguments((5, 13), 3, 1, 2, dtype=torch.float32)
        logits = (arguments[3] * 8).round() / 8 + sign
        check('local_attention', (*arguments[:3], logits, *arguments[4:]), rounded)
        check('dynamic_conv', (arguments[2], logits, [3, 3], 1))
        arguments = grid_arguments((5, 13), 3, dtype=torch.float32)
        position = [(x * 8).round() / 8 + sign for x in arguments[3:5]]
        check('grid_attention', (*arguments[:3], *position, *arguments[5:]), rounded)


LONG = {'long': ((3, 37), (3, 51), 1, 1), 'long-3d': ((2, 2, 35), (1, 3, 5), 1, 1)}  # more than a tile


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('outside', OUTSIDE)
def test_grid_attention(outside, dtype):
    for size, window_size, batch, heads in (GRIDS | LONG).values():
        check('grid_attention', grid_arguments(size, window_size, outside, batch, heads, scale=0.7, dtype=dtype))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('logits', [False, True], ids=['content', 'offsets'])
@pytest.mark.parametrize('pattern', PATTERNS)
def test_strided_attention(pattern, logits, dtype):
    long = {'long': ((3, 40), (2, 36), 1, 1)}
    for size, step, batch, heads in (MAPS | long).values():
        arguments = strided_arguments(size, step, pattern, batch, heads, logits=logits, dtype=dtype, scale=0.7)
        check('strided_attention', arguments)
    for size, key_size, step in OTHER_KEYS.values():
        check(
            'strided_attention',
            strided_arguments(size, step, pattern, 1, 2, key_size=key_size, logits=logits, dtype=dtype),
        )


@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize('channels', [1, 8, 150])  # 150: of more than a block
def test_layouts_of_tiles(layout, channels):
    for dtype in DTYPES:
        settings = {'batch': 2, 'heads': 2, 'value_channels': channels, 'dtype': dtype, 'layout': layout}
        tolerance = low_precision(dtype)
        if dtype != torch.float32:
            tolerance['atol'] *= max(1, channels // 16)  # of Σ dy·y of the rounded output, in a reference of it, too
        for name, arguments in (
            ('grid_attention', grid_arguments((3, 4), 3, **settings)),
            ('strided_attention', strided_arguments((3, 4), 2, 'centred', **settings)),
        ):
            assert in_order(check(name, arguments, tolerance)[0]) == order_of(name, arguments[2])


def test_more_channels_of_keys_than_a_block_has():
    arguments = strided_arguments((3, 5), 2, 'centred', dtype=torch.float32)
    query, key = (literal.randn(1, 1, 3, 5, 150, seed=n).float() / 12 for n in (1, 2))
    check('strided_attention', (query, key, *arguments[2:]))
    arguments = grid_arguments((3, 5), 3, dtype=torch.float32)
    check('grid_attention', (query, key, *arguments[2:]))


def test_more_offsets_than_shared_memory_holds():
    check('strided_attention', strided_arguments((301,), 300, 'centred', dtype=torch.float32))
    check('grid_attention', grid_arguments((1, 301), (1, 601), dtype=torch.float32))


def test_queries_of_nothing_but_neg_inf_give_0():
    arguments = strided_arguments((3, 7), 2, 'block', dtype=torch.float32)
    arguments[3][0][0, 0, 1] = -math.inf
    actual = check('strided_attention', arguments)
    assert not actual[0][0, 0, 1].any()
    assert all(x.isfinite().all() for n, x in enumerate(actual) if n != 1)  # 1: the log-sum-exp


@pytest.mark.parametrize('name', OPERATORS)
def test_gradients_that_are_needed(name):
    """They are the same without the others."""
    arguments = {
        'local_attention': lambda: local_arguments((3, 5), 3, iterations=2, dtype=torch.float32),
        'dynamic_conv': lambda: conv_arguments((3, 5), 3, dtype=torch.float32),
        'grid_attention': lambda: grid_arguments((3, 5), 3, dtype=torch.float32),
        'strided_attention': lambda: strided_arguments((3, 5), 2, 'centred', dtype=torch.float32),
    }[name]()
    may = [x.is_floating_point() for x in list_tensors(arguments)]
    whole = kernels(name, arguments)
    grads = iter(whole[-sum(may) :])
    grads = [next(grads) if there else None for there in may]
    for needed in itertools.product(*([False, True] if there else [False] for there in may)):
        found = kernels(name, arguments, list(needed))[len(whole) - sum(may) :]
        assert len(found) == sum(needed)
        for x, y in zip(found, itertools.compress(grads, needed)):
            assert torch.equal(x, y), needed


@pytest.fixture
def device():
    """Set the compute capability's first number and the shared memory of a block."""
    yield torch.ops.cuda_on_cpu_native.set_device
    torch.ops.cuda_on_cpu_native.set_device(8, MOST_SHARED)


def test_calls_that_do_not_fit_into_shared_memory_are_left_to_the_composition(device):
    """99 KiB, as of GPUs for graphics, and a neighbourhood of 81×81."""
    refused = pytest.raises(NotImplementedError, match='has no kernel for these tensors')
    wide_kernel, narrow = (local_arguments((3, 4), k, dtype=torch.float32) for k in (81, 3))
    kernels('local_attention', wide_kernel)
    device(8, 99 << 10)
    kernels('local_attention', narrow)
    with refused:
        kernels('local_attention', wide_kernel)
    device(7, MOST_SHARED)
    with refused:
        kernels('local_attention', narrow)
