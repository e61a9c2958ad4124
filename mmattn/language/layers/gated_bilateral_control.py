"""Gated bilateral controller (GBC): the gate between visual and semantic information."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mmattn.registry import MODELS
from mmattn.utils.checks import check_count

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    'identity': torch.positive,
    'relu': torch.relu,
    'tanh': torch.tanh,
    'sigmoid': torch.sigmoid,
}


@MODELS.register_module()
class GatedBilateralController(nn.Module):
    """Combine visual and semantic information by a gate that reads the query and its guidance.

    c = sigmoid(W_c [g_s; g_v; a] + b_c), e = f(v) ⊙ c + f(s) ⊙ (1 − c) (Eq. 2.12). The gate is initialised to
    Xavier-uniform weights and a bias of 0.

    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, University of Technology Sydney,
    2021, section 2.4.4.

    Args:
        embed_dim (int): channels E.
        activation (str): f: 'identity', 'relu', 'tanh' or 'sigmoid' (Table 2.6). Defaults to 'identity'.
        residual (bool): return LN(a + e) in place of e, with a layer norm. Defaults to False.

    Raises:
        TypeError: ``embed_dim`` is not an integer.
        ValueError: ``embed_dim`` is below 1, or ``activation`` is unknown.

    Example:
        >>> control = GatedBilateralController(16)
        >>> a, semantic_guide, visual_guide, visual, semantic = torch.randn(5, 2, 7, 16)
        >>> control(a, semantic_guide, visual_guide, visual, semantic).shape
        torch.Size([2, 7, 16])
    """

    def __init__(self, embed_dim: int, activation: str = 'identity', residual: bool = False) -> None:
        super().__init__()
        check_count('embed_dim', embed_dim)
        if activation not in ACTIVATIONS:
            raise ValueError(f'activation must be one of {tuple(ACTIVATIONS)}; got {activation!r}')
        self.activation = activation
        self.gate = nn.Linear(3 * embed_dim, embed_dim)
        nn.init.xavier_uniform_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)
        self.norm = nn.LayerNorm(embed_dim) if residual else None

    def forward(
        self, query: Tensor, semantic_guide: Tensor, visual_guide: Tensor, visual: Tensor, semantic: Tensor
    ) -> Tensor:
        """Return e, ``(*, E)``.

        Args:
            query (Tensor): a, float ``(*, E)``.
            semantic_guide, visual_guide (Tensor): g_s and g_v, float ``(*, E)``.
            visual, semantic (Tensor): v and s, float ``(*, E)``.
        """
        c = self.gate(torch.cat([semantic_guide, visual_guide, query], -1)).sigmoid()
        f = ACTIVATIONS[self.activation]
        e = f(visual) * c + f(semantic) * (1 - c)
        return e if self.norm is None else self.norm(query + e)
