"""What operators are compared by sees a wrong number."""

import math

import pytest
import torch

from ..support import comparison
from ..support.operator_calls import WINDOW, make

CALL = make('global_attention', (9, 8), *WINDOW, batch=2, heads=2, channels=8, window_size=3)
LIMITS = {torch.float32: 2.5e-5, torch.float16: 8e-3, torch.bfloat16: 0.06}  # of the largest number of a tensor


@pytest.mark.parametrize('name', ['output', *(f'd_{name}' for name in CALL.tensors)])
@pytest.mark.parametrize('dtype', LIMITS)
def test_a_wrong_number_of_an_output_or_gradient_is_an_error(monkeypatch, dtype, name):
    """The largest one, by little more than rounding may change, or NaN. All others are right."""
    evaluate = comparison.evaluate

    def change(by):
        def changed(function, tensors, exact=None, **settings):
            found = evaluate(function, tensors, exact, **settings)
            if exact is None:  # what is compared, not the reference in float64
                numbers = found[name].view(-1)
                numbers[numbers.abs().argmax()] *= 1 + by
            return found

        monkeypatch.setattr(comparison, 'evaluate', changed)
        return comparison.errors(CALL, dtype, 'composition')

    right = change(0)
    assert right.keys() == {'output', *(f'd_{name}' for name in CALL.tensors)}
    assert max(right.values()) <= 1
    for by in (LIMITS[dtype], -LIMITS[dtype], math.nan):
        assert {result for result, error in change(by).items() if error > 1} == {name}


def test_differences_are_relative_to_the_norm_or_to_a_hundredth_of_the_largest():
    expected = dict(large=torch.tensor([30.0, 40.0]), small=torch.tensor([0.0, 0.25]), nan=torch.ones(1))
    actual = dict(large=torch.tensor([30.0, 45.0]), small=torch.tensor([0.0, 0.5]), nan=torch.full((1,), math.nan))
    assert comparison.differences(actual, expected) == dict(large=0.1, small=0.5, nan=math.inf)
