"""The kernels on maps of several tiles, on every instruction set that this processor has, and from the CUDA sources.

Their values and gradients are those of the reference in float64. Which tiles a map has does not depend on the layout
and on rare numbers, so those have one map for each operator. Smaller calls: ``test_contract.py``.
"""

import contextlib
import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from mmattn.ops import dispatch, global_attention, library, local_attention
from mmattn.ops.patterns import PATTERNS
from mmattn.utils.collect_env import collect_env
from mmattn.utils.profiling import extra_memory

from ..requirements import requires
from ..support.comparison import evaluate
from ..support.operator_calls import Call, cast, each, operator, randn
from . import literal
from .implementations import CUDA_ON_CPU, HALF, NATIVE, run_each
from .literal import AFTER, LAYOUTS, LEARNED, POSITIONS, SWITCHES, assert_same, low_precision, operands

pytestmark = pytest.mark.kernels
one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
KERNELS = [
    pytest.param(NATIVE, id='CPU', marks=requires('native operators')),
    pytest.param([CUDA_ON_CPU], id='CUDA', marks=requires('g++')),
]
MOST_SHARED = 163 << 10  # of cuda_on_cpu/cuda_runtime.h
by_kernels = pytest.mark.parametrize('kernels', KERNELS)


def check(kernels, calls, after=lambda op: op, dtypes=(torch.float32, *HALF)):
    """The error is at most twice that of the reference in the same dtype, and some roundings.

    The z-score of a query with a few keys may multiply its gradients, and so their roundings.
    """
    for call in calls:
        known = {}

        def compare(dtype, call=call, known=known):
            tensors, run = cast(call.tensors, dtype), after(operator(call.operator))
            actual = evaluate(run, tensors, **call.settings)
            if dtype not in known:
                with dispatch.backend('reference'):
                    known[dtype] = [evaluate(run, tensors, to, **call.settings) for to in (torch.float64, None)]
            exact, rounded = known[dtype]
            atol = low_precision(dtype)['atol'] * (4 if call.operator == 'global_attention' else 1)
            for name, x in exact.items():
                error, of_reference = (largest(found[name].double() - x) for found in (actual, rounded))
                assert error <= 2 * of_reference + atol * max(1, largest(x)), (name, error, of_reference)

        run_each(kernels, call, compare, dtypes)


def largest(x):
    """The largest magnitude, apart from a log-sum-exp of −∞."""
    return x.nan_to_num(nan=math.inf, neginf=0).abs().amax().item() if x.numel() else 0


# Sides of 1, primes, windows wider than the map, several tiles of queries and of keys.
SIZES = [(1, 1), (1, 19), (17, 1), (5, 7), (3, 16), (3, 33), (13, 37), (2, 65)]
NEIGHBOURHOODS = [(3, 1), ((1, 5), 2), (5, 3), ((9, 31), 1)]  # kernel_size, dilation
CHANNELS = [dict(channels=3, value_channels=2), dict(channels=16, value_channels=18)]


def local(size):
    for (kernel_size, dilation), switches in itertools.product(NEIGHBOURHOODS, SWITCHES.values()):
        yield literal.with_kernel(size, kernel_size, 1, 2, dilation=dilation, **switches)


def conv(size):
    for (kernel_size, dilation), channels in itertools.product(NEIGHBOURHOODS, (1, 18)):
        yield literal.with_logits(size, kernel_size, 1, value_channels=channels, dilation=dilation)


def grid(size, window_size):
    for channels in CHANNELS:
        yield literal.with_window('grid_attention', size, window_size, None, 1, 2, **channels)
        for outside_bias, normalize in (parameters.values for parameters in POSITIONS):
            tensors, settings = literal.with_window(
                'grid_attention', size, window_size, outside_bias, 1, 2, scale=0.3, **channels
            )
            yield tensors, settings | {'normalize': normalize}


def strided(size, key_size, step):
    for channels, pattern, logits in itertools.product(CHANNELS, PATTERNS, (False, True)):
        options = dict(key_size=key_size, logits=logits, **channels)
        yield literal.with_offsets(size, step, pattern, 1, 2, scale=0.3 if logits else None, **options)


def with_further(size, window_size, outside_bias=LEARNED, heads=2, *, is_causal=False, **options):
    """A call with a window, axis logits, key logits and a mask that leaves one batch item without its first keys."""
    given = literal.with_window('global_attention', size, window_size, outside_bias, 2, heads, is_causal=is_causal)
    tensors, settings = given
    tensors |= literal.further(size, 2, heads)
    tensors['key_mask'].flatten(1)[-1, :2] = False
    return tensors, {**settings, **options, 'is_causal': is_causal}


def of_global(size, window_size):
    for normalize, is_causal in itertools.product((False, True), repeat=2):
        yield with_further(size, window_size, is_causal=is_causal, normalize=normalize)


def with_keys(size, key_size):
    tensors = operands(size, 2, 2, key_size=key_size, value_channels=5)
    yield tensors, {'scale': 0.3}
    yield tensors | literal.further(size, key_size=key_size), {}


def with_some_logits(outside_bias, normalize):
    """Each of the further logits, with and without others; also with a sample that has no key."""
    names = 'axis_bias', 'key_bias', 'key_mask'
    for is_causal, kept in itertools.product((False, True), itertools.product((False, True), repeat=3)):
        tensors, settings = with_further((7, 37), 5, outside_bias, is_causal=is_causal, normalize=normalize)
        without = {name for name, is_kept in zip(names, kept) if not is_kept}
        yield {name: x for name, x in tensors.items() if name not in without}, settings
    tensors['key_mask'][1] = False
    yield tensors, settings


def with_axis_logits_of_strides_0():
    for first, last in (((2, 1, 1, 1, 13), (1, 2, 13, 1, 37)), ((1,), (37,))):
        tensors, settings = with_further((13, 37), 3)
        yield tensors | {'axis_bias': (randn(*first), randn(*last, seed=1))}, settings


def in_another_order():
    """Lines, or maps, that do not go on from each other in memory."""
    for order in itertools.permutations((2, 3, 4)):

        def lay(x, order=order):
            axes = (0, 1, *order, *range(5, x.dim()))
            return x if x.dim() < 5 else x.permute(axes).contiguous().permute(torch.tensor(axes).argsort().tolist())

        tensors, settings = with_further((3, 7, 5), 3)
        yield each(tensors, lay), settings
        yield tensors | {'axis_bias': tuple(map(lay, tensors['axis_bias']))}, settings


def of_many_lines():
    """Of 16 lines next to each other, a thread has room for 8 at a time."""
    tensors, settings = literal.with_window('grid_attention', (41, 19), 5, LEARNED, 2, 2, value_channels=800)
    yield each(tensors, LAYOUTS['channels_first']), {**settings, 'scale': 0.3}


def of_large_tables(size, *lengths):
    """More logits or offsets than a thread, or shared memory, has room for at a time."""
    if len(lengths) == 1:
        yield literal.with_window('grid_attention', size, *lengths)
    else:
        yield literal.with_offsets(size, *lengths)


def of_wide_blocks(name):
    """More channels of keys, and of values, than a block has."""
    channels = dict(channels=150, value_channels=150, scale=1 / 150)
    if name == 'grid_attention':
        yield literal.with_window(name, (3, 5), 3, **channels)
    else:
        yield literal.with_offsets((3, 5), 2, 'centred', **channels)


def of_1e4(name):
    """Where logits are near ±1e4, float32 has steps of 1e-3, also in the reference."""
    for constant in (1e4, -1e4):
        made = literal.with_window(name, (5, 13), 3) if name == 'grid_attention' else literal.with_kernel((5, 13), 3)
        yield literal.around_1e4(*made, constant)


GRIDS = [
    ((1, 1), 3), ((1, 19), 5), ((17, 1), 3), ((5, 7), (1, 5)), ((3, 37), (9, 75)), ((23, 18), (31, 31)),
    ((1, 3, 4), 3), ((2, 1, 5), (3, 1, 9)), ((4, 3, 17), (1, 5, 33)), ((7, 19, 2), 3),
]  # fmt: skip
STRIDED = [
    ((1,), (1,), 1), ((19,), (23,), 4), ((5, 7), (5, 7), (2, 3)), ((17, 3), (14, 5), (20, 2)),
    ((3, 1, 18), (3, 1, 18), 1), ((4, 6, 5), (6, 6, 4), (2, 3, 4)), ((1, 9, 21), (1, 9, 21), (1, 3, 6)),
    ((6, 3, 2), (2, 2, 2), (2, 2, 3)),
]  # fmt: skip
GLOBAL = [
    ((1,), 3), ((19,), 5), ((401,), 31), ((1, 1), 5), ((1, 19), 3), ((17, 1), (5, 3)), ((5, 7), 3), ((3, 4), 9),
    ((13, 37), (9, 31)), ((37, 13), (3, 41)), ((2, 300), 7), ((2, 3, 5), 3), ((3, 7, 23), (3, 1, 5)), ((1, 1, 450), 3),
]  # fmt: skip
KEYS = [((5,), (403,)), ((150,), (1,)), ((3, 50), (41, 11)), ((2, 1, 3), (4, 1, 7))]
LARGE_GRIDS = [((2, 601), 9), ((1, 301), (1, 601)), ((3, 37), (3, 51)), ((2, 2, 35), (1, 3, 5))]
LARGE_STEPS = [((5, 230), (5, 230), 'block'), ((301,), 300, 'centred'), ((3, 40), (2, 36), 'block')]
TILES = [
    *(('local_attention', local, size) for size in SIZES),
    *(('dynamic_conv', conv, size) for size in SIZES),
    *(('grid_attention', grid, *maps) for maps in GRIDS),
    *(('strided_attention', strided, *maps) for maps in STRIDED),
    *(('grid_attention', of_large_tables, *maps) for maps in LARGE_GRIDS),
    *(('strided_attention', of_large_tables, *maps) for maps in LARGE_STEPS),
    *((name, of_wide_blocks, name) for name in ('grid_attention', 'strided_attention')),
    *((name, of_1e4, name) for name in ('grid_attention', 'local_attention')),
    ('grid_attention', of_many_lines),
    *(('global_attention', of_global, *maps) for maps in GLOBAL),
    *(('global_attention', with_keys, *maps) for maps in KEYS),
    *(('global_attention', with_some_logits, *x.values) for x in (literal.CONTENT, *POSITIONS)),
    *(('global_attention', case) for case in (with_axis_logits_of_strides_0, in_another_order)),
]  # fmt: skip


def tiles():
    """Each by the kernels for CPUs, and smaller ones by those for GPUs: an emulated block takes its time."""
    for name, calls, *arguments in TILES:
        title = f'{name}-{calls.__name__}-{"-".join(map(str, arguments))}'
        size = next((x for x in arguments if isinstance(x, tuple)), ())
        most = 310 if calls is of_large_tables else 120
        by_gpu = name in CUDA_ON_CPU.operators and calls is not of_many_lines and math.prod(size) <= most
        for kernels in KERNELS if by_gpu else KERNELS[:1]:
            yield pytest.param(*kernels.values, name, calls, arguments, id=f'{kernels.id}-{title}', marks=kernels.marks)


@pytest.mark.parametrize(('kernels', 'name', 'calls', 'arguments'), tiles())
def test_values_and_gradients_are_those_of_the_reference(kernels, name, calls, arguments):
    check(kernels, (Call(name, *made) for made in calls(*arguments)))


def call(name, size, value_channels=16, **options):
    """A call on a map of a size, with windows of 17, and steps of (2, 16, 5)."""
    options |= dict(value_channels=value_channels)
    if name == 'dynamic_conv':
        return Call(name, *literal.with_logits(size, 3, **options))
    options |= dict(channels=max(3, value_channels // 2))
    if name == 'local_attention':
        return Call(name, *literal.with_kernel(size, 3, 2, 2, **options))
    if name == 'strided_attention':
        return Call(name, *literal.with_offsets(size, (2, 16, 5)[: len(size)], batch=2, heads=2, **options))
    if name == 'grid_attention':
        return Call(name, *literal.with_window(name, size, 17, LEARNED, 2, 2, **options))
    tensors, settings = literal.with_window(name, size, 3, LEARNED, 2, 1, **options)
    return Call(name, tensors | literal.further(size), settings | {'is_causal': options.get('is_causal', False)})


# An operator, and its options.
CALLS = {
    'local_attention': ('local_attention', {}),
    'local_attention, refined': ('local_attention', {'iterations': 3}),
    'dynamic_conv': ('dynamic_conv', {}),
    'grid_attention': ('grid_attention', {}),
    'grid_attention, z-score': ('grid_attention', {'normalize': True}),
    **{pattern: ('strided_attention', {'pattern': pattern}) for pattern in PATTERNS},
    'global_attention': ('global_attention', {}),
    'global_attention, z-score': ('global_attention', {'normalize': True}),
    'global_attention, is_causal': ('global_attention', {'is_causal': True}),
}
FLAT = [title for title in CALLS if title.startswith(('local', 'dynamic'))]  # they have 2-D maps


@pytest.mark.every_case
@pytest.mark.parametrize('channels', [1, 4, 16, 35, 64, 160])  # of vectors: a part, one, two and a part; of blocks
@pytest.mark.parametrize('title', CALLS)
@by_kernels
def test_layouts_of_whole_vectors(kernels, title, channels):
    """Of operands, biases and the cotangent, in step: each tensor's strides are read by themselves."""
    name, options = CALLS[title]
    if 'refined' in title and channels > 35 and kernels == NATIVE:
        pytest.skip('each pass multiplies the roundings of sums, which its lanes add in another order')
    for number, layout in enumerate(LAYOUTS.values()):
        made = call(name, (6, 21), channels, **options)
        made.tensors = each(made.tensors, lambda x, layout=layout: x if x.dtype == torch.bool else layout(x))
        check(kernels, [made], [*AFTER.values(), lambda op: op][(number + channels) % 3])


@pytest.mark.every_case
@pytest.mark.parametrize('number', [math.nan, math.inf])
@pytest.mark.parametrize('title', [x for x in CALLS if x not in ('centred', 'forward', 'global_attention, is_causal')])
@by_kernels
def test_nan_comes_out_where_the_reference_has_it(kernels, title, number):
    """In 'centred' and 'forward', the reference's groups are larger than what a query sees, and NaN spreads in them.
    So it does in causal tables, to keys that no query of a tile sees.

    A side of 19 or 21 has keys outside of the windows of 17.
    """
    name, options = CALLS[title]
    if number == math.inf and name != 'global_attention':
        pytest.skip('0 · ∞ is NaN, or is not computed')
    for size in ((5, 21), *([] if title in FLAT or kernels == [CUDA_ON_CPU] else [(4, 3, 19)])):
        for argument in call(name, size, **options).tensors:
            made = call(name, size, **options)
            made.tensors = cast(made.tensors, torch.float32)
            if argument == 'key_mask':
                continue
            faulty = made.tensors[argument][1] if isinstance(made.tensors[argument], tuple) else made.tensors[argument]
            vector = faulty[(0, 0, *(side // 2 for side in size))]
            vector[len(vector) // 2 if vector.dim() else ...] = number
            exact = evaluate(operator(name), made.tensors, torch.float64, **made.settings)

            def compare(_, made=made, exact=exact):
                actual = evaluate(operator(name), made.tensors, **made.settings)
                for key, x in actual.items():
                    assert torch.equal(x.isnan(), exact[key].isnan()), key
                assert any(x.isnan().any() for x in actual.values())

            run_each(kernels, made, compare, {torch.float32})


@pytest.mark.every_case
@pytest.mark.parametrize('title', CALLS)
@pytest.mark.parametrize('kernels', KERNELS[:1])
def test_threads_change_no_bit(kernels, title):
    """Not with 1, 2 or 3 threads."""
    name, options = CALLS[title]
    for size in ((31, 40), (67, 13) if title in FLAT else (5, 13, 37) if name != 'global_attention' else (7, 9)):

        def compare(dtype, size=size):
            made, results = call(name, size, **options), []
            tensors = cast(made.tensors, dtype)
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                results.append(evaluate(operator(name), tensors, **made.settings))
            torch.set_num_threads(1)
            for other in results[1:]:
                assert_same(other, results[0], 0, 0)

        run_each(kernels[-1:], call(name, size, **options), compare)


@requires('native operators')
@pytest.mark.parametrize('dtype', [torch.float64, torch.float16])
@pytest.mark.parametrize('title', CALLS)
def test_other_dtypes_and_maps_of_nothing_go_to_the_reference(title, dtype):
    name, options = CALLS[title]
    made = call(name, (3, 4), **options)
    with dispatch.kernels_run() as chosen:
        evaluate(operator(name), cast(made.tensors, dtype), **made.settings)
    assert not chosen
    empty = each(cast(made.tensors, torch.float32), lambda x: x[:0])
    assert operator(name)(**empty, **made.settings).numel() == 0


@pytest.mark.parametrize('extra', [(), ('axis_bias',), ('axis_bias', 'key_bias')], ids=str)
@pytest.mark.parametrize('kernels', KERNELS[:1])
def test_no_channels_to_compare(kernels, extra):
    tensors = {name: x for name, x in with_further((13, 37), 3)[0].items() if name in ('value', *extra)}
    none = dict.fromkeys(('query', 'key'), torch.ones(2, 2, 13, 37, 0, dtype=torch.float64))
    check(kernels, [Call('global_attention', tensors | none, {'scale': 1.0})], dtypes={torch.float32})


@pytest.mark.parametrize('kernels', KERNELS[:1])
@pytest.mark.parametrize(('keys', 'channels', 'spread'), [(1501, 256, 1), (777, 64, 0.3), (401, 32, 3)])
def test_bfloat16_is_as_close_to_float64_as_attention_of_pytorch(kernels, keys, channels, spread):
    tensors = {
        name: (spread * randn(1, 2, keys, channels, seed=seed, dtype=torch.float32)).bfloat16()
        for seed, name in enumerate(('query', 'key', 'value'))
    }
    exact = evaluate(global_attention, tensors, torch.float64)
    theirs = evaluate(F.scaled_dot_product_attention, tensors)

    def compare(_):
        ours = evaluate(global_attention, tensors)
        for name, x in exact.items():
            error, other = ((found[name].double() - x).square().mean().sqrt() for found in (ours, theirs))
            # two per cent for chance: over six seeds, d_query has 1.002 to 1.011 of PyTorch's error, the rest less
            assert error <= 1.02 * other, (name, error, other)

    run_each(kernels, Call('global_attention', tensors, {}), compare, {torch.bfloat16})


@pytest.mark.parametrize('kernels', KERNELS[:1])
def test_without_onednn(kernels):
    """A user may turn it off. For AMX, it computes products of bfloat16, so they are computed without AMX then."""
    tensors = operands((3, 50), 2, 2, key_size=(10, 10), channels=32, value_channels=16)
    with torch.backends.mkldnn.flags(enabled=False):
        check(kernels, [Call('global_attention', tensors, {})])


@pytest.mark.parametrize('kernels', KERNELS[:1])
def test_a_nan_after_the_last_key_of_all_queries_of_a_tile_stays_out(kernels):
    """Of bfloat16, which is multiplied in pairs; the first 160 queries see an odd number of keys."""
    query, key, value = (randn(1, 1, n, 5, seed=n, dtype=torch.bfloat16) for n in (300, 301, 301))

    def compare(_):
        expected = global_attention(query, key, value, is_causal=True)
        faulty = value.clone()
        faulty[:, :, 161] = math.nan
        assert torch.equal(global_attention(query, key, faulty, is_causal=True)[:, :, :160], expected[:, :, :160])

    tensors = dict(query=query, key=key, value=value)
    run_each(kernels, Call('global_attention', tensors, {}), compare, {torch.bfloat16})


def memory_of_axes(order):
    """Extra MiB of each pass on a 48×40 map whose queries and axis logits have their positions in that order."""
    size = 48, 40
    maps = [randn(1, 2, *size, channels, dtype=torch.float32) for channels in (16, *size, 16, 16)]
    in_order = [x.movedim((2, 3), order).contiguous().movedim(order, (2, 3)) for x in maps[:3]]
    inputs = query, *axis_bias, key, value = [x.requires_grad_() for x in in_order + maps[3:]]
    out, forward = extra_memory(lambda: global_attention(query, key, value, axis_bias=axis_bias))
    _, backward = extra_memory(lambda: torch.autograd.grad(out, inputs, torch.ones_like(out)))
    return forward, backward


@requires('native operators')
def test_no_order_of_positions_is_copied():
    """Queries are a quarter of a MiB, each table of axis logits more than half. Keys and values are packed always."""
    for usual, other in zip(memory_of_axes((2, 3)), memory_of_axes((3, 2))):
        assert 0 < other < usual + 0.1


# Instruction sets, and GPUs of other limits


@requires('native operators')
def test_collect_env_tells_what_runs():
    env = collect_env()
    assert env['instruction set'] == torch.ops.mmattn_native.cpu_capability()
    assert library.FILE in env['native operators']
    assert env['local_attention'].startswith('kernel')


@requires('native operators')
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


@requires('native operators')
def test_a_capability_that_does_not_exist(monkeypatch):
    monkeypatch.setenv('MMATTN_CPU_CAPABILITY', 'sse')
    with pytest.raises(ValueError, match=r"MMATTN_CPU_CAPABILITY .*avx2.*'sse'$"):
        library._load()
    monkeypatch.setenv('MMATTN_CPU_CAPABILITY', 'avx2')
    monkeypatch.setenv('MMATTN_BACKEND', 'reference')
    assert library._load() == (None, 'MMATTN_BACKEND=reference')


@requires('g++')
@pytest.mark.parametrize(
    ('capability', 'memory', 'refused'), [(8, MOST_SHARED, []), (8, 99 << 10, [81]), (7, MOST_SHARED, [3, 81])]
)
def test_calls_that_do_not_fit_into_shared_memory_are_left_to_the_composition(capability, memory, refused):
    """99 KiB, as of GPUs for graphics, and a neighbourhood of 81×81; and GPUs before 8.0."""
    with CUDA_ON_CPU.running():
        torch.ops.cuda_on_cpu_native.set_device(capability, memory)
        try:
            for kernel_size in (3, 81):
                tensors, settings = literal.with_kernel((3, 4), kernel_size, dtype=torch.float32)
                wrong = pytest.raises(NotImplementedError, match='has no kernel for these tensors')
                with wrong if kernel_size in refused else contextlib.nullcontext():
                    evaluate(local_attention, tensors, **settings)
        finally:
            torch.ops.cuda_on_cpu_native.set_device(8, MOST_SHARED)
