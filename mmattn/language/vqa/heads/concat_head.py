"""Answers without attention: the mean of the regions and the question."""

import torch
from torch import Tensor

from mmattn.language.vqa.question_encoder import EncodedQuestion
from mmattn.registry import MODELS

from .answer_head import AnswerHead
from .classifier import answer_classifier


def mean_region(regions: Tensor, region_mask: Tensor | None) -> Tensor:
    """Return the mean of the valid regions ``(B, K, M)``, ``(B, M)``; 0 for an image without one.

    Example:
        >>> mean_region(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[False, False, True]]))
        tensor([[2.]])
    """
    if region_mask is None:
        return regions.sum(1) / max(1, regions.shape[1])
    count = (~region_mask).sum(1, keepdim=True).clamp(min=1)
    return regions.masked_fill(region_mask.unsqueeze(-1), 0).sum(1) / count


@MODELS.register_module()
class ConcatHead(AnswerHead):
    """A classifier that reads the mean of the valid regions and the question's last state. A baseline.

    Args:
        question_dim (int): channels N of the question.
        region_dim (int): channels M of the regions.
        num_answers (int): number of answers A.
        hidden_dim (int, optional): hidden channels of the classifier. Defaults to 2N.
        classifier_dropout (float): dropout probability of the hidden channels. Defaults to 0.5.

    Raises:
        TypeError, ValueError: an option is invalid.

    Example:
        >>> head = ConcatHead(16, 32, num_answers=5)
        >>> question = EncodedQuestion(torch.randn(3, 14, 16), torch.randn(3, 16), torch.zeros(3, 14, dtype=torch.bool))
        >>> head(question, torch.randn(3, 36, 32))[0].shape
        torch.Size([3, 5])
    """

    reads_question = reads_regions = True

    def __init__(
        self,
        question_dim: int,
        region_dim: int,
        num_answers: int,
        hidden_dim: int | None = None,
        classifier_dropout: float = 0.5,
    ) -> None:
        super().__init__()
        in_dim = question_dim * self.reads_question + region_dim * self.reads_regions
        hidden_dim = 2 * question_dim if hidden_dim is None else hidden_dim
        self.classifier = answer_classifier(in_dim, hidden_dim, num_answers, classifier_dropout)

    def fuse(
        self, question: EncodedQuestion, regions: Tensor, mask: Tensor | None, boxes: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, None]:
        """Return what the classifier reads, and None."""
        read = [mean_region(regions, mask)] if self.reads_regions else []
        if self.reads_question:
            read.append(question.state)
        return torch.cat(read, -1), None
