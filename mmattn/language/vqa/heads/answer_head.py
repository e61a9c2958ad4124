"""The arguments of all heads."""

from collections.abc import Callable

from torch import Tensor, nn

from mmattn.language.vqa.question_encoder import EncodedQuestion


class AnswerHead(nn.Module):
    """Base of heads that fuse question and regions, and classify the result.

    A subclass sets ``classifier``, and defines ``fuse``, which has the arguments of :meth:`forward`.
    """

    reads_boxes = False
    classifier: nn.Module
    fuse: Callable[..., tuple[Tensor, Tensor | None]]

    def forward(
        self,
        question: EncodedQuestion,
        regions: Tensor,
        region_mask: Tensor | None = None,
        boxes: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the logits of the answers, ``(B, A)``, and the weights that ``fuse`` returns.

        Args:
            question (EncodedQuestion): the encoded questions.
            regions (Tensor): float ``(B, K, M)``.
            region_mask (Tensor, optional): bool ``(B, K)``, True where a region is padding.
            boxes (Tensor, optional): float ``(B, K, 4)``, over width and height of the image; used if ``reads_boxes``.
            need_weights (bool): also return the weights of a head with attention; otherwise None. Defaults to False.
        """
        fused, weights = self.fuse(question, regions, region_mask, boxes if self.reads_boxes else None, need_weights)
        return self.classifier(fused), weights
