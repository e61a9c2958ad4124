"""Sums over the k×k neighbourhoods of a 2-D map, for the operators whose weights are local.

The neighbourhood is never unfolded: for each of its k² offsets the shifted map is a view, and a product of two views
with the positions they share is all that exists at a time. Forward and backward pass are made of three such sums.
"""

from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from .chunks import chunks


class Neighbourhood:
    """The pairs of a map's positions at each offset of a neighbourhood, and the sums over them.

    Maps are ``(B, heads, H, W, C)``; weights of pairs are ``(K, B, heads, H, W)``, an offset j − i a plane, at i.
    """

    def __init__(self, size: Sequence[int], kernel_size: Sequence[int], dilation: int) -> None:
        self.count = kernel_size[0] * kernel_size[1]
        self.pairs: list[tuple[int, tuple[slice, ...], tuple[slice, ...]]] = []  # entry, where i is, where j is
        steps = (range(-(k // 2) * dilation, k // 2 * dilation + 1, dilation) for k in kernel_size)
        for entry, offset in enumerate(product(*steps)):
            if all(abs(o) < n for o, n in zip(offset, size)):
                here = (slice(max(0, -o), n - max(0, o)) for o, n in zip(offset, size))
                there = (slice(max(0, o), n - max(0, -o)) for o, n in zip(offset, size))
                self.pairs.append((entry, (slice(None), slice(None), *here), (slice(None), slice(None), *there)))

    def logits(self, like: Tensor) -> Tensor:
        """Logits of 0 for all pairs, of −∞ where an offset leads out of the map."""
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
        """Add a_iᵀb_j to the pairs that exist, in place; to 0 by default."""
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


def slices(shape: Sequence[int], bytes_each: int) -> Iterator[tuple[slice, slice]]:
    """Yield the batch items and heads that are worked on at a time.

    Args:
        shape (Sequence[int]): that of a map.
        bytes_each (int): what one position of one head takes meanwhile.
    """
    batch, heads, height, width = shape[:4]
    one = height * width * bytes_each
    for items in chunks(batch, heads * one):
        for part in chunks(heads, (items.stop - items.start) * one):
            yield items, part


def softmax(logits: Tensor, dim: int) -> Tensor:
    """Softmax that is 0 where there is nothing but −∞."""
    empty = logits.amax(dim, keepdim=True) == -torch.inf
    return logits.masked_fill(empty, 0).softmax(dim).masked_fill(empty, 0)


def softmax_backward(grad: Tensor, p: Tensor) -> Tensor:
    """Gradient at the logits from that at the weights, both ``(K, …)``."""
    return p * (grad - (grad * p).sum(0))
