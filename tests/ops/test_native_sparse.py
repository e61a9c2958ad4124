"""The native kernels of sparse attention against the reference in float64, on every instruction set."""

import itertools
import math

import pytest
import torch

from mmattn.ops import dispatch, strided_attention, strided_offsets

from . import literal, test_native
from .literal import LAYOUTS, LEARNED, POSITIONS, as_tuple, evaluate, low_precision
from .test_native import check, check_nan, check_threads
from .zscored import grid_attention

pytestmark = test_native.pytestmark
capability, nan_first = test_native.capability, test_native.nan_first
one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)


DTYPES = [torch.float32, torch.bfloat16]


def grid(size, window_size=None, outside_bias=LEARNED, channels=3, **kwargs):
    """Tensors and settings of a call of ``grid_attention``."""
    entries = 0 if window_size is None else sum(as_tuple(window_size, len(size))) - len(size) + 1
    tensors, settings = literal.with_window(
        entries, size, window_size, outside_bias if entries else None, 2, 2, **{'dtype': torch.float32, **kwargs}
    )
    for name, seed in (('query', 1), ('key', 2)):
        tensors[name] = literal.randn(*tensors[name].shape[:-1], channels, seed=seed, dtype=tensors[name].dtype)
    return tensors, settings


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


@pytest.mark.usefixtures('capability')
@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize(('size', 'window_size'), GRIDS, ids=str)
def test_grid_attention(size, window_size, dtype):
    for channels, value_channels in ((3, 2), (16, 18)):
        check(grid_attention, *grid(size, None, None, channels, value_channels=value_channels, dtype=dtype)[:1])
        for outside_bias, normalize in (parameters.values for parameters in POSITIONS):
            tensors, settings = grid(
                size, window_size, outside_bias, channels, value_channels=value_channels, dtype=dtype
            )
            # The z-score of one key multiplies what float32 leaves of a gradient of 0 by 1/√1e-5.
            check(grid_attention, tensors, normalize=normalize and size != (1, 1), scale=0.3, **settings)


@pytest.mark.usefixtures('capability')
@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_of_maps(layout, dtype):
    for channels, normalize in ((3, False), (16, False), (16, True)):
        tensors, settings = grid((18, 21), 17, LEARNED, channels, value_channels=2 * channels, dtype=dtype)
        tensors = {name: layout(x) for name, x in tensors.items()}
        check(grid_attention, tensors, normalize=normalize, **settings)


def test_lines_of_many_channels():
    """Of 16 lines next to each other, a thread has room for 8 at a time.

    Gradients of logits have sums of 800 products in them: errors of 1.4e-5 where they are up to 9 in size.
    """
    tensors, settings = grid((41, 19), 5, value_channels=800)
    check(
        grid_attention,
        {name: LAYOUTS['channels_first'](x) for name, x in tensors.items()},
        scale=0.3,
        tolerance={**low_precision(torch.float32), 'atol': 3e-5},
        **settings,
    )


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
PATTERNS = ['block', 'centred', 'forward', 'strided']


def strided(size, key_size, step, pattern, channels=3, value_channels=2, dtype=torch.float32):
    """Tensors and settings of a call of ``strided_attention``, with logits by offset."""
    shapes = {'query': (*size, channels), 'key': (*key_size, channels), 'value': (*key_size, value_channels)}
    tensors = {
        name: literal.randn(2, 2, *shape, seed=seed, dtype=dtype) for seed, (name, shape) in enumerate(shapes.items())
    }
    offsets = strided_offsets(size, step, pattern, key_size)
    tensors['offset_bias'] = tuple(
        literal.randn(2, 2, *size, len(offset), seed=3 + axis, dtype=dtype) for axis, offset in enumerate(offsets)
    )
    return tensors, {'step': step, 'pattern': pattern}


def without_logits(tensors):
    return {name: x for name, x in tensors.items() if name != 'offset_bias'}


@pytest.mark.usefixtures('capability')
@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('pattern', PATTERNS)
@pytest.mark.parametrize(('size', 'key_size', 'step'), STRIDED, ids=str)
def test_strided_attention(size, key_size, step, pattern, dtype):
    for channels, value_channels in ((3, 2), (16, 18)):
        tensors, settings = strided(size, key_size, step, pattern, channels, value_channels, dtype)
        check(strided_attention, tensors, scale=0.3, **settings)
        check(strided_attention, without_logits(tensors), **settings)


@pytest.mark.usefixtures('capability')
@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize('pattern', PATTERNS)
def test_layouts_of_strided_maps(pattern, layout, dtype):
    tensors, settings = strided((18, 21), (18, 21), (2, 16), pattern, 16, 32, dtype)
    tensors = {name: tuple(map(layout, x)) if isinstance(x, tuple) else layout(x) for name, x in tensors.items()}
    check(strided_attention, tensors, **settings)


def test_long_groups():
    """More logits than there is room for at a time."""
    tensors, settings = strided((5, 230), (5, 230), (5, 230), 'block')
    check(strided_attention, tensors, **settings)


def test_long_lines():
    """More logits than there is room for at a time."""
    tensors, settings = grid((2, 601), 9)
    check(grid_attention, tensors, **settings)


@pytest.mark.parametrize('fault', ['query', 'key', 'value', 'window_bias', 'outside_bias'])
@pytest.mark.parametrize('size', [(5, 21), (4, 3, 17)], ids=str)
def test_nan_comes_out_where_the_reference_has_it(fault, size):
    for normalize in (False, True):
        tensors, settings = grid(size, 3)
        tensors[fault][(0, 1, *(side // 2 for side in size))] = math.nan
        check_nan(grid_attention, tensors, normalize=normalize, **settings)


@pytest.mark.parametrize('fault', ['query', 'key', 'value', 'offset_bias'])
@pytest.mark.parametrize('pattern', ['block', 'strided'])
def test_nan_comes_out_of_strided_attention_where_the_reference_has_it(pattern, fault):
    """The reference's groups are larger than what a query sees in the other patterns, and NaN spreads in them."""
    tensors, settings = strided((4, 5, 7), (4, 5, 7), 2, pattern)
    faulty = tensors[fault][1] if fault == 'offset_bias' else tensors[fault]
    faulty[0, 1, 2, 2, 3, 1] = math.nan
    check_nan(strided_attention, tensors, **settings)


@pytest.mark.usefixtures('nan_first')
def test_every_number_of_the_results_is_written():
    for size, window_size in GRIDS:
        for normalize in (False, True):
            tensors, settings = grid(size, window_size)
            found = evaluate(grid_attention, tensors, normalize=normalize, **settings)
            assert all(x.isfinite().all() for x in found.values())
    for (size, key_size, step), pattern in itertools.product(STRIDED, PATTERNS):
        found = evaluate(strided_attention, *strided(size, key_size, step, pattern)[:1], step=step, pattern=pattern)
        assert all(x.isfinite().all() for x in found.values())


@pytest.mark.parametrize('size', [(31, 40), (5, 13, 37)], ids=str)
def test_threads_change_no_bit(size):
    tensors, settings = grid(size, 7, channels=16, value_channels=16)
    check_threads(lambda: evaluate(grid_attention, tensors, normalize=True, **settings))


@pytest.mark.parametrize('pattern', PATTERNS)
def test_threads_change_no_bit_of_strided_attention(pattern):
    tensors, settings = strided((5, 13, 37), (5, 13, 37), (2, 4, 5), pattern, 16, 16)
    check_threads(lambda: evaluate(strided_attention, tensors, **settings))


@pytest.mark.parametrize('dtype', [torch.float64, torch.float16])
def test_other_dtypes_go_to_the_reference(dtype):
    with dispatch.kernels_run() as chosen:
        evaluate(grid_attention, *grid((3, 4), dtype=dtype)[:1])
        evaluate(strided_attention, strided((3, 4), (3, 4), 2, 'block', dtype=dtype)[0], step=2, pattern='block')
    assert not chosen


def test_maps_of_nothing_go_to_the_reference():
    x = torch.ones(0, 2, 3, 4, 5)
    assert grid_attention(x, x, x).numel() == 0
    assert strided_attention(x, x, x, pattern='block').numel() == 0
