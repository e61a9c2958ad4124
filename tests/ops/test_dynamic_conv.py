"""dynamic_conv against the equations written out, and what must hold for it.

The source is *An Empirical Study of Spatial Attention Mechanisms in Deep Networks*.
"""

import functools
import math

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from mmattn.ops import dispatch, dynamic_conv, library
from mmattn.utils.profiling import extra_memory

from . import literal
from .literal import AFTER, DTYPES, LAYOUTS, assert_same, check_operator, evaluate, low_precision, randn

one_thread = pytest.fixture(autouse=True, scope='module')(literal.one_thread)

# size, kernel_size, batch, groups
MAPS = {
    'k3': ((4, 5), 3, 2, 2),
    'k5': ((6, 4), 5, 1, 3),
    'k13': ((3, 4), 13, 2, 1),
    '3x5': ((5, 6), (3, 5), 2, 1),
    '5x1': ((6, 3), (5, 1), 1, 2),
    'k1': ((3, 4), 1, 1, 2),
    'row': ((1, 6), 3, 2, 2),
    'column': ((6, 1), 5, 1, 2),
    'single': ((1, 1), 3, 2, 2),
}


def make(size=(4, 5), kernel_size=3, batch=2, groups=2, *, channels=3, dtype=torch.float64, **settings):
    """Tensors and settings of a call."""
    entries = math.prod(literal.as_tuple(kernel_size, 2))
    tensors = {
        'value': randn(batch, groups, *size, channels, seed=1, dtype=dtype),
        'logits': randn(batch, groups, *size, entries, seed=2, dtype=dtype),
    }
    return tensors, {'kernel_size': kernel_size, **settings}


def to_map(x):
    """(B, groups, H, W, C) to (B, groups · C, H, W)."""
    return x.movedim(-1, 2).flatten(1, 2)


def unfolded(value, logits, *, kernel_size, dilation=1):
    """Another way to write it: k² copies of the map, zeros outside."""
    size = value.shape[2:4]
    kernel_size = literal.as_tuple(kernel_size, 2)
    padding = [dilation * (k // 2) for k in kernel_size]
    copies = F.unfold(to_map(value), kernel_size, dilation, padding)  # (B, groups · C · k², H · W)
    copies = copies.unflatten(1, (value.shape[1], value.shape[-1], -1)).unflatten(-1, size)
    return torch.einsum('bgckyx,bgyxk->bgyxc', copies, logits.softmax(-1))


@pytest.mark.parametrize('dilation', [1, 2])
@pytest.mark.parametrize('arguments', MAPS.values(), ids=MAPS)
def test_literal(arguments, dilation):
    tensors, settings = make(*arguments, dilation=dilation)
    actual = evaluate(dynamic_conv, tensors, **settings)
    assert_same(actual, evaluate(literal.dynamic_conv, tensors, **settings))
    assert_same(actual, evaluate(unfolded, tensors, **settings))


@pytest.mark.parametrize('dilation', [1, 2, 3])
@pytest.mark.parametrize('kernel_size', [3, 7, (3, 5)], ids=str)
def test_unfolded(kernel_size, dilation):
    """On maps with an interior."""
    tensors, settings = make((9, 8), kernel_size, dilation=dilation)
    assert_same(evaluate(dynamic_conv, tensors, **settings), evaluate(unfolded, tensors, **settings))


@pytest.mark.parametrize('after', AFTER.values(), ids=AFTER)
@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
def test_layouts(layout, after):
    tensors, settings = make()
    tensors = {name: layout(x) for name, x in tensors.items()}
    assert not any(x.is_contiguous() for x in tensors.values())
    assert_same(
        evaluate(after(dynamic_conv), tensors, **settings), evaluate(after(literal.dynamic_conv), tensors, **settings)
    )


@pytest.mark.parametrize('layout', ['channels_first', 'channels_last'])
def test_output_keeps_the_strides_of_value(layout):
    tensors, settings = make()
    tensors['value'] = LAYOUTS[layout](tensors['value'])
    assert dynamic_conv(**tensors, **settings).stride() == tensors['value'].stride()


@pytest.mark.parametrize(
    ('budget', 'slices'), [(2**26, [3, 5]), (80_000, [2, 5, 1, 5]), (16_000, [1, 2, 2, 1] * 3), (1, [1] * 6 * 3)]
)
def test_slices_of_batch_and_groups(monkeypatch, budget, slices):
    """Items and, of each slice of items, groups: any number of them gives what a single one gives."""
    tensors, settings = make(batch=3, groups=5)
    whole = evaluate(dynamic_conv, tensors, **settings)
    lengths = literal.record_slices(monkeypatch, 'mmattn.ops.neighbourhood')
    monkeypatch.setattr('mmattn.ops.chunks.CHUNK_BYTES', budget)
    assert_same(evaluate(dynamic_conv, tensors, **settings), whole, 1e-12, 1e-12)
    assert lengths == slices * 2  # forward and backward


WRONG = {
    'no_groups': (ValueError, 'value', {'value': randn(1, 3, 4, 6)}),
    'three_axes': (ValueError, 'value', {'value': randn(1, 2, 3, 4, 2, 3)}),
    'integers': (TypeError, 'value', {'value': torch.ones(1, 2, 3, 4, 3, dtype=torch.long)}),
    'integer_logits': (TypeError, 'logits', {'logits': torch.ones(1, 2, 3, 4, 15, dtype=torch.long)}),
    'entries': (ValueError, 'logits', {'logits': randn(1, 2, 3, 4, 9)}),
    'groups': (ValueError, 'logits', {'logits': randn(1, 1, 3, 4, 15)}),
    'positions': (ValueError, 'logits', {'logits': randn(1, 2, 4, 3, 15)}),
    'logits_axes': (ValueError, 'logits', {'logits': randn(1, 2, 3, 4, 3, 5)}),
}


@pytest.mark.parametrize(('error', 'name', 'changes'), WRONG.values(), ids=WRONG)
def test_wrong_arguments(error, name, changes):
    tensors, settings = make((3, 4), (3, 5), 1)
    dynamic_conv(**tensors, **settings)  # the call that the changes spoil
    with pytest.raises(error, match=rf'^{name}\b'):
        dynamic_conv(**{**tensors, **settings, **changes})


# Semantics.


@pytest.mark.parametrize(('kernel_size', 'dilation'), [(3, 1), (3, 2), ((3, 5), 1), (13, 1)], ids=str)
def test_one_kernel_for_all_positions_is_a_depth_wise_convolution(kernel_size, dilation):
    """PyTorch's, with zero padding."""
    tensors, settings = make((6, 7), kernel_size, dilation=dilation)
    kernels = tensors['logits'][:1, :, :1, :1]
    sizes = literal.as_tuple(kernel_size, 2)
    weight = kernels[0, :, 0, 0].softmax(-1).view(2, 1, *sizes).repeat_interleave(3, 0)
    expected = F.conv2d(
        to_map(tensors['value']), weight, padding=[dilation * (k // 2) for k in sizes], dilation=dilation, groups=6
    )
    actual = dynamic_conv(tensors['value'], kernels.expand_as(tensors['logits']), **settings)
    torch.testing.assert_close(to_map(actual), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32], ids=str)
def test_neg_inf_removes_an_entry(dtype):
    """And all of them leave nothing, also in the backward pass."""
    tensors, settings = make(dtype=dtype)
    removed = randn(2, 2, 4, 5, 9, seed=9) > 0
    removed[..., 4] = False
    tensors['logits'] = tensors['logits'].masked_fill(removed, -math.inf)
    actual = evaluate(dynamic_conv, tensors, **settings)
    expected = evaluate(literal.dynamic_conv, tensors, torch.float64, **settings)
    assert_same(actual, expected, **low_precision(dtype))
    assert not actual['d_logits'][removed].any()
    tensors['logits'] = torch.full_like(tensors['logits'], -math.inf)
    assert not any(x.any() for x in evaluate(dynamic_conv, tensors, **settings).values())


# Numbers of any size, in every dtype.


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
@pytest.mark.parametrize(
    ('size', 'kernel_size', 'dilation'), [((4, 5), 3, 1), ((6, 5), (3, 5), 2), ((9, 8), 13, 1)], ids=str
)
def test_low_precision_is_near_float64(size, kernel_size, dilation, dtype):
    tensors, settings = make(size, kernel_size, dilation=dilation, dtype=dtype)
    actual = evaluate(dynamic_conv, tensors, **settings)
    assert {x.dtype for x in actual.values()} == {dtype}
    assert_same(actual, evaluate(unfolded, tensors, torch.float64, **settings), **low_precision(dtype))


@pytest.mark.parametrize('wide', ['value', 'logits'])
def test_float32_with_bfloat16(wide):
    """Gradients are as their tensors."""
    tensors, settings = make()
    dtypes = {name: torch.float32 if name == wide else torch.bfloat16 for name in tensors}
    tensors = {name: x.to(dtypes[name]) for name, x in tensors.items()}
    actual = evaluate(dynamic_conv, tensors, **settings)
    assert {name: actual[f'd_{name}'].dtype for name in tensors} == dtypes
    assert actual['output'].dtype == dtypes['value']
    assert_same(actual, evaluate(unfolded, tensors, torch.float64, **settings), **low_precision(torch.bfloat16))


@pytest.mark.parametrize('dtype', DTYPES, ids=str)
def test_logits_of_1e4(dtype):
    tensors, settings = make(dtype=dtype)
    tensors['logits'] = tensors['logits'] * 1e4
    actual = evaluate(dynamic_conv, tensors, **settings)
    assert_same(actual, evaluate(unfolded, tensors, torch.float64, **settings), **low_precision(dtype))


# As an operator of PyTorch.


@pytest.mark.parametrize('layout', [lambda x: x, *LAYOUTS.values()], ids=['contiguous', *LAYOUTS])
def test_opcheck(layout):
    tensors, settings = make((3, 4), dtype=torch.float32)
    check_operator(dynamic_conv, {name: layout(x) for name, x in tensors.items()}, settings)


def test_compile():
    torch.compiler.reset()
    compiled = torch.compile(dynamic_conv, fullgraph=True, backend='aot_eager')
    tensors, settings = make(dtype=torch.float32)
    assert_same(evaluate(compiled, tensors, **settings), evaluate(dynamic_conv, tensors, **settings), 0, 0)


def test_export():
    tensors, settings = make(dtype=torch.float32)

    class Model(torch.nn.Module):
        def forward(self, **tensors):
            return dynamic_conv(**tensors, **settings)

    exported = torch.export.export(Model(), (), tensors).module()
    torch.testing.assert_close(exported(**tensors), dynamic_conv(**tensors, **settings), atol=0, rtol=0)


def test_autocast():
    tensors, settings = make(dtype=torch.float32)
    with torch.autocast('cpu', torch.bfloat16):
        actual = evaluate(dynamic_conv, tensors, **settings)
    assert_same(actual, evaluate(dynamic_conv, tensors, **settings), 0, 0)


def test_gradcheck():
    tensors, settings = make((2, 3), (3, 5), 1)
    op = functools.partial(dynamic_conv, **settings)
    assert torch.autograd.gradcheck(op, [x.requires_grad_() for x in tensors.values()])


def test_gradients_of_one_operand():
    tensors, settings = make()
    expected = evaluate(dynamic_conv, tensors, **settings)
    for name, x in tensors.items():
        actual = evaluate(lambda leaf, name=name: dynamic_conv(**{**tensors, name: leaf}, **settings), {'leaf': x})
        torch.testing.assert_close(actual['d_leaf'], expected[f'd_{name}'], atol=0, rtol=0)


@pytest.mark.parametrize('dilation', [1, 2])
def test_flops(dilation):
    """N·C·k² multiply-accumulates, of two FLOPs each; backward, as many for each gradient."""
    tensors, settings = make((4, 5), (3, 5), dilation=dilation)
    tensors = {name: x.requires_grad_() for name, x in tensors.items()}
    with FlopCounterMode(display=False) as forward:
        out = dynamic_conv(**tensors, **settings)
    with FlopCounterMode(display=False) as backward:
        torch.autograd.grad(out.sum(), list(tensors.values()))
    assert forward.get_total_flops() == 2 * 2 * (4 * 5) * (2 * 3) * 15
    assert backward.get_total_flops() == 2 * forward.get_total_flops()


@pytest.mark.parametrize('reference', [True, False], ids=['reference', 'native'])
def test_extra_memory(reference):
    """The unfolded map would be 13² copies of 4.5 MiB: 761."""
    if not reference and not library.has_kernel('dynamic_conv'):
        pytest.skip(str(library.UNAVAILABLE_REASON))
    value = torch.randn(2, 4, 48, 48, 64).requires_grad_()
    logits = torch.randn(2, 4, 48, 48, 13**2).requires_grad_()  # 12 MiB
    with dispatch.backend('reference' if reference else 'native'):
        out, forward = extra_memory(lambda: dynamic_conv(value, logits, kernel_size=13))
        _, backward = extra_memory(lambda: torch.autograd.grad(out, (value, logits), torch.ones_like(value)))
    print(f'extra: {forward:.0f} MiB forward, {backward:.0f} MiB backward')
    assert (1 if reference else 0) < forward < (64 if reference else 1)
    assert 1 < backward < (64 if reference else 8)


@pytest.mark.parametrize('backend', ['auto', 'reference'])
def test_a_dilation_beyond_the_map_leaves_the_centre(backend):
    """Its memory does not grow with the dilation."""
    tensors, settings = make((4, 5), 3, dilation=2**40, dtype=torch.float32)
    with dispatch.backend(backend):
        found = evaluate(dynamic_conv, tensors, **settings)
        assert_same(found, evaluate(dynamic_conv, tensors, **{**settings, 'dilation': 5}))
