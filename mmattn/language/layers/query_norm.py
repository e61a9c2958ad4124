"""Normalisation of the queries of self-attention (NSA), and its variants."""

import torch
from torch import Tensor, nn

from mmattn.ops.window_bias import accumulator

EPS = 1e-5
NORMS = ('instance', 'instance_affine', 'batch', 'layer')


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


class QueryNorm(nn.Module):
    """Normalisation of projected queries or keys, before they are split into heads.

    Source: "Normalized and Geometry-Aware Self-Attention Network for Image Captioning", 2020, Eq. 5 to 7 and Table 2.

    Args:
        kind (str): 'instance', :func:`normalize_queries`; 'instance_affine', the same with a learned scale and shift of
            each channel; 'batch', batch norm over all valid positions of the batch, with running statistics for
            evaluation; 'layer', layer norm over the channels of a position. The last two have a learned scale and
            shift, too.
        channels (int): channels C.

    Raises:
        ValueError: ``kind`` is unknown.

    Example:
        >>> norm = QueryNorm('instance_affine', 16)
        >>> norm(torch.randn(2, 7, 16)).shape
        torch.Size([2, 7, 16])
    """

    def __init__(self, kind: str, channels: int) -> None:
        super().__init__()
        if kind not in NORMS:
            raise ValueError(f'kind must be one of {NORMS}; got {kind!r}')
        self.kind = kind
        if kind == 'instance_affine':
            self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        elif kind == 'batch':
            self.norm: nn.Module = nn.BatchNorm1d(channels, EPS)
        elif kind == 'layer':
            self.norm = nn.LayerNorm(channels, EPS)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Normalise ``(B, L, C)``; ``padding_mask`` is bool ``(B, L)``, True where a position is padding.

        Raises:
            ValueError: a batch norm in training has one valid position in the whole batch.
        """
        if self.kind == 'layer':
            return self.norm(x)
        if self.kind == 'batch':
            valid = x.new_ones(x.shape[:-1], dtype=torch.bool) if padding_mask is None else ~padding_mask
            rows = self.norm(x[valid])
            return rows.new_zeros(x.shape).index_put((valid,), rows)
        x = normalize_queries(x, padding_mask)
        return x if self.kind == 'instance' else x * self.weight + self.bias
