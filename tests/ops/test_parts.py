"""Parts of the operators: slices that fit a budget, how results are compared, and what native code never sees."""

import math
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from mmattn import ops
from mmattn.ops import chunks, dispatch, library, testing


@pytest.mark.parametrize(
    ('length', 'each', 'budget', 'ends'),
    [
        (7, 10, 30, [3, 6, 7]),
        (6, 10, 39, [3, 6]),
        (3, 10, 9, [1, 2, 3]),
        (3, 0, 5, [3]),
        (0, 1, 1, []),
        (2, 2**25, None, [2]),
    ],
)
def test_slices_are_as_long_as_fits(length, each, budget, ends):
    found = chunks.chunks(length, each, budget)
    if ends:
        assert [part.stop for part in found] == ends
        assert [part.start for part in found] == [0, *ends[:-1]]
    assert sum(len(range(length)[part]) for part in found) == length
    assert len(chunks.chunks(3, 2**25, None)) == 2  # 64 MiB


@pytest.mark.parametrize(('device', 'budget'), [('cpu', 64), ('meta', 512)])
@pytest.mark.parametrize('tables', [1, 3])
def test_slices_of_rows_of_a_grid_fit_their_tables_of_logits(device, budget, tables):
    """A table of a row of 50×6 queries of 2×3 heads has 400 + 50 + 6 keys for each, of 4 bytes."""
    query = torch.empty(2, 3, 400, 50, 6, 1, device=device)
    row = 2 * 3 * 50 * 6 * (400 + 50 + 6) * tables * 4
    rows = budget * 2**20 // row
    slices = import_module('mmattn.ops.grid_attention')._slices
    found = slices(SimpleNamespace(query=query), tables)
    assert [part.start for part in found] == [*range(0, 400, rows)]


def test_errors_are_in_units_of_their_tolerance():
    expected = torch.tensor([1.0, math.inf, 2.0, math.nan])
    assert testing._error(expected[:2], expected[:2], torch.tensor([0.5, 0.5])) == 0
    assert testing._error(torch.tensor([1.5, 1.0]), torch.tensor([1.0, 2.0]), torch.tensor([0.25, 0.125])) == 8
    assert testing._error(expected, expected, torch.ones(4)) == math.inf
    assert testing._error(expected[:0], expected[:0], torch.ones(0)) == 0


def test_differences_are_relative_to_the_norm_or_to_a_hundredth_of_the_largest():
    expected = dict(large=torch.tensor([30.0, 40.0]), small=torch.tensor([0.0, 0.25]), nan=torch.ones(1))
    actual = dict(large=torch.tensor([30.0, 45.0]), small=torch.tensor([0.0, 0.5]), nan=torch.full((1,), math.nan))
    assert testing.differences(actual, expected) == dict(large=0.1, small=0.5, nan=math.inf)


@pytest.mark.parametrize('has_backward', [True, False])
def test_a_kernel_that_does_not_run_each_pass_gives_no_result(monkeypatch, has_backward):
    def run_by(ran, implementation='native', error=None):
        def function():
            if error is not None:
                raise error
            return 3

        class Ran:
            def __enter__(self):
                return ran

            def __exit__(self, *_):
                pass

        monkeypatch.setattr(dispatch, 'kernels_run', Ran)
        return testing.run_by(implementation, 'local_attention', function, has_backward=has_backward)

    both = ['local_attention', 'local_attention_backward']
    assert run_by(both) == 3
    assert run_by(both[:1]) == (None if has_backward else 3)
    assert run_by(both[1:]) is None
    assert run_by([], 'composition') == 3
    assert run_by(both, error=RuntimeError(f'x {dispatch.NO_KERNEL}')) is None
    with pytest.raises(RuntimeError, match='other'):
        run_by(both, error=RuntimeError('other'))


def test_tensors_must_be_strided():
    value, logits = torch.ones(1, 1, 3, 4, 2), torch.ones(1, 1, 3, 4, 9)
    with pytest.raises(ValueError, match=r'dynamic_conv: .*torch\.sparse_coo of torch\.float32'):
        ops.dynamic_conv(value.to_sparse(), logits, kernel_size=3)


@pytest.mark.parametrize(('sizes', 'support'), [([3], 'all'), ([3, -3], 'all'), ([3, 5], 'all'), ([3, 3], 'grid')])
def test_a_window_that_does_not_fit_its_biases_is_refused_below_the_function_too(sizes, support):
    window = torch.ones(1, 1, 5, 5, 9)
    with pytest.raises(ValueError, match=r'window_size .*\(1, 1, 5, 5, 9\)'):
        torch.ops.mmattn.window_zscore(window, None, None, sizes, 0.0, False, support)


def test_a_projection_without_data_has_the_shape_of_one_with_them():
    x, weight = torch.ones(2, 3, 4), torch.ones(5, 4)
    with FakeTensorMode() as mode:
        found = ops.projection(mode.from_tensor(x), mode.from_tensor(weight))
    expected = ops.projection(x, weight)
    assert (found.shape, found.dtype, found.stride()) == (expected.shape, expected.dtype, expected.stride())


def test_a_capability_that_does_not_exist(monkeypatch):
    monkeypatch.setenv('MMATTN_CPU_CAPABILITY', 'sse')
    with pytest.raises(ValueError, match=r"MMATTN_CPU_CAPABILITY .*avx2.*'sse'$"):
        library._load()
    monkeypatch.setenv('MMATTN_CPU_CAPABILITY', 'avx2')
    monkeypatch.setenv('MMATTN_BACKEND', 'reference')
    assert library._load() == (None, 'MMATTN_BACKEND=reference')
