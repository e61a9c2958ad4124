"""Answers that ignore the image."""

from mmattn.registry import MODELS

from .concat_head import ConcatHead


@MODELS.register_module()
class QuestionOnlyHead(ConcatHead):
    """A classifier that reads the question's last state alone: what the language says about the answer. A baseline.

    Arguments are those of :class:`ConcatHead`.

    Example:
        >>> import torch
        >>> from mmattn.language.vqa import EncodedQuestion
        >>> head = QuestionOnlyHead(16, 32, num_answers=5)
        >>> question = EncodedQuestion(torch.randn(3, 14, 16), torch.randn(3, 16), torch.zeros(3, 14, dtype=torch.bool))
        >>> head(question, torch.randn(3, 36, 32))[0].shape
        torch.Size([3, 5])
    """

    reads_regions = False
