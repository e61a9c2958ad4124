"""The compositions: values and all gradients against the references in float64, memory, launches, and no host tensors."""

import functools

import hypothesis
import pytest
import torch

from mmattn.ops import backends, dynamic_conv, local_attention, strided_attention
from mmattn.ops.compositions import table_attention

from . import literal
from .literal import assert_same, evaluate
from .test_random_options import dynamic_conv_calls, global_calls, grid_calls, local_calls, strided_calls
from .zscored import global_attention, grid_attention

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
CALLS = {
    'global_attention': (global_attention, global_calls()),
    'grid_attention': (grid_attention, grid_calls()),
    'local_attention': (local_attention, local_calls()),
    'strided_attention': (strided_attention, strided_calls()),
    'dynamic_conv': (dynamic_conv, dynamic_conv_calls()),
}
random_calls = functools.partial(
    hypothesis.settings,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


@pytest.fixture(params=['as on CPUs', 'as on GPUs'])
def path(request, monkeypatch):
    """On GPUs, PyTorch's attention computes a slice, and its gradients; on CPUs, a formula does, in the operands' dtype."""
    if request.param == 'as on GPUs':
        monkeypatch.setattr(table_attention, 'uses_sdpa', lambda device: True)
    return request.param


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize('name', CALLS)
def test_values_and_gradients_are_those_of_the_reference(path, name, dtype):
    """A hundred random calls with all options of the operator."""
    op, calls = CALLS[name]

    @random_calls(max_examples=100)
    @hypothesis.given(calls)
    def check(call):
        tensors = {
            key: tuple(y.to(dtype) for y in x) if isinstance(x, tuple) else x if x.dtype == torch.bool else x.to(dtype)
            for key, x in call.tensors.items()
        }
        with backends.backend('composition'):
            actual = evaluate(op, tensors, **call.settings)
        with backends.backend('reference'):
            expected = evaluate(op, tensors, torch.float64, **call.settings)
        exact = dtype == torch.float64
        for key, x in expected.items():
            assert actual[key].dtype == dtype
            atol = (1e-10 if exact else 2e-5) * max(1, x.abs().max().item())
            assert_same({key: actual[key].double()}, {key: x}, atol=atol, rtol=1e-8 if exact else 1e-3)

    check()
