"""Sums over the k×k neighbourhoods of a 2-D map, in two ways.

:class:`Offsets` adds one offset of the neighbourhood after the other and never stores a neighbourhood: it is the
faster one on a CPU, by up to eight times. :class:`Unfolded` takes one product and one reduction for all neighbours,
so that a GPU launches few kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

from .chunks import chunk_bytes, chunks
from .dtypes import accumulator


class Offsets:
    """The pairs of positions (i, j) at each offset of a neighbourhood.

    Maps are ``(B, heads, H, W, C)``. Weights of pairs are ``(K, B, heads, H, W)``: a plane, indexed by i, per offset
    j − i.
    """

    dim = 0  # of the weights: the entries

    def __init__(self, size: Sequence[int], kernel_size: Sequence[int], dilation: int) -> None:
        self.size, self.count = size, kernel_size[0] * kernel_size[1]
        self.pairs: list[tuple[int, tuple[slice, ...], tuple[slice, ...]]] = []  # entry, slices of i, slices of j
        steps = (range(-(k // 2) * dilation, k // 2 * dilation + 1, dilation) for k in kernel_size)
        for entry, offset in enumerate(product(*steps)):
            if all(abs(o) < n for o, n in zip(offset, size)):
                here = (slice(max(0, -o), n - max(0, o)) for o, n in zip(offset, size))
                there = (slice(max(0, o), n - max(0, -o)) for o, n in zip(offset, size))
                self.pairs.append((entry, (slice(None), slice(None), *here), (slice(None), slice(None), *there)))

    def parts(self, value: Tensor, channels: int, tables: int) -> Iterator[tuple[slice, slice]]:
        """Yield slices of batch and heads for which ``tables`` maps and tables of weights fit the byte budget."""
        yield from slices(value.shape, tables * (channels + self.count) * accumulator(value).itemsize)

    def of(self, x: Tensor) -> Tensor:
        """Prepare a map for the sums over its neighbours."""
        return x

    def weights(self, entries: Tensor) -> Tensor:
        """View ``(B, heads, H, W, K)`` as weights."""
        return entries.movedim(-1, 0)

    def entries(self, weights: Tensor) -> Tensor:
        """View weights as ``(B, heads, H, W, K)``."""
        return weights.movedim(0, -1)

    def outside(self, masked: Tensor) -> Tensor:
        """Mark the neighbours outside the map, or ``masked`` ``(B, H, W)``: bool, of the shape of weights."""
        masked = masked.unsqueeze(1)
        outside = torch.ones((self.count, *masked.shape), dtype=torch.bool, device=masked.device)
        for entry, here, there in self.pairs:
            outside[entry][here] = masked[there]
        return outside

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute x_iᵀy_j for every neighbour j of i, 0 outside the map."""
        planes = x.new_zeros((self.count, *x.shape[:-1]))
        for entry, here, there in self.pairs:
            torch.sum(x[here] * y[there], -1, out=planes[entry][here])
        return planes

    def gather(self, weights: Tensor, y: Tensor) -> Tensor:
        """Σ_j w_ij y_j for every i."""
        out = torch.zeros_like(y)
        for entry, here, there in self.pairs:
            out[here].addcmul_(weights[entry][here].unsqueeze(-1), y[there])
        return out

    def scatter(self, weights: Tensor, x: Tensor) -> Tensor:
        """Σ_i w_ij x_i for every j."""
        out = torch.zeros_like(x)
        for entry, here, there in self.pairs:
            out[there].addcmul_(weights[entry][here].unsqueeze(-1), x[here])
        return out


class Unfolded:
    """As :class:`Offsets`. Weights and logits of pairs are ``(B, heads, H, W, K)``.

    Neighbours ``(B, heads, H, W, C, k0, k1)`` are a view of a padded map, 0 outside the map.
    """

    dim = -1

    def __init__(self, size: Sequence[int], kernel_size: Sequence[int], dilation: int) -> None:
        dilation = min(dilation, max(1, *size))  # from there on, all neighbours are outside the map
        self.size, self.kernel_size, self.dilation = size, tuple(kernel_size), dilation
        beyond = [k // 2 * dilation for k in kernel_size]
        self.padding = 0, 0, beyond[1], beyond[1], beyond[0], beyond[0]

    def parts(self, value: Tensor, channels: int, tables: int) -> Iterator[tuple[slice, slice]]:
        """Yield slices of batch and heads for which the product of a map and its neighbours fits the byte budget."""
        entries = self.kernel_size[0] * self.kernel_size[1]
        bytes_each = entries * (channels * value.dtype.itemsize + 4 * accumulator(value).itemsize)
        yield from slices(value.shape, bytes_each, chunk_bytes(value.device))

    def of(self, x: Tensor, outside: float = 0) -> Tensor:
        """View the neighbours of every position of a map ``(B, heads, H, W, C)``."""
        x = F.pad(x, self.padding, value=outside)
        for dim, k in enumerate(self.kernel_size, 2):
            x = x.unfold(dim, (k - 1) * self.dilation + 1, 1)
            x = x[..., :: self.dilation] if self.dilation > 1 else x
        return x

    def weights(self, entries: Tensor) -> Tensor:
        """Return the entries: they are weights."""
        return entries

    def entries(self, weights: Tensor) -> Tensor:
        """Return the weights: they are entries."""
        return weights

    def outside(self, masked: Tensor) -> Tensor:
        """Mark the neighbours outside the map, or ``masked`` ``(B, H, W)``: bool ``(B, 1, H, W, K)``."""
        return self.of(masked[:, None, :, :, None], outside=True).squeeze(4).flatten(-2)

    def dot(self, x: Tensor, neighbours: Tensor) -> Tensor:
        """Compute x_iᵀy_j for every neighbour j of i, in float32 or float64."""
        return (x[..., None, None] * neighbours).sum(4, dtype=accumulator(x)).flatten(-2)

    def gather(self, weights: Tensor, neighbours: Tensor) -> Tensor:
        """Σ_j w_ij y_j for every i, in float32 or float64."""
        weights = weights.to(neighbours.dtype).unflatten(-1, self.kernel_size).unsqueeze(4)
        return (weights * neighbours).sum((-2, -1), dtype=accumulator(neighbours))

    def scatter(self, weights: Tensor, neighbours: Tensor) -> Tensor:
        """Σ_i w_ij x_i for every j, in float32 or float64."""
        return self.gather(self._transposed(weights), neighbours)

    def _transposed(self, weights: Tensor) -> Tensor:
        """View the weights w_ji of every neighbour j of i, instead of w_ij, in the same layout."""
        batch, heads, height, width, entries = weights.shape
        padded = F.pad(weights, self.padding).contiguous()
        row, column, d = padded.stride(2), padded.stride(3), self.dilation
        # The neighbour at entry e of i has i at entry K − 1 − e.
        strides = (*padded.stride()[:4], d * row - self.kernel_size[1], d * column - 1)
        size = (batch, heads, height, width, *self.kernel_size)
        return padded.as_strided(size, strides, padded.storage_offset() + entries - 1).flatten(-2)


def slices(shape: Sequence[int], bytes_each: int, budget: int | None = None) -> Iterator[tuple[slice, slice]]:
    """Yield slices of batch and heads that fit the byte budget. A position of a head needs ``bytes_each`` bytes."""
    batch, heads, height, width = shape[:4]
    one = height * width * bytes_each
    for items in chunks(batch, heads * one, budget):
        for part in chunks(heads, (items.stop - items.start) * one, budget):
            yield items, part


def softmax(logits: Tensor, dim: int) -> Tensor:
    """Apply the softmax. All weights are 0 if all logits are −∞."""
    empty = logits.amax(dim, keepdim=True) == -torch.inf
    return logits.softmax(dim).masked_fill(empty, 0)


def softmax_backward(grad: Tensor, weights: Tensor, dim: int) -> Tensor:
    """Compute the gradient of logits from the gradient of their softmax."""
    return weights * (grad - (grad * weights).sum(dim, keepdim=True))
