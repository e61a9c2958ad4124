"""Projection of the channels of each position: a 1×1 convolution of a channels-last map."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from . import autograd
from .flops import count_flops
from .operator import COMPOSITIONS, compose_in_onnx

# For matrix products torch calls MKL, which on AMD processors reaches less than half the speed of oneDNN. On one
# thread, torch also computes 1×1 convolutions as such products.
ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, '_linear_pointwise')


def projection(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute W x_i + b for each position i, like ``F.linear``.

    float32 tensors on a CPU are multiplied by oneDNN if torch has it. Other tensors, and calls under autocast, use
    ``F.linear``. Differentiable in every tensor.

    Args:
        x (Tensor): float ``(…, C)``, with any strides.
        weight (Tensor): float ``(O, C)``.
        bias (Tensor, optional): float ``(O)``.

    Returns:
        Tensor: ``(…, O)``, dtype of ``x``, or of autocast.

    Example:
        >>> x, weight = torch.ones(1, 8, 8, 3), torch.ones(2, 3)
        >>> y = projection(x, weight)
        >>> y.shape, y[0, 0, 0]
        (torch.Size([1, 8, 8, 2]), tensor([3., 3.]))
    """
    operands = (x, weight) if bias is None else (x, weight, bias)
    supported = ONEDNN and all(t.device.type == 'cpu' and t.dtype == torch.float32 for t in operands)
    supported = supported and x.numel() > 0 and weight.numel() > 0
    supported = supported and x.shape[-1:] == weight.shape[1:] and (bias is None or bias.shape == weight.shape[:1])
    if not supported or torch.is_autocast_enabled('cpu'):
        return F.linear(x, weight, bias)
    return _projection(x, weight, bias)


@torch.library.custom_op(
    'mmattn::projection', mutates_args=(), schema='(Tensor x, Tensor weight, Tensor? bias) -> Tensor'
)
def _projection(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = _dense(x.reshape(-1, x.shape[-1]))
    bias = None if bias is None else bias.contiguous()  # oneDNN ignores its stride
    y = torch.ops.mkldnn._linear_pointwise(rows, _dense(weight), bias, 'none', [], '')
    # Autograd forbids in-place changes, such as those of ReLU, of an output that is a view.
    return torch.ops.aten._unsafe_view(y, [*x.shape[:-1], weight.shape[0]])


def _dense(matrix: Tensor) -> Tensor:
    # oneDNN would be 100 times slower unless rows or columns are contiguous and do not overlap.
    rows = matrix.stride(1) == 1 and not 0 < matrix.stride(0) < matrix.shape[1]
    return matrix if rows or matrix.t().is_contiguous() else matrix.t().contiguous().t()


@_projection.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _gradients(
    needed: Sequence[bool], grads: Sequence[Tensor], _: Sequence[Tensor], x: Tensor, weight: Tensor, bias: Tensor | None
) -> list[Tensor | None]:
    (grad,) = grads
    rows = grad.reshape(-1, grad.shape[-1])
    return [
        _projection(grad, weight.t(), None) if needed[0] else None,
        _weight_gradient(rows, x.reshape(-1, x.shape[-1])) if needed[1] else None,
        *([] if bias is None else [rows.sum(0)]),
    ]


def _weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    # oneDNN transposes a copy of the first operand: it is the one with fewer channels.
    if x.shape[1] < grad.shape[1]:
        return _weight_gradient(x, grad).t()
    return _projection(grad.t(), x.t(), None)


def _vmap(
    info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, int]:
    if in_dims[0] is not None and in_dims[1:] == (None, None):
        return _projection(x.movedim(in_dims[0], 0), weight, bias), 0
    x, weight, *biases = (
        operand.expand(info.batch_size, *operand.shape) if dim is None else operand.movedim(dim, 0)
        for operand, dim in zip((x, weight, bias), in_dims)
        if operand is not None
    )
    y = x.reshape(info.batch_size, -1, x.shape[-1]) @ weight.transpose(1, 2)
    for batched_bias in biases:
        y = y + batched_bias.unsqueeze(1)
    return y.view(*x.shape[:-1], weight.shape[1]), 0


autograd.register_vmap(torch.ops.mmattn.projection.default, _vmap)
autograd.register_formula('projection', _gradients)
COMPOSITIONS[torch.ops.mmattn.projection.default] = F.linear
compose_in_onnx(torch.ops.mmattn.projection.default)
count_flops('projection', lambda x, weight, *_: 2 * x.numel() * weight.shape[0])
