"""Unitary attention and co-attention: attention of a question to regions, and of each set on its own."""

import torch
from torch import Tensor, nn

from mmattn.registry import MODELS
from mmattn.utils.checks import check_count, check_counts, check_fraction

from .linear_layers import PackedPositions, weight_norm_linear
from .sequence_checks import check_key_padding_mask, check_sequence


def attend(x: Tensor, logits: Tensor, padding_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Compute Σ_j α_gj x_j, ``(B, G, C)``, and the weights α_g = softmax_j(logits_gj), ``(B, G, L)``.

    ``x`` is ``(B, L, C)`` and ``logits`` ``(B, G, L)``, both float. ``padding_mask`` is bool ``(B, L)``, True where a
    position is padding. Padding may have any value, NaN too. Without a valid position, both results are 0.
    """
    if padding_mask is None:
        weights = logits.softmax(-1)
    else:
        # A finite number: the softmax of −∞ alone and its gradient are NaN.
        mask = padding_mask.unsqueeze(1)
        weights = logits.masked_fill(mask, torch.finfo(logits.dtype).min).softmax(-1).masked_fill(mask, 0)
        x = x.masked_fill(padding_mask.unsqueeze(-1), 0)
    return weights.to(x.dtype) @ x, weights


@MODELS.register_module()
class UnitaryAttention(nn.Module):
    """Attention of a question vector q to regions, and the product of the question with the attended region.

    α = softmax_j Lin(σLin(q) ∘ σLin(y_j)), and the output is σLin(q) ∘ σLin(Σ_j α_j y_j). Each Lin has its own weights,
    with weight norm and dropout of its input. σ is ReLU.

    Source: "Bilinear Attention Networks", 2018, a baseline of Table 2.

    Args:
        query_dim, region_dim (int): channels of the question, and M of the regions.
        embed_dim (int): channels E of the output. Defaults to 1280.
        dropout (float): dropout probability of the inputs of Lin. Defaults to 0.2.

    Example:
        >>> attention = UnitaryAttention(16, 32, embed_dim=24)
        >>> out, _ = attention(torch.randn(2, 16), torch.randn(2, 36, 32))
        >>> out.shape
        torch.Size([2, 24])
    """

    def __init__(self, query_dim: int, region_dim: int, embed_dim: int = 1280, dropout: float = 0.2) -> None:
        super().__init__()
        check_counts(query_dim=query_dim, region_dim=region_dim, embed_dim=embed_dim)
        check_fraction('dropout', dropout)
        self.query_dim, self.region_dim = query_dim, region_dim
        self.query_proj = weight_norm_linear(query_dim, embed_dim, dropout)
        self.region_proj = weight_norm_linear(region_dim, embed_dim, dropout)
        self.logits = weight_norm_linear(embed_dim, 1, dropout, relu=False)
        self.joint_query_proj = weight_norm_linear(query_dim, embed_dim, dropout)
        self.joint_region_proj = weight_norm_linear(region_dim, embed_dim, dropout)

    def forward(
        self, query: Tensor, regions: Tensor, region_padding_mask: Tensor | None = None, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to the regions of each image. Returns ``(B, E)``, and α ``(B, K)`` or None.

        The question q is float ``(B, query_dim)``, and the regions are float ``(B, K, M)``. ``region_padding_mask`` is
        bool ``(B, K)``, True where a region is padding. Without a valid region, α and the attended region are 0. Set
        ``need_weights`` to get α.
        """
        check_sequence('regions', regions, self.region_dim)
        if query.shape != (len(regions), self.query_dim):
            raise ValueError(f'query must be ({len(regions)}, {self.query_dim}); got {tuple(query.shape)}')
        check_key_padding_mask(region_padding_mask, regions, 'region_padding_mask')
        packed = PackedPositions(regions, region_padding_mask)
        pairs = self.query_proj(query).unsqueeze(1) * packed.padded(self.region_proj(packed.rows))
        attended, weights = attend(regions, self.logits(pairs).mT, region_padding_mask)
        out = self.joint_query_proj(query) * self.joint_region_proj(attended.squeeze(1))
        return out, weights.squeeze(1) if need_weights else None


@MODELS.register_module()
class CoAttention(nn.Module):
    """Attention to the words of a question by themselves, then :class:`UnitaryAttention` of the result to regions.

    q = Σ_i β_i x_i, β = softmax_i Lin(σLin(x_i)).

    Source: "Bilinear Attention Networks", 2018, a baseline of Table 2.

    Args:
        word_dim (int): channels N of the words.
        region_dim, embed_dim, dropout: as in :class:`UnitaryAttention`.
        hidden_dim (int): channels between the two Lin of β. Defaults to 512.

    Example:
        >>> attention = CoAttention(16, 32, embed_dim=24)
        >>> out, _ = attention(torch.randn(2, 14, 16), torch.randn(2, 36, 32))
        >>> out.shape
        torch.Size([2, 24])
    """

    def __init__(
        self, word_dim: int, region_dim: int, embed_dim: int = 1280, hidden_dim: int = 512, dropout: float = 0.2
    ) -> None:
        super().__init__()
        check_count('word_dim', word_dim)
        check_count('hidden_dim', hidden_dim)
        self.word_dim = word_dim
        self.attention = UnitaryAttention(word_dim, region_dim, embed_dim, dropout)
        self.logits = nn.Sequential(
            weight_norm_linear(word_dim, hidden_dim, dropout), weight_norm_linear(hidden_dim, 1, dropout, relu=False)
        )

    def forward(
        self,
        words: Tensor,
        regions: Tensor,
        word_padding_mask: Tensor | None = None,
        region_padding_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Attend to the words of each question, then to the regions of its image.

        Returns ``(B, E)`` and, with ``need_weights``, β ``(B, Q)`` and α ``(B, K)``, otherwise None. ``words`` are x,
        float ``(B, Q, N)``, and ``word_padding_mask`` is bool ``(B, Q)``, True where a word is padding. Without a valid
        word, q is 0. The other arguments are as in :meth:`UnitaryAttention.forward`.
        """
        check_sequence('words', words, self.word_dim)
        check_key_padding_mask(word_padding_mask, words, 'word_padding_mask')
        packed = PackedPositions(words, word_padding_mask)
        query, word_weights = attend(words, packed.padded(self.logits(packed.rows)).mT, word_padding_mask)
        out, region_weights = self.attention(query.squeeze(1), regions, region_padding_mask, need_weights)
        return out, None if region_weights is None else (word_weights.squeeze(1), region_weights)
