"""The weights of selected queries, for every attention operator: derivatives of its output.

The output of a query is Σ_j w_j v_j. So w_j is its derivative by a channel of v_j, and with a channel for each selected
query, one backward pass computes the weights of all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from .arguments import check_queries
from .dtypes import accumulator
from .operator import record_call


def attention_rows(
    operator: Callable[..., Any], query: Tensor | None, key: Tensor | None, queries: Tensor, **settings: Any
) -> Tensor:
    """Compute the attention weights of selected queries over all keys. Not differentiable.

    A call takes as long as a forward and a backward pass with Q channels of ``value``: 0.8 s for 3 queries in a map of
    64×64, with :func:`global_attention` on one core.

    Args:
        operator (Callable): :func:`global_attention`, :func:`grid_attention`, :func:`local_attention` or
            :func:`strided_attention`, or a function that calls one of them once.
        query, key (Tensor, optional): as in the operator, None only in :func:`local_attention`.
        queries (Tensor): int64 ``(Q, axes)``, coordinates in the map of ``query``, shared by all batch items.
        **settings: the other arguments of the operator. ``value`` may be among them, and is not used.

    Returns:
        Tensor: ``(B, heads, Q, *R)`` over the positions ``*R`` of the keys, float64 for float64 operands, otherwise
        float32. Each row sums to 1, or to 0 if the query has no keys, and is 0 at positions that are not its keys.

    Example:
        >>> query, key = torch.randn(2, 1, 2, 8, 8, 16).unbind()  # 2 heads of 16 channels, 8×8 positions
        >>> queries = torch.tensor([[0, 0], [3, 5]])
        >>> weights = attention_rows(global_attention, query, key, queries, is_causal=True)
        >>> weights.shape, weights[0, 0, 0, 0, 0].item()  # the first query attends to itself only
        (torch.Size([1, 2, 2, 8, 8]), 1.0)
        >>> weights = attention_rows(grid_attention, query, key, queries)
        >>> int((weights[0, 0, 1] > 0).sum())  # a query has 8 + 8 − 1 keys
        15
        >>> weights = attention_rows(local_attention, query, key, queries, kernel_size=3)
        >>> int((weights[0, 0, 0] > 0).sum())  # a corner has 4 neighbours, itself included
        4
        >>> weights = attention_rows(strided_attention, query, key, queries, pattern='strided', step=4)
        >>> int((weights[0, 0, 0] > 0).sum())  # a query has 2×2 keys
        4
    """
    like = settings.get('window_bias') if key is None else key
    if key is None and like is not None and like.dim() != 5:
        raise ValueError(f'window_bias must be (B, heads, H, W, k0·k1) without a key; got {tuple(like.shape)}')
    declared, arguments = record_call(operator, **{**settings, 'query': query, 'key': key, 'value': like})
    like = arguments.value
    check_queries(queries, (like if query is None else query).shape[2:-1])
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(like.device.type, enabled=False):
        # Autograd does not keep tensors of inference mode.
        at = queries.to(like.device).clone().unbind(-1)
        arguments = tree_map(lambda x: x.clone() if isinstance(x, Tensor) and x.is_inference() else x, arguments)
        dtype = accumulator(like)
        value = like.new_zeros((*like.shape[:-1], len(queries)), dtype=dtype).requires_grad_()
        query, key = (None if x is None else x.to(dtype) for x in (arguments.query, arguments.key))
        out, _ = declared.run(*arguments._replace(query=query, key=key, value=value))
        channel = torch.arange(len(queries), device=like.device)
        (rows,) = torch.autograd.grad(out[(slice(None), slice(None), *at, channel)].sum(), value)
    total = rows.flatten(2, -2).sum(2)[(..., *[None] * len(at))]  # not 1 if a log-sum-exp of ±1e8 has been rounded
    return (rows.movedim(-1, 2) / total.masked_fill_(total == 0, 1)).contiguous()
