"""The attention weights of layers that attend over sequences, recorded while a model runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

Rows = tuple[str, dict[str, Tensor]]


@contextmanager
def record_attention(layers: Mapping[str, Any]) -> Iterator[list[Rows]]:
    """Record the attention weights of all queries in each forward pass of some layers.

    Args:
        layers (mapping): name → a layer with ``attention_weights`` and ``attention_kinds``.

    Yields:
        list[tuple[str, dict[str, Tensor]]]: it is filled while the model runs: name of the layer, and kind → float
        ``(heads, queries, keys)`` on the CPU, of the first sample of the batch. Each row sums to 1.

    Example:
        >>> from mmattn.layers import BilateralMultiheadAttention
        >>> layer, x = BilateralMultiheadAttention(16, num_heads=4, position='none'), torch.randn(1, 7, 16)
        >>> with record_attention({'attention': layer}) as rows:
        ...     _ = layer(x, x, x)
        >>> rows[0][0], rows[0][1]['content'].shape
        ('attention', torch.Size([4, 7, 7]))
    """
    found: list[Rows] = []

    def before(name: str, module: Any, args: tuple[Tensor, ...], kwargs: dict) -> None:
        queries = torch.arange(args[0].shape[1], device=args[0].device)[:, None]
        weights = {
            kind: module.attention_weights(*args, *kwargs.values(), queries=queries, kind=kind)[0].cpu()
            for kind in module.attention_kinds
        }
        found.append((name, weights))

    handles = [
        module.register_forward_pre_hook(partial(before, name), with_kwargs=True) for name, module in layers.items()
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
