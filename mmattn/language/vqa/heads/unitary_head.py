"""Answers by attention of the whole question to regions."""

from torch import Tensor

from mmattn.language.layers.unitary_attention import UnitaryAttention
from mmattn.language.vqa.question_encoder import EncodedQuestion
from mmattn.registry import MODELS

from .answer_head import AnswerHead
from .classifier import answer_classifier


@MODELS.register_module()
class UnitaryHead(AnswerHead):
    """Attention of the question's last state to the regions, and a classifier of twice the channels.

    Source: "Bilinear Attention Networks", 2018, a baseline of Table 2.

    Args:
        question_dim (int): channels N of the question.
        region_dim (int): channels M of the regions.
        num_answers (int): number of answers A.
        embed_dim (int, optional): channels of the attention. Defaults to ``question_dim``.
        dropout (float): as in :class:`mmattn.layers.UnitaryAttention`. Defaults to 0.2.
        classifier_dropout (float): dropout probability of the hidden channels. Defaults to 0.5.

    Raises:
        TypeError, ValueError: an option is invalid.

    Example:
        >>> head = UnitaryHead(16, 32, num_answers=5)
        >>> question = EncodedQuestion(torch.randn(3, 14, 16), torch.randn(3, 16), torch.zeros(3, 14, dtype=torch.bool))
        >>> logits, weights = head(question, torch.randn(3, 36, 32), need_weights=True)
        >>> logits.shape, weights.shape
        (torch.Size([3, 5]), torch.Size([3, 1, 36]))
    """

    def __init__(
        self,
        question_dim: int,
        region_dim: int,
        num_answers: int,
        embed_dim: int | None = None,
        dropout: float = 0.2,
        classifier_dropout: float = 0.5,
    ) -> None:
        super().__init__()
        embed_dim = question_dim if embed_dim is None else embed_dim
        self.attention = UnitaryAttention(question_dim, region_dim, embed_dim, dropout)
        self.classifier = answer_classifier(embed_dim, 2 * embed_dim, num_answers, classifier_dropout)

    def fuse(
        self, question: EncodedQuestion, regions: Tensor, mask: Tensor | None, boxes: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of the attention, and the weights of the regions, ``(B, 1, K)``."""
        fused, weights = self.attention(question.state, regions, mask, need_weights)
        return fused, None if weights is None else weights.unsqueeze(1)
