"""Local attention: every query attends to the k×k keys around it, weighted by content, by geometry, or by both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from . import autograd, native
from .checks import as_scale, check_count, check_device, check_operands, check_queries
from .neighbourhood import Neighbourhood, slices, softmax, softmax_backward
from .window_logits import accumulator, as_window_size

NEITHER = 'query and key, or window, must be given; got neither'


def local_attention(
    query: Tensor | None,
    key: Tensor | None,
    value: Tensor,
    *,
    kernel_size: int | tuple[int, int] = 3,
    dilation: int = 1,
    scale: float | None = None,
    window: Tensor | None = None,
    iterations: int = 1,
) -> Tensor:
    """Softmax attention over the neighbourhood of each position of a 2-D map (Eq. 4.6 to 4.9).

    y_i = Σ_j softmax_j [scale · q_iᵀk_j + window_{i, j−i}] v_j over the positions j of the map in the k×k neighbourhood
    of i. What lies outside the map is not there: the weights of the rest sum to one. Differentiable in every tensor.
    float16 and bfloat16 are accumulated in float32.

    Args:
        query (Tensor, optional): float ``(B, heads, H, W, D)``. Without, the weights are those of ``window`` alone.
        key (Tensor, optional): float ``(B, heads, H, W, D)``; with ``query``, or not.
        value (Tensor): float ``(B, heads, H, W, Dv)``.
        kernel_size (int or tuple[int, int]): odd lengths k of the neighbourhood, vertical and horizontal.
        dilation (int): step between the positions of a neighbourhood. Defaults to 1.
        scale (float, optional): factor of the content logits. Defaults to 1/√D.
        window (Tensor, optional): float ``(B, heads, H, W, k0·k1)``, the geometric logits γ of each query, row-major
            over its neighbourhood. Added as they are.
        iterations (int): T softmax passes of iterative refinement (Algorithm 1). The first T − 1 go by content alone;
            each adds uᵀk_j to the logits, where u is the squashed sum of the keys under its weights. ``scale`` is that
            of the first logits alone. Defaults to 1.

    Returns:
        Tensor: ``(B, heads, H, W, Dv)``, dtype of ``value``, strides of ``value`` where those are dense. A query whose
        neighbours all have a logit of −∞ gets 0.

    Raises:
        TypeError: ``query``, ``key`` and ``value`` differ in dtype, ``window`` is not floating-point, ``dilation`` or
            ``iterations`` no integer, or ``scale`` no number.
        ValueError: shapes that do not fit, an even kernel, neither ``query`` nor ``window``, a dilation or iterations
            below 1, more iterations without ``query``, a ``scale`` that is not finite.
    """
    return _local_attention(
        *_arguments(
            query,
            key,
            value,
            kernel_size=kernel_size,
            dilation=dilation,
            scale=scale,
            window=window,
            iterations=iterations,
        )
    )


@torch.no_grad()
def local_attention_weights(
    query: Tensor | None, key: Tensor | None, queries: Tensor, *, window: Tensor | None = None, **settings
) -> Tensor:
    """Return the weights with which :func:`local_attention` sums the values, for some of its queries, for drawing.

    Only the asked neighbourhoods are looked at. Not differentiable.

    Args:
        query, key, window (Tensor, optional): as in :func:`local_attention`.
        queries (Tensor): int64 ``(Q, 2)``, row and column, the same in each batch item.
        **settings: the other arguments of :func:`local_attention`.

    Returns:
        Tensor: ``(B, heads, Q, H, W)``, float64 for float64, else float32. Each row sums to 1 and is 0 outside the
        neighbourhood of its query.

    Raises:
        TypeError, ValueError: as :func:`local_attention`; ``queries`` of another dtype or shape, or outside the map.
    """
    operand = window if key is None else key
    if operand is None:
        raise ValueError(NEITHER)
    if key is None and operand.dim() != 5:
        raise ValueError(f'window must be (B, heads, H, W, k0·k1); got {tuple(operand.shape)}')
    query, key, _, window, kernel_size, dilation, scale, iterations = _arguments(
        query, key, operand, window=window, **settings
    )
    size, dtype = operand.shape[2:4], accumulator(operand)
    check_queries(queries, size)
    steps = [torch.arange(-(k // 2), k // 2 + 1) * dilation for k in kernel_size]
    around = queries.cpu()[:, None] + torch.cartesian_prod(*steps)  # (Q, K, 2)
    inside = ((around >= 0) & (around < torch.tensor(size))).all(-1).to(operand.device)  # (Q, K)
    rows, columns = (at.clamp(0, n - 1).to(operand.device) for at, n in zip(around.unbind(-1), size))
    y, x = queries.to(operand.device).unbind(-1)
    logits = operand.new_zeros((*operand.shape[:2], *inside.shape), dtype=dtype).masked_fill(~inside, -torch.inf)
    if query is not None and key is not None:
        keys = key[:, :, rows, columns].to(dtype).masked_fill(~inside.unsqueeze(-1), 0)  # (B, heads, Q, K, D)
        towards = query[:, :, y, x].to(dtype) * scale
        for _ in range(iterations):
            logits = logits + (keys @ towards.unsqueeze(-1)).squeeze(-1)
            towards = _squash((logits.softmax(-1).unsqueeze(-2) @ keys).squeeze(-2))
    if window is not None:
        logits = logits + window[:, :, y, x].to(dtype).masked_fill(~inside, 0)
    weights = logits.new_zeros((*logits.shape[:3], *size))
    row = torch.arange(len(queries), device=operand.device)[:, None]
    # Those outside weigh nothing, and are added to some key at the border.
    return weights.index_put_(
        (*_grid(weights.shape[:2], weights.device), row, rows, columns), softmax(logits, -1), accumulate=True
    )


def _grid(shape: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    batch, heads = (torch.arange(n, device=device) for n in shape)
    return batch[:, None, None, None], heads[:, None, None]


def _arguments(
    query: Tensor | None,
    key: Tensor | None,
    value: Tensor,
    *,
    kernel_size: int | tuple[int, int] = 3,
    dilation: int = 1,
    scale: float | None = None,
    window: Tensor | None = None,
    iterations: int = 1,
) -> tuple:
    """Check the arguments of :func:`local_attention` and return those of the dispatcher operator."""
    if (query is None) != (key is None):
        raise ValueError(f'query and key go together; {"query" if query is None else "key"} is missing')
    if query is None and window is None:
        raise ValueError(NEITHER)
    if window is not None and not window.is_floating_point():
        raise TypeError(f'window must be floating-point; got {window.dtype}')
    like = value if query is None or key is None else query
    check_operands(like, value if key is None else key, value, axes=(2, 2))
    if like.shape[:-1] != value.shape[:-1]:
        raise ValueError(
            f'query must have the positions of value, {tuple(value.shape[2:4])}; got {tuple(like.shape[2:4])}'
        )
    sizes = as_window_size(kernel_size, axes=2, name='kernel_size')
    check_count('dilation', dilation)
    check_count('iterations', iterations)
    if query is None and iterations > 1:
        raise ValueError(f'iterations refine content logits: they need query and key; got {iterations} without')
    if window is not None:
        expected = (*value.shape[:-1], sizes[0] * sizes[1])
        if window.shape != expected:
            raise ValueError(
                f'window must be {tuple(expected)} for kernel_size={kernel_size}; got {tuple(window.shape)}'
            )
    check_device(query=query, key=key, value=value, window=window)
    return query, key, value, window, list(sizes), dilation, as_scale(scale, like), iterations


# Operands and settings, as they stand in the schema of the forward and the backward operator.
ARGUMENTS = (
    'Tensor? query, Tensor? key, Tensor value, Tensor? window, int[] kernel_size, int dilation, float scale, '
    'int iterations'
)


@torch.library.custom_op('mmattn::local_attention', mutates_args=(), schema=f'({ARGUMENTS}) -> Tensor')
def _local_attention(
    query: Tensor | None,
    key: Tensor | None,
    value: Tensor,
    window: Tensor | None,
    kernel_size: Sequence[int],
    dilation: int,
    scale: float,
    iterations: int,
) -> Tensor:
    fits = native.takes('local_attention', query, key, value, window)
    run = torch.ops.mmattn_native.local_attention if fits else local_attention_reference
    return run(query, key, value, window, kernel_size, dilation, scale, iterations)


@_local_attention.register_fake
def _(query: Tensor | None, key: Tensor | None, value: Tensor, *_: object) -> Tensor:
    return torch.empty_like(value)


@torch.library.custom_op(
    'mmattn::local_attention_backward', mutates_args=(), schema=f'(Tensor grad, {ARGUMENTS}) -> Tensor[]'
)
def _local_attention_backward(
    grad: Tensor,
    query: Tensor | None,
    key: Tensor | None,
    value: Tensor,
    window: Tensor | None,
    kernel_size: Sequence[int],
    dilation: int,
    scale: float,
    iterations: int,
) -> list[Tensor]:
    fits = native.takes('local_attention_backward', grad, query, key, value, window)
    run = torch.ops.mmattn_native.local_attention_backward if fits else local_attention_reference_backward
    return run(grad, query, key, value, window, kernel_size, dilation, scale, iterations)


@_local_attention_backward.register_fake
def _(
    grad: Tensor, query: Tensor | None, key: Tensor | None, value: Tensor, window: Tensor | None, *_: object
) -> list[Tensor]:
    return [torch.empty_like(x) for x in (query, key, value, window) if x is not None]


autograd.register('local_attention')


def _squash(x: Tensor) -> Tensor:
    """‖x‖²/(1 + ‖x‖²) · x/‖x‖, 0 at 0, over the channels."""
    norm = x.norm(dim=-1, keepdim=True)
    return x * (norm / (1 + norm * norm))


def _squash_backward(grad: Tensor, x: Tensor) -> Tensor:
    norm = x.norm(dim=-1, keepdim=True)
    square = norm * norm
    along = (grad * x).sum(-1, keepdim=True) / norm.clamp(min=torch.finfo(x.dtype).tiny)  # ≤ ‖grad‖: 0 at 0
    return grad * (norm / (1 + square)) + x * (along * (1 - square) / (1 + square) ** 2)


def _passes(
    area: Neighbourhood,
    query: Tensor | None,
    key: Tensor | None,
    value: Tensor,
    window: Tensor | None,
    scale: float,
    iterations: int,
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Weights ``(K, B, heads, H, W)`` of each refining pass with their sum of keys, and those of the last pass."""
    logits = area.logits(value)
    rounds = []
    if query is not None and key is not None:
        towards = query * scale
        for pass_ in range(iterations):
            if pass_:
                weights = logits.softmax(0)
                total = area.gather(weights, key)
                rounds.append((weights, total))
                towards = _squash(total)
            area.dot(towards, key, logits)
    if window is not None:
        area.add(logits, window)
    return rounds, softmax(logits, 0)


def _work(kernel_size: Sequence[int], iterations: int, value: Tensor, *others: Tensor | None) -> Iterator[tuple]:
    """Yield what is worked on at a time, slices of batch and heads, and its operands."""
    channels = max(x.shape[-1] for x in (value, *others[:1]) if x is not None)
    dtype = accumulator(value)
    kept = (iterations + 3) * (channels + kernel_size[0] * kernel_size[1])
    for part in slices(value.shape, kept * dtype.itemsize):
        yield part, *(None if x is None else x[part].to(dtype) for x in (value, *others))


def local_attention_reference(
    query: Tensor | None,
    key: Tensor | None,
    value: Tensor,
    window: Tensor | None,
    kernel_size: Sequence[int],
    dilation: int,
    scale: float,
    iterations: int,
) -> Tensor:
    """Forward pass in PyTorch: output ``(B, heads, H, W, Dv)``."""
    out = torch.empty_like(value)
    area = Neighbourhood(value.shape[2:4], kernel_size, dilation)
    for part, v, q, k, w in _work(kernel_size, iterations, value, query, key, window):
        _, weights = _passes(area, q, k, v, w, scale, iterations)
        out[part] = area.gather(weights, v)
    return out


def local_attention_reference_backward(
    grad: Tensor,
    query: Tensor | None,
    key: Tensor | None,
    value: Tensor,
    window: Tensor | None,
    kernel_size: Sequence[int],
    dilation: int,
    scale: float,
    iterations: int,
) -> list[Tensor]:
    """Gradients of the operands that are there, in the order of the operator's arguments."""
    grads = [None if x is None else torch.empty_like(x) for x in (query, key, value, window)]
    area = Neighbourhood(value.shape[2:4], kernel_size, dilation)
    for part, v, q, k, w, d_out in _work(kernel_size, iterations, value, query, key, window, grad):
        rounds, weights = _passes(area, q, k, v, w, scale, iterations)
        d_value = area.scatter(weights, d_out)
        d_logits = softmax_backward(area.dot(d_out, v), weights)
        d_window = d_logits
        d_query = d_key = None
        if q is not None:
            d_key = torch.zeros_like(k)
            for p, total in reversed(rounds):  # logits += squash(Σ p k)ᵀ k
                d_total = _squash_backward(area.gather(d_logits, k), total)
                d_key += area.scatter(d_logits, _squash(total)) + area.scatter(p, d_total)
                d_logits = d_logits + softmax_backward(area.dot(d_total, k), p)
            d_query = area.gather(d_logits, k).mul_(scale)
            d_key += area.scatter(d_logits, q * scale)
        for to, given in zip(grads, (d_query, d_key, d_value, d_window.movedim(0, -1))):
            if to is not None and given is not None:
                to[part] = given
    return [x for x in grads if x is not None]
