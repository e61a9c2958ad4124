"""Entangled attention (ETA): attention to two memories, each guided by the other, and the gate between the two."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_count, check_fraction

from .bilateral_multihead import BilateralMultiheadAttention
from .linear_layers import init_xavier
from .sequence_checks import State, check_sequence

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    'identity': torch.positive,
    'relu': torch.relu,
    'tanh': torch.tanh,
    'sigmoid': torch.sigmoid,
}


@MODELS.register_module()
class GatedBilateralController(nn.Module):
    """Combine visual and semantic information by a gate that reads the query and its guidance.

    c = sigmoid(W_c [g_s; g_v; a] + b_c), e = f(v) ⊙ c + f(s) ⊙ (1 − c) (Eq. 2.12). The gate starts with Xavier-uniform
    weights and a bias of 0.

    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, UTS, 2021, section 2.4.4.

    Args:
        embed_dim (int): channels E.
        activation (str): f: 'identity', 'relu', 'tanh' or 'sigmoid' (Table 2.6). Defaults to 'identity'.
        residual (bool): return LN(a + e) in place of e, with a layer norm. Defaults to False.

    Example:
        >>> control = GatedBilateralController(16)
        >>> a, semantic_guide, visual_guide, visual, semantic = torch.randn(5, 2, 7, 16)
        >>> control(a, semantic_guide, visual_guide, visual, semantic).shape
        torch.Size([2, 7, 16])
    """

    def __init__(self, embed_dim: int, activation: str = 'identity', residual: bool = False) -> None:
        super().__init__()
        check_count('embed_dim', embed_dim)
        check_choice('activation', activation, ACTIVATIONS)
        self.activation = activation
        self.gate = nn.Linear(3 * embed_dim, embed_dim)
        init_xavier(self.gate)
        self.norm = nn.LayerNorm(embed_dim) if residual else None

    def forward(
        self, query: Tensor, semantic_guide: Tensor, visual_guide: Tensor, visual: Tensor, semantic: Tensor
    ) -> Tensor:
        """Mix v and s. The arguments a, g_s, g_v, v and s and the result e are float ``(*, E)``."""
        c = self.gate(torch.cat([semantic_guide, visual_guide, query], -1)).sigmoid()
        f = ACTIVATIONS[self.activation]
        e = f(visual) * c + f(semantic) * (1 - c)
        return e if self.norm is None else self.norm(query + e)


CONTROLLER = dict(type='mmattn.GatedBilateralController')
# name: (query, memory), in the order of computation
SUBLAYERS = {
    'semantic_guide': ('query', 'semantic'),  # g_s
    'visual': ('semantic_guide', 'visual'),  # v
    'visual_guide': ('query', 'visual'),  # g_v
    'semantic': ('visual_guide', 'semantic'),  # s
}
MODES = {
    'entangled': tuple(SUBLAYERS),
    'parallel': ('semantic_guide', 'visual_guide'),
    'stacked_v': ('semantic_guide', 'visual'),
    'stacked_s': ('visual_guide', 'semantic'),
}


class GuidedAttention(nn.Module):
    """LN(x + dropout(MHA(x, memory, memory)))."""

    def __init__(self, embed_dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = BilateralMultiheadAttention(embed_dim, num_heads, position='none')
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(embed_dim)

    def forward(self, x: Tensor, memory: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Attend from ``x`` ``(B, L, E)`` to ``memory`` ``(B, M, E)``."""
        return self.norm(x + self.dropout(self.attention(x, memory, memory, padding_mask)[0]))

    def step(self, x: Tensor, state: State, position: int) -> Tensor:
        """Decode one more token ``(n, 1, E)``."""
        return self.norm(x + self.dropout(self.attention.step(x, state, position)[0]))


@MODELS.register_module()
class EntangledAttention(nn.Module):
    """Attend from a decoder to the regions V and the attributes S of an image in both orders, and mix the results.

    With the output a of the self-attention and A(x, M) = LN(x + MHA(x, M, M)), each A with its own weights:

        g_s = A(a, S),  v = A(g_s, V)   (Eq. 2.9, 2.10)
        g_v = A(a, V),  s = A(g_v, S)
        e = GBC(a, g_s, g_v, v, s)      (Eq. 2.11, 2.12)

    It replaces the attention of a decoder layer to the encoder, with its residual and norm. The layer continues with
    LN(e + FFN(e)). If an image has no attributes, MHA is the bias of its ``out_proj``.

    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, UTS, 2021, section 2.4.3.

    Args:
        embed_dim (int): channels E.
        num_heads (int): number of heads, a divisor of E.
        mode (str): 'entangled', or a mode of Table 2.5: 'parallel' with e = GBC(a, g_s, g_v, g_v, g_s), 'stacked_v'
            with e = v, or 'stacked_s' with e = s. Only the attention that a mode requires is built. Defaults to
            'entangled'.
        controller (dict): config of the gate without ``embed_dim``, such as ``dict(activation='relu')``. The stacked
            modes have no gate. Its ``type`` defaults to ``GatedBilateralController``.
        dropout (float): dropout probability of the output of each MHA, from 0 to 1. Defaults to 0.1.

    Example:
        >>> attention = EntangledAttention(16, num_heads=4)
        >>> a, regions, attributes = torch.randn(2, 7, 16), torch.randn(2, 30, 16), torch.randn(2, 5, 16)
        >>> attention(a, regions, attributes).shape
        torch.Size([2, 7, 16])
    """

    sublayers: Any  # an nn.ModuleDict

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        mode: str = 'entangled',
        controller: dict = CONTROLLER,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        check_choice('mode', mode, MODES)
        check_fraction('dropout', dropout)
        self.embed_dim = embed_dim
        self.mode = mode
        self.sublayers = nn.ModuleDict({name: GuidedAttention(embed_dim, num_heads, dropout) for name in MODES[mode]})
        self.controller = None
        if mode in ('entangled', 'parallel'):
            self.controller = MODELS.build({**CONTROLLER, **controller, 'embed_dim': embed_dim})

    def forward(
        self,
        query: Tensor,
        visual: Tensor,
        semantic: Tensor,
        visual_padding_mask: Tensor | None = None,
        semantic_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend from a, ``(B, L, E)``, to V, ``(B, M, E)``, and S, ``(B, n_s, E)``. Returns e, ``(B, L, E)``.

        All are float, and n_s may be 0. The padding masks are bool ``(B, M)`` and ``(B, n_s)``, True at padding.
        """
        memories = dict(visual=(visual, visual_padding_mask), semantic=(semantic, semantic_padding_mask))
        for name, x in (('query', query), ('visual', visual), ('semantic', semantic)):
            check_sequence(name, x, self.embed_dim)
        outputs = {'query': query}
        for name, sublayer in self.sublayers.items():
            source, memory = SUBLAYERS[name]
            outputs[name] = sublayer(outputs[source], *memories[memory])
        return self._combined(outputs)

    def start(
        self,
        visual: Tensor,
        semantic: Tensor,
        visual_padding_mask: Tensor | None = None,
        semantic_padding_mask: Tensor | None = None,
    ) -> State:
        """Project the memories of S images. Returns the state for incremental decoding with :meth:`step`.

        Arguments are as in :meth:`forward`, with S in place of B. Tensors of the state have S as first dimension.
        """
        memories = dict(visual=(visual, visual_padding_mask), semantic=(semantic, semantic_padding_mask))
        for name, x in (('visual', visual), ('semantic', semantic)):
            check_sequence(name, x, self.embed_dim)
        return {
            f'{name}.{key}': x
            for name, sublayer in self.sublayers.items()
            for key, x in sublayer.attention.start(*memories[SUBLAYERS[name][1]]).items()
        }

    def step(self, x: Tensor, state: State, position: int) -> tuple[Tensor, State]:
        """Decode one more token ``(n, 1, E)`` of n hypotheses. Returns e, ``(n, 1, E)``, and the unchanged state.

        The n / S hypotheses of an image are adjacent. ``position`` counts from 0.
        """
        outputs = {'query': x}
        for name, sublayer in self.sublayers.items():
            sublayer_state = {key.partition('.')[2]: y for key, y in state.items() if key.partition('.')[0] == name}
            outputs[name] = sublayer.step(outputs[SUBLAYERS[name][0]], sublayer_state, position)
        return self._combined(outputs), state

    def _combined(self, outputs: dict[str, Tensor]) -> Tensor:
        if self.controller is None:
            return outputs[MODES[self.mode][-1]]
        guides = outputs['semantic_guide'], outputs['visual_guide']
        visual, semantic = outputs.get('visual', guides[1]), outputs.get('semantic', guides[0])
        return self.controller(outputs['query'], *guides, visual, semantic)
