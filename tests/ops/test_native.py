"""The native kernels against the reference in float64, on every instruction set that this processor has."""

import itertools
import math

import pytest
import torch

from mmattn.ops import dispatch, dynamic_conv, library, local_attention, strided_attention
from mmattn.ops.patterns import PATTERNS
from mmattn.utils.collect_env import collect_env

from ..requirements import requires
from . import literal
from .literal import (
    LAYOUTS,
    LEARNED,
    POSITIONS,
    SWITCHES,
    assert_same,
    each,
    evaluate,
    low_precision,
    with_kernel,
    with_logits,
    with_offsets,
)
from .zscored import grid_attention

pytestmark = [
    pytest.mark.kernels,
    requires('native operators'),
]
one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)

DTYPES = [torch.float32, torch.bfloat16]
SIZES = [(1, 1), (1, 19), (17, 1), (5, 7), (3, 16), (13, 37), (2, 65)]
KERNELS = [(3, 1), ((1, 5), 2), (5, 3), ((9, 31), 1)]  # kernel_size, dilation
# size, window_size
GRIDS = [
    ((1, 1), 3),
    ((1, 19), 5),
    ((17, 1), 3),
    ((5, 7), (1, 5)),
    ((3, 37), (9, 75)),
    ((23, 18), (31, 31)),
    ((1, 3, 4), 3),
    ((2, 1, 5), (3, 1, 9)),
    ((4, 3, 17), (1, 5, 33)),
    ((7, 19, 2), 3),
]
# size, key_size, step
STRIDED = [
    ((1,), (1,), 1),
    ((19,), (23,), 4),
    ((5, 7), (5, 7), (2, 3)),
    ((17, 3), (14, 5), (20, 2)),
    ((3, 1, 18), (3, 1, 18), 1),
    ((4, 6, 5), (6, 6, 4), (2, 3, 4)),
    ((1, 9, 21), (1, 9, 21), (1, 3, 6)),
    ((6, 3, 2), (2, 2, 2), (2, 2, 3)),
]


def capabilities():
    """The instruction sets that the processor supports."""
    if library.UNAVAILABLE_REASON is not None:
        return []
    chosen, found = torch.ops.mmattn_native.cpu_capability(), []
    for name in library.CPU_CAPABILITIES:
        torch.ops.mmattn_native.set_cpu_capability(name)
        found.append(torch.ops.mmattn_native.cpu_capability())
    torch.ops.mmattn_native.set_cpu_capability(chosen)
    return list(dict.fromkeys(found))


@pytest.fixture(params=capabilities())
def capability(request):
    chosen = torch.ops.mmattn_native.cpu_capability()
    torch.ops.mmattn_native.set_cpu_capability(request.param)
    assert torch.ops.mmattn_native.cpu_capability() == request.param
    yield
    torch.ops.mmattn_native.set_cpu_capability(chosen)


def check(op, tensors, tolerance=None, **settings):
    """The kernels of ``op`` run, forward and backward, and give what the reference gives in float64."""
    with dispatch.kernels_run() as chosen:
        actual = evaluate(op, tensors, **settings)
    assert chosen == [op.__name__, f'{op.__name__}_backward']
    expected = evaluate(op, tensors, torch.float64, **settings)
    assert_same(actual, expected, **(tolerance or low_precision(tensors['value'].dtype)))
    return actual


def check_nan(op, tensors, **settings):
    """NaN comes out where the reference in float64 has it."""
    actual, expected = (evaluate(op, tensors, dtype, **settings) for dtype in (torch.float32, torch.float64))
    for name, x in actual.items():
        assert torch.equal(x.isnan(), expected[name].isnan()), name
    assert any(x.isnan().any() for x in actual.values())


def check_threads(run):
    """What runs with 1, 2 and 3 threads gives the same, bit by bit."""
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(run())
    torch.set_num_threads(1)
    for other in found[1:]:
        assert_same(other, found[0], 0, 0)


@pytest.fixture
def nan_first(monkeypatch):
    """Memory that torch hands out is NaN first."""
    monkeypatch.setattr(torch.utils.deterministic, 'fill_uninitialized_memory', True)
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def numbers(dtype=torch.float32, value_channels=2, channels=None):
    """Dtype and channels; by default, keys have half as many as values, at least three."""
    channels = max(3, value_channels // 2) if channels is None else channels
    return dict(dtype=dtype, value_channels=value_channels, channels=channels)


def grid(size, window_size=None, outside_bias=LEARNED, **options):
    """Tensors and settings of a call of ``grid_attention``."""
    outside_bias = None if window_size is None else outside_bias
    return literal.with_window('grid_attention', size, window_size, outside_bias, 2, 2, **numbers(**options))


def strided(size, key_size, step, pattern, logits=True, **options):
    """Tensors and settings of a call of ``strided_attention``."""
    return with_offsets(size, step, pattern, 2, 2, key_size=key_size, logits=logits, **numbers(**options))


# Of a map of a size: an operator, tensors and settings of a call.
CALLS = {
    'local_attention': lambda size, **x: (local_attention, *with_kernel(size, 3, 2, 2, **x)),
    'local_attention, refined': lambda size, **x: (local_attention, *with_kernel(size, 3, 2, 2, iterations=3, **x)),
    'dynamic_conv': lambda size, **x: (dynamic_conv, *with_logits(size, 3, **x)),
    'grid_attention': lambda size, **x: (grid_attention, *grid(size, 17, **x)),
    'grid_attention, z-score': lambda size, **x: (
        grid_attention,
        *(given | more for given, more in zip(grid(size, 17, **x), ({}, {'normalize': True}))),
    ),
    **{
        pattern: lambda size, pattern=pattern, **x: (
            strided_attention,
            *strided(size, size, (2, 16, 5)[: len(size)], pattern, **x),
        )
        for pattern in PATTERNS
    },
}
every_call = pytest.mark.parametrize('call', CALLS.values(), ids=CALLS)


@pytest.mark.usefixtures('capability')
@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize(('kernel_size', 'dilation'), KERNELS, ids=str)
@pytest.mark.parametrize('size', SIZES, ids=str)
def test_local_attention(size, kernel_size, dilation, dtype):
    for switches in SWITCHES.values():
        tensors, settings = with_kernel(size, kernel_size, 2, 2, dilation=dilation, dtype=dtype, **switches)
        check(local_attention, tensors, **settings)


@pytest.mark.usefixtures('capability')
@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize(('kernel_size', 'dilation'), KERNELS, ids=str)
@pytest.mark.parametrize('size', SIZES, ids=str)
def test_dynamic_conv(size, kernel_size, dilation, dtype):
    for channels, layout in itertools.product((1, 18), LAYOUTS.values()):
        tensors, settings = with_logits(size, kernel_size, value_channels=channels, dtype=dtype, dilation=dilation)
        check(dynamic_conv, each(tensors, layout), **settings)


@pytest.mark.usefixtures('capability')
@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize(('size', 'window_size'), GRIDS, ids=str)
def test_grid_attention(size, window_size, dtype):
    for channels, value_channels in ((3, 2), (16, 18)):
        given = dict(channels=channels, value_channels=value_channels, dtype=dtype)
        check(grid_attention, *grid(size, **given)[:1])
        for outside_bias, normalize in (parameters.values for parameters in POSITIONS):
            tensors, settings = grid(size, window_size, outside_bias, **given)
            # The z-score of one key multiplies what float32 leaves of a gradient of 0 by 1/√1e-5.
            check(grid_attention, tensors, normalize=normalize and size != (1, 1), scale=0.3, **settings)


@pytest.mark.usefixtures('capability')
@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('pattern', PATTERNS)
@pytest.mark.parametrize(('size', 'key_size', 'step'), STRIDED, ids=str)
def test_strided_attention(size, key_size, step, pattern, dtype):
    for channels, value_channels in ((3, 2), (16, 18)):
        given = dict(channels=channels, value_channels=value_channels, dtype=dtype)
        tensors, settings = strided(size, key_size, step, pattern, **given)
        check(strided_attention, tensors, scale=0.3, **settings)
        tensors, settings = strided(size, key_size, step, pattern, logits=False, **given)
        check(strided_attention, tensors, **settings)


@pytest.mark.usefixtures('capability')
@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize('channels', [1, 4, 16, 35])
@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@every_call
def test_layouts(call, layout, channels, dtype):
    op, tensors, settings = call((18, 21), value_channels=channels, dtype=dtype)
    tensors = each(tensors, layout)
    out = check(op, tensors, **settings)['output']
    if op is local_attention:
        assert out.stride() == torch.empty_like(tensors['value']).stride()


def test_lines_of_many_channels():
    """Of 16 lines next to each other, a thread has room for 8 at a time.

    Gradients of logits have sums of 800 products in them: errors of 1.4e-5 where they are up to 9 in size.
    """
    tensors, settings = grid((41, 19), 5, value_channels=800, channels=3)
    tolerance = {**low_precision(torch.float32), 'atol': 3e-5}
    check(grid_attention, each(tensors, LAYOUTS['channels_first']), scale=0.3, tolerance=tolerance, **settings)


def test_more_logits_than_there_is_room_for_at_a_time():
    for op, (tensors, settings) in (
        (strided_attention, strided((5, 230), (5, 230), (5, 230), 'block')),
        (grid_attention, grid((2, 601), 9)),
    ):
        check(op, tensors, **settings)


@pytest.mark.parametrize('iterations', [1, 3])
def test_one_tensor_for_keys_and_values(iterations):
    x, window_bias = literal.randn(2, 2, 6, 21, 5), literal.randn(2, 2, 6, 21, 9, seed=1)

    def shared(value, window_bias):
        return local_attention(value, value, value, window_bias=window_bias, iterations=iterations)

    shared.__name__ = 'local_attention'
    check(shared, {'value': x.float(), 'window_bias': window_bias.float()})


@pytest.mark.parametrize('size', [(5, 21), (4, 3, 19)], ids=str)
@pytest.mark.parametrize('call', [x for x in CALLS if x not in ('centred', 'forward')])
def test_nan_comes_out_where_the_reference_has_it(call, size):
    """In 'centred' and 'forward', the reference's groups are larger than what a query sees, and NaN spreads in them.

    A side of 19 or 21 has keys outside of the windows of 17.
    """
    if len(size) > 2 and call.startswith(('local', 'dynamic')):
        pytest.skip('it has 2-D maps')
    for name in CALLS[call](size)[1]:
        op, tensors, settings = CALLS[call](size, dtype=torch.float32)
        faulty = tensors[name][1] if isinstance(tensors[name], tuple) else tensors[name]
        vector = faulty[(0, 1, *(side // 2 for side in size))]
        vector[len(vector) // 2 if vector.dim() else ...] = math.nan
        check_nan(op, tensors, **settings)


@pytest.mark.usefixtures('nan_first')
def test_every_number_of_the_results_is_written():
    calls = [
        (local_attention, with_kernel(size, 3, 2, 2, dilation=2, dtype=torch.float32, **switches))
        for size, switches in itertools.product(SIZES, SWITCHES.values())
    ]
    calls += [(dynamic_conv, with_logits(size, 3, dilation=2, dtype=torch.float32)) for size in SIZES]
    for normalize, (size, window_size) in itertools.product((False, True), GRIDS):
        tensors, settings = grid(size, window_size)
        calls.append((grid_attention, (tensors, settings | {'normalize': normalize})))
    calls += [(strided_attention, strided(*maps, pattern)) for maps, pattern in itertools.product(STRIDED, PATTERNS)]
    for op, (tensors, settings) in calls:
        assert all(x.isfinite().all() for x in evaluate(op, tensors, **settings).values())


@pytest.mark.parametrize('size', [(31, 40), (5, 13, 37)], ids=str)
@every_call
def test_threads_change_no_bit(call, size):
    if len(size) > 2 and call in list(CALLS.values())[:3]:
        size = (67, 13)
    op, tensors, settings = call(size, value_channels=16, dtype=torch.float32)
    check_threads(lambda: evaluate(op, tensors, **settings))


@pytest.mark.parametrize('dtype', [torch.float64, torch.float16])
@every_call
def test_other_dtypes_and_maps_of_nothing_go_to_the_reference(call, dtype):
    op, tensors, settings = call((3, 4), dtype=dtype)
    with dispatch.kernels_run() as chosen:
        evaluate(op, tensors, **settings)
    assert not chosen
    assert op(**each(tensors, lambda x: x[:0].float()), **settings).numel() == 0


def test_collect_env_tells_what_runs():
    env = collect_env()
    assert env['instruction set'] == torch.ops.mmattn_native.cpu_capability()
    assert library.FILE in env['native operators']
    assert env['local_attention'].startswith('kernel')


def test_every_instruction_set_is_the_best_up_to_its_own():
    """In place of a set that the processor lacks, a lower one is taken, never a higher one."""
    chosen, found = torch.ops.mmattn_native.cpu_capability(), []
    try:
        for name in library.CPU_CAPABILITIES:
            torch.ops.mmattn_native.set_cpu_capability(name)
            found.append(library.CPU_CAPABILITIES.index(torch.ops.mmattn_native.cpu_capability()))
    finally:
        torch.ops.mmattn_native.set_cpu_capability(chosen)
    assert found == sorted(found)
    assert all(place <= most for most, place in enumerate(found))
    assert library.CPU_CAPABILITIES.index(chosen) in found


def test_a_capability_that_does_not_exist(monkeypatch):
    monkeypatch.setenv('MMATTN_CPU_CAPABILITY', 'sse')
    with pytest.raises(ValueError, match=r"MMATTN_CPU_CAPABILITY .*avx2.*'sse'$"):
        library._load()
    monkeypatch.setenv('MMATTN_CPU_CAPABILITY', 'avx2')
    monkeypatch.setenv('MMATTN_BACKEND', 'reference')
    assert library._load() == (None, 'MMATTN_BACKEND=reference')
