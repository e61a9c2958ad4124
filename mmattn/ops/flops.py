"""The floating-point operations of the operators, for ``torch.utils.flop_counter.FlopCounterMode``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch.utils.flop_counter import flop_registry, register_flop_formula


def count_flops(name: str, formula: Callable[..., int]) -> None:
    """Register the FLOPs of ``mmattn::<name>``: ``formula`` gets its arguments."""
    op = getattr(torch.ops.mmattn, name)
    register_flop_formula(op, get_raw=True)(lambda *arguments, out_val=None: formula(*arguments))
    flop_registry.setdefault(op, flop_registry.get(op.default))  # torch 2.4 registers the overload


def attention_flops(query: Sequence[int], value: Sequence[int], keys: int, backward: bool) -> int:
    """Count the FLOPs of attention with ``keys`` keys per query, from the shapes of query and value.

    The backward pass computes the logits again.
    """
    queries = math.prod(query[:-1])  # a multiply-accumulate counts as two
    return 2 * queries * keys * ((3 if backward else 1) * query[-1] + (2 if backward else 1) * value[-1])
