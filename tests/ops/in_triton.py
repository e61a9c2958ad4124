"""Triton's kernels on maps of several tiles, and calls that they refuse: ``test_triton.py`` runs them interpreted."""

import pytest
import torch

from mmattn.ops import dispatch, global_attention

from ..support.comparison import evaluate
from ..support.operator_calls import WINDOW, make
from . import literal
from .implementations import TRITON, interpreter
from .test_contract import check

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)


@pytest.mark.parametrize(('channels', 'dtype'), [(257, torch.float32), (4, torch.float64)], ids=str)
def test_calls_that_the_kernels_refuse_come_to_pytorch_in_both_passes(channels, dtype):
    tensors = make('global_attention', (3, 4), *WINDOW, channels=channels, window_size=3, dtype=dtype).tensors
    with dispatch.backend('triton'), dispatch.kernels_run() as ran:
        actual = evaluate(global_attention, tensors, window_size=3)
    assert not ran
    expected = evaluate(literal.global_attention, tensors, torch.float64, window_size=3)
    literal.assert_same(actual, expected, 1e-4, 1e-4, check_dtype=False)


# Maps of several tiles: sizes, biases and settings.
TILES = {
    '1d': ((70,), WINDOW, dict(window_size=5)),
    '1d, causal': ((70,), WINDOW, dict(window_size=5, is_causal=True)),
    '2d': ((13, 7), WINDOW, dict(window_size=3)),
    '3d, axis logits': ((3, 4, 7), (*WINDOW, 'axis_bias'), dict(window_size=3)),
    'keys at other positions': ((9, 8), (), dict(key_size=(5, 9))),
}


@pytest.mark.parametrize('title', TILES)
def test_tiles(title):
    size, biases, settings = TILES[title]
    check([TRITON], make('global_attention', size, *biases, channels=5, value_channels=17, **settings))


def test_tiles_of_the_last_queries():
    call = make('global_attention', (9, 7), *WINDOW, channels=5, value_channels=17, window_size=3, is_causal=True)

    def last(op):
        def of_the_last_rows(**arguments):
            if op is literal.global_attention:
                return op(**arguments)[:, :, -2:]
            own = {name: arguments[name][:, :, -2:] for name in ('query', *WINDOW)}
            return op(**arguments | own)

        return of_the_last_rows

    check([TRITON], call, last)


@pytest.mark.parametrize('number', range(12))
def test_random_calls_in_random_tiles(number):
    """A few of those of ``tests.fuzz.triton_kernels``."""
    from ..fuzz import triton_kernels

    interpreter()
    assert triton_kernels.check(number)['error'] <= 1
