"""Dynamic convolution: a depth-wise k×k convolution with a separate kernel for each position."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from mmattn.utils.checks import check_count

from .checks import check_device
from .neighbourhood import Neighbourhood, slices, softmax, softmax_backward
from .operator import Operator, products
from .window_bias import accumulator, as_window_size


def _work(args: Any, *extra: Tensor) -> Iterator[tuple]:
    """Yield slices of batch and groups that fit the byte budget: value, kernels ``(K, B, groups, H, W)``, ``extra``."""
    dtype = accumulator(args.value)
    for part in slices(args.value.shape, 4 * (args.value.shape[-1] + args.logits.shape[-1]) * dtype.itemsize):
        v, entries, *rest = (x[part].to(dtype) for x in (args.value, args.logits, *extra))
        yield part, v, softmax(entries.movedim(-1, 0), 0), *rest


def _reference(args: Any) -> Tensor:
    out = torch.empty_like(args.value)
    area = Neighbourhood(args.value.shape[2:4], args.kernel_size, args.dilation)
    for part, v, kernels in _work(args):
        out[part] = area.gather(kernels, v)
    return out


def _reference_backward(grad: Tensor, args: Any) -> list[Tensor]:
    d_value, d_logits = torch.empty_like(args.value), torch.empty_like(args.logits)
    area = Neighbourhood(args.value.shape[2:4], args.kernel_size, args.dilation)
    for part, v, kernels, d_out in _work(args, grad):
        d_value[part] = area.scatter(kernels, d_out)
        d_logits[part] = softmax_backward(area.dot(d_out, v), kernels).movedim(0, -1)
    return [d_value, d_logits]


OPERATOR = Operator(
    'dynamic_conv',
    'Tensor value, Tensor logits, int[] kernel_size, int dilation',
    'Tensor',
    reference=_reference,
    backward=_reference_backward,
    fake=lambda args: torch.empty_like(args.value),
    # Border positions count as having all neighbours. The prediction of the logits is not part of the operator.
    flops=lambda args, backward: products((*args.value[:-1], 0), args.value, args.logits[-1], backward),
    layout=torch.preserve_format,
)


@OPERATOR.public
def dynamic_conv(value: Tensor, logits: Tensor, *, kernel_size: int | tuple[int, int], dilation: int = 1) -> tuple:
    """Convolve a 2-D map with a separate depth-wise kernel for each position and group of channels.

    y_i = Σ_j softmax_e [logits_i]_{j−i} v_j (Eq. 5 to 7, without W_c), where the softmax is over the k² entries e of
    the kernel at i. It is a convolution with zero padding: a kernel sums to 1 over all of its entries (Σ_j K_{j,g} = 1
    below Eq. 7, and Wu et al., "Pay Less Attention with Lightweight and Dynamic Convolutions"). At the border, the
    weights of the positions inside the map therefore sum to less than 1, unlike in :func:`local_attention`.
    Differentiable in both tensors. float16 and bfloat16 are accumulated in float32.
    Source: "An Empirical Study of Spatial Attention Mechanisms in Deep Networks", 2019.

    Args:
        value (Tensor): float ``(B, groups, H, W, D)``. The channels of a group share a kernel.
        logits (Tensor): float ``(B, groups, H, W, k0·k1)``, the row-major kernel of each position before the softmax.
        kernel_size (int or tuple[int, int]): odd side k of the kernel, or (vertical, horizontal).
        dilation (int): step ≥ 1 between the positions of a kernel. Defaults to 1.

    Returns:
        Tensor: ``(B, groups, H, W, D)``, dtype of ``value``, and its strides if they are dense. The output of a
        position whose logits are all −∞ is 0.

    Example:
        >>> value, logits = torch.randn(1, 8, 32, 32, 16), torch.randn(1, 8, 32, 32, 9)
        >>> dynamic_conv(value, logits, kernel_size=3).shape
        torch.Size([1, 8, 32, 32, 16])
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
    check_device(value, logits=logits)
    return value, logits, sizes, dilation
