"""Public functions in native code: it does what Python does with the arguments, and declines what Python must do."""

import importlib

import pytest
import torch
from torch._subclasses import FakeTensorMode

from mmattn import ops
from mmattn.ops import library

from ..requirements import requires
from ..support.comparison import evaluate
from ..support.operator_calls import Call, cast, operator, randn, small_calls
from .literal import assert_same

FUNCTIONS = library.KERNELS
ALL = small_calls()


def taken_by(monkeypatch, direct_call):
    """Let the public functions call ``direct_call`` in place of native code."""
    for name in FUNCTIONS:
        monkeypatch.setattr(importlib.import_module(f'mmattn.ops.{name}'), 'direct_call', direct_call)


def in_python(monkeypatch):
    """Let Python check the arguments of every call."""
    taken_by(monkeypatch, library._declined)


@pytest.fixture
def taken(monkeypatch):
    """Whether native code took each call."""
    found = []

    def direct_call(*arguments):
        result = library.direct_call(*arguments)
        found.append(result is not None)
        return result

    taken_by(monkeypatch, direct_call)
    return found


X = randn(2, 4, 3, 5, 6, dtype=torch.float32)
TABLE = randn(4, 15, seed=1, dtype=torch.float32)
ROW, COLUMN = randn(1, 4, 1, 1, 3, seed=2, dtype=torch.float32), randn(5, seed=3, dtype=torch.float32)
OUTSIDE = {'window_size': (3, 5), 'outside_bias': -torch.inf}
QKV = {'query': X, 'key': X.flip(2), 'value': X.flip(3)}
USUAL = [
    Call('global_attention', QKV | {'window_bias': TABLE}, OUTSIDE),
    Call('global_attention', QKV | {'window_bias': TABLE[:, :9].contiguous()}, {'window_size': 3, 'scale': 0.3}),
    Call('global_attention', QKV | {'axis_bias': (ROW, COLUMN), 'key_bias': COLUMN}, {'is_causal': True}),
    Call('grid_attention', QKV | {'window_bias': TABLE[:, :7][None, :, None, None]}, OUTSIDE),
    Call('local_attention', QKV | {'window_bias': TABLE}, {'kernel_size': (3, 5)}),
    Call('local_attention', QKV, {}),
    Call('strided_attention', QKV | {'offset_bias': (ROW[0], ROW)}, {'pattern': 'centred', 'step': 2}),
    Call('strided_attention', QKV, {'pattern': 'strided', 'return_lse': True}),
    Call('dynamic_conv', {'value': X, 'logits': TABLE.new_zeros(2, 4, 3, 5, 25)}, {'kernel_size': 5, 'dilation': 2}),
    *(Call(name, QKV | {'key': X[:, :2], 'value': X[:, 2:]}, {}) for name in ('global_attention', 'local_attention')),
]
RARE = [
    Call('local_attention', QKV | {'window_bias': TABLE[:, :1]}, {'kernel_size': 5, 'scale': 1}),
    Call('grid_attention', QKV | {'window_bias': TABLE[:, :7]}, {'window_size': (3, 5), 'outside_bias': 0}),
]


@requires('native operators')
@pytest.mark.parametrize('call', [*ALL.values(), *USUAL, *RARE], ids=lambda x: x.title or x.operator)
def test_native_code_does_what_python_does(call, monkeypatch):
    """To the bit: values, all gradients, and the log-sum-exp."""
    for dtype, autocast in ((torch.float32, False), (torch.bfloat16, False), (torch.float32, True)):
        tensors = cast(call.tensors, dtype)
        with torch.autocast('cpu', enabled=autocast):
            with monkeypatch.context() as patch:
                in_python(patch)
                expected = evaluate(operator(call.operator), tensors, **call.settings)
            assert_same(evaluate(operator(call.operator), tensors, **call.settings), expected, 0, 0)


@requires('native operators')
def test_native_code_takes_usual_calls(taken):
    for call in [*ALL.values(), *USUAL]:
        operator(call.operator)(**cast(call.tensors, torch.float32), **call.settings)
        with torch.autocast('cpu'):
            operator(call.operator)(**cast(call.tensors, torch.float32), **call.settings)
    assert all(taken)


@requires('native operators')
def test_python_does_the_rest(taken):
    """What a compiler, a tracer, or a mode of Python must see is not taken."""
    for call in RARE:
        operator(call.operator)(**call.tensors, **call.settings)
    with torch.device('meta'):
        ops.grid_attention(X, X, X)
    with FakeTensorMode() as mode:
        ops.grid_attention(*[mode.from_tensor(X)] * 3)
    torch.func.vmap(ops.grid_attention)(*[X[None]] * 3)
    torch.jit.trace(ops.grid_attention, (X, X, X), check_trace=False)
    assert not any(taken)
    assert len(taken) == len(RARE) + 4


@pytest.mark.parametrize('dynamic', [False, True])
@pytest.mark.parametrize('call', USUAL, ids=lambda x: x.operator)
def test_one_graph_of_each_function(call, dynamic):
    torch.compiler.reset()
    function = operator(call.operator)
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend='aot_eager')
    torch.testing.assert_close(
        compiled(**call.tensors, **call.settings), function(**call.tensors, **call.settings), atol=1e-6, rtol=1e-6
    )


@pytest.mark.parametrize('name', [name for name in FUNCTIONS if name != 'dynamic_conv'])
def test_an_error_within_a_call_is_raised_once(name):
    """Such as that which ends a recomputation of activations."""
    calls = []

    def pack(x):
        calls.append(x)
        raise StopIteration

    settings = {'pattern': 'block'} if name == 'strided_attention' else {}
    leaf = X.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), pytest.raises((StopIteration, RuntimeError)):
        getattr(ops, name)(leaf, leaf, leaf, **settings)
    assert len(calls) == 1
