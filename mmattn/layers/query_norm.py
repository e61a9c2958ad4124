"""Normalisation of the queries of self-attention (NSA)."""

from torch import Tensor

from mmattn.ops.window_bias import accumulator

EPS = 1e-5


def normalize_queries(query: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    """Normalise each channel of the queries over the valid positions of its sequence, without learned scale and shift.

    Q̂[b, i, c] = (Q[b, i, c] − μ[b, c]) / √(σ²[b, c] + 1e-5), with the mean μ and the population variance σ² over the
    positions that are not padding. Both are computed in float32, or in float64 for float64 queries.

    Source: "Normalized and Geometry-Aware Self-Attention Network for Image Captioning", 2020, Eq. 5 to 7.

    Args:
        query (Tensor): float ``(B, L, C)``.
        padding_mask (Tensor, optional): bool ``(B, L)``, True where a position is padding.

    Returns:
        Tensor: ``(B, L, C)``, of the dtype of ``query``; 0 where a position is padding.

    Example:
        >>> x = torch.randn(2, 7, 16) * 5 + 3
        >>> y = normalize_queries(x)
        >>> torch.allclose(y.mean(1), torch.zeros(2, 16), atol=1e-5)
        True
    """
    x = query.to(accumulator(query))
    if padding_mask is None:
        centred = x - x.mean(1, keepdim=True)
        variance = centred.square().mean(1, keepdim=True)
    else:
        valid = ~padding_mask[..., None]
        count = valid.sum(1, keepdim=True).clamp(min=1)
        centred = (x - x.where(valid, 0).sum(1, keepdim=True) / count).where(valid, 0)
        variance = centred.square().sum(1, keepdim=True) / count
    return (centred * (variance + EPS).rsqrt()).to(query.dtype)
