"""How results of operators are compared, and when a kernel has run."""

import math

import pytest
import torch

from mmattn.ops import dispatch, testing


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
