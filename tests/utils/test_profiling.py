"""Memory, to the byte, and how often calls are made to time them."""

import pytest
import torch

from mmattn.utils import profiling
from mmattn.utils.profiling import BOTH, FORWARD, extra_memory, mebibytes, milliseconds, passes, seconds

NUMBERS = 2**18  # of float32: one MiB

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason='measures on a GPU where there is one')


def ones(count):
    return torch.ones(count * NUMBERS)


@pytest.mark.parametrize('results', [1, 2])
def test_extra_memory_is_what_is_freed_again(results):
    """What is returned is not extra, nor what was there before, nor what is made after the peak."""

    def call():
        kept = [ones(number + 1) for number in range(results)]
        ones(5)
        ones(1)
        return tuple(kept) if results > 1 else kept[0]

    before = ones(7)  # is there already
    result, extra = extra_memory(call)
    assert before.numel() == 7 * NUMBERS
    tensors = result if isinstance(result, tuple) else (result,)
    assert [x.numel() / NUMBERS for x in tensors] == [1, 2][:results]
    assert extra == pytest.approx(5, abs=0.01)
    assert mebibytes(call, 'cpu') == pytest.approx(extra, abs=0.01)


def test_passes_are_forward_alone_and_with_the_gradients_that_are_wanted():
    x, weight, unused = (torch.full((3,), float(value), requires_grad=True) for value in (2, 5, 7))
    forward, both = (passes(lambda: x * weight, (weight, unused, x))[name] for name in (FORWARD, BOTH))
    assert not forward().requires_grad
    assert [grad.tolist() for grad in both()] == [[2.0] * 3, [5.0] * 3]


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only in calls: ``clock.append(seconds)``."""
    passed = []
    monkeypatch.setattr(profiling.time, 'perf_counter', lambda: sum(passed))
    return passed


def test_median_seconds_of_calls_that_take_turns(clock):
    """The first of each is a warm-up."""
    made = []
    durations = dict(a=iter([90.0, 3.0, 1.0, 2.0]), b=iter([70.0, 4.0, 6.0, 5.0]))

    def call(name):
        made.append(name)
        clock.append(next(durations[name]))

    found = seconds(dict(a=lambda: call('a'), b=lambda: call('b')), 3)
    assert found == dict(a=2.0, b=5.0)
    assert ''.join(made) == 'abababab'


def test_median_seconds_of_calls_that_are_made_twice(clock):
    durations, made = iter([90.0, 3.0, 80.0, 1.0, 70.0, 2.0]), []
    calls = dict(a=lambda: made.append('a') or clock.append(next(durations)))
    assert seconds(calls, 3, each_twice=True) == dict(a=2.0)
    assert len(made) == 6


@pytest.mark.parametrize(
    ('each', 'options', 'count'), [(0.1, {}, 5), (9.0, {}, 3), (0.01, {}, 15), (2.0, dict(most=8.1), 4)]
)
def test_median_milliseconds(clock, each, options, count):
    """After two calls, from three to fifteen of them in about half a second, or as long as is asked for."""
    made = []

    def call():
        made.append(1)
        clock.append(100.0 if len(made) == 1 else each if len(made) % 2 == 0 else each * 1.1)

    found = milliseconds(call, **options)
    assert len(made) - 2 == count
    assert found == pytest.approx(1e3 * each * (1.1 if count % 2 else 1.05))
