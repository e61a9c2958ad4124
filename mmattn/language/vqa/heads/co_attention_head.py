"""Answers by attention to words, then to regions."""

import torch
from torch import Tensor

from mmattn.language.layers.unitary_attention import CoAttention
from mmattn.language.vqa.question_encoder import EncodedQuestion
from mmattn.registry import MODELS

from .answer_head import AnswerHead
from .classifier import answer_classifier


@MODELS.register_module()
class CoAttentionHead(AnswerHead):
    """Attention to the words by themselves, and of their sum to the regions; a classifier of twice the channels.

    Source: "Bilinear Attention Networks", 2018, a baseline of Table 2.

    Args:
        question_dim (int): channels N of the words.
        region_dim (int): channels M of the regions.
        num_answers (int): number of answers A.
        embed_dim (int, optional): channels of the attention. Defaults to ``question_dim``.
        mask_words (bool): as in :class:`BANHead`. Defaults to False.
        hidden_dim (int): as in :class:`mmattn.layers.CoAttention`. Defaults to 512.
        dropout (float): as in :class:`mmattn.layers.CoAttention`. Defaults to 0.2.
        classifier_dropout (float): dropout probability of the hidden channels. Defaults to 0.5.

    Raises:
        TypeError, ValueError: an option is invalid.

    Example:
        >>> head = CoAttentionHead(16, 32, num_answers=5)
        >>> question = EncodedQuestion(torch.randn(3, 14, 16), torch.randn(3, 16), torch.zeros(3, 14, dtype=torch.bool))
        >>> logits, maps = head(question, torch.randn(3, 36, 32), need_weights=True)
        >>> logits.shape, maps.shape
        (torch.Size([3, 5]), torch.Size([3, 1, 14, 36]))
    """

    def __init__(
        self,
        question_dim: int,
        region_dim: int,
        num_answers: int,
        embed_dim: int | None = None,
        mask_words: bool = False,
        hidden_dim: int = 512,
        dropout: float = 0.2,
        classifier_dropout: float = 0.5,
    ) -> None:
        super().__init__()
        embed_dim = question_dim if embed_dim is None else embed_dim
        self.mask_words = mask_words
        self.attention = CoAttention(question_dim, region_dim, embed_dim, hidden_dim, dropout)
        self.classifier = answer_classifier(embed_dim, 2 * embed_dim, num_answers, classifier_dropout)

    def fuse(
        self, question: EncodedQuestion, regions: Tensor, mask: Tensor | None, boxes: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of the attention, and βαᵀ, ``(B, 1, L, K)``: β are the weights of words, α of regions."""
        words = question.mask if self.mask_words else None
        fused, weights = self.attention(question.words, regions, words, mask, need_weights)
        maps = None if weights is None else torch.einsum('bi,bj->bij', *weights).unsqueeze(1)
        return fused, maps
