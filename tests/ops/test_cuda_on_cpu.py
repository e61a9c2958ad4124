"""The CUDA kernels, executed on the CPU by the headers in ``cuda_on_cpu``, against the references in float64."""

import itertools
import math
import shutil
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from mmattn import ops
from mmattn.utils.profiling import extra_memory

from . import literal
from .literal import LAYOUTS, LEARNED, SWITCHES, low_precision, operands, randn, with_kernel
from .test_cuda_compiles import CSRC, OPERATOR, TORCH, built
from .test_global_attention import further
from .test_grid_attention import MAPS as GRIDS
from .test_grid_attention import with_window
from .test_native import KERNELS, with_logits
from .test_native_global import with_further
from .test_strided_attention import MAPS, OTHER_KEYS, PATTERNS, with_offsets

HERE = Path(__file__).parent / 'cuda_on_cpu'
SIZES = [(1, 1), (1, 19), (17, 1), (5, 7), (3, 33)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
OPERATORS = ('local_attention', 'dynamic_conv', 'grid_attention', 'strided_attention', 'global_attention')
OUTSIDE = [
    pytest.param(outside, id=name)
    for name, outside in (('content', None), ('learned', LEARNED), ('zero', 0.0), ('neg_inf', -math.inf))
]
MOST_SHARED = 163 << 10  # of cuda_on_cpu/cuda_runtime.h

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(shutil.which('g++') is None, reason='there is no g++ to compile them with'),
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
    torch.ops.cuda_on_cpu_native.set_backend('native')  # a call that kernels do not take is an error
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
    library._destroy()


def tensors_of(arguments):
    return [x for given in arguments for x in (given if isinstance(given, list) else [given]) if torch.is_tensor(x)]


def cotangent(out):
    return torch.arange(out.numel()).mul(7).remainder(13).sub(6).div(8).view(out.shape).to(out.dtype)


def wide(x):
    """A copy of the operands, float64."""
    if isinstance(x, (list, tuple)):
        return type(x)(map(wide, x))
    return x.double() if torch.is_tensor(x) and x.is_floating_point() else x


def results(operators, name, arguments, needed=None, cotangent=cotangent):
    """Output, and log-sum-exp where there is one, and gradients."""
    out = getattr(operators, name)(*arguments)
    kept = () if torch.is_tensor(out) else out
    needed = needed or [x.is_floating_point() for x in tensors_of(arguments)]
    return_lse = [True] if kept else []
    given = (cotangent(kept[0] if kept else out), *kept, *arguments, *return_lse, needed)
    return [*(kept or [out]), *getattr(operators, f'{name}_backward')(*given)]


def kernels(name, arguments, needed=None):
    return results(torch.ops.cuda_on_cpu, name, arguments, needed)


def reference(name, arguments, **settings):
    """In float64, for which there are no kernels."""
    return results(torch.ops.mmattn, name, wide(arguments), **settings)


def both(name, arguments):
    """What the kernels of an operator give, and the reference in float64."""
    actual, expected = kernels(name, arguments), reference(name, arguments)
    assert len(actual) == len(expected)
    return actual, expected


def check(name, arguments, tolerance=None):
    """The kernels of an operator give what the reference gives in float64."""
    actual, expected = both(name, arguments)
    tolerance = tolerance or low_precision(actual[0].dtype)
    for i, (x, y) in enumerate(zip(actual, expected)):
        torch.testing.assert_close(x, y, **tolerance, msg=lambda text, i=i: f'result {i}: {text}')
    return actual


def laid_out(x, layout):
    if isinstance(x, (list, tuple)):
        return type(x)(layout(each) for each in x)
    return layout(x) if x.dtype != torch.bool else x


def call(name, tensors, settings, layout=lambda x: x, **more):
    """The arguments of a call of an operator."""
    tensors = {key: laid_out(x, layout) for key, x in tensors.items()}
    return getattr(ops, name).arguments(**(settings | tensors | more))


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
        check('dynamic_conv', conv_arguments(size, kernel_size, channels=channels, dtype=dtype, dilation=dilation))


@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize('channels', [1, 4, 16, 35, 160])
@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_layouts_of_local_attention(layout, channels, dtype):
    for switches in ({}, {'iterations': 3}):
        arguments = local_arguments((3, 11), 3, 2, 2, value_channels=channels, dtype=dtype, layout=layout, **switches)
        out = check('local_attention', arguments)[0]
        assert out.stride() == torch.empty_like(arguments[2]).stride()
    check('dynamic_conv', conv_arguments((3, 11), 3, channels=channels, dtype=dtype, layout=layout))


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


# global_attention: sides of 1, primes, windows wider than the map, several blocks of queries and of keys
WHOLE = [
    ((1,), 3),
    ((19,), 5),
    ((1, 1), 5),
    ((1, 19), 3),
    ((17, 1), (5, 3)),
    ((5, 7), 3),
    ((3, 4), 9),
    ((7, 13), (9, 31)),
    ((13, 11), (3, 5)),
    ((2, 3, 5), 3),
    ((3, 7, 5), (3, 1, 5)),
]


def global_arguments(tensors, layout=lambda x: x, **settings):
    return call('global_attention', tensors, settings, layout)


def check_global(arguments):
    """As :func:`check`; for the tensor cores, weights and gradients of logits are rounded as results are."""
    actual, expected = both('global_attention', arguments)
    for i, (x, y) in enumerate(zip(actual, expected)):
        assert_close_to_largest(x, y, arguments[2].dtype, f'result {i}')
    return actual


def assert_close_to_largest(actual, expected, dtype, what):
    """Errors are at most some roundings of the largest number, in the dtype of the call or of the result."""
    eps = max(torch.finfo(x).eps for x in (dtype, actual.dtype))
    largest = expected[expected.isfinite()].abs().max() if expected.isfinite().any() else 0
    atol = max(4e-5, 4 * eps) * max(1, largest)
    torch.testing.assert_close(
        actual, expected, atol=atol, rtol=0, check_dtype=False, msg=lambda text: f'{what}: {text}'
    )


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize(('size', 'window_size'), WHOLE, ids=str)
def test_global_attention(size, window_size, dtype):
    for causal in (False, True):
        tensors, settings = with_further(size, window_size, dtype=dtype, is_causal=causal)
        check_global(global_arguments(tensors, **settings))


@pytest.mark.parametrize('causal', [False, True], ids=['', 'causal'])
@pytest.mark.parametrize('outside', OUTSIDE)
def test_each_of_the_further_biases_of_global_attention(outside, causal):
    whole, settings = with_further((5, 9), 5, outside, batch=1, is_causal=causal, dtype=torch.bfloat16)
    names = ['axis_bias', 'key_bias', 'key_mask']
    for without in itertools.chain.from_iterable(itertools.combinations(names, n) for n in range(4)):
        tensors = {name: x for name, x in whole.items() if name not in without}
        check_global(global_arguments(tensors, **settings))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('outside', [None, LEARNED], ids=['content', 'window_bias'])
@pytest.mark.parametrize(('size', 'queries'), [((83,), 1), ((70,), 37), ((11, 9), 3), ((7, 3, 5), 2)], ids=str)
def test_queries_at_the_last_positions_of_global_attention(size, queries, outside, dtype):
    """As those of all positions, of which the others' gradients are 0."""
    for causal in (False, True) if outside else (True,):
        whole, settings = with_further(size, 5, outside, dtype=dtype, is_causal=causal)
        of_queries = [x for x in ('query', 'window_bias', 'outside_bias') if x in whole]
        last = whole | {name: whole[name][:, :, -queries:] for name in of_queries}
        last['axis_bias'] = tuple(x[:, :, -queries:] for x in whole['axis_bias'])
        arguments, all_of_them = global_arguments(last, **settings), global_arguments(whole, **settings)
        actual = kernels('global_attention', arguments)

        def grad(out):
            found = torch.zeros_like(out)
            found[:, :, -queries:] = cotangent(out[:, :, -queries:])
            return found

        expected = reference('global_attention', all_of_them, cotangent=grad)
        assert len(actual) == len(expected)
        for i, (x, y) in enumerate(zip(actual, expected)):
            y = y if x.shape == y.shape else y[:, :, -queries:]
            assert_close_to_largest(x, y, dtype, f'result {i}')


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize(
    ('size', 'key_size'), [((5,), (83,)), ((70,), (1,)), ((3, 25), (7, 5)), ((2, 1, 3), (4, 1, 7))], ids=str
)
def test_global_attention_to_other_keys(size, key_size, dtype):
    tensors = operands(size, 2, 2, key_size=key_size, value_channels=5, dtype=dtype)
    check_global(global_arguments(tensors, scale=0.3))
    check_global(global_arguments(tensors | further(size, key_size=key_size, dtype=dtype)))


@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(('channels', 'value_channels'), [(1, 35), (16, 16), (24, 70), (128, 8), (200, 256)])
def test_layouts_of_global_attention(layout, channels, value_channels):
    """Of each width that blocks have; logits of their dtype and of others."""
    dtypes = [(torch.float16, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.float16)]
    for dtype, logits in dtypes if channels <= 128 else dtypes[:2]:
        tensors, settings = with_further((3, 13), 3, dtype=logits)
        tensors['value'] = randn(2, 2, 3, 13, value_channels, dtype=dtype)
        for seed, name in enumerate(('query', 'key')):
            tensors[name] = randn(2, 2, 3, 13, channels, seed=seed, dtype=dtype)
        arguments = global_arguments(tensors, layout, scale=0.1, **settings)
        assert in_order(check_global(arguments)[0]) == order_of('global_attention', arguments[2])


def test_operands_of_global_attention_that_start_anywhere():
    tensors = operands((3, 5), 2, 2, value_channels=16, dtype=torch.float16)
    tensors = {name: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape) for name, x in tensors.items()}
    check_global(global_arguments(tensors))


def test_axes_of_more_places_than_shared_memory_holds():
    size, key_size = (1, 3), (1, 700)
    tensors = operands(size, key_size=key_size, dtype=torch.float16)
    check_global(global_arguments(tensors | further(size, 1, key_size=key_size, dtype=torch.float16)))


@pytest.mark.parametrize('more', [(), ('axis_bias',), ('axis_bias', 'key_bias')], ids=str)
def test_global_attention_of_no_channels_to_compare(more):
    tensors = {
        name: x for name, x in with_further((5, 13), 3, dtype=torch.float16)[0].items() if name in ('value', *more)
    }
    tensors |= {name: torch.ones(2, 2, 5, 13, 0, dtype=torch.float16) for name in ('query', 'key')}
    check_global(global_arguments(tensors, scale=1.0))


@pytest.mark.parametrize(
    ('dtype', 'number'), [(torch.bfloat16, math.nan), (torch.bfloat16, math.inf), (torch.float32, math.nan)], ids=str
)
@pytest.mark.parametrize('fault', ['query', 'key', 'value', 'window_bias', 'outside_bias', 'key_bias', 'axis_bias'])
def test_nan_comes_out_of_global_attention_where_the_reference_has_it(fault, dtype, number):
    tensors, settings = with_further((7, 11), 3, heads=1, dtype=dtype)
    if fault == 'axis_bias':
        tensors[fault][1][0, 0, 2, 7, 1] = number
    else:
        tensors[fault].flatten(0, -2 if fault in ('outside_bias', 'key_bias') else -3)[0, 7] = number
    actual, expected = both('global_attention', global_arguments(tensors, **settings))
    for i, (x, y) in enumerate(zip(actual, expected)):
        assert torch.equal(x.isnan(), y.isnan()), i
    assert any(x.isnan().any() for x in actual)


def test_a_nan_of_a_masked_key_stays_out_of_the_weights_of_global_attention():
    tensors, settings = with_further((7, 11), 3, dtype=torch.float16)
    tensors['key'][~tensors['key_mask'][:, None].expand(tensors['key'].shape[:-1])] = math.nan
    arguments = global_arguments(tensors, **settings)
    assert torch.ops.cuda_on_cpu.global_attention(*arguments)[0].isfinite().all()


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('large', ['content', 'position', 'further'])
def test_logits_of_1e4_in_global_attention(large, dtype):
    """A float32 logit of 1e4 is off by up to some 1e-3, its weight by as much of itself."""
    tensors, settings = with_further((5, 9), 3, dtype=dtype)
    if large == 'content':
        tensors |= {name: tensors[name] * 100 for name in ('query', 'key')}
    elif large == 'position':
        tensors |= {name: tensors[name] * 1e4 for name in ('window_bias', 'outside_bias')}
    else:
        axis_bias = tuple(x * 1e4 for x in tensors['axis_bias'])
        tensors |= {'axis_bias': axis_bias, 'key_bias': tensors['key_bias'] * 1e4}
    actual, expected = both('global_attention', global_arguments(tensors, **settings))
    assert all(x.isfinite().all() for x in actual)
    torch.testing.assert_close(actual[0].double(), expected[0], atol=1e-2, rtol=torch.finfo(dtype).eps)


@pytest.mark.parametrize('outside', OUTSIDE)
def test_no_key_to_attend_to_in_global_attention(outside):
    tensors, settings = with_further((7, 11), 3, outside, dtype=torch.bfloat16)
    tensors['key_mask'][1] = False
    out, lse, *grads = check_global(global_arguments(tensors, **settings))
    assert (lse[1] == -math.inf).all()
    assert not any(x[1].any() for x in (out, *grads))
    assert all(x.isfinite().all() for x in (out, *grads))


def test_sums_of_many_products_of_float32_are_rounded():
    """Tensor cores cut sums off: those of 4096 keys would be too small by up to 1e-4 of themselves."""
    keys = 4096
    query, key = torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, keys, 8)
    value = randn(1, 1, keys, 3).abs().float()
    out, *_ = torch.ops.cuda_on_cpu.global_attention(*global_arguments({'query': query, 'key': key, 'value': value}))
    torch.testing.assert_close(out[:, :, 0].double(), value.double().mean(2), atol=0, rtol=2e-6)


@pytest.mark.parametrize('name', OPERATORS)
def test_gradients_that_are_needed(name):
    """They are the same without the others."""
    tensors, settings = with_further((3, 5), 3, dtype=torch.float32)
    arguments = {
        'local_attention': lambda: local_arguments((3, 5), 3, iterations=2, dtype=torch.float32),
        'dynamic_conv': lambda: conv_arguments((3, 5), 3),
        'grid_attention': lambda: grid_arguments((3, 5), 3, dtype=torch.float32),
        'strided_attention': lambda: strided_arguments((3, 5), 2, 'centred', dtype=torch.float32),
        'global_attention': lambda: global_arguments(tensors, **settings),
    }[name]()
    may = [x.is_floating_point() for x in tensors_of(arguments)]
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


def test_calls_that_do_not_fit_into_shared_memory_are_left_to_the_reference(device):
    """99 KiB, as of GPUs for graphics, hold 64 float32 channels a position of global attention, and not 128."""
    refused = pytest.raises(RuntimeError, match='has no kernel for these tensors')
    few, many = (
        global_arguments({name: randn(1, 1, 5, channels).float() for name in ('query', 'key', 'value')})
        for channels in (64, 128)
    )
    wide_kernel = local_arguments((3, 4), 81, dtype=torch.float32)
    kernels('global_attention', many)
    kernels('local_attention', wide_kernel)
    device(8, 99 << 10)
    kernels('global_attention', few)
    for name, arguments in (('global_attention', many), ('local_attention', wide_kernel)):
        with refused:
            kernels(name, arguments)
    device(7, MOST_SHARED)
    with refused:
        kernels('global_attention', few)


def test_channels_beyond_the_registers_are_left_to_the_reference():
    for channels, dtype in ((129, torch.float32), (257, torch.bfloat16)):
        arguments = global_arguments({name: randn(1, 1, 5, channels).to(dtype) for name in ('query', 'key', 'value')})
        with pytest.raises(RuntimeError, match='has no kernel for these tensors'):
            kernels('global_attention', arguments)


def extra_of_global_attention(side):
    """Extra MiB of the forward and the backward pass."""
    tensors, settings = with_further((side, side), 3, batch=1, heads=1, dtype=torch.float16)
    del tensors['axis_bias']  # themselves as long as a side
    arguments, operators = global_arguments(tensors, **settings), torch.ops.cuda_on_cpu
    (out, lse), forward = extra_memory(lambda: operators.global_attention(*arguments))
    needed = [x.is_floating_point() for x in tensors_of(arguments)]
    given = (out, out, lse, *arguments, True, needed)
    _, backward = extra_memory(lambda: tuple(operators.global_attention_backward(*given)))
    return forward, backward


def test_extra_memory_of_global_attention_grows_with_the_positions():
    """Four times the positions; a table of all pairs would be 16 times as large."""
    for small, large in zip(extra_of_global_attention(8), extra_of_global_attention(16)):
        assert 0 < small < large < 4.5 * small
