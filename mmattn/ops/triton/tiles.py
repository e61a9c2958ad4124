"""The calls of attention between groups of queries and groups of keys: an arm of ``grid_attention``, or all of
``strided_attention``.

A program owns rows of a tile: queries in the forward pass and for the gradients of queries, otherwise keys. It loops
over the columns, the other positions of the same groups. Small groups share a tile; pairs of two groups are masked.
Channels of the result are divided among programs, ``MOST_WIDTH`` each; every one computes all logits. No kernel uses
atomics, and the order of every sum is fixed.

An operator is a sequence of calls. Each adds to the sums of the previous ones; the forward pass continues their online
softmax. No kernel changes its operands, so that Triton can time it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from . import blocks, launch
from .blocks import Gradient, Table, table
from .launch import precision, width
from .tiles_backward import gradients, offset_gradients
from .tiles_forward import forward_kernel
from .tiles_logits import Call, Division, Rows

AXES = 3
ANY = 1 << 30  # larger than any offset
MOST_WIDTH = 128
MOST_POSITIONS = 2**20  # of a group; see `tiles_logits.quotient`
MOST_PACKED = 16  # groups of up to this size share tiles; every tile has at least as many rows


def vectors(x: Tensor) -> Rows:
    """Return the vectors of ``(batch, heads, *positions, channels)``."""
    flat = blocks.rows(x)
    return Rows(flat, *flat.shape[1:])


def of_all_axes(given: Sequence[int], missing: int) -> tuple[int, ...]:
    """Return one number per axis; missing axes come first."""
    return (*[missing] * (AXES - len(given)), *given)


class Tiles:
    """A call, and how its kernels are compiled. With ``others``, no query attends to its own position."""

    def __init__(self, call: Call, others: bool = False) -> None:
        self.call = call
        channels, value_channels = call.query.channels, call.value.channels
        self.constants = {
            'D': min(width(channels), MOST_WIDTH),
            'DV': min(width(value_channels), MOST_WIDTH),
            'CHUNKS': triton.cdiv(channels, MOST_WIDTH),
            'VALUE_CHUNKS': triton.cdiv(value_channels, MOST_WIDTH),
            'OTHERS': others,
            'PRECISION': precision(call.query.data.dtype),
        }

    def launch(
        self, kernel: Any, *arguments: Any, owned: Division, parts: int = 1, length: int = 0, **constants: Any
    ) -> None:
        """Run a kernel.

        Args:
            kernel: kernel.
            *arguments: its arguments after the call.
            owned: the positions that programs own.
            parts: number of programs that share a tile of them.
            length: for a kernel that owns pairs, the number of coordinates of a group; programs share these, too.
            **constants: further constants.
        """
        constants |= self.constants | {'PACKED': owned.group_size <= MOST_PACKED}

        def programs(config: dict) -> int:
            packed = config['OWN'] // owned.group_size if constants['PACKED'] else 1
            tiles = triton.cdiv(packed * owned.group_size, config['OWN'])
            packs = triton.cdiv(math.prod(self.call.groups), packed)
            shared = triton.cdiv(packed * length, config['STREAM']) if length else parts
            return len(self.call.query.data) * packs * tiles * shared

        with torch.cuda.device_of(self.call.query.data):  # no effect on CPUs
            launch.launch(kernel, programs, self.call, *arguments, **constants)


def forward(calls: Sequence[Tiles], out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the outputs of an operator, and return them."""
    to = torch.empty_like(out, memory_format=torch.contiguous_format)
    before = None
    for each in calls:
        last = each is calls[-1]
        sums = vectors(to if last else torch.empty_like(to, dtype=torch.float32))
        after = sums, lse if last else torch.empty_like(lse)
        each.launch(forward_kernel, before, after, owned=each.call.queries, parts=each.constants['VALUE_CHUNKS'])
        before = after
    return (to if out.is_contiguous() else out.copy_(to)), lse


def backward(
    calls: Sequence[Tiles],
    of: str,
    grad_of: Gradient,
    to: Tensor | None,
    d_outside: Tensor | None = None,
    d_tables: Sequence[tuple[Table | None, ...]] = (),
) -> None:
    """Compute the gradient of an operand ``(batch, heads, *positions, channels)``.

    Args:
        calls: calls of the operator.
        of: 'query', 'key' or 'value'.
        grad_of: the gradient of the output.
        to: the gradient, contiguous; None if it is not needed.
        d_outside: with ``of='query'``, the gradient of ``outside_bias``, contiguous; None if it is not needed.
        d_tables: with ``of='query'``, the gradients of the tables of each call; None for those that are not needed.
    """
    if to is d_outside is None and not any(table for each in d_tables for table in each):
        return
    gradient = Rows(grad_of.rows, *grad_of.rows.shape[1:])
    before: tuple = (None, None)
    for n, each in enumerate(calls):
        last = each is calls[-1]
        sums = [x if last or x is None else torch.empty_like(x, dtype=torch.float32) for x in (to, d_outside)]
        after = None if sums[0] is None else vectors(sums[0]), sums[1]
        tables = d_tables[n] if d_tables else (None,) * AXES
        owned = each.call.queries if of == 'query' else each.call.keys
        parts = each.constants['VALUE_CHUNKS' if of == 'value' else 'CHUNKS']
        each.launch(gradients, gradient, grad_of, before, after, tables, owned=owned, parts=parts, OF=of)
        before = after


def backward_of_offsets(each: Tiles, axis: int, grad_of: Gradient, to: Tensor) -> None:
    """Compute the gradient of the table of an axis, ``(batch, heads, *positions, entries)``, contiguous."""
    to.zero_()  # entries without a key are not written
    keys, gradient = each.call.keys, Rows(grad_of.rows, *grad_of.rows.shape[1:])
    each.launch(
        offset_gradients, gradient, grad_of, table(to), owned=each.call.queries, length=keys.length[axis], AXIS=axis
    )
