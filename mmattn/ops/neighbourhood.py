"""Sums over the k×k neighbourhoods of a 2-D map, for the operators with local weights.

The neighbourhood is never unfolded: for each of its k² offsets, the shifted map is a view, and only the product of two
views is stored.
"""

from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from .chunks import chunks


class Neighbourhood:
    """The pairs of positions (i, j) at each offset of a neighbourhood, and the sums over them.

    Maps are ``(B, heads, H, W, C)``. Weights of pairs are ``(K, B, heads, H, W)``: a plane, indexed by i, per offset
    j − i.
    """

    def __init__(self, size: Sequence[int], kernel_size: Sequence[int], dilation: int) -> None:
        self.count = kernel_size[0] * kernel_size[1]
        self.pairs: list[tuple[int, tuple[slice, ...], tuple[slice, ...]]] = []  # entry, slices of i, slices of j
        steps = (range(-(k // 2) * dilation, k // 2 * dilation + 1, dilation) for k in kernel_size)
        for entry, offset in enumerate(product(*steps)):
            if all(abs(o) < n for o, n in zip(offset, size)):
                here = (slice(max(0, -o), n - max(0, o)) for o, n in zip(offset, size))
                there = (slice(max(0, o), n - max(0, -o)) for o, n in zip(offset, size))
                self.pairs.append((entry, (slice(None), slice(None), *here), (slice(None), slice(None), *there)))

    def logits(self, like: Tensor) -> Tensor:
        """Allocate logits of 0 for all pairs, and of −∞ for offsets that leave the map."""
        logits = like.new_full((self.count, *like.shape[:-1]), -torch.inf)
        for entry, here, _ in self.pairs:
            logits[entry][here] = 0
        return logits

    def add(self, planes: Tensor, entries: Tensor) -> Tensor:
        """Add ``(B, heads, H, W, K)`` to the pairs that exist, in place."""
        for entry, here, _ in self.pairs:
            planes[entry][here] += entries[..., entry][here]
        return planes

    def dot(self, a: Tensor, b: Tensor, planes: Tensor | None = None) -> Tensor:
        """Add a_iᵀb_j to the pairs that exist, in place. ``planes`` defaults to zeros."""
        planes = a.new_zeros((self.count, *a.shape[:-1])) if planes is None else planes
        for entry, here, there in self.pairs:
            planes[entry][here] += (a[here] * b[there]).sum(-1)
        return planes

    def gather(self, weights: Tensor, b: Tensor) -> Tensor:
        """Σ_j w_ij b_j for every i."""
        out = torch.zeros_like(b)
        for entry, here, there in self.pairs:
            out[here].addcmul_(weights[entry][here].unsqueeze(-1), b[there])
        return out

    def scatter(self, weights: Tensor, a: Tensor) -> Tensor:
        """Σ_i w_ij a_i for every j."""
        out = torch.zeros_like(a)
        for entry, here, there in self.pairs:
            out[there].addcmul_(weights[entry][here].unsqueeze(-1), a[here])
        return out


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
    return logits.masked_fill(empty, 0).softmax(dim).masked_fill(empty, 0)


def softmax_backward(grad: Tensor, p: Tensor) -> Tensor:
    """Compute the gradient of the logits from the gradient of the weights, both ``(K, …)``."""
    return p * (grad - (grad * p).sum(0))
