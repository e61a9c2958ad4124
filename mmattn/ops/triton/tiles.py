"""Attention between groups of positions: one arm of ``grid_attention``, or all of ``strided_attention``.

A program owns rows of a tile: queries in the forward pass and for the gradients of queries, otherwise keys. It loops
over the columns, the positions of the same groups on the other side. Small groups share a tile, where pairs of two
groups are masked. Each program computes all logits and ``MOST_WIDTH`` channels of the result. No kernel uses atomics,
and the order of every sum is fixed. An operator is a sequence of calls that each add to the sums of the previous call.
The forward pass continues its online softmax.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import blocks, launch
from .blocks import Gradient, Table, table
from .launch import Config, precision, width
from .tiles_kernels import forward_kernel, gradients, offset_gradients
from .tiles_logits import Call, Division, Rows

AXES = 3
ANY = 1 << 29  # larger than any offset
MOST_WIDTH = 128
MOST_POSITIONS = 2**20  # of a group; see `tiles_logits.quotient`
MOST_PACKED = 16  # groups of up to this size share tiles; every tile has at least as many rows


def vectors(x: Tensor) -> Rows:
    """Flatten the vectors of ``(batch, heads, *positions, channels)``."""
    return tile_vectors(blocks.rows(x))


def tile_vectors(rows: Tensor) -> Rows:
    """Describe contiguous vectors ``(maps, positions, channels)``."""
    return Rows(rows, rows.shape[1], tl.constexpr(rows.shape[2]))


def pad_axes(numbers: Sequence[int], missing: int) -> tuple[int, ...]:
    """Add missing axes at the front."""
    return (*[missing] * (AXES - len(numbers)), *numbers)


class Tiles:
    """The operands of one call, and the constants of its kernels. ``skip_self`` removes each query's own position."""

    def __init__(self, operands: Call, skip_self: bool = False) -> None:
        self.operands = operands
        channels, value_channels = (x.data.shape[2] for x in (operands.query, operands.value))
        self.constants = {
            'D': min(width(channels), MOST_WIDTH),
            'DV': min(width(value_channels), MOST_WIDTH),
            'CHUNKS': triton.cdiv(channels, MOST_WIDTH),
            'VALUE_CHUNKS': triton.cdiv(value_channels, MOST_WIDTH),
            'SKIP_SELF': skip_self,
            'PRECISION': precision(operands.query.data.dtype),
        }

    def launch(
        self, kernel: Any, *arguments: Any, owned: Division, parts: int = 1, length: int = 0, **constants: Any
    ) -> None:
        """Run a kernel whose programs own the positions ``owned``. ``parts`` programs share a tile.

        ``length``: for a kernel that owns pairs, the number of coordinates of a group, which programs also share.
        """
        constants |= self.constants | {'PACKED': owned.group_size <= MOST_PACKED}

        def programs(config: Config) -> int:
            packed = config.owned // owned.group_size if constants['PACKED'] else 1
            tiles = triton.cdiv(packed * owned.group_size, config.owned)
            packs = triton.cdiv(math.prod(self.operands.groups), packed)
            shared = triton.cdiv(packed * length, config.stream) if length else parts
            return len(self.operands.query.data) * packs * tiles * shared

        with torch.cuda.device_of(self.operands.query.data):  # no effect on CPUs
            launch.launch(kernel, programs, self.operands, *arguments, **constants)


def forward(calls: Sequence[Tiles], out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the outputs of an operator."""
    to = torch.empty_like(out, memory_format=torch.contiguous_format)
    before = None
    for call in calls:
        last = call is calls[-1]
        sums = vectors(to if last else torch.empty_like(to, dtype=torch.float32))
        after = sums, lse if last else torch.empty_like(lse)
        call.launch(forward_kernel, before, after, owned=call.operands.queries, parts=call.constants['VALUE_CHUNKS'])
        before = after
    return (to if out.is_contiguous() else out.copy_(to)), lse


def backward(
    calls: Sequence[Tiles],
    operand: str,
    upstream: Gradient,
    to: Tensor | None,
    d_outside: Tensor | None = None,
    d_tables: Sequence[tuple[Table | None, ...]] = (),
) -> None:
    """Compute the gradient ``to`` of ``operand`` ('query', 'key' or 'value'), contiguous, None if it is not needed.

    For 'query', also compute the gradient ``d_outside`` of ``outside_bias``, and the gradients of the tables of each
    call.
    """
    if to is d_outside is None and not any(table for tables in d_tables for table in tables):
        return
    gradient = tile_vectors(upstream.rows)
    before: tuple = (None, None)
    for n, call in enumerate(calls):
        last = call is calls[-1]
        sums = [x if last or x is None else torch.empty_like(x, dtype=torch.float32) for x in (to, d_outside)]
        after = None if sums[0] is None else vectors(sums[0]), sums[1]
        tables = d_tables[n] if d_tables else (None,) * AXES
        owned = call.operands.queries if operand == 'query' else call.operands.keys
        parts = call.constants['VALUE_CHUNKS' if operand == 'value' else 'CHUNKS']
        call.launch(gradients, gradient, upstream, before, after, tables, owned=owned, parts=parts, OPERAND=operand)
        before = after


def backward_offsets(call: Tiles, axis: int, upstream: Gradient, to: Tensor) -> None:
    """Compute the gradient of the table of an axis, ``(batch, heads, *positions, entries)``, contiguous."""
    to.zero_()  # entries without a key are not written
    operands, gradient = call.operands, tile_vectors(upstream.rows)
    owned, length = operands.queries, operands.keys.length[axis]
    call.launch(offset_gradients, gradient, upstream, table(to), owned=owned, length=length, AXIS=axis)
