"""Dynamic convolution: a depth-wise k×k convolution with a separate kernel for each position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from mmattn.utils.checks import check_count

from .arguments import as_window_size, check_device
from .dtypes import accumulator
from .flops import attention_flops
from .library import direct_call
from .neighbourhood import Offsets, Unfolded, softmax, softmax_backward
from .operator import Operator


class ConvArguments(NamedTuple):
    """The arguments of ``mmattn::dynamic_conv``."""

    value: Tensor  # (B, groups, H, W, D)
    logits: Tensor  # (B, groups, H, W, k0·k1)
    kernel_size: Sequence[int]
    dilation: int


def dynamic_conv(value: Tensor, logits: Tensor, *, kernel_size: int | tuple[int, int], dilation: int = 1) -> Tensor:
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
    found = None if is_compiling() else direct_call('dynamic_conv', value, logits, kernel_size, dilation)
    if found is not None:
        return found
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
    return torch.ops.mmattn.dynamic_conv(value, logits, sizes, dilation)


def _work(a: ConvArguments, exact: bool, *extra: Tensor) -> Iterator[tuple]:
    """Yield the neighbourhoods, and slices of batch and groups that fit the byte budget: value, kernels, ``extra``."""
    area = (Offsets if exact else Unfolded)(a.value.shape[2:4], a.kernel_size, a.dilation)
    dtype = accumulator(a.value) if exact else a.value.dtype
    for part in area.parts(a.value, a.value.shape[-1], 4):
        kernels = softmax(area.weights(a.logits[part].to(accumulator(a.value))), area.dim)
        yield area, part, kernels, *(x[part].to(dtype) for x in (a.value, *extra))


def _forward(a: ConvArguments, exact: bool = True) -> Tensor:
    out = torch.empty_like(a.value)
    for area, part, kernels, value in _work(a, exact):
        out[part] = area.gather(kernels, area.of(value))
    return out


def _backward(grad: Tensor, a: ConvArguments, exact: bool = True) -> list[Tensor]:
    d_value, d_logits = torch.empty_like(a.value), torch.empty_like(a.logits)
    for area, part, kernels, value, d_out in _work(a, exact, grad):
        d_value[part] = area.scatter(kernels, area.of(d_out))
        d_kernels = area.dot(d_out, area.of(value))
        d_logits[part] = area.entries(softmax_backward(d_kernels, kernels, area.dim))
    return [d_value, d_logits]


def _fake(a: ConvArguments) -> Tensor:
    return torch.empty_like(a.value)


def _flops(a: ConvArguments, backward: bool) -> int:
    # Border positions count as having all neighbours. The prediction of the logits is not part of the operator.
    return attention_flops((*a.value.shape[:-1], 0), a.value.shape, a.logits.shape[-1], backward)


OPERATOR = Operator(
    'dynamic_conv',
    ConvArguments,
    forward=_forward,
    backward=_backward,
    fake=_fake,
    flops=_flops,
    layout=torch.preserve_format,
)
