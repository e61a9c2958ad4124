"""How results of operators are compared, and when a kernel has run."""

import importlib
import math

import pytest
import torch

from mmattn.ops import dispatch, library

from ..support import comparison
from ..support.operator_calls import each, large_calls, make, operator


def test_errors_are_in_units_of_their_tolerance():
    expected = torch.tensor([1.0, math.inf, 2.0, math.nan])
    assert comparison._error(expected[:2], expected[:2], torch.tensor([0.5, 0.5])) == 0
    assert comparison._error(torch.tensor([1.5, 1.0]), torch.tensor([1.0, 2.0]), torch.tensor([0.25, 0.125])) == 8
    assert comparison._error(expected, expected, torch.ones(4)) == math.inf
    assert comparison._error(expected[:0], expected[:0], torch.ones(0)) == 0


def test_differences_are_relative_to_the_norm_or_to_a_hundredth_of_the_largest():
    expected = dict(large=torch.tensor([30.0, 40.0]), small=torch.tensor([0.0, 0.25]), nan=torch.ones(1))
    actual = dict(large=torch.tensor([30.0, 45.0]), small=torch.tensor([0.0, 0.5]), nan=torch.full((1,), math.nan))
    assert comparison.differences(actual, expected) == dict(large=0.1, small=0.5, nan=math.inf)


def test_inputs_and_gradients_are_moved_up_or_down():
    """Each by its own sign, which the seed draws; by default, not at all."""
    x = torch.ones(40, dtype=torch.float64)

    def run(**options):
        found = comparison.evaluate(lambda value: 3 * value, dict(value=x), **options)
        return found['output'] / 3, found['d_value'] / 3 / comparison.cotangent(x)

    assert all(torch.equal(y[y.isfinite()], x[y.isfinite()]) for y in run())
    moves = []
    for seed in range(2):
        for y in run(shift=0.25, seed=seed):
            y = y[y.isfinite()]
            assert {*y.tolist()} == {0.75, 1.25}
            moves.append(y)
    assert not any(torch.equal(a, b) for i, a in enumerate(moves) for b in moves[:i] if len(a) == len(b))
    again = run(shift=0.25)
    assert torch.equal(again[0], moves[0])


@pytest.mark.parametrize(('dtype', 'roundings'), [(torch.float32, 64), (torch.bfloat16, 2)])
@pytest.mark.parametrize(('size', 'seeds'), [((2, 3), 4), ((25, 20), 1)])
def test_a_tolerance_is_what_half_a_unit_in_the_last_place_changes_and_one_rounding(dtype, roundings, size, seeds):
    """By the largest change of a tensor, among four moves if it has few numbers."""
    call = make('dynamic_conv', size, kernel_size=3)
    expected, tolerances = comparison.reference(call, dtype)
    tensors = {name: x.to(dtype) for name, x in call.tensors.items()}
    eps = torch.finfo(dtype).eps

    def run(**options):
        with dispatch.backend('reference'):
            return comparison.evaluate(operator(call.operator), tensors, torch.float64, kernel_size=3, **options)

    moved = [run(shift=eps / 2, seed=seed) for seed in range(seeds)]
    for name, x in run().items():
        assert torch.equal(expected[name], x)
        change = max((y[name] - x).abs().max() for y in moved)
        torch.testing.assert_close(tolerances[name], eps * x.abs() + roundings * change)


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
        return dispatch.run_by(implementation, 'local_attention', function, has_backward=has_backward)

    both = ['local_attention', 'local_attention_backward']
    assert run_by(both) == 3
    assert run_by(both[:1]) == (None if has_backward else 3)
    assert run_by(both[1:]) is None
    assert run_by([], 'composition') == 3
    assert run_by(both, error=RuntimeError(f'x {dispatch.NO_KERNEL}')) is None
    with pytest.raises(RuntimeError, match='other'):
        run_by(both, error=RuntimeError('other'))


def patch_reference(monkeypatch, operator, change, backward=False):
    """Have the reference of an operator compute something else: the kernel is compared with it."""
    declaration = importlib.import_module(f'mmattn.ops.{operator}').OPERATOR
    name = '_backward' if backward else '_forward'
    original = getattr(declaration, name)
    monkeypatch.setattr(declaration, name, lambda *args, **exact: change(original(*args, **exact)))


native = pytest.mark.skipif(library.UNAVAILABLE_REASON is not None, reason=str(library.UNAVAILABLE_REASON))


def wrong(call, dtype):
    return [name for name, error in comparison.errors(call, dtype, 'native').items() if error > 1]


@native
@pytest.mark.parametrize('operator', ['local_attention', 'dynamic_conv'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_a_wrong_number_is_found(monkeypatch, operator, dtype):
    """One number of the output, by eight times what the dtype rounds the largest one to."""

    def off(outputs):
        out = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        out.view(-1)[0] += 8 * max(torch.finfo(dtype).eps, 1e-5) * out.abs().max()
        return outputs

    call = next(large_calls(operator))
    call.tensors = each(call.tensors, torch.Tensor.contiguous)
    assert wrong(call, dtype) == []
    patch_reference(monkeypatch, operator, off)
    assert wrong(call, dtype) == ['output']


@native
def test_a_wrong_gradient_is_found(monkeypatch):
    patch_reference(monkeypatch, 'dynamic_conv', lambda grads: [grads[0], -grads[1]], backward=True)
    assert wrong(next(large_calls('dynamic_conv')), torch.float32) == ['d_logits']


@native
def test_a_result_that_is_no_number_is_found(monkeypatch):
    evaluate = comparison.evaluate

    def one_nan(function, tensors, dtype=None, **settings):
        results = evaluate(function, tensors, dtype, **settings)
        if dtype is None:
            results['d_value'][0, 0, 0, 0, 0] = torch.nan
        return results

    monkeypatch.setattr(comparison, 'evaluate', one_nan)
    errors = comparison.errors(next(large_calls('dynamic_conv')), torch.float32, 'native')
    assert [name for name, error in errors.items() if error > 1] == ['d_value']
    assert errors['d_value'] == torch.inf
