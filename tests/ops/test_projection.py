"""projection against the products written out in float64, in values and all gradients."""

import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from mmattn.ops import projection

from . import literal
from .literal import randn

MODULE = sys.modules['mmattn.ops.projection']  # the function has its name
pytestmark = pytest.mark.skipif(not MODULE.ONEDNN, reason='torch has no oneDNN here')

LAYOUTS = {
    'rows': lambda x: x,
    'channels first': lambda x: x.movedim(-1, 1).contiguous().movedim(1, -1),
    'some channels': lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    'every other row': lambda x: torch.stack([x, x], -2).flatten(-3, -2)[:, ::2] if x.dim() == 3 else x,
    'transposed': lambda x: x.transpose(0, -2).contiguous().transpose(0, -2),
}


def operands(shape, out, bias):
    x, weight = randn(*shape, 5), randn(out, 5, seed=1)
    return [x, weight, randn(out, seed=2) if bias else None]


@pytest.mark.parametrize('bias', [False, True])
@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize(('shape', 'out'), [((2, 3, 7), 4), ((1, 1), 1), ((2, 19), 33), ((1, 5, 1, 2), 2)], ids=str)
def test_values_and_gradients(shape, out, layout, bias):
    given = operands(shape, out, bias)
    exact = [None if a is None else a.clone().requires_grad_() for a in given]
    expected = literal.projection(*exact)
    grad = randn(*expected.shape, seed=3)
    wanted = torch.autograd.grad(expected, [a for a in exact if a is not None], grad)
    single = [None if a is None else a.float().requires_grad_() for a in given]
    y = projection(LAYOUTS[layout](single[0]), single[1], single[2])
    found = torch.autograd.grad(y, [a for a in single if a is not None], grad.float())
    for a, b in zip([y, *found], [expected, *wanted]):
        torch.testing.assert_close(a.double(), b, rtol=2e-6, atol=2e-6 * max(1, b.abs().max().item()))


@pytest.mark.slow
def test_second_derivatives_and_dispatcher():
    x, weight, bias = (a.float().requires_grad_() for a in operands((2, 3), 4, True))
    torch.library.opcheck(torch.ops.mmattn.projection, (x, weight, bias))
    torch.library.opcheck(torch.ops.mmattn.projection, (x, weight, None))
    (first,) = torch.autograd.grad(projection(x, weight, bias).square().sum(), weight, create_graph=True)
    (reference,) = torch.autograd.grad(F.linear(x, weight, bias).square().sum(), weight, create_graph=True)
    for a, b in zip(
        torch.autograd.grad(first.square().sum(), (x, weight)),
        torch.autograd.grad(reference.square().sum(), (x, weight)),
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6 * b.abs().max().item())  # sums of many, of either sign
    compiled = torch.compile(projection, fullgraph=True)
    torch.testing.assert_close(compiled(x, weight, bias), F.linear(x, weight, bias))


@pytest.mark.parametrize('bias', [torch.tensor(2.0), torch.tensor([2.0])], ids=['scalar', 'of one'])
def test_a_bias_that_is_broadcast(bias):
    x, weight = (a.float() for a in operands((2, 3), 4, False)[:2])
    assert torch.equal(projection(x, weight, bias), F.linear(x, weight, bias))


@pytest.mark.parametrize('stride', [0, 2])
def test_a_bias_of_any_stride(stride):
    x, weight, _ = (a if a is None else a.float() for a in operands((2, 3), 4, False))
    bias = torch.arange(1.0, 9).as_strided((4,), (stride,))
    torch.testing.assert_close(projection(x, weight, bias), F.linear(x, weight, bias))


def test_rows_that_overlap():
    """As operands and as a gradient."""
    rows, x, weight = torch.randn(10).unfold(0, 5, 1), torch.randn(6, 5), torch.randn(4, 5)  # strides (1, 1)
    torch.testing.assert_close(projection(rows, weight), rows @ weight.t())
    torch.testing.assert_close(projection(x, rows), x @ rows.t())
    grad = torch.randn(9).unfold(0, 4, 1)
    x.requires_grad_(), weight.requires_grad_()
    found = torch.autograd.grad(projection(x, weight), (x, weight), grad)
    torch.testing.assert_close(found, (grad @ weight, grad.t() @ x))


@pytest.mark.parametrize('dims', [(0, 0), (None, 0), (0, None), (2, None), (1, 2)])
def test_vmap_over_any_dimension(dims):
    x, weight = torch.randn(3, 2, 5), torch.randn(3, 4, 5)
    x, weight = (y[0] if dim is None else y.movedim(0, dim) for y, dim in zip((x, weight), dims))
    found, expected = (torch.vmap(op, dims)(x, weight) for op in (projection, F.linear))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(('weight', 'bias'), [((4, 6), (4,)), ((4, 5), (3,))], ids=str)
def test_what_does_not_go_together_is_named(weight, bias):
    with pytest.raises(RuntimeError, match=r'must match|cannot be multiplied|expand'):
        projection(torch.ones(2, 5), torch.ones(weight), torch.ones(bias))


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16])
def test_other_dtypes_and_autocast_are_torchs(dtype):
    x, weight, bias = (a.to(dtype) for a in operands((2, 3), 4, True))
    assert torch.equal(projection(x, weight, bias), F.linear(x, weight, bias))
    x, weight, bias = (a.float() for a in operands((2, 3), 4, True))
    with torch.autocast('cpu', torch.bfloat16):
        assert projection(x, weight, bias).dtype == torch.bfloat16


@pytest.mark.parametrize('shape', [(0, 3), (2, 0), (0, 0)])
def test_empty_weights(shape):
    x, weight = torch.ones(2, shape[1], requires_grad=True), torch.ones(shape, requires_grad=True)
    y = projection(x, weight)
    y.sum().backward()
    assert y.shape == (2, shape[0])
    assert (x.grad.shape, weight.grad.shape) == (x.shape, weight.shape)


def test_a_projection_without_data_has_the_shape_of_one_with_them():
    x, weight = torch.ones(2, 3, 4), torch.ones(5, 4)
    with FakeTensorMode() as mode:
        found = projection(mode.from_tensor(x), mode.from_tensor(weight))
    expected = projection(x, weight)
    assert (found.shape, found.dtype, found.stride()) == (expected.shape, expected.dtype, expected.stride())
