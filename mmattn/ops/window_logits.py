"""Window logits shared by the operators: their layout, and their z-score without a table of all pairs.

A query at position i carries one logit for each offset o = j − i of an odd window centred on it, and one outlier logit
v_i for every key of its support outside the window (Eq. 3.12 of the bilateral-attention thesis). Entry r + o of an axis
of length k = 2r + 1 belongs to offset o, in row-major order over the axes; entries whose key does not exist (off the
map, or after the query where attention is causal) are dropped.
"""

import math
from collections.abc import Sequence
from numbers import Integral

import torch
from torch import Tensor

EPS = 1e-5  # under the root of the z-score


def accumulator(x: Tensor) -> torch.dtype:
    """Return the dtype in which sums over ``x`` are kept: float64 for float64, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def as_window_size(window_size: int | tuple[int, ...], axes: int, name: str = 'window_size') -> tuple[int, ...]:
    """Return ``window_size``, an argument called ``name``, as one odd length an axis.

    Raises:
        ValueError: it has not one length an axis, or a length is even or below 1.
    """
    sizes = as_lengths(window_size, axes)
    if sizes is None or any(k % 2 == 0 for k in sizes):
        raise ValueError(f'{name} must be an odd length ≥ 1, or one for each of {axes} axes; got {window_size!r}')
    return sizes


def as_lengths(lengths: int | Sequence[int], axes: int) -> tuple[int, ...] | None:
    """Return a length of at least 1 for each of ``axes`` axes, from one for all or one for each; None if it is not."""
    each = tuple(lengths) if isinstance(lengths, Sequence) else (lengths,) * axes
    if len(each) != axes or any(not isinstance(n, Integral) or isinstance(n, bool) or n < 1 for n in each):
        return None
    return tuple(map(int, each))


def window_entries(window_size: tuple[int, ...], causal: bool = False) -> int:
    """Return the number K of window logits of a query: all of them, or under ``causal`` those with j ≤ i."""
    entries = math.prod(window_size)
    return (entries + 1) // 2 if causal else entries


def axis_index(length: int, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return, for each position of an axis and each window entry, the key's coordinate and whether it exists.

    Returns:
        tuple[Tensor, Tensor]: int64 ``(length, k)``, clamped to the axis; bool ``(length, k)``.
    """
    key = torch.arange(length, device=device)[:, None] + torch.arange(k, device=device) - k // 2
    return key.clamp(0, length - 1), (key >= 0) & (key < length)


def zscore(window: Tensor, outlier: Tensor, exists: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise realigned position logits over their support: (δp − μ) / √(var + 1e-5), population variance.

    Relative to the mean of the window, then two passes: exact for logits of any common magnitude, where E[x²] − μ²
    would cancel.

    Args:
        window (Tensor): float ``(…, K)``.
        outlier (Tensor): float ``(…)``, v_i.
        exists (Tensor): bool, broadcastable to ``window``: the entries whose key is in the support.
        count (Tensor): broadcastable to ``outlier``: the number of keys in the support.

    Returns:
        tuple[Tensor, Tensor, Tensor]: normalised window and outlier logits, and the factor 1/√(var + eps) of ``(…)``.
        0 for what does not exist, the outlier logit of a support without outliers included.
    """
    inside = exists.sum(-1)
    outside = count - inside
    count = count.clamp(min=1)
    middle = window.masked_fill(~exists, 0).sum(-1) / inside.clamp(min=1)
    window = (window - middle.unsqueeze(-1)).masked_fill_(~exists, 0)
    outlier = (outlier - middle).masked_fill_(outside == 0, 0)
    mean = (window.sum(-1) + outside * outlier) / count
    window = window.sub_(mean.unsqueeze(-1)).masked_fill_(~exists, 0)
    outlier = outlier.sub_(mean).masked_fill_(outside == 0, 0)
    rstd = ((window.square().sum(-1) + outside * outlier.square()) / count + EPS).rsqrt()
    return window.mul_(rstd.unsqueeze(-1)), outlier.mul_(rstd), rstd


def zscore_backward(
    grad: Tensor, window: Tensor, outlier: Tensor, rstd: Tensor, exists: Tensor, count: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradient of :func:`zscore`, given that the gradients of all logits of a query sum to zero, as a softmax's do.

    Args:
        grad (Tensor): ``(…, K)``, gradient at the normalised window logits, 0 where the entry does not exist.
        window, outlier, rstd (Tensor): what :func:`zscore` returned.
        exists, count (Tensor): as in :func:`zscore`.

    Returns:
        tuple[Tensor, Tensor]: gradients at the window logits ``(…, K)`` and at the outlier logits ``(…)``.
    """
    outside = count - exists.sum(-1)
    grad_outlier = -grad.sum(-1).masked_fill(outside == 0, 0)
    # mean of gradient · normalised logit
    along = ((grad * window).sum(-1) + grad_outlier * outlier) / count.clamp(min=1)
    grad_window = (grad - window * along.unsqueeze(-1)).mul_(rstd.unsqueeze(-1))
    return grad_window, (grad_outlier - outside * outlier * along) * rstd
