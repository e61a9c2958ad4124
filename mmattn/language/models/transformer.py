"""Encoder and decoder stacks of the Transformer. The config chooses their attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmattn.language.layers.linear_layers import init_xavier
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count

# The config of a sub-layer: a layer, several in sequence, or None for no sub-layer.
LayerConfig = dict | Sequence[dict] | None
# A layer of a stack has the interface of nn.MultiheadAttention(batch_first=True):
# `forward(query, key, value, key_padding_mask) -> (output, None)`; for decoding, `start` and `step` as in
# BilateralMultiheadAttention.
ATTENTION = dict(type='mmattn.BilateralMultiheadAttention', position='none')


@dataclass
class DecodingState:
    """State of a decoder for n hypotheses of S sentences. The n / S hypotheses of a sentence are adjacent."""

    position: int  # number of tokens so far
    hypotheses: list[list[dict[str, Tensor]]]  # per decoder layer, states of its self-attention layers: (n, …)
    sentences: list[dict[str, Tensor]]  # per decoder layer, keys and values of the encoder's output: (S, …)
    count: int  # n

    def reorder(self, index: Tensor) -> DecodingState:
        """Create a new state with the hypotheses ``index``, int64 ``(n')``: repeated, dropped or in another order.

        If the new hypotheses of a sentence are adjacent and equally many per sentence, they share keys and values.
        """

        def select(state: dict[str, Tensor], where: Tensor) -> dict[str, Tensor]:
            return {name: x.index_select(0, where) for name, x in state.items()}

        hypotheses = [[select(state, index) for state in layer] for layer in self.hypotheses]
        size = len(next(iter(self.sentences[0].values())))
        parent = index // (self.count // size)
        kept, counts = torch.unique_consecutive(parent, return_counts=True)
        if counts.min() != counts.max():
            kept = parent
        sentences = self.sentences
        if len(kept) != size or not torch.equal(kept, torch.arange(size, device=kept.device)):
            sentences = [select(state, kept) for state in sentences]
        return DecodingState(self.position, hypotheses, sentences, len(index))


class LayerSequence(nn.ModuleList):
    """Layers that follow each other in one sub-layer. ``common`` are arguments of all layers."""

    def __init__(self, config: dict | Sequence[dict], **common: Any) -> None:
        configs = [config] if isinstance(config, dict) else config
        super().__init__(MODELS.build({**common, **layer}) for layer in configs)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, **context: Any) -> Tensor:
        """Apply the layers to ``x`` ``(B, L, E)``."""
        layer: Any
        for layer in self:
            x, _ = layer(x, x, x, key_padding_mask=padding_mask, **context)
        return x

    def start(self) -> list[dict[str, Tensor]]:
        """List the states of the layers before the first token."""
        layers: Any = self
        return [layer.start() for layer in layers]

    def step(self, x: Tensor, states: list[dict], position: int) -> tuple[Tensor, list[dict]]:
        """Apply the layers to one more token ``(n, 1, E)``. Returns the output and the new states."""
        new_states = []
        layer: Any
        for layer, state in zip(self, states):
            x, state = layer.step(x, state, position)
            new_states.append(state)
        return x, new_states


class FeedForward(nn.Sequential):
    """Linear, ReLU, dropout, linear."""

    def __init__(self, embed_dim: int, feedforward_dim: int, dropout: float) -> None:
        first, last = nn.Linear(embed_dim, feedforward_dim), nn.Linear(feedforward_dim, embed_dim)
        super().__init__(first, nn.ReLU(), nn.Dropout(dropout), last)
        init_xavier(self)


class TransformerEncoderLayer(nn.Module):
    """Layer of an encoder: self-attention and a feed-forward network, each with dropout, residual and layer norm.

    With the default attention, it computes the same as ``nn.TransformerEncoderLayer`` with ``batch_first=True``.

    Args:
        embed_dim (int): channels E.
        num_heads (int): number of heads.
        feedforward_dim (int): channels between the two linear layers of the feed-forward network.
        self_attention (dict or sequence of dict, optional): config of the attention without ``embed_dim``,
            ``num_heads`` and ``is_causal``. Several layers follow each other. None removes the sub-layer. Defaults to
            attention by content.
        dropout (float): probability, in [0, 1). Defaults to 0.1.
        norm_first (bool): the norm precedes the sub-layer (pre-norm). Defaults to False.

    Example:
        >>> attention = dict(type='mmattn.BilateralMultiheadAttention', window_size=5)
        >>> layer = TransformerEncoderLayer(16, num_heads=4, feedforward_dim=32, self_attention=attention)
        >>> layer(torch.randn(3, 7, 16)).shape
        torch.Size([3, 7, 16])
    """

    is_causal = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        feedforward_dim: int,
        self_attention: LayerConfig = ATTENTION,
        dropout: float = 0.1,
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.norm_first = norm_first
        self.dropout = nn.Dropout(dropout)
        self.self_attention = None
        if self_attention is not None:
            self.self_attention = LayerSequence(
                self_attention, embed_dim=embed_dim, num_heads=num_heads, is_causal=self.is_causal
            )
            self.attention_norm = nn.LayerNorm(embed_dim)
        self.feedforward = FeedForward(embed_dim, feedforward_dim, dropout)
        self.feedforward_norm = nn.LayerNorm(embed_dim)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, **context: Any) -> Tensor:
        """Encode a whole sequence, or a set of regions, float ``(B, L, E)``, to the same shape.

        ``padding_mask`` is bool ``(B, L)``, True where ``x`` is padding. ``context`` contains further arguments of the
        attention, such as ``relative_geometry`` of ``RegionAttention``.
        """
        return self._transformed(self._attended(x, padding_mask, **context))

    def _attended(self, x: Tensor, padding_mask: Tensor | None, **context: Any) -> Tensor:
        if self.self_attention is None:
            return x
        norm = self.attention_norm
        return self._sum(x, self.self_attention(norm(x) if self.norm_first else x, padding_mask, **context), norm)

    def _transformed(self, x: Tensor) -> Tensor:
        norm = self.feedforward_norm
        return self._sum(x, self.feedforward(norm(x) if self.norm_first else x), norm)

    def _sum(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        x = x + self.dropout(y)
        return x if self.norm_first else norm(x)


class TransformerDecoderLayer(TransformerEncoderLayer):
    """Layer of a decoder: causal self-attention, attention to the encoder, and a feed-forward network.

    With the default attention, it computes the same as ``nn.TransformerDecoderLayer`` with ``batch_first=True`` and a
    causal mask. Further arguments: see :class:`TransformerEncoderLayer`.

    Args:
        cross_attention (dict): config of the attention to the encoder. Defaults to attention by content.

    Example:
        >>> layer = TransformerDecoderLayer(16, num_heads=4, feedforward_dim=32)
        >>> layer(torch.randn(3, 5, 16), memory=torch.randn(3, 7, 16)).shape
        torch.Size([3, 5, 16])
    """

    is_causal = True

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        feedforward_dim: int,
        self_attention: LayerConfig = ATTENTION,
        cross_attention: dict = ATTENTION,
        dropout: float = 0.1,
        norm_first: bool = False,
    ) -> None:
        super().__init__(embed_dim, num_heads, feedforward_dim, self_attention, dropout, norm_first)
        self.cross_attention = MODELS.build(dict(embed_dim=embed_dim, num_heads=num_heads, **cross_attention))
        self.cross_attention_norm = nn.LayerNorm(embed_dim)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor,
        padding_mask: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
        **context: Any,
    ) -> Tensor:
        """Decode a whole sequence ``(B, L, E)`` to the same shape.

        ``memory`` is the output of the encoder, float ``(B, M, E)``. ``memory_padding_mask`` is bool ``(B, M)``, True
        where ``memory`` is padding. Further arguments: see :meth:`TransformerEncoderLayer.forward`.
        """
        x = self._crossed(self._attended(x, padding_mask, **context), memory, memory_padding_mask)
        return self._transformed(x)

    def _crossed(self, x: Tensor, memory: Tensor, memory_padding_mask: Tensor | None) -> Tensor:
        norm = self.cross_attention_norm
        query = norm(x) if self.norm_first else x
        y, _ = self.cross_attention(query, memory, memory, key_padding_mask=memory_padding_mask)
        return self._sum(x, y, norm)

    def start(self, memory: Tensor, memory_padding_mask: Tensor | None) -> dict[str, Tensor]:
        """Compute keys and values of the encoder's output for :meth:`step`, all with S rows."""
        return self.cross_attention.start(memory, memory_padding_mask)

    def step(
        self, x: Tensor, states: list[dict], memory: dict[str, Tensor], position: int
    ) -> tuple[Tensor, list[dict]]:
        """Decode one more token ``(n, 1, E)``. Returns the output and the new state of the self-attention."""
        if self.self_attention is not None:
            norm = self.attention_norm
            y, states = self.self_attention.step(norm(x) if self.norm_first else x, states, position)
            x = self._sum(x, y, norm)
        return self._transformed(self._crossed_step(x, memory, position)), states

    def _crossed_step(self, x: Tensor, memory: dict[str, Tensor], position: int) -> Tensor:
        norm = self.cross_attention_norm
        y, _ = self.cross_attention.step(norm(x) if self.norm_first else x, memory, position)
        return self._sum(x, y, norm)


class _LayerStack(nn.Module):
    layers: Any  # an nn.ModuleList
    layer_type: type[nn.Module]

    def __init__(self, num_layers: int, layer: dict | Sequence[dict]) -> None:
        super().__init__()
        check_count('num_layers', num_layers)
        configs = [layer] * num_layers if isinstance(layer, dict) else layer
        if len(configs) != num_layers:
            raise ValueError(f'layer must be one config, or one per layer: {num_layers}; got {len(configs)}')
        self.layers = nn.ModuleList(self.layer_type(**config) for config in configs)
        last = self.layers[-1]
        self.norm = nn.LayerNorm(last.embed_dim) if last.norm_first else nn.Identity()


@MODELS.register_module()
class SequenceEncoder(_LayerStack):
    """Stack of :class:`TransformerEncoderLayer`, with a final norm if the layers normalise their inputs (pre-norm).

    Args:
        num_layers (int): number of layers.
        layer (dict or sequence of dict): arguments of the layers: one dict for all layers, or one per layer.

    Example:
        >>> encoder = SequenceEncoder(2, dict(embed_dim=16, num_heads=4, feedforward_dim=32))
        >>> encoder(torch.randn(3, 7, 16)).shape
        torch.Size([3, 7, 16])
    """

    layer_type = TransformerEncoderLayer

    def forward(self, x: Tensor, padding_mask: Tensor | None = None, **context: Any) -> Tensor:
        """Encode whole sequences. Arguments: see :meth:`TransformerEncoderLayer.forward`."""
        for layer in self.layers:
            x = layer(x, padding_mask, **context)
        return self.norm(x)


@MODELS.register_module()
class SequenceDecoder(_LayerStack):
    """Stack of :class:`TransformerDecoderLayer`, for whole sequences and for one token at a time.

    Arguments: see :class:`SequenceEncoder`.

    Example:
        >>> decoder = SequenceDecoder(2, dict(embed_dim=16, num_heads=4, feedforward_dim=32)).eval()
        >>> x, memory = torch.randn(3, 5, 16), torch.randn(3, 7, 16)
        >>> state = decoder.start(memory)
        >>> first, state = decoder.step(x[:, :1], state)
        >>> torch.allclose(first, decoder(x, memory)[:, :1], atol=1e-5)
        True
    """

    layer_type: type[nn.Module] = TransformerDecoderLayer

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        padding_mask: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
        **context: Any,
    ) -> Tensor:
        """Decode whole sequences. Arguments: see :meth:`TransformerDecoderLayer.forward`."""
        for layer in self.layers:
            x = layer(x, memory, padding_mask, memory_padding_mask, **context)
        return self.norm(x)

    def start(self, memory: Tensor, memory_padding_mask: Tensor | None = None) -> DecodingState:
        """Create the state before the first token of S sentences, with one hypothesis per sentence.

        ``memory`` is ``(S, M, E)``, ``memory_padding_mask`` bool ``(S, M)``, True where ``memory`` is padding.
        """
        hypotheses = [[] if layer.self_attention is None else layer.self_attention.start() for layer in self.layers]
        sentences = [layer.start(memory, memory_padding_mask) for layer in self.layers]
        return DecodingState(0, hypotheses, sentences, len(next(iter(sentences[0].values()))))

    def step(self, x: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """Decode one more token ``(n, 1, E)`` of n hypotheses. Returns its output and the next state."""
        hypotheses = []
        for layer, states, memory in zip(self.layers, state.hypotheses, state.sentences):
            x, states = layer.step(x, states, memory, state.position)
            hypotheses.append(states)
        return self.norm(x), DecodingState(state.position + 1, hypotheses, state.sentences, len(x))
