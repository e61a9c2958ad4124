"""Heads that answer a question from its encoded words and the regions of an image."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mmattn.language.layers.bilinear_attention_network import BilinearAttentionNetwork
from mmattn.language.layers.linear_layers import PackedPositions, weight_norm_linear
from mmattn.language.layers.unitary_attention import CoAttention, UnitaryAttention, attend
from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_counts, check_divisor, check_fraction

from .encoders import EncodedQuestion


class AnswerHead(nn.Module):
    """Base of heads that fuse question and regions, and classify the result.

    A subclass sets ``classifier``, and defines ``fuse``, which has the arguments of :meth:`forward`. ``has_weights`` is
    False if it has no attention.

    Args:
        question_dim (int): channels N of the words and of the question's last state.
        region_dim (int): channels M of the regions.
        num_answers (int): number of answers A.
        classifier_dropout (float): dropout probability of the classifier's hidden channels. Defaults to 0.5.
    """

    reads_boxes = False
    has_weights = True
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
        """Compute the logits of the answers, ``(B, A)``, and the attention weights, or None.

        Args:
            question (EncodedQuestion): the encoded questions.
            regions (Tensor): float ``(B, K, M)``.
            region_mask (Tensor, optional): bool ``(B, K)``, True where a region is padding.
            boxes (Tensor, optional): float ``(B, K, 4)``, over width and height of the image, if ``reads_boxes``.
            need_weights (bool): also return the weights, if the head has attention. Defaults to False.
        """
        fused, weights = self.fuse(question, regions, region_mask, boxes if self.reads_boxes else None, need_weights)
        return self.classifier(fused), weights


def answer_classifier(in_dim: int, hidden_dim: int, num_answers: int, dropout: float) -> nn.Sequential:
    """Build Lin(dropout(σLin(x))), with weight norm, as the published code of the bilinear attention network does."""
    return nn.Sequential(
        weight_norm_linear(in_dim, hidden_dim, 0.0), weight_norm_linear(hidden_dim, num_answers, dropout, relu=False)
    )


@MODELS.register_module()
class BANHead(AnswerHead):
    """Answer by bilinear attention (BAN) between words and regions. The classifier has 2N hidden channels.

    Source: "Bilinear Attention Networks", 2018, section 3, and its published code.

    Args:
        question_dim, region_dim, num_answers, classifier_dropout: as in :class:`AnswerHead`, which defines N.
        mask_words (bool): exclude padding after the words from the attention maps and the sum of the words. Defaults to
            False, as in the published code: answers then depend on the length to which questions are padded.
        test_glimpses (int, optional): in evaluation, use only the first glimpses (Fig. 2c). Defaults to all.
        **network: options of :class:`mmattn.language.layers.BilinearAttentionNetwork`, such as ``num_glimpses``,
            ``mode``, ``counter`` and ``recompute``.

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
        self.mask_words = mask_words
        self.test_glimpses = self.network.check_glimpses('test_glimpses', test_glimpses)
        self.reads_boxes = self.network.counter is not None
        fused = question_dim * (self.network.num_glimpses if self.network.mode == 'concat' else 1)
        self.classifier = answer_classifier(fused, 2 * question_dim, num_answers, classifier_dropout)

    def fuse(
        self, question: EncodedQuestion, regions: Tensor, mask: Tensor | None, boxes: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Run the network. The weights are the maps A, ``(B, G, L, K)``."""
        words = question.mask if self.mask_words else None
        count = None if self.training else self.test_glimpses
        return self.network(question.words, regions, words, mask, boxes, count, need_weights)


@MODELS.register_module()
class UnitaryHead(AnswerHead):
    """Answer by attention of the question's last state to the regions. The classifier has twice the channels.

    Source: "Bilinear Attention Networks", 2018, a baseline of Table 2.

    Args:
        question_dim, region_dim, num_answers, classifier_dropout: as in :class:`AnswerHead`.
        embed_dim (int, optional): channels of the attention. Defaults to ``question_dim``.
        **attention: ``dropout`` of :class:`mmattn.language.layers.UnitaryAttention`.

    Example:
        >>> head = UnitaryHead(16, 32, num_answers=5)
        >>> question = EncodedQuestion(torch.randn(3, 14, 16), torch.randn(3, 16), torch.zeros(3, 14, dtype=torch.bool))
        >>> logits, weights = head(question, torch.randn(3, 36, 32), need_weights=True)
        >>> logits.shape, weights.shape
        (torch.Size([3, 5]), torch.Size([3, 1, 36]))
    """

    layer: type[nn.Module] = UnitaryAttention

    def __init__(
        self,
        question_dim: int,
        region_dim: int,
        num_answers: int,
        embed_dim: int | None = None,
        *,
        classifier_dropout: float = 0.5,
        **attention: Any,
    ) -> None:
        super().__init__()
        embed_dim = question_dim if embed_dim is None else embed_dim
        self.attention = self.layer(question_dim, region_dim, embed_dim, **attention)
        self.classifier = answer_classifier(embed_dim, 2 * embed_dim, num_answers, classifier_dropout)

    def fuse(
        self, question: EncodedQuestion, regions: Tensor, mask: Tensor | None, boxes: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to the regions. Their weights are ``(B, 1, K)``."""
        fused, weights = self.attention(question.state, regions, mask, need_weights)
        return fused, None if weights is None else weights.unsqueeze(1)


@MODELS.register_module()
class CoAttentionHead(UnitaryHead):
    """Attend to the words by themselves, then from their sum to the regions. The classifier has twice the channels.

    Source: "Bilinear Attention Networks", 2018, a baseline of Table 2.

    Args:
        mask_words (bool): as in :class:`BANHead`. Defaults to False.
        ``*args``, ``**kwargs``: as in :class:`UnitaryHead`, with the options of
            :class:`mmattn.language.layers.CoAttention`.

    Example:
        >>> head = CoAttentionHead(16, 32, num_answers=5)
        >>> question = EncodedQuestion(torch.randn(3, 14, 16), torch.randn(3, 16), torch.zeros(3, 14, dtype=torch.bool))
        >>> logits, maps = head(question, torch.randn(3, 36, 32), need_weights=True)
        >>> logits.shape, maps.shape
        (torch.Size([3, 5]), torch.Size([3, 1, 14, 36]))
    """

    layer = CoAttention

    def __init__(self, *args: Any, mask_words: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.mask_words = mask_words

    def fuse(
        self, question: EncodedQuestion, regions: Tensor, mask: Tensor | None, boxes: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to words and regions. The weights are βαᵀ, ``(B, 1, L, K)``, with β for words and α for regions."""
        words = question.mask if self.mask_words else None
        fused, weights = self.attention(question.words, regions, words, mask, need_weights)
        maps = None if weights is None else torch.einsum('bi,bj->bij', *weights).unsqueeze(1)
        return fused, maps


def mean_region(regions: Tensor, region_mask: Tensor | None) -> Tensor:
    """Average the valid regions ``(B, K, M)``. Returns ``(B, M)``, 0 for an image without regions."""
    if region_mask is None:
        return regions.sum(1) / max(1, regions.shape[1])
    count = (~region_mask).sum(1, keepdim=True).clamp(min=1)
    return regions.masked_fill(region_mask.unsqueeze(-1), 0).sum(1) / count


@MODELS.register_module()
class ConcatHead(AnswerHead):
    """Classify the mean of the valid regions together with the question's last state. A baseline.

    Args:
        question_dim, region_dim, num_answers, classifier_dropout: as in :class:`AnswerHead`.
        hidden_dim (int, optional): hidden channels of the classifier. Defaults to 2N.

    Example:
        >>> head = ConcatHead(16, 32, num_answers=5)
        >>> question = EncodedQuestion(torch.randn(3, 14, 16), torch.randn(3, 16), torch.zeros(3, 14, dtype=torch.bool))
        >>> head(question, torch.randn(3, 36, 32))[0].shape
        torch.Size([3, 5])
    """

    has_weights = False
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
        """Concatenate what the classifier reads. There are no weights."""
        read = [mean_region(regions, mask)] if self.reads_regions else []
        if self.reads_question:
            read.append(question.state)
        return torch.cat(read, -1), None


@MODELS.register_module()
class ImageOnlyHead(ConcatHead):
    """Classify the mean of the valid regions alone. A baseline with the arguments of :class:`ConcatHead`.

    Example:
        >>> head = ImageOnlyHead(16, 32, num_answers=5)
        >>> question = EncodedQuestion(torch.randn(3, 14, 16), torch.randn(3, 16), torch.zeros(3, 14, dtype=torch.bool))
        >>> head(question, torch.randn(3, 36, 32))[0].shape
        torch.Size([3, 5])
    """

    reads_question = False


@MODELS.register_module()
class QuestionOnlyHead(ConcatHead):
    """Classify the question's last state alone: what the language says about the answer. See :class:`ConcatHead`.

    Example:
        >>> head = QuestionOnlyHead(16, 32, num_answers=5)
        >>> question = EncodedQuestion(torch.randn(3, 14, 16), torch.randn(3, 16), torch.zeros(3, 14, dtype=torch.bool))
        >>> head(question, torch.randn(3, 36, 32))[0].shape
        torch.Size([3, 5])
    """

    reads_regions = False


def _projection(in_dim: int, out_dim: int, dropout: float, activation: str) -> nn.Sequential:
    """Build f(Lin(dropout(x)))."""
    layers = nn.Dropout(dropout), nn.Linear(in_dim, out_dim)
    return nn.Sequential(*layers, nn.Tanh()) if activation == 'tanh' else nn.Sequential(*layers)


@MODELS.register_module()
class FusionHead(AnswerHead):
    """Attend to regions and classify answers, both by a fusion of two vectors, such as MUTAN.

    1. The question's last state q is fused with each region v_j: α_g = softmax_j Lin(dropout(fusion(q̃, ṽ_j))), for G
       glimpses, with q̃ = f(Lin(dropout(q))) and ṽ alike.
    2. q is fused with the attended regions Σ_j α_gj v_j, each with its own projection, concatenated.
    3. The answer is Lin(dropout(u)) of the second fusion u.

    With the default options, the head has 8,379,912 parameters, also with a nonlinearity ensemble, feature gating or
    polarity swap.

    Source: "Attention and Fusion of Deep Representations for Computer Vision", master's thesis, University of Guelph,
    2020, section 3.3, and the published code of MUTAN.

    Args:
        question_dim, region_dim, num_answers: as in :class:`AnswerHead`.
        fusion (dict): config of the second fusion, without its channels. Defaults to ``mmattn.HadamardFusion``, MUTAN.
        attention_fusion (dict, optional): config of the first fusion. Defaults to ``fusion``.
        query_dim, value_dim (int): channels of q̃, and of ṽ_j in the attention. Default to 310.
        pooled_dim (int): channels of all attended regions together, a multiple of G. Defaults to 620.
        out_dim (int): channels of both fusions. Defaults to 510.
        num_glimpses (int): G. Defaults to 2.
        project (bool): fuse q̃ and ṽ, or, if False, q and v themselves, as MCB does. Defaults to True.
        dropout (float): dropout probability, from 0 to 1. Defaults to 0.5.
        activation (str): f of q̃ and ṽ. 'identity' is as in Eq. 3.5 to 3.10, so that MUTAN is bilinear. Defaults to
            'tanh', as in the published code of MUTAN.

    Example:
        >>> head = FusionHead(16, 32, num_answers=5)
        >>> question = EncodedQuestion(torch.randn(3, 14, 16), torch.randn(3, 16), torch.zeros(3, 14, dtype=torch.bool))
        >>> logits, weights = head(question, torch.randn(3, 36, 32), need_weights=True)
        >>> logits.shape, weights.shape
        (torch.Size([3, 5]), torch.Size([3, 2, 36]))
    """

    def __init__(
        self,
        question_dim: int,
        region_dim: int,
        num_answers: int,
        fusion: dict = dict(type='mmattn.HadamardFusion'),
        attention_fusion: dict | None = None,
        query_dim: int = 310,
        value_dim: int = 310,
        pooled_dim: int = 620,
        out_dim: int = 510,
        num_glimpses: int = 2,
        project: bool = True,
        dropout: float = 0.5,
        activation: str = 'tanh',
    ) -> None:
        super().__init__()
        check_counts(query_dim=query_dim, value_dim=value_dim, out_dim=out_dim)
        check_divisor('num_glimpses', num_glimpses, 'pooled_dim', pooled_dim)
        check_fraction('dropout', dropout)
        check_choice('activation', activation, ('tanh', 'identity'))
        self.attention_query: nn.Module
        self.attention_value: nn.Module
        self.query: nn.Module
        if project:
            self.attention_query, self.query = (
                _projection(question_dim, query_dim, dropout, activation) for _ in range(2)
            )
            self.attention_value = _projection(region_dim, value_dim, dropout, activation)
            part = pooled_dim // num_glimpses
            self.values = nn.ModuleList(_projection(region_dim, part, dropout, activation) for _ in range(num_glimpses))
        else:
            query_dim, value_dim, pooled_dim = question_dim, region_dim, num_glimpses * region_dim
            self.attention_query = self.query = self.attention_value = nn.Identity()
            self.values = nn.ModuleList(nn.Identity() for _ in range(num_glimpses))
        self.attention_fusion, self.fusion = (
            MODELS.build({**cfg, 'query_dim': query_dim, 'value_dim': channels, 'out_dim': out_dim})
            for cfg, channels in (
                (fusion if attention_fusion is None else attention_fusion, value_dim),
                (fusion, pooled_dim),
            )
        )
        self.glimpses = nn.Sequential(nn.Dropout(dropout), nn.Linear(out_dim, num_glimpses))
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(out_dim, num_answers))

    def fuse(
        self, question: EncodedQuestion, regions: Tensor, mask: Tensor | None, boxes: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute u and the weights α, ``(B, G, K)``. Without regions, α and the attended regions are 0."""
        packed = PackedPositions(regions, mask)
        values = packed.padded(self.attention_value(packed.rows))
        fused = self.attention_fusion(self.attention_query(question.state).unsqueeze(1), values)
        attended, weights = attend(regions, self.glimpses(fused).mT, mask)
        pooled = torch.cat([project(x) for project, x in zip(self.values, attended.unbind(1))], -1)
        return self.fusion(self.query(question.state), pooled), weights if need_weights else None
