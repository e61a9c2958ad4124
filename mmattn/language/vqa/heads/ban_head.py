"""Answers by a bilinear attention network."""

from typing import Any

from torch import Tensor

from mmattn.language.layers.bilinear_attention_network import BilinearAttentionNetwork
from mmattn.language.vqa.question_encoder import EncodedQuestion
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count

from .answer_head import AnswerHead
from .classifier import answer_classifier


@MODELS.register_module()
class BANHead(AnswerHead):
    """Bilinear attention between the words of a question and the regions of an image (BAN), and a classifier.

    The classifier has 2N hidden channels, N those of the words.

    Source: "Bilinear Attention Networks", 2018, section 3, and its published code.

    Args:
        question_dim (int): channels N of the words.
        region_dim (int): channels M of the regions.
        num_answers (int): number of answers A.
        mask_words (bool): exclude padding after the words from the attention maps and from the sum of the words. The
            published code does not: its answer depends on the length to which questions are padded. Defaults to False.
        test_glimpses (int, optional): in evaluation, use only the first so many glimpses (Fig. 2c). Defaults to all.
        classifier_dropout (float): dropout probability of the hidden channels. Defaults to 0.5.
        **network: options of :class:`mmattn.layers.BilinearAttentionNetwork`, such as ``num_glimpses``, ``mode``,
            ``counter`` and ``recompute``.

    Raises:
        TypeError, ValueError: an option is invalid, or ``test_glimpses`` is more than ``num_glimpses``.

    Example:
        >>> head = BANHead(16, 32, num_answers=5, num_glimpses=2)
        >>> question = EncodedQuestion(torch.randn(3, 14, 16), torch.randn(3, 16), torch.zeros(3, 14, dtype=torch.bool))
        >>> logits, maps = head(question, torch.randn(3, 36, 32), need_weights=True)
        >>> logits.shape, maps.shape
        (torch.Size([3, 5]), torch.Size([3, 2, 14, 36]))
    """

    def __init__(
        self,
        question_dim: int,
        region_dim: int,
        num_answers: int,
        mask_words: bool = False,
        test_glimpses: int | None = None,
        classifier_dropout: float = 0.5,
        **network: Any,
    ) -> None:
        super().__init__()
        self.network = BilinearAttentionNetwork(question_dim, region_dim, **network)
        glimpses = self.network.num_glimpses
        if test_glimpses is not None:
            check_count('test_glimpses', test_glimpses)
            if test_glimpses > glimpses or (test_glimpses < glimpses and self.network.mode == 'concat'):
                raise ValueError(
                    f'test_glimpses must be at most num_glimpses={glimpses}, and equal to it with concat; '
                    f'got {test_glimpses}'
                )
        self.mask_words, self.test_glimpses = mask_words, test_glimpses
        self.reads_boxes = self.network.counter is not None
        fused = question_dim * (glimpses if self.network.mode == 'concat' else 1)
        self.classifier = answer_classifier(fused, 2 * question_dim, num_answers, classifier_dropout)

    def fuse(
        self, question: EncodedQuestion, regions: Tensor, mask: Tensor | None, boxes: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of the network, and the maps A, ``(B, G, L, K)``."""
        words = question.mask if self.mask_words else None
        count = None if self.training else self.test_glimpses
        return self.network(question.words, regions, words, mask, boxes, count, need_weights)
