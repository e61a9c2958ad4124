"""Projection of each position's channels: a 1×1 convolution of a map whose channels lie side by side in memory."""

import torch
from torch import Tensor
from torch.nn import functional as F

# What torch calls for a matrix product, MKL, reaches less than half of oneDNN's speed on AMD processors, and on one
# thread its 1×1 convolutions are such products.
ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, '_linear_pointwise')


def projection(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return W x_i + b for each position i, as ``F.linear`` does; float32 on CPUs by oneDNN, where torch has that.

    Args:
        x (Tensor): float ``(…, C)``, of any strides.
        weight (Tensor): float ``(O, C)``.
        bias (Tensor, optional): float ``(O)``.

    Returns:
        Tensor: ``(…, O)``, dtype of ``x``; under autocast, its.

    Raises:
        RuntimeError: as ``F.linear``, shapes, dtypes or devices that do not go together.
    """
    operands = (x, weight) if bias is None else (x, weight, bias)
    ours = ONEDNN and all(t.device.type == 'cpu' and t.dtype == torch.float32 for t in operands) and x.numel() > 0
    ours = ours and x.shape[-1:] == weight.shape[1:] and (bias is None or bias.shape == weight.shape[:1])
    if not ours or torch.is_autocast_enabled('cpu'):
        return F.linear(x, weight, bias)
    return _projection(x, weight, bias)


@torch.library.custom_op(
    'mmattn::projection', mutates_args=(), schema='(Tensor x, Tensor weight, Tensor? bias) -> Tensor'
)
def _projection(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = _dense(x.reshape(-1, x.shape[-1]))
    return torch.ops.mkldnn._linear_pointwise(rows, _dense(weight), bias, 'none', [], '').view(*x.shape[:-1], -1)


def _dense(matrix: Tensor) -> Tensor:
    """Copy what oneDNN would take a hundred times as long for: rows may lie apart in memory, columns may not."""
    return matrix if matrix.stride(1) == 1 or matrix.t().is_contiguous() else matrix.t().contiguous().t()


@_projection.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.has_bias = inputs[2] is not None


def _backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    rows = grad.reshape(-1, grad.shape[-1])
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad
    return (
        _projection(grad, weight.t(), None) if needs_x else None,
        _weight_gradient(rows, x.reshape(-1, x.shape[-1])) if needs_weight else None,
        rows.sum(0) if needs_bias and ctx.has_bias else None,
    )


def _weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Sum the outer products of the rows. oneDNN transposes the first operand aside: the one with fewer channels."""
    if x.shape[1] < grad.shape[1]:
        return _weight_gradient(x, grad).t()
    return _projection(grad.t(), x.t(), None)


_projection.register_autograd(_backward, setup_context=_setup_context)
