"""The compositions that exporters use return what the operators return, in double precision."""

import math

import pytest
import torch

from mmattn import ops
from mmattn.ops import export, library
from mmattn.ops.dispatch import OPERATORS

from ..support.operator_calls import cast, small_calls
from . import literal
from .test_random_options import check_calls

# Exports need torch 2.13. That of 2.4 traces no shape in an autograd function, and pads no empty tensor.
newer = pytest.mark.skipif(torch.__version__.startswith('2.4'), reason='torch 2.4 cannot run or export it')


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def tensor(*shape):
    return torch.randn(shape, dtype=torch.float64)


def check(name, *arguments):
    """Compare the composition of an operator with the operator; ``arguments`` are those of the schema."""
    run = OPERATORS[name].run
    found, expected = export.COMPOSITIONS[run](*arguments), run(*arguments)
    found, expected = ((x,) if isinstance(x, torch.Tensor) else x for x in (found, expected))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize('name', [name for name in library.KERNELS if name != 'strided_attention'])
def test_random_calls(name):
    """Two hundred, with all options of the operator."""

    def check_call(op, call):
        tensors = cast(call.tensors, torch.float64)
        settings = {key: x for key, x in call.settings.items() if key not in ('normalize', 'return_lse')}
        check(name, *literal.arguments(name, **tensors, **settings))

    check_calls(name, check_call, 200)


@pytest.mark.parametrize('name', [name for name in library.KERNELS if name != 'strided_attention'])
def test_calls_with_every_option(name):
    """What no query attends to may hold anything: ``test_contract.py``."""
    for call in small_calls().values():
        if call.operator == name:
            settings = {key: x for key, x in call.settings.items() if key not in ('normalize', 'return_lse')}
            check(name, *literal.arguments(name, **call.tensors, **settings))


@pytest.mark.parametrize('is_causal', [False, True])
def test_global_attention_of_the_last_queries(is_causal):
    bias, keys = tensor(2, 2, 2, 4, 8 if is_causal else 15), tensor(2, 2, 5, 4, 3)
    mask = torch.rand(2, 5, 4) > 0.4
    settings = dict(window_bias=bias, window_size=(5, 3), key_mask=mask, is_causal=is_causal)
    for outside in (0.3, -math.inf, tensor(2, 2, 2, 4)):
        given = tensor(2, 2, 2, 4, 3), keys, keys
        check('global_attention', *literal.arguments('global_attention', *given, outside_bias=outside, **settings))


@newer
def test_images_without_a_key():
    """Masked out, without channels to compare, or by −∞ alone."""
    x, mask = tensor(2, 2, 4, 6, 5), torch.rand(2, 4, 6) > 0.4
    mask[1] = False
    window = tensor(2, 2, 4, 6, 9)
    window[0, 1, 2, 3] = -math.inf
    check('local_attention', *literal.arguments('local_attention', None, None, x, window_bias=window, key_mask=mask))
    for channels in (0, 5):
        given = *[x[..., :channels]] * 2, x
        check('local_attention', *literal.arguments('local_attention', *given, key_mask=mask, scale=1.3))
        settings = dict(key_bias=tensor(2, 2, 4, 6), key_mask=mask, scale=1.3)
        check('global_attention', *literal.arguments('global_attention', *given, **settings))


class UnitVariance(torch.nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.settings = settings

    def forward(self, window, outside, mask=None):
        return ops.unit_variance(window, (5, 3), outside, key_mask=mask, **self.settings)


@newer
@pytest.mark.parametrize('support', ['grid', 'global', 'causal', 'masked', 'masked, causal'])
def test_unit_variance_for_maps_of_any_size(support):
    """The biases are far from zero, as those of a query may be: a variance of E[x²] − μ² would cancel."""
    is_causal, name = 'causal' in support, 'grid' if support == 'grid' else 'global'
    entries = 7 if support == 'grid' else 8 if is_causal else 15

    def arguments(*size):
        mask = [torch.rand(2, *size) > 0.4] if 'masked' in support else []
        return tensor(2, 2, *size, entries) + 10, tensor(2, 2, *size) + 10, *mask

    module, given = UnitVariance(support=name, is_causal=is_causal), arguments(5, 8)
    sides = {2: torch.export.Dim('height', min=2, max=64), 3: torch.export.Dim('width', min=2, max=64)}
    of_mask = {axis - 1: side for axis, side in sides.items()}
    program = torch.export.export(module, given, dynamic_shapes=(sides, sides, of_mask)[: len(given)])
    for size in ((5, 8), (2, 4), (9, 3)):
        given = arguments(*size)
        for found, expected in zip(program.module()(*given), module(*given)):
            torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)


def test_projection():
    x, weight, bias = torch.randn(2, 3, 4, 5), torch.randn(6, 5), torch.randn(6)
    run = torch.ops.mmattn.projection.default
    torch.testing.assert_close(export.COMPOSITIONS[run](x, weight, bias), run(x, weight, bias))
