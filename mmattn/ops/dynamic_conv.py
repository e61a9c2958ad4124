"""Dynamic convolution: every position filters the map with a depth-wise k×k kernel of its own."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from . import autograd, native
from .checks import check_count, check_device
from .neighbourhood import Neighbourhood, slices, softmax, softmax_backward
from .window_logits import accumulator, as_window_size


def dynamic_conv(value: Tensor, logits: Tensor, *, kernel_size: int | tuple[int, int], dilation: int = 1) -> Tensor:
    """Depth-wise convolution of a 2-D map with a kernel for each position and group (Eq. 5 to 7, without W_c).

    y_i = Σ_j softmax_e [logits_i]_{j−i} v_j over the k² entries e of the kernel at i. It is a convolution with zero
    padding: the kernel sums to one over all of its entries (Σ_j K_{j,g} = 1 in the text below Eq. 7, and Wu et al.,
    "Pay Less Attention with Lightweight and Dynamic Convolutions"), and what it covers outside the map is 0. There the
    weights of the positions inside sum to less than one, unlike those of :func:`local_attention`, which sees only
    these. Differentiable in both tensors. float16 and bfloat16 are accumulated in float32.

    Args:
        value (Tensor): float ``(B, groups, H, W, D)``, the channels of a group share a kernel.
        logits (Tensor): float ``(B, groups, H, W, k0·k1)``, the kernel of each position before its softmax, row-major
            over the neighbourhood.
        kernel_size (int or tuple[int, int]): odd lengths k of the kernel, vertical and horizontal.
        dilation (int): step between the positions of a kernel. Defaults to 1.

    Returns:
        Tensor: ``(B, groups, H, W, D)``, dtype of ``value``, strides of ``value`` where those are dense. A position
        whose logits are all −∞ gets 0.

    Raises:
        TypeError: ``value`` or ``logits`` is not floating-point, or ``dilation`` no integer.
        ValueError: shapes that do not fit, an even kernel, a dilation below 1.
    """
    if value.dim() != 5:
        raise ValueError(f'value must be (B, groups, H, W, channels); got {tuple(value.shape)}')
    for name, x in (('value', value), ('logits', logits)):
        if not x.is_floating_point():
            raise TypeError(f'{name} must be floating-point; got {x.dtype}')
    sizes = as_window_size(kernel_size, axes=2, name='kernel_size')
    check_count('dilation', dilation)
    expected = (*value.shape[:-1], sizes[0] * sizes[1])
    if logits.shape != expected:
        raise ValueError(f'logits must be {tuple(expected)} for kernel_size={kernel_size}; got {tuple(logits.shape)}')
    check_device(value=value, logits=logits)
    return _dynamic_conv(value, logits, list(sizes), dilation)


# Operands and settings, as they stand in the schema of the forward and the backward operator.
ARGUMENTS = 'Tensor value, Tensor logits, int[] kernel_size, int dilation'


@torch.library.custom_op('mmattn::dynamic_conv', mutates_args=(), schema=f'({ARGUMENTS}) -> Tensor')
def _dynamic_conv(value: Tensor, logits: Tensor, kernel_size: Sequence[int], dilation: int) -> Tensor:
    fits = native.takes('dynamic_conv', value, logits)
    run = torch.ops.mmattn_native.dynamic_conv if fits else dynamic_conv_reference
    return run(value, logits, kernel_size, dilation)


@_dynamic_conv.register_fake
def _(value: Tensor, *_: object) -> Tensor:
    return torch.empty_like(value)


@torch.library.custom_op(
    'mmattn::dynamic_conv_backward', mutates_args=(), schema=f'(Tensor grad, {ARGUMENTS}) -> (Tensor, Tensor)'
)
def _dynamic_conv_backward(
    grad: Tensor, value: Tensor, logits: Tensor, kernel_size: Sequence[int], dilation: int
) -> tuple[Tensor, Tensor]:
    fits = native.takes('dynamic_conv_backward', grad, value, logits)
    run = torch.ops.mmattn_native.dynamic_conv_backward if fits else dynamic_conv_reference_backward
    return run(grad, value, logits, kernel_size, dilation)


@_dynamic_conv_backward.register_fake
def _(grad: Tensor, value: Tensor, logits: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(value), torch.empty_like(logits)


autograd.register('dynamic_conv')


def _work(value: Tensor, logits: Tensor, *others: Tensor) -> Iterator[tuple]:
    """Yield what is worked on at a time, a slice of the batch and one of the groups, and its operands.

    Those are the value, the kernels of all its positions, ``(K, B, groups, H, W)``, and the others.
    """
    dtype = accumulator(value)
    for part in slices(value.shape, 4 * (value.shape[-1] + logits.shape[-1]) * dtype.itemsize):
        v, entries, *rest = (x[part].to(dtype) for x in (value, logits, *others))
        yield part, v, softmax(entries.movedim(-1, 0), 0), *rest


def dynamic_conv_reference(value: Tensor, logits: Tensor, kernel_size: Sequence[int], dilation: int) -> Tensor:
    """Forward pass in PyTorch: output ``(B, groups, H, W, D)``."""
    out = torch.empty_like(value)
    area = Neighbourhood(value.shape[2:4], kernel_size, dilation)
    for at, v, kernels in _work(value, logits):
        out[at] = area.gather(kernels, v)
    return out


def dynamic_conv_reference_backward(
    grad: Tensor, value: Tensor, logits: Tensor, kernel_size: Sequence[int], dilation: int
) -> tuple[Tensor, Tensor]:
    """Gradients of value and logits."""
    d_value, d_logits = torch.empty_like(value), torch.empty_like(logits)
    area = Neighbourhood(value.shape[2:4], kernel_size, dilation)
    for at, v, kernels, d_out in _work(value, logits, grad):
        d_value[at] = area.scatter(kernels, d_out)
        d_logits[at] = softmax_backward(area.dot(d_out, v), kernels).movedim(0, -1)
    return d_value, d_logits
