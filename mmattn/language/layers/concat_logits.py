"""Logits of all pairs of a word and a region by a layer that reads their concatenation."""

from torch import Tensor, nn

from mmattn.registry import MODELS
from mmattn.utils.checks import check_count, check_number

from .sequence import check_key_padding_mask, check_sequence


@MODELS.register_module()
class ConcatLogits(nn.Module):
    """Logits of all pairs of a word and a region by a hidden layer: L[i,j] = w·ReLU(U x_i + V y_j + u) + b.

    This is a perceptron that reads the concatenation of x_i and y_j, a baseline of :class:`BilinearLogits`, with the
    same inputs and outputs. U x_i and V y_j are computed once for each word and region.

    Args:
        word_dim (int): channels N of the words.
        region_dim (int): channels M of the regions.
        embed_dim (int): channels of the hidden layer.
        dropout (float): dropout probability of the inputs. Defaults to 0.2.
        hidden_dropout (float): dropout probability of the hidden layer. Defaults to 0.5.

    Raises:
        TypeError: a number of channels is not an integer, or a probability is not a number.
        ValueError: a number of channels is below 1, or a probability is not from 0 to 1.

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
        for name, number in (('word_dim', word_dim), ('region_dim', region_dim), ('embed_dim', embed_dim)):
            check_count(name, number)
        for name, probability in (('dropout', dropout), ('hidden_dropout', hidden_dropout)):
            check_number(name, probability, 0, 1)
        self.word_dim, self.region_dim = word_dim, region_dim
        self.dropout = nn.Dropout(dropout)
        self.word_proj = nn.Linear(word_dim, embed_dim)
        self.region_proj = nn.Linear(region_dim, embed_dim, bias=False)
        self.output = nn.Sequential(nn.ReLU(), nn.Dropout(hidden_dropout), nn.Linear(embed_dim, 1))

    def forward(self, words: Tensor, regions: Tensor, region_padding_mask: Tensor | None = None) -> Tensor:
        """Return the logits ``(B, 1, Q, K)``.

        Args:
            words (Tensor): float ``(B, Q, N)``.
            regions (Tensor): float ``(B, K, M)``.
            region_padding_mask (Tensor, optional): bool ``(B, K)``, True where a region is padding, which may have any
                value. Its logits are those of a region of zeros.

        Raises:
            TypeError: the mask is not bool.
            ValueError: a shape does not fit.
        """
        check_sequence('words', words, self.word_dim)
        check_sequence('regions', regions, self.region_dim)
        check_key_padding_mask(region_padding_mask, regions, 'region_padding_mask')
        if region_padding_mask is not None:
            regions = regions.masked_fill(region_padding_mask[..., None], 0)
        x, y = self.word_proj(self.dropout(words)), self.region_proj(self.dropout(regions))
        return self.output(x[:, :, None] + y[:, None]).squeeze(-1).unsqueeze(1)
