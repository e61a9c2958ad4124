"""Normalised (NSA) and geometry-aware (GSA) self-attention between the regions of an image."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmattn.ops.dtypes import accumulator
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count, check_divisor, check_fraction

from .linear_layers import in_projection, init_xavier
from .sequence_checks import check_key_padding_mask, check_same_sequence, check_sequence, key_and_value

EPS = 1e-5
NORMS = ('instance', 'instance_affine', 'batch', 'layer')


def normalize_queries(query: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    """Normalise each channel of the queries over the valid positions of its sequence, without learned scale and shift.

    Q̂[b, i, c] = (Q[b, i, c] − μ[b, c]) / √(σ²[b, c] + 1e-5), with the mean μ and the population variance σ² over the
    positions that are not padding. Both are float32, or float64 for float64 queries. The queries are float
    ``(B, L, C)``. The result has the same shape and dtype, and is 0 at padding, where ``padding_mask``, bool
    ``(B, L)``, is True.

    Source: "Normalized and Geometry-Aware Self-Attention Network for Image Captioning", 2020, Eq. 5 to 7.
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
    """Normalise projected queries or keys before they are split into heads (Eq. 5 to 7 and Table 2).

    ``kind`` 'instance' is :func:`normalize_queries`. The other kinds have a learned scale and shift per channel:
    'instance_affine', 'batch' (batch norm over all valid positions, with running statistics) and 'layer' (layer norm).
    """

    def __init__(self, kind: str, channels: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == 'instance_affine':
            self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        elif kind == 'batch':
            self.norm: nn.Module = nn.BatchNorm1d(channels, EPS)
        elif kind == 'layer':
            self.norm = nn.LayerNorm(channels, EPS)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Normalise ``(B, L, C)``. ``padding_mask`` is bool ``(B, L)``, True where a position is padding."""
        if self.kind == 'layer':
            return self.norm(x)
        if self.kind == 'batch':
            if padding_mask is None:
                return self.norm(x.flatten(0, 1)).view(x.shape)
            valid = ~padding_mask
            rows = self.norm(x[valid])
            return rows.new_zeros(x.shape).index_put((valid,), rows)
        x = normalize_queries(x, padding_mask)
        return x if self.kind == 'instance' else x * self.weight + self.bias


TERMS = ('content_independent', 'query_dependent', 'key_dependent')


@MODELS.register_module()
class RegionAttention(nn.Module):
    """Multi-head self-attention between regions, with normalised queries and logits from the geometry of their boxes.

    softmax_j((Q̂_i·K_j + φ_ij)/√d) V_j in each head of d channels (Eq. 10). By default, Q̂ = Q and φ = 0: the layer is
    ``nn.MultiheadAttention(batch_first=True)``, with the same parameter names.

    * ``query_norm='instance'`` is normalised self-attention (NSA).
    * ``geometry='query_dependent'`` is geometry-aware self-attention (GSA). Every φ is a function of G_ij = ReLU(W f_ij
      + b) (Eq. 9), which the heads share. f_ij comes from :func:`.relative_geometry`.

    The logits ``(B, heads, N, N)`` are stored, so N should be a few hundred at most. G takes 4 · B · N² ·
    ``geometry_dim`` bytes in float32, for example 25.6 MB for 10 images of 100 regions with 64 channels. The backward
    pass computes G again, so only one exists at a time.

    Source: "Normalized and Geometry-Aware Self-Attention Network for Image Captioning", 2020, Eq. 5 to 13.

    Args:
        embed_dim (int): channels E of the regions.
        num_heads (int): number of heads, a divisor of E.
        query_norm (str, optional): normalisation of the queries over the valid regions: 'instance' (Eq. 5 to 7),
            'instance_affine', 'batch' or 'layer' (Table 2). See :class:`.QueryNorm`. Defaults to None.
        key_norm (str, optional): normalisation of the keys (Table 3), as ``query_norm``. Defaults to None.
        geometry (str or sequence of str, optional): terms whose sum is φ (Eq. 11 to 13): 'content_independent',
            ReLU(w·G_ij) with one w per head, 'query_dependent', Q'_i·G_ij, and 'key_dependent', K'_j·G_ij. Q' and K'
            are further projections of the regions, without normalisation. Defaults to None.
        geometry_dim (int): channels of G. Defaults to 64.
        dropout (float): dropout probability of the attention weights, from 0 to 1. Defaults to 0.1.
        is_causal (bool): must be False, because regions have no order. Defaults to False.

    Example:
        >>> from mmattn.language.layers.position_encodings import relative_geometry
        >>> attention = RegionAttention(16, num_heads=4, query_norm='instance', geometry='query_dependent')
        >>> x, corner = torch.randn(2, 10, 16), torch.rand(2, 10, 2) * 100
        >>> boxes = torch.cat([corner, corner + 50], -1)
        >>> out, _ = attention(x, x, x, relative_geometry=relative_geometry(boxes))
        >>> out.shape
        torch.Size([2, 10, 16])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        query_norm: str | None = None,
        key_norm: str | None = None,
        geometry: str | Sequence[str] | None = None,
        geometry_dim: int = 64,
        dropout: float = 0.1,
        is_causal: bool = False,
    ) -> None:
        super().__init__()
        check_divisor('num_heads', num_heads, 'embed_dim', embed_dim)
        for name, norm in (('query_norm', query_norm), ('key_norm', key_norm)):
            if norm is not None and norm not in NORMS:
                raise ValueError(f'{name} must be None or one of {NORMS}; got {norm!r}')
        terms = [geometry] if isinstance(geometry, str) else list(geometry or ())
        if any(term not in TERMS for term in terms) or len(set(terms)) < len(terms):
            raise ValueError(f'geometry must be None, or one or more of {TERMS}, each once; got {geometry!r}')
        check_count('geometry_dim', geometry_dim)
        check_fraction('dropout', dropout)
        if is_causal:
            raise ValueError('is_causal must be False: regions have no order; got True')
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.geometry = tuple(terms)
        self.scale = (embed_dim // num_heads) ** -0.5
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)
        self.query_norm = None if query_norm is None else QueryNorm(query_norm, embed_dim)
        self.key_norm = None if key_norm is None else QueryNorm(key_norm, embed_dim)
        if terms:
            self.geometry_proj = nn.Linear(4, geometry_dim)
        if 'content_independent' in terms:
            self.geometry_weight = nn.Linear(geometry_dim, num_heads, bias=False)
        if 'query_dependent' in terms:
            self.geometry_query = nn.Linear(embed_dim, num_heads * geometry_dim)
        if 'key_dependent' in terms:
            self.geometry_key = nn.Linear(embed_dim, num_heads * geometry_dim)
        init_xavier(self)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        relative_geometry: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend between the regions of each image. Returns ``(B, N, E)``, and the weights or None.

        Args:
            query (Tensor): float ``(B, N, E)``.
            key, value (Tensor, optional): float ``(B, N, E)``, the same regions. Both default to ``query``.
            key_padding_mask (Tensor, optional): bool ``(B, N)``, True at padding. Without a valid region, the output is
                the bias of ``out_proj``.
            relative_geometry (Tensor, optional): float ``(B, N, N, 4)``, f_ij, from :func:`.relative_geometry` with the
                same mask. Required with ``geometry``, otherwise ignored.
            need_weights (bool): return the weights before dropout, ``(B, heads, queries, keys)``. Defaults to False.
        """
        check_sequence('query', query, self.embed_dim)
        check_same_sequence(query, key, value, 'since RegionAttention is self-attention')
        check_key_padding_mask(key_padding_mask, query)
        key, value = key_and_value(query, key, value)
        q, k, v = in_projection(self.in_proj_weight, self.in_proj_bias, query, key, value)
        if self.query_norm is not None:
            q = self.query_norm(q, key_padding_mask)
        if self.key_norm is not None:
            k = self.key_norm(k, key_padding_mask)
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        logits = (q * self.scale) @ k.mT
        if self.geometry:
            expected = (*query.shape[:2], query.shape[1], 4)
            if relative_geometry is None or relative_geometry.shape != expected:
                shape = None if relative_geometry is None else tuple(relative_geometry.shape)
                raise ValueError(
                    f'relative_geometry must be {tuple(expected)} with geometry={self.geometry}; got {shape}'
                )
            for term in self.geometry:
                x = key if term == 'key_dependent' else query
                # Each term frees its G and computes it again in the backward pass.
                logits = logits + self.scale * checkpoint(
                    self.geometry_logits, term, relative_geometry, x, use_reentrant=False, preserve_rng_state=False
                )
        if key_padding_mask is None:
            weights = logits.softmax(-1)
        else:
            # A finite number: the softmax of a row of −∞ and its gradient are NaN, which anomaly detection reports.
            padding = key_padding_mask[:, None, None]
            logits = logits.masked_fill(padding, torch.finfo(logits.dtype).min)
            weights = logits.softmax(-1).masked_fill(padding, 0)
        out = self.out_proj((self.dropout(weights) @ v).transpose(1, 2).flatten(2))
        return out, weights if need_weights else None

    def geometry_logits(self, term: str, relative_geometry: Tensor, x: Tensor | None = None) -> Tensor:
        """Compute one term of φ before its division by √d (Eq. 11 to 13), ``(B, heads, N, N)`` or ``(B, heads, N, M)``.

        ``term`` is one of ``geometry``, and ``relative_geometry`` is f_ij, float ``(B, N, N, 4)``, or ``(B, N, M, 4)``
        with 'content_independent'. The other terms read the regions ``x``, float ``(B, N, E)``.
        """
        features = relative_geometry.to(self.in_proj_weight.dtype)
        if term == 'key_dependent':
            # As 'query_dependent' with i and j exchanged, so that each product reads G in the order of memory.
            features = features.transpose(1, 2)
        g = self.geometry_proj(features).relu()
        if term == 'content_independent':
            return self.geometry_weight(g).relu().movedim(-1, 1)
        assert x is not None
        projection = self.geometry_query if term == 'query_dependent' else self.geometry_key
        logits = (projection(x).unflatten(-1, (self.num_heads, -1)) @ g.mT).transpose(1, 2)
        return logits if term == 'query_dependent' else logits.mT
