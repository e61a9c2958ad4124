"""What the kernels share: operands in memory, and the rows of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..autograd import list_tensors
from . import interpreted

LOG2E = tl.constexpr(1.4426950408889634)  # the kernels compute powers of 2: logits are multiplied by log₂ e
AXES = 3  # of positions, at most
MOST_CHANNELS = 256  # the sums of a position stay in registers
# Dtypes of operands. On GPUs, float32 is left to cuBLAS. In Triton's interpreter, it shows the arithmetic, and the
# products of bfloat16 are wrong.
OPERANDS = {'cuda': (torch.float16, torch.bfloat16), 'cpu': (torch.float16, torch.float32)}


class Table(NamedTuple):
    """Position biases ``(batch, heads, queries, entries)`` in memory, with their strides."""

    data: Tensor
    batch: int
    head: int
    query: int
    entry: int


class Gradient(NamedTuple):
    """The gradient of the output, and what the gradients need of each query."""

    rows: Tensor  # (maps, N, Dv), contiguous
    lse: Tensor  # (maps, N)
    along: Tensor  # Σ gradient · output − gradient of the log-sum-exp, (maps, N)


def _decode(x, _semantic=None):
    """Decode all numbers of an argument of a kernel, also in tuples: the inverse of ``launch.encode``."""
    if isinstance(x, tl.tuple):
        return tl.tuple([_decode(part, _semantic=_semantic) for part in x.values], x.type)
    # Pointers and the factors of logits are no sizes, and a size of 1 is a constant.
    return x.__rshift__(1, _semantic=_semantic) if isinstance(x, tl.tensor) and x.dtype.is_int() else x


# A function of the compiler, because before Triton 3.7, a jit function cannot return None within a tuple. The
# interpreter gets numbers that are not encoded.
decode: Any = tl.core.builtin(_decode) if not interpreted() else lambda x: x


@triton.jit
def add_tile(acc, peak, total, x, value):
    """Add a tile of logits ``x`` (queries × keys, times log₂ e), and its values, to the sums of the online softmax."""
    highest = tl.maximum(peak, tl.max(x, 1))
    zero = tl.where(highest == float('-inf'), 0.0, highest)  # all keys masked
    weights = tl.exp2(x - zero[:, None])
    factor = tl.exp2(peak - zero)
    return tl.dot(weights.to(value.dtype), value, acc * factor[:, None]), highest, total * factor + tl.sum(weights, 1)


@triton.jit
def finish(acc, peak, total):
    """Compute outputs and log-sum-exps from the sums of the online softmax."""
    some = tl.where(total == 0, 1.0, total)
    return acc / some[:, None], tl.where(total == 0, float('-inf'), (peak + tl.log2(some)) / LOG2E)


@triton.jit
def load_rows(data, map, numbers, count, channels, WIDTH: tl.constexpr):
    """Load rows ``(len(numbers), WIDTH)`` of a map. Missing rows and channels are 0."""
    at = tl.arange(0, WIDTH)
    there = (numbers < count)[:, None] & (at < channels)[None, :]
    return tl.load(data + map * count * channels + (numbers[:, None] * channels + at[None, :]), mask=there, other=0.0)


@triton.jit
def store_rows(data, map, numbers, count, channels, rows, WIDTH: tl.constexpr):
    """Store rows in the dtype of ``data``."""
    at = tl.arange(0, WIDTH)
    there = (numbers < count)[:, None] & (at < channels)[None, :]
    to = data + map * count * channels + (numbers[:, None] * channels + at[None, :])
    tl.store(to, rows.to(data.dtype.element_ty), mask=there)


@triton.jit
def point_to_map(call, table, map):
    """Point to the entries of one map in a table."""
    return table.data + (map // call.heads * table.batch + map % call.heads * table.head)


def rows(x: Tensor) -> Tensor:
    """View ``(batch, heads, *positions, channels)`` as contiguous ``(maps, positions, channels)``."""
    return x.flatten(2, -2).flatten(0, 1).contiguous()


def table(x: Tensor | None) -> Table | None:
    """Describe position biases ``(batch, heads, *positions, entries)``, without a copy where strides allow."""
    if x is None:
        return None
    flat = x.flatten(2, -2)
    return Table(flat, *flat.stride())


def prepare_gradient(grad: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor) -> Gradient:
    """Compute the sums that the backward pass needs from output and log-sum-exp, and their gradients."""
    along = (grad.float() * out).sum(-1)
    if grad_lse is not None:
        along -= grad_lse
    return Gradient(rows(grad), lse.masked_fill(lse == -torch.inf, 0).contiguous(), along.contiguous())


def gradients_like(tensors: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor | None]:
    """Allocate a contiguous gradient, or None, for each tensor. ``needed`` has one item per tensor that is not None."""
    flags = iter(needed)
    return [
        torch.empty_like(x, memory_format=torch.contiguous_format) if x is not None and next(flags) else None
        for x in tensors
    ]


def supports_tensors(args: tuple, like: Tensor) -> bool:
    """Check whether the kernels support the tensors of a call, the operands in the dtype of ``like``."""
    # Biases have any of the dtypes. Offsets must fit into 32 bits.
    dtypes = {torch.float32, torch.float16, torch.bfloat16}
    return like.dtype in OPERANDS['cuda' if like.is_cuda else 'cpu'] and all(
        x.dtype in dtypes
        and x.numel() > 0
        and x.shape[2:].numel() < 2**31
        and sum((n - 1) * stride for n, stride in zip(x.shape[2:], x.stride()[2:])) < 2**31
        for x in list_tensors(args)
        if x.dtype != torch.bool
    )
