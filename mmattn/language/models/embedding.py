"""Embedding of tokens and of their positions."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.language.layers.position_encodings import sinusoids
from mmattn.language.text.vocabulary import PAD
from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_counts


@MODELS.register_module()
class TokenEmbedding(nn.Module):
    """Vectors of tokens, times √E, plus the sinusoids of their positions.

    Models can share the matrix with their output layer (:meth:`logits`). It starts as N(0, 1/E), with 0 for padding.

    Args:
        vocab_size (int): number of symbols V.
        embed_dim (int): channels E, an even number.
        dropout (float): probability, in [0, 1). Defaults to 0.1.
        positions (str): 'sinusoidal' or 'none'. Defaults to 'sinusoidal'.

    Example:
        >>> embedding = TokenEmbedding(vocab_size=100, embed_dim=16)
        >>> x = embedding(torch.tensor([[4, 5, 2]]))
        >>> x.shape, embedding.logits(x).shape
        (torch.Size([1, 3, 16]), torch.Size([1, 3, 100]))
    """

    def __init__(self, vocab_size: int, embed_dim: int, dropout: float = 0.1, positions: str = 'sinusoidal') -> None:
        super().__init__()
        check_counts(vocab_size=vocab_size, embed_dim=embed_dim)
        if embed_dim % 2:
            raise ValueError(f'embed_dim must be even, for sines and cosines; got {embed_dim}')
        check_choice('positions', positions, ('sinusoidal', 'none'))
        self.embed_dim = embed_dim
        self.positions = positions
        self.weight = nn.Parameter(torch.randn(vocab_size, embed_dim) * embed_dim**-0.5)
        with torch.no_grad():
            self.weight[PAD] = 0
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Embed tokens, int64 ``(B, L)``, to float ``(B, L, E)``. ``start`` is the position of the first token."""
        x = self._scaled(tokens)
        if self.positions == 'sinusoidal':
            dtype = torch.promote_types(x.dtype, torch.float32)
            positions = torch.arange(start, start + tokens.shape[1], device=tokens.device, dtype=dtype)
            x = x + sinusoids(positions, self.embed_dim).to(x.dtype)
        return self.dropout(x)

    def vectors(self, tokens: Tensor) -> Tensor:
        """Embed a set of tokens without positions, int64 ``(B, L)``, to float ``(B, L, E)``."""
        return self.dropout(self._scaled(tokens))

    def _scaled(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight, padding_idx=PAD) * math.sqrt(self.embed_dim)

    def logits(self, x: Tensor) -> Tensor:
        """Multiply ``x`` ``(*, E)`` by the matrix. Returns the logits of all symbols, ``(*, V)``."""
        return F.linear(x, self.weight)


def vocabulary_size(model: nn.Module) -> int | None:
    """Count the rows of the first :class:`TokenEmbedding` or ``nn.Embedding`` of a model. Returns None without one."""
    return next((len(part.weight) for part in model.modules() if isinstance(part, TokenEmbedding | nn.Embedding)), None)
