"""The composition of ``dynamic_conv``, for the whole batch in parts that fit the byte budget."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..dynamic_conv import OPERATOR
from ..neighbourhood import softmax
from ..window_bias import accumulator
from .neighbourhood import Neighbours, parts, softmax_backward


def forward(args: Any) -> Tensor:
    """Compute the output."""
    out = torch.empty_like(args.value)
    area = Neighbours(args.value.shape[2:4], args.kernel_size, args.dilation)
    for part in parts(args.value, args.value.shape[-1], args.logits.shape[-1]):
        kernels = softmax(args.logits[part].to(accumulator(args.value)), -1)
        out[part] = area.weighted(kernels, area.of(args.value[part]))
    return out


def backward(grad: Tensor, args: Any) -> list[Tensor]:
    """Compute the gradients of value and logits."""
    d_value, d_logits = torch.empty_like(args.value), torch.empty_like(args.logits)
    area = Neighbours(args.value.shape[2:4], args.kernel_size, args.dilation)
    for part in parts(args.value, args.value.shape[-1], args.logits.shape[-1]):
        kernels = softmax(args.logits[part].to(accumulator(args.value)), -1)
        d_out = grad[part].to(args.value.dtype)
        d_value[part] = area.weighted(area.transposed(kernels), area.of(d_out))
        d_logits[part] = softmax_backward(area.dot(d_out, area.of(args.value[part])), kernels)
    return [d_value, d_logits]


OPERATOR.composition(forward, backward)
