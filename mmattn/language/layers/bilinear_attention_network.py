"""Bilinear attention networks (BAN): bilinear attention between words and regions, in glimpses."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_count, check_counts, check_fraction

from .bilinear_attention import bilinear_logits, bilinear_pooling, bilinear_softmax
from .linear_layers import PackedPositions, normalized, weight_norm_linear
from .sequence_checks import check_key_padding_mask, check_sequence

MODES = ('residual', 'sum', 'concat')


def attention_entropy(weights: Tensor) -> Tensor:
    """Compute the entropy −Σ_ij A_ij ln A_ij of attention maps ``(B, G, Q, K)``, with 0 ln 0 = 0: ``(B, G)``."""
    return torch.special.entr(weights).sum((-2, -1))


@MODELS.register_module()
class BilinearLogits(nn.Module):
    """Compute logits for all pairs of a word and a region in each glimpse, from projections that the glimpses share.

    L_g[i,j] = Σ_k p_g[k] X'[i,k] Y'[j,k] + b_g, with X' = σLin(X) and Y' = dropout(σLin(Y)) (Eq. 9 and 13). Lin is
    affine with weight norm and dropout of its input, and σ is ReLU. p and b start as N(0, 1).

    Source: "Bilinear Attention Networks", 2018, and its published code, which adds b and the dropout of Y'.

    Args:
        word_dim, region_dim (int): channels N of the words and M of the regions.
        embed_dim (int): channels K' of the projections.
        num_glimpses (int): number of glimpses G. Defaults to 1.
        dropout, region_dropout (float): dropout probabilities for the inputs of Lin and for Y'. Default to 0.2 and 0.5.

    Example:
        >>> logits = BilinearLogits(16, 32, embed_dim=48)
        >>> logits(torch.randn(2, 14, 16), torch.randn(2, 36, 32)).shape
        torch.Size([2, 1, 14, 36])
    """

    def __init__(
        self,
        word_dim: int,
        region_dim: int,
        embed_dim: int,
        num_glimpses: int = 1,
        dropout: float = 0.2,
        region_dropout: float = 0.5,
    ) -> None:
        super().__init__()
        check_counts(word_dim=word_dim, region_dim=region_dim, embed_dim=embed_dim, num_glimpses=num_glimpses)
        check_fraction('dropout', dropout)
        check_fraction('region_dropout', region_dropout)
        self.word_dim, self.region_dim = word_dim, region_dim
        self.word_proj = weight_norm_linear(word_dim, embed_dim, dropout)
        self.region_proj = weight_norm_linear(region_dim, embed_dim, dropout)
        self.region_dropout = nn.Dropout(region_dropout)
        self.glimpses = nn.Linear(embed_dim, num_glimpses)  # p and b
        nn.init.normal_(self.glimpses.weight)
        nn.init.normal_(self.glimpses.bias)
        normalized(self.glimpses)

    def forward(self, words: Tensor, regions: Tensor, region_padding_mask: Tensor | None = None) -> Tensor:
        """Compute logits ``(B, G, Q, K)`` from words X ``(B, Q, N)`` and regions Y ``(B, K, M)``.

        ``region_padding_mask`` is bool ``(B, K)``, True where a region is padding. The logits of padding are b_g.
        """
        check_sequence('words', words, self.word_dim)
        check_sequence('regions', regions, self.region_dim)
        check_key_padding_mask(region_padding_mask, regions, 'region_padding_mask')
        return self.compute_packed(words, PackedPositions(regions, region_padding_mask))

    def compute_packed(self, words: Tensor, regions: PackedPositions) -> Tensor:
        """Compute the logits for packed regions."""
        key = regions.padded(self.region_dropout(self.region_proj(regions.rows)))
        logits = bilinear_logits(self.word_proj(words), key, self.glimpses.weight)
        return logits + self.glimpses.bias[:, None, None]


@MODELS.register_module()
class BilinearAttentionNetwork(nn.Module):
    """Bilinear attention between the words of a question and the regions of an image, in G glimpses (BAN-G).

    The attention map A_g is the softmax of :class:`BilinearLogits` over all pairs of words X and regions Y. A glimpse
    pools the pairs, and each word receives the result:

        f'[k] = Σ_ij A_g[i,j] X''[i,k] Y''[j,k],  X'' = σLin_g(f_g),  Y'' = σLin_g(Y)   (Eq. 6, 12)
        f_{g+1} = f_g + 1·Lin_g(f')ᵀ,  f_0 = X                                         (Eq. 11)

    The output is Σ_i f_G[i]. With 'sum' and 'concat' every glimpse reads X in place of f_g, and the output is the sum
    or the concatenation of Lin_g(f'). The product of all pairs is never formed. By default, the backward pass computes
    Y'' again. If Y'' were stored, 256 images of 100 regions with 8 glimpses of 1280 channels would take 1 GiB.

    Source: "Bilinear Attention Networks", 2018.

    Args:
        word_dim, region_dim (int): channels N of the words and M of the regions.
        embed_dim (int, optional): channels K of X'' and Y''. Defaults to ``word_dim``.
        num_glimpses (int): number of glimpses G. Defaults to 8.
        mode (str): 'residual', 'sum' or 'concat' (Table 2). Defaults to 'residual'.
        logit_factor (int): K' = ``logit_factor`` · K channels of X' and Y'. Defaults to 3.
        pool_factor (int): X'' and Y'' have ``pool_factor`` · K channels, and f' sums each ``pool_factor`` neighbours. 3
            is MFB (Fig. 2b). Defaults to 1.
        dropout, region_dropout (float): as in :class:`BilinearLogits`. Default to 0.2 and 0.5.
        counter (dict, optional): config of an object counter for all glimpses, such as
            ``dict(type='mmattn.ObjectCounter')``. Glimpse g then adds 1·(σLin_g(counts))ᵀ, without dropout, to f_{g+1}.
        recompute (bool): compute X'' and Y'' again in the backward pass. A training step takes about 1.3 times as long.
            Defaults to True.

    Example:
        >>> network = BilinearAttentionNetwork(16, 32, num_glimpses=4)
        >>> out, weights = network(torch.randn(2, 14, 16), torch.randn(2, 36, 32), need_weights=True)
        >>> out.shape, weights.shape
        (torch.Size([2, 16]), torch.Size([2, 4, 14, 36]))
    """

    counter: Any  # the module that the config names

    def __init__(
        self,
        word_dim: int,
        region_dim: int,
        embed_dim: int | None = None,
        num_glimpses: int = 8,
        mode: str = 'residual',
        logit_factor: int = 3,
        pool_factor: int = 1,
        dropout: float = 0.2,
        region_dropout: float = 0.5,
        counter: dict | None = None,
        recompute: bool = True,
    ) -> None:
        super().__init__()
        check_choice('mode', mode, MODES)
        check_count('word_dim', word_dim)
        embed_dim = word_dim if embed_dim is None else embed_dim
        check_counts(embed_dim=embed_dim, logit_factor=logit_factor, pool_factor=pool_factor)
        self.mode, self.num_glimpses, self.pool_factor, self.recompute = mode, num_glimpses, pool_factor, recompute
        self.logits = BilinearLogits(
            word_dim, region_dim, logit_factor * embed_dim, num_glimpses, dropout, region_dropout
        )
        pooled_dim = pool_factor * embed_dim

        def build_projections(in_dim: int, out_dim: int, dropout: float, *, relu: bool = True) -> nn.ModuleList:
            return nn.ModuleList(weight_norm_linear(in_dim, out_dim, dropout, relu) for _ in range(num_glimpses))

        self.word_proj = build_projections(word_dim, pooled_dim, dropout)
        self.region_proj = build_projections(region_dim, pooled_dim, dropout)
        self.out_proj = build_projections(embed_dim, word_dim, dropout, relu=False)
        self.counter = None if counter is None else MODELS.build(counter)
        if self.counter is not None:
            self.count_proj = build_projections(self.counter.num_objects + 1, word_dim, 0.0)

    def forward(
        self,
        words: Tensor,
        regions: Tensor,
        word_padding_mask: Tensor | None = None,
        region_padding_mask: Tensor | None = None,
        boxes: Tensor | None = None,
        num_glimpses: int | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend between words and regions.

        Args:
            words (Tensor): X, float ``(B, Q, N)``. A question without words is valid, with Q = 0 or all masked.
            regions (Tensor): Y, float ``(B, K, M)``. An image without regions is valid, too.
            word_padding_mask (Tensor, optional): bool ``(B, Q)``, True at padding, which the maps and the sum of the
                words then exclude. The published code passes no such mask.
            region_padding_mask (Tensor, optional): bool ``(B, K)``, True at padding.
            boxes (Tensor, optional): float ``(B, K, 4)``, (x1, y1, x2, y2) divided by the width and height of the
                image. Required with ``counter``.
            num_glimpses (int, optional): use only the first glimpses (Fig. 2c), not with 'concat'. Defaults to all.
            need_weights (bool): also return the attention maps. Defaults to False.

        Returns:
            tuple[Tensor, Tensor | None]: ``(B, N)``, or ``(B, G · N)`` with 'concat'. With ``need_weights``, also A,
                ``(B, G, Q, K)``, otherwise None. Without a pair, A and f' are 0.
        """
        check_sequence('words', words, self.logits.word_dim)
        check_sequence('regions', regions, self.logits.region_dim)
        check_key_padding_mask(word_padding_mask, words, 'word_padding_mask')
        check_key_padding_mask(region_padding_mask, regions, 'region_padding_mask')
        if self.counter is not None and boxes is None:
            raise ValueError('boxes must be (B, K, 4), because the network has a counter; got None')
        if self.counter is None and boxes is not None:
            raise ValueError(f'boxes must be None, because the network has no counter; got {tuple(boxes.shape)}')
        count = self.check_glimpses('num_glimpses', num_glimpses)
        if word_padding_mask is not None:
            words = words.masked_fill(word_padding_mask.unsqueeze(-1), 0)
        packed = PackedPositions(regions, region_padding_mask)
        logits = self.logits.compute_packed(words, packed)
        masks = [None if mask is None else ~mask for mask in (word_padding_mask, region_padding_mask)]
        weights = bilinear_softmax(logits, *masks)
        state, updates = words, []
        for g in range(count):
            arguments = g, state if self.mode == 'residual' else words, packed, packed.rows, weights[:, g : g + 1]
            if self.recompute:
                pooled = checkpoint(self._pooled, *arguments, use_reentrant=False, preserve_rng_state=self.training)
            else:
                pooled = self._pooled(*arguments)
            update = self.out_proj[g](pooled)
            if self.counter is not None:
                greatest = _greatest(logits[:, g], word_padding_mask)
                counts = self.counter(greatest, boxes, region_padding_mask).to(update.dtype)  # from float32
                update = update + self.count_proj[g](counts)
            updates.append(update)
            state = state + update.unsqueeze(1)
        if self.mode == 'residual':
            if word_padding_mask is not None:
                state = state.masked_fill(word_padding_mask.unsqueeze(-1), 0)
            out = state.sum(1)
        else:
            out = torch.cat(updates, -1) if self.mode == 'concat' else torch.stack(updates).sum(0)
        return out, weights if need_weights else None

    def check_glimpses(self, name: str, count: int | None) -> int:
        """Check the argument ``name``, a number of glimpses to use. Returns the number, or all for None."""
        if count is None:
            return self.num_glimpses
        check_count(name, count, self.num_glimpses if self.mode == 'concat' else 1)
        if count > self.num_glimpses:
            raise ValueError(f'{name} must be at most num_glimpses={self.num_glimpses}; got {count}')
        return count

    def _pooled(self, g: int, words: Tensor, packed: PackedPositions, rows: Tensor, weights: Tensor) -> Tensor:
        # ``rows`` is ``packed.rows``, an argument because ``checkpoint`` must see it.
        values = packed.padded(self.region_proj[g](rows))
        pooled = bilinear_pooling(weights, self.word_proj[g](words), values).squeeze(1)
        return pooled if self.pool_factor == 1 else pooled.unflatten(-1, (-1, self.pool_factor)).sum(-1)


def _greatest(logits: Tensor, word_padding_mask: Tensor | None) -> Tensor:
    if word_padding_mask is not None:
        logits = logits.masked_fill(word_padding_mask.unsqueeze(-1), -torch.inf)
    return F.pad(logits, (0, 0, 0, 1), value=-torch.inf).amax(1)


@MODELS.register_module()
class ConcatLogits(nn.Module):
    """Compute logits for all pairs of a word and a region by a hidden layer: L[i,j] = w·ReLU(U x_i + V y_j + u) + b.

    A perceptron on the concatenation of x_i and y_j: a baseline with the inputs and outputs of :class:`BilinearLogits`.

    Args:
        word_dim, region_dim (int): channels N of the words and M of the regions.
        embed_dim (int): channels of the hidden layer.
        dropout, hidden_dropout (float): dropout probabilities of inputs and hidden layer. Default to 0.2 and 0.5.

    Example:
        >>> import torch
        >>> logits = ConcatLogits(16, 32, embed_dim=48)
        >>> logits(torch.randn(2, 14, 16), torch.randn(2, 36, 32)).shape
        torch.Size([2, 1, 14, 36])
    """

    def __init__(
        self, word_dim: int, region_dim: int, embed_dim: int, dropout: float = 0.2, hidden_dropout: float = 0.5
    ) -> None:
        super().__init__()
        check_counts(word_dim=word_dim, region_dim=region_dim, embed_dim=embed_dim)
        for name, probability in (('dropout', dropout), ('hidden_dropout', hidden_dropout)):
            check_fraction(name, probability)
        self.word_dim, self.region_dim = word_dim, region_dim
        self.dropout = nn.Dropout(dropout)
        self.word_proj = nn.Linear(word_dim, embed_dim)
        self.region_proj = nn.Linear(region_dim, embed_dim, bias=False)
        self.output = nn.Sequential(nn.ReLU(), nn.Dropout(hidden_dropout), nn.Linear(embed_dim, 1))

    def forward(self, words: Tensor, regions: Tensor, region_padding_mask: Tensor | None = None) -> Tensor:
        """Compute logits ``(B, 1, Q, K)`` from words ``(B, Q, N)`` and regions ``(B, K, M)``.

        ``region_padding_mask`` is bool ``(B, K)``, True where a region is padding. Padding may have any value.
        """
        check_sequence('words', words, self.word_dim)
        check_sequence('regions', regions, self.region_dim)
        check_key_padding_mask(region_padding_mask, regions, 'region_padding_mask')
        if region_padding_mask is not None:
            regions = regions.masked_fill(region_padding_mask[..., None], 0)
        x, y = self.word_proj(self.dropout(words)), self.region_proj(self.dropout(regions))
        return self.output(x[:, :, None] + y[:, None]).squeeze(-1).unsqueeze(1)
