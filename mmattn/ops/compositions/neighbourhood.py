"""Sums over the k×k neighbourhoods of a 2-D map, for the whole map at once.

Neighbours ``(B, heads, H, W, C, k0, k1)`` are a view of a padded map, 0 outside the map. Weights and logits of pairs
are ``(B, heads, H, W, K)``, row-major over the neighbourhood.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ..chunks import chunk_bytes
from ..neighbourhood import slices
from ..window_bias import accumulator


class Neighbours:
    """The neighbourhoods of a map of H×W positions. Every sum over them is one product and one reduction."""

    def __init__(self, size: Sequence[int], kernel_size: Sequence[int], dilation: int) -> None:
        dilation = min(dilation, max(1, *size))  # from there on, all neighbours are outside the map
        self.size, self.kernel_size, self.dilation = size, tuple(kernel_size), dilation
        beyond = [k // 2 * dilation for k in kernel_size]
        self.padding = 0, 0, beyond[1], beyond[1], beyond[0], beyond[0]

    def of(self, x: Tensor) -> Tensor:
        """View the neighbours of every position of a map ``(B, heads, H, W, C)``."""
        x = F.pad(x, self.padding)
        for dim, k in enumerate(self.kernel_size, 2):
            x = x.unfold(dim, (k - 1) * self.dilation + 1, 1)
            x = x[..., :: self.dilation] if self.dilation > 1 else x
        return x

    def dot(self, x: Tensor, neighbours: Tensor) -> Tensor:
        """Compute x_iᵀy_j for every neighbour y_j of i: ``(B, heads, H, W, K)``, in float32 or float64."""
        return (x[..., None, None] * neighbours).sum(4, dtype=accumulator(x)).flatten(-2)

    def weighted(self, weights: Tensor, neighbours: Tensor) -> Tensor:
        """Compute Σ_j w_ij y_j, ``(B, heads, H, W, C)``, in float32 or float64."""
        weights = weights.to(neighbours.dtype).unflatten(-1, self.kernel_size).unsqueeze(4)
        return (weights * neighbours).sum((-2, -1), dtype=accumulator(neighbours))

    def transposed(self, weights: Tensor) -> Tensor:
        """View the weights w_ji of every neighbour j of i, instead of w_ij, in the same layout."""
        batch, heads, height, width, entries = weights.shape
        padded = F.pad(weights, self.padding).contiguous()
        row, column, d = padded.stride(2), padded.stride(3), self.dilation
        # The neighbour at entry e of i has i at entry K − 1 − e.
        strides = (*padded.stride()[:4], d * row - self.kernel_size[1], d * column - 1)
        size = (batch, heads, height, width, *self.kernel_size)
        return padded.as_strided(size, strides, padded.storage_offset() + entries - 1).flatten(-2)

    def outside(self, device: torch.device) -> Tensor:
        """Mark the neighbours that are outside the map: bool ``(H, W, K)``."""
        inside = torch.zeros((1, 1, *self.size, 1), dtype=torch.bool, device=device)
        padded = F.pad(inside, self.padding, value=True)
        for dim, k in enumerate(self.kernel_size, 2):
            padded = padded.unfold(dim, (k - 1) * self.dilation + 1, 1)[..., :: self.dilation]
        return padded[0, 0, :, :, 0].flatten(2)


def parts(value: Tensor, channels: int, entries: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of batch and heads for which the product of a map and its neighbours fits the byte budget."""
    bytes_each = entries * (channels * value.dtype.itemsize + 4 * accumulator(value).itemsize)
    return slices(value.shape, bytes_each, chunk_bytes(value.device))


def softmax_backward(grad: Tensor, weights: Tensor) -> Tensor:
    """Compute the gradient of logits ``(…, K)`` from the gradient of their softmax."""
    return weights * (grad - (grad * weights).sum(-1, keepdim=True))
