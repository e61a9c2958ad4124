"""The layers of ``nn.Transformer`` with the interface of our stacks, for comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mmattn.registry import MODELS

from .transformer import ATTENTION

NAMES = dict(embed_dim='d_model', num_heads='nhead', feedforward_dim='dim_feedforward')  # here and in torch


class _TorchStack(nn.Module):
    stack_type: Any
    layer_type: type[nn.Module]
    stack_options: ClassVar[dict[str, Any]] = {}

    def __init__(self, num_layers: int, layer: dict) -> None:
        super().__init__()
        options: dict[str, Any] = {NAMES.get(name, name): x for name, x in layer.items()} | dict(batch_first=True)
        for name in ('self_attention', 'cross_attention'):
            if options.pop(name, ATTENTION) != ATTENTION:
                raise ValueError(f'{name} must be the default in the layers of nn.Transformer, which have no other')
        norm = nn.LayerNorm(options['d_model']) if options.get('norm_first') else None
        self.stack = self.stack_type(self.layer_type(**options), num_layers, norm, **self.stack_options)
        for parameter in self.parameters():  # as in nn.Transformer
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)


@MODELS.register_module()
class TorchEncoder(_TorchStack):
    """Stack of ``nn.TransformerEncoderLayer``, with the interface of :class:`SequenceEncoder`.

    Arguments: see :class:`SequenceEncoder`. ``layer`` must be one dict, with the default attention.

    Example:
        >>> encoder = TorchEncoder(2, dict(embed_dim=16, num_heads=4, feedforward_dim=32))
        >>> encoder(torch.randn(3, 7, 16)).shape
        torch.Size([3, 7, 16])
    """

    stack_type, layer_type = nn.TransformerEncoder, nn.TransformerEncoderLayer
    stack_options: ClassVar = dict(enable_nested_tensor=False)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Encode ``(B, L, E)`` to the same shape. ``padding_mask`` is bool ``(B, L)``, True at padding."""
        return self.stack(x, src_key_padding_mask=padding_mask)


@dataclass
class _Prefix:
    x: Tensor | None  # embedded tokens so far, (n, t, E)
    memory: Tensor  # output of the encoder, (n, M, E)
    memory_padding_mask: Tensor | None

    @property
    def position(self) -> int:
        return 0 if self.x is None else self.x.shape[1]

    @property
    def count(self) -> int:
        return len(self.memory)

    def reorder(self, index: Tensor) -> _Prefix:
        x, mask = (None if x is None else x[index] for x in (self.x, self.memory_padding_mask))
        return _Prefix(x, self.memory[index], mask)


@MODELS.register_module()
class TorchDecoder(_TorchStack):
    """Stack of ``nn.TransformerDecoderLayer``, with the interface of :class:`SequenceDecoder`.

    Torch's layers have no decoding state, so each step computes the whole prefix again. Arguments: see
    :class:`TorchEncoder`.

    Example:
        >>> decoder = TorchDecoder(2, dict(embed_dim=16, num_heads=4, feedforward_dim=32))
        >>> decoder(torch.randn(3, 5, 16), torch.randn(3, 7, 16)).shape
        torch.Size([3, 5, 16])
    """

    stack_type, layer_type = nn.TransformerDecoder, nn.TransformerDecoderLayer

    def forward(
        self, x: Tensor, memory: Tensor, padding_mask: Tensor | None = None, memory_padding_mask: Tensor | None = None
    ) -> Tensor:
        """Decode whole sequences ``(B, L, E)`` to the same shape."""
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return self.stack(
            x,
            memory,
            tgt_mask=mask,
            tgt_key_padding_mask=padding_mask,
            memory_key_padding_mask=memory_padding_mask,
            tgt_is_causal=True,
        )

    def start(self, memory: Tensor, memory_padding_mask: Tensor | None = None) -> _Prefix:
        """Create the state before the first token."""
        return _Prefix(None, memory, memory_padding_mask)

    def step(self, x: Tensor, state: _Prefix) -> tuple[Tensor, _Prefix]:
        """Decode one more token ``(n, 1, E)`` of n hypotheses. Returns its output and the next state."""
        x = x if state.x is None else torch.cat([state.x, x], 1)
        out = self(x, state.memory, memory_padding_mask=state.memory_padding_mask)
        return out[:, -1:], _Prefix(x, state.memory, state.memory_padding_mask)
