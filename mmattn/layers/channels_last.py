"""The memory layout in which layers for maps compute on a CPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def compute_channels_last(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a layer to a map ``(B, C, H, W)``; on a CPU in channels last, with the output in the layout of ``x``.

    Its gradients have this layout, too. Compiled, exported and traced programs, in which it was not measured, and maps
    that are not contiguous are computed as they are.
    """
    # Attention reads all channels of a position. Both conversions included, layers take these parts of their time in
    # channels first, forward and backward, maps of 32² to 97², two cores of a Xeon: Bi-CC 0.76 to 0.94 in float32, 0.46
    # to 0.77 in bfloat16; a head, which converts once, 0.73 to 0.84, 0.45 to 0.68; Bi-NL 0.85 to 0.92, 0.85 to 0.89.
    # Others would not gain in float32: local attention 1.0 to 1.3, dynamic convolution 1.2 to 1.4, and Transformer
    # attention takes the same time in either layout. Those of clips have their channels last.
    is_program = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if is_program or x.device.type != 'cpu' or x.stride(1) == 1 or not x.is_contiguous():
        return layer(x)
    z = _Transpose.apply(x.flatten(2)).unflatten(1, x.shape[2:]).movedim(-1, 1)
    y = layer(z).movedim(1, -1)
    return _Transpose.apply(y.flatten(1, 2)).unflatten(2, y.shape[1:3])


class _Transpose(torch.autograd.Function):
    """A copy of matrices ``(B, M, N)`` as ``(B, N, M)``. Its gradient is a copy, too, in the layout of the input."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        out = torch.empty_like(x.mT, memory_format=torch.contiguous_format)
        for i in range(len(x)):
            out[i].copy_(x[i].mT)  # torch copies a matrix two to four times as fast as maps
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Transpose.apply(grad)
