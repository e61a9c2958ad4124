"""Answers by fusion: of the question with each region, for attention, and with the attended regions."""

import torch
from torch import Tensor, nn

from mmattn.language.layers.packed_positions import PackedPositions
from mmattn.language.layers.unitary_attention import attend
from mmattn.language.vqa.question_encoder import EncodedQuestion
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count, check_divisor, check_number

from .answer_head import AnswerHead


class _Projection(nn.Sequential):
    """tanh Lin(dropout(x))."""

    def __init__(self, in_dim: int, out_dim: int, dropout: float) -> None:
        super().__init__(nn.Dropout(dropout), nn.Linear(in_dim, out_dim), nn.Tanh())


@MODELS.register_module()
class FusionHead(AnswerHead):
    """Attention to regions and classification of answers, both by a fusion of two vectors, such as MUTAN.

    1. The question's last state q is fused with each region v_j: α_g = softmax_j Lin(dropout(fusion(q̃, ṽ_j))), for G
       glimpses, with q̃ = tanh Lin(dropout(q)) and ṽ alike.
    2. q is fused with the attended regions Σ_j α_gj v_j, each with its own projection, concatenated.
    3. The answer is Lin(dropout(u)) of the second fusion u.

    With the default options it has 8,379,912 parameters, for MUTAN as for nonlinearity ensembles, feature gating and
    polarity swap.

    Source: "Attention and Fusion of Deep Representations for Computer Vision", master's thesis, University of Guelph,
    2020, section 3.3, and the published code of MUTAN.

    Args:
        question_dim (int): channels of the question.
        region_dim (int): channels M of the regions.
        num_answers (int): number of answers A.
        fusion (dict): config of the second fusion, without its channels. Defaults to ``mmattn.HadamardFusion``, which
            is MUTAN.
        attention_fusion (dict, optional): config of the first fusion. Defaults to that of the second.
        query_dim (int): channels of q̃. Defaults to 310.
        value_dim (int): channels of ṽ_j in the attention. Defaults to 310.
        pooled_dim (int): channels of all attended regions together; G divides it. Defaults to 620.
        out_dim (int): channels of both fusions. Defaults to 510.
        num_glimpses (int): G. Defaults to 2.
        project (bool): fuse q̃ and ṽ; if False, q and v themselves, as MCB does. Defaults to True.
        dropout (float): dropout probability, from 0 to 1. Defaults to 0.5.

    Raises:
        KeyError: the type of a fusion is unknown.
        TypeError: a number of channels is not an integer, or ``dropout`` is not a number.
        ValueError: a number of channels is below 1, ``num_glimpses`` does not divide ``pooled_dim``, or an option of a
            fusion is invalid.

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
    ) -> None:
        super().__init__()
        for name, number in (('query_dim', query_dim), ('value_dim', value_dim), ('out_dim', out_dim)):
            check_count(name, number)
        check_divisor('num_glimpses', num_glimpses, 'pooled_dim', pooled_dim)
        check_number('dropout', dropout, 0, 1)
        self.attention_query: nn.Module
        self.attention_value: nn.Module
        self.query: nn.Module
        if project:
            self.attention_query, self.query = (_Projection(question_dim, query_dim, dropout) for _ in range(2))
            self.attention_value = _Projection(region_dim, value_dim, dropout)
            part = pooled_dim // num_glimpses
            self.values = nn.ModuleList(_Projection(region_dim, part, dropout) for _ in range(num_glimpses))
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
        """Return u, and α, ``(B, G, K)``. For an image without regions, α and the attended regions are 0."""
        packed = PackedPositions(regions, mask)
        values = packed.padded(self.attention_value(packed.rows))
        fused = self.attention_fusion(self.attention_query(question.state).unsqueeze(1), values)
        attended, weights = attend(regions, self.glimpses(fused).mT, mask)
        pooled = torch.cat([project(x) for project, x in zip(self.values, attended.unbind(1))], -1)
        return self.fusion(self.query(question.state), pooled), weights if need_weights else None
