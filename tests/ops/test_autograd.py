"""Derivatives of every operator: under torch.func, vmap and checkpoints; and errors for those that do not exist."""

import functools
import warnings
from typing import NamedTuple

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

from mmattn import ops
from mmattn.ops import dispatch, library
from mmattn.ops.operator import Operator

from . import literal, zscored
from .literal import randn, with_kernel, with_logits, with_offsets, with_window
from .test_flops import flops

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)
SIZE = (2, 3)
MASK = torch.tensor([[[True, True, False], [True, True, True]]])
ATTENTION = ('global_attention', 'grid_attention', 'local_attention', 'strided_attention', 'dynamic_conv')
BILINEAR = ('bilinear_logits', 'bilinear_pooling')
TWICE_ERROR = (*ATTENTION, *BILINEAR)
OPERATORS = (*TWICE_ERROR, 'projection')
FUNCTIONS = (*OPERATORS, 'unit_variance')  # it is no operator
needs_batching_rules = pytest.mark.skipif(
    not hasattr(torch.library, 'register_vmap'), reason='torch 2.4 has no batching rules for such operators'
)


def bilinear(name, size):
    """Tensors for a pair of sets of these sizes, two glimpses and four channels."""
    x, y = (randn(1, length, 4, seed=seed) for seed, length in enumerate(size))
    if name == 'bilinear_logits':
        return {'query': x, 'key': y, 'weight': randn(1, 2, 4, seed=2)}
    return {'weights': randn(1, 2, *size, seed=2), 'query': x, 'value': y}


def call(name, size=SIZE):
    """Tensors and settings of a call with every kind of operand: tensors to differentiate, and the other arguments."""
    masked = {'key_mask': MASK} if size == SIZE else {}
    if name == 'global_attention':
        tensors, settings = with_window(name, size, 3)
        tensors['axis_bias'] = tuple(randn(1, 1, *size, side, seed=6 + side) for side in size)
        tensors['key_bias'] = randn(1, 1, *size, seed=7)
        return tensors, settings | masked | {'return_lse': True}
    if name == 'grid_attention':
        tensors, settings = with_window(name, size, 3)
        return tensors, settings | {'return_lse': True}
    if name == 'unit_variance':
        tensors, settings = with_window('grid_attention', size, 3)
        return {key: tensors[key] for key in ('window_bias', 'outside_bias')}, settings | {'support': 'grid'}
    if name == 'local_attention':
        return with_kernel(size, 3, iterations=2, **masked, return_lse=True)
    if name == 'strided_attention':
        tensors, settings = with_offsets(size, 2, 'centred')
        return tensors, settings | {'return_lse': True}
    if name == 'dynamic_conv':
        return with_logits(size, 3, 1, 1)
    if name in BILINEAR:
        return bilinear(name, size), {}
    tensors = {'x': randn(*size, 4), 'weight': randn(5, 4, seed=1), 'bias': randn(5, seed=2)}
    return {key: x.float() for key, x in tensors.items()}, {}  # other dtypes are torch's own


def flat(name):
    """The public function with tensors as flat, positional arguments, and these tensors."""
    tensors, settings = call(name)
    leaves, spec = torch.utils._pytree.tree_flatten(tensors)
    function = zscored.operator(name)

    def run(*leaves):
        out = function(**torch.utils._pytree.tree_unflatten(list(leaves), spec), **settings)
        return out if torch.is_tensor(out) else torch.cat([out[0], out[1].unsqueeze(-1)], -1)

    return run, tuple(leaves)


def loss(name):
    run, leaves = flat(name)
    return lambda *leaves: run(*leaves).pow(3).sum(), leaves


def gradients(function, leaves):
    leaves = [x.detach().requires_grad_() for x in leaves]
    return torch.autograd.grad(function(*leaves), leaves)


def samples(leaves, count=3):
    """``count`` samples of each tensor."""
    return tuple(torch.stack([x * (1 + i / 4) for i in range(count)]) for x in leaves)


def assert_close(actual, expected):
    torch.testing.assert_close(tuple(actual), tuple(expected), rtol=1e-4, atol=1e-4)


def dispatcher(name):
    """The dispatcher operator itself, and its arguments."""
    tensors, settings = call(name)
    if name == 'projection':
        return torch.ops.mmattn.projection, tuple(tensors.values())
    return getattr(torch.ops.mmattn, name), literal.arguments(name, **tensors, **settings)


@pytest.mark.parametrize('name', FUNCTIONS)
def test_gradients_of_torch_func(name):
    function, leaves = loss(name)
    every = tuple(range(len(leaves)))
    expected = gradients(function, leaves)
    assert_close(grad(function, every)(*leaves), expected)
    assert_close(vjp(function, *leaves)[1](torch.ones((), dtype=leaves[0].dtype)), expected)


@pytest.mark.parametrize('name', FUNCTIONS)
def test_an_inner_transform_keeps_the_outer_gradient(name):
    """The operator is evaluated inside the inner transform, and differentiated by the outer one alone."""
    function, leaves = loss(name)
    one = torch.ones((), dtype=leaves[0].dtype)
    outer = grad(lambda *leaves: grad(lambda y: function(*leaves) * y)(one), tuple(range(len(leaves))))
    assert_close(outer(*leaves), gradients(function, leaves))


@needs_batching_rules
@pytest.mark.parametrize('name', FUNCTIONS)
def test_vmap_is_a_loop(name):
    run, leaves = flat(name)
    stacked = samples(leaves)
    expected = torch.stack([run(*x) for x in zip(*stacked)])
    assert_close([vmap(run)(*stacked)], [expected])
    last = [x.movedim(0, -1) for x in stacked]
    assert_close([vmap(run, in_dims=-1, out_dims=1)(*last)], [expected.movedim(0, 1)])
    twice = [torch.stack([x, x / 2]) for x in stacked]
    assert_close([vmap(vmap(run))(*twice)[0]], [expected])
    for place in range(len(leaves)):  # samples of one tensor, the others shared
        given = [x if i != place else stacked[i] for i, x in enumerate(leaves)]
        in_dims = tuple(0 if i == place else None for i in range(len(leaves)))
        expected_of_one = torch.stack([run(*given[:place], x, *given[place + 1 :]) for x in given[place]])
        assert_close([vmap(run, in_dims=in_dims)(*given)], [expected_of_one])


@needs_batching_rules
@pytest.mark.parametrize('name', FUNCTIONS)
def test_gradients_of_each_sample(name):
    function, leaves = loss(name)
    every = tuple(range(len(leaves)))
    stacked = samples(leaves)
    expected = [torch.stack(x) for x in zip(*(gradients(function, x) for x in zip(*stacked)))]
    assert_close(vmap(grad(function, every))(*stacked), expected)
    assert_close(grad(lambda *x: vmap(function)(*x).sum(), every)(*stacked), expected)
    shared = vmap(grad(function, every), in_dims=(0, *[None] * (len(leaves) - 1)))(stacked[0], *leaves[1:])
    one_by_one = [gradients(function, (x, *leaves[1:])) for x in stacked[0]]
    assert_close(shared, [torch.stack(x) for x in zip(*one_by_one)])


@pytest.mark.parametrize('direct', [False, True], ids=['public', 'dispatcher'])
@pytest.mark.parametrize('name', OPERATORS)
def test_forward_mode_is_an_error(name, direct):
    """Also with no_grad, and where nothing requires a gradient: the tangent would be lost in silence."""
    run, leaves = flat(name)
    if direct:
        op, arguments = dispatcher(name)
        leaves, run = arguments[:2], functools.partial(lambda *x: op(*x, *arguments[2:]))
    message = f'mmattn::{name} has no forward-mode derivative'
    with pytest.raises(NotImplementedError, match=message):
        jvp(run, leaves, leaves)
    for requires_grad in (False, True):
        with forward_ad.dual_level(), torch.set_grad_enabled(requires_grad):
            dual = forward_ad.make_dual(leaves[0].detach().requires_grad_(requires_grad), leaves[0])
            with pytest.raises(NotImplementedError, match=message):
                run(dual, *leaves[1:])
            run(*leaves)  # without a tangent it is a call like any other
    with pytest.raises(NotImplementedError, match=message):
        hessian(lambda x: torch.utils._pytree.tree_leaves(run(x, *leaves[1:]))[0].sum())(leaves[0])


@pytest.mark.parametrize('name', TWICE_ERROR)
def test_a_second_derivative_is_an_error(name):
    function, leaves = loss(name)
    leaves = [x.requires_grad_() for x in leaves]
    first = torch.autograd.grad(function(*leaves), leaves, create_graph=True)
    assert_close([x.detach() for x in first], gradients(function, leaves))
    message = f'mmattn::{name} is not twice differentiable'
    for x in first:
        with pytest.raises(NotImplementedError, match=message):
            torch.autograd.grad(x.sum(), leaves, retain_graph=True)
    with pytest.raises(NotImplementedError, match=message):
        grad(lambda x: grad(function)(x, *leaves[1:]).sum())(leaves[0])


def test_projection_is_twice_differentiable():
    function, leaves = loss('projection')
    of = lambda function: grad(lambda x: grad(function)(x, *leaves[1:]).pow(2).sum())(leaves[0])  # noqa: E731
    expected = of(lambda x, w, b: torch.nn.functional.linear(x, w, b).pow(3).sum())
    largest = expected.abs().max()  # some hundreds, in float32
    assert_close([of(function) / largest], [expected / largest])


@pytest.mark.parametrize('name', FUNCTIONS)
def test_only_requested_gradients_are_returned(name):
    run, leaves = loss(name)
    expected = gradients(run, leaves)
    for place, x in enumerate(leaves):
        given = [y.detach() for y in leaves]
        given[place] = x.detach().requires_grad_()
        assert_close(torch.autograd.grad(run(*given), given[place]), [expected[place]])


@pytest.mark.parametrize('name', ATTENTION[:4])
def test_gradients_of_an_output_alone_add_up(name):
    """Where only the log-sum-exp is used, the other output adds nothing, and the reverse."""
    tensors, settings = call(name)
    leaves, spec = torch.utils._pytree.tree_flatten(tensors)
    leaves = [x.detach().requires_grad_() for x in leaves]
    outputs = zscored.operator(name)(**torch.utils._pytree.tree_unflatten(leaves, spec), **settings)

    def of(*losses):
        found = torch.autograd.grad(sum(losses), leaves, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(leaf) if x is None else x for leaf, x in zip(leaves, found)]

    losses = [x.pow(3).sum() for x in outputs]
    assert all(loss.abs() > 0.01 for loss in losses)
    assert_close([x + y for x, y in zip(of(losses[0]), of(losses[1]))], of(*losses))


class NoGradient(torch.autograd.Function):
    """Its outputs depend on its input, but it has no gradient for it."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


@pytest.mark.parametrize('name', FUNCTIONS)
def test_without_any_gradient_of_an_output_there_is_none(name):
    run, leaves = flat(name)
    leaves = [x.detach().requires_grad_() for x in leaves]
    out = NoGradient.apply(run(*leaves))
    assert torch.autograd.grad(out.sum(), leaves, allow_unused=True) == (None,) * len(leaves)


class ToyArguments(NamedTuple):
    x: torch.Tensor
    factor: torch.Tensor | None
    power: int = 3


def test_an_operator_where_nothing_was_compiled(monkeypatch):
    """PyTorch keeps the operator until the process ends: there is one case."""
    monkeypatch.setattr(library, 'UNAVAILABLE_REASON', 'not built')
    monkeypatch.setattr(dispatch, 'OPERATORS', dict(dispatch.OPERATORS))
    seen = []

    def forward(a):
        factor = 1 if a.factor is None else a.factor
        return factor * a.x**a.power, a.x.abs()

    def backward(grad, grad_more, out, a):
        seen.append((grad, grad_more, out))
        factor = 1 if a.factor is None else a.factor
        of_x = grad * factor * a.power * a.x ** (a.power - 1) + (0 if grad_more is None else grad_more * a.x.sign())
        return [of_x, *([] if a.factor is None else [grad * a.x**a.power])]

    toy = Operator(
        'toy_power',
        ToyArguments,
        forward=forward,
        backward=backward,
        fake=lambda a: (torch.empty_like(a.x), torch.empty_like(a.x)),
        flops=lambda a, backward: a.x.numel() * (1 + backward),
        kept=('out',),
        differentiable=('out', 'more'),
        always_exact=True,
    )
    x, factor = randn(2, 3, seed=1).requires_grad_(), randn(2, 3, seed=2)
    out, _ = toy.run(x, factor.requires_grad_())
    assert torch.equal(out, factor * x**3)
    (found,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert_close([found.detach()], [(3 * factor * x**2).detach()])
    ((_, grad_more, kept),) = seen
    assert grad_more is None
    assert torch.equal(kept, out)
    with pytest.raises(NotImplementedError, match='toy_power is not twice'):
        found.sum().backward()
    both = torch.autograd.grad((toy.run(x, factor)[0] + toy.run(x, factor)[1]).sum(), (x, factor))
    assert_close(both, [(3 * factor * x**2 + x.sign()).detach(), (x**3).detach()])
    assert_close(torch.autograd.grad(toy.run(x, None, 2)[0].sum(), x), [2 * x.detach()])
    assert_close(torch.autograd.grad(toy.run(x.detach(), factor)[0].sum(), factor), [x.detach() ** 3])
    assert flops(lambda: toy.run(x, None)) == 6


@pytest.mark.parametrize('name', FUNCTIONS)
def test_a_batch_of_gradients(name):
    """By ``is_grads_batched``, which vectorised Jacobians and PyTorch's own gradcheck use."""
    run, leaves = flat(name)
    leaves = [x.detach().requires_grad_() for x in leaves]
    out = run(*leaves)
    batch = torch.stack([out.detach(), out.detach().cos(), torch.zeros_like(out)])
    expected = [torch.autograd.grad(out, leaves, x, retain_graph=True) for x in batch]
    with warnings.catch_warnings():
        warnings.filterwarnings('error', message='There is a performance drop')  # torch would call it once a gradient
        found = torch.autograd.grad(out, leaves, batch, is_grads_batched=True)
    assert_close(found, [torch.stack(x) for x in zip(*expected)])


@pytest.mark.parametrize('use_reentrant', [False, True])
@pytest.mark.parametrize('name', FUNCTIONS)
def test_gradients_under_checkpoints(name, use_reentrant):
    run, leaves = loss(name)
    given = [x.detach().requires_grad_() for x in leaves]
    checkpoint(run, *given, use_reentrant=use_reentrant).backward()
    assert_close([x.grad for x in given], gradients(run, leaves))


@pytest.mark.parametrize('name', FUNCTIONS)
def test_saved_tensors_are_unpacked_once(name):
    """Each unpacking may compute a tensor again, or copy it from another device."""
    run, leaves = loss(name)
    packed, unpacked = [], []

    def pack(x):
        packed.append(x)
        return len(packed) - 1

    def unpack(place):
        unpacked.append(place)
        return packed[place]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        gradients(run, leaves)
    assert sorted(unpacked) == list(range(len(packed)))


@pytest.mark.slow
@pytest.mark.parametrize('name', FUNCTIONS)
def test_torch_compile_at_several_sizes(name):
    """Forward and backward, each size another, as torch then makes sizes symbolic."""
    cases, (settings, *_) = zip(*(call(name, size) for size in ((2, 4), (4, 5), (7, 6))))
    torch._dynamo.reset()
    function = zscored.operator(name)
    compiled = torch.compile(lambda **tensors: function(**tensors, **settings), fullgraph=True)
    for tensors in cases:
        expected = literal.evaluate(function, tensors, **settings)
        literal.assert_same(literal.evaluate(compiled, tensors), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('backend', ['auto', 'reference'])
@pytest.mark.parametrize('name', ['global', 'grid', 'local', 'strided', 'zscore'])
def test_outputs_can_be_changed_in_place(name, backend):
    """Autograd forbids it for views of leaves. (A derivative that needs the output itself raises an error later.)"""
    x = torch.randn(1, 2, 3, 4, 9, requires_grad=True)
    calls = {
        'global': lambda: ops.global_attention(x, x, x, return_lse=True)[:1],
        'grid': lambda: [ops.grid_attention(x, x, x)],
        'local': lambda: ops.local_attention(x, x, x, return_lse=True)[:1],
        'strided': lambda: [ops.strided_attention(x, x, x, pattern='block')],
        'zscore': lambda: ops.unit_variance(x, 3, x[..., 0]),
    }
    with dispatch.backend(backend):
        outputs = calls[name]()
    for y in outputs:
        expected = (y + 1).relu()
        y += 1
        assert torch.equal(y.relu_(), expected)


def test_other_derivatives_of_unit_variance_are_errors():
    run, leaves = flat('unit_variance')
    with pytest.raises((NotImplementedError, RuntimeError)):
        jvp(run, leaves, leaves)
    x, v = (leaf.requires_grad_() for leaf in leaves)
    (first,) = torch.autograd.grad(run(x, v).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(first.sum(), (x, v))
