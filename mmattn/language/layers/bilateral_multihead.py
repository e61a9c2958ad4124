"""Bilateral multi-head self-attention (Bi-SA), section 3.4.4 of the bilateral-attention thesis."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import Unpack

from mmattn.layers.positions import PositionOptions, Positions, content_scale
from mmattn.ops import global_attention
from mmattn.registry import MODELS
from mmattn.utils.checks import check_divisor, check_fraction

from .linear_layers import in_projection, init_xavier
from .region_attention import normalize_queries
from .sequence_checks import (
    check_cached,
    check_key_padding_mask,
    check_not_nested,
    check_same_sequence,
    check_step,
    key_and_value,
)

PADDING = -1e9  # in a float mask: padding


@MODELS.register_module()
class BilateralMultiheadAttention(Positions, nn.Module):
    """Multi-head attention over a sequence, with position logits in each head.

    It replaces ``nn.MultiheadAttention(batch_first=True)``, with the same parameter names and, for ``position='none'``,
    the same output. The second output is None, because the N×N table of weights is only computed for ``dropout`` in
    training. For the weights of selected queries, call ``attention_weights``. As in fairseq, all weights start
    Xavier-uniform and all biases as 0.

    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, UTS, 2021, section 3.4.4.

    Args:
        embed_dim (int): channels E of the sequence.
        num_heads (int): number of heads, a divisor of E.
        bias (bool): biases in the projections. Defaults to True.
        position (str or dict): see :class:`.PositionOptions`. 'relative' is q·(k + r_{j−i}) of Shaw et al. Defaults to
            'bilateral'.
        is_causal (bool): position i attends only to positions j ≤ i. Defaults to False.
        normalize_queries (bool): normalised self-attention (NSA): normalise each channel of the queries over the
            sequence, see :func:`.normalize_queries`. Not if ``is_causal``. Defaults to False.
        content_smoothing (float, optional): σc, the divisor of the content logits. Defaults to √d.
        dropout (float): dropout probability of the attention weights, from 0 to 1. In training, a layer with dropout
            computes the table of all weights, so sequences should be short. Defaults to 0.
        device, dtype (optional): of the parameters, as in ``nn.MultiheadAttention``. Defaults to None, torch's.
        **options: ``window_size``, ``padding``, ``smoothing`` and ``max_offset``, as in ``position``.

    Example:
        >>> attention = BilateralMultiheadAttention(16, num_heads=4, window_size=5, is_causal=True)
        >>> x = torch.randn(2, 10, 16)
        >>> out, _ = attention(x, x, x)
        >>> out.shape
        torch.Size([2, 10, 16])
    """

    operator = staticmethod(global_attention)
    position_options = PositionOptions(window_size=21, padding='zero', smoothing='sqrt_dim', max_offset=96)
    # nn.TransformerEncoder reads both. False disables its fast path, which would ignore positions.
    batch_first = True
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        bias: bool = True,
        *,
        position: str | dict = 'bilateral',
        is_causal: bool = False,
        normalize_queries: bool = False,
        content_smoothing: float | None = None,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[PositionOptions],
    ) -> None:
        super().__init__()
        if not isinstance(bias, bool):  # the third argument of nn.MultiheadAttention is dropout
            raise TypeError(f'bias must be True or False; got {bias!r}. Pass dropout by its name')
        if normalize_queries and is_causal:
            raise ValueError(
                'normalize_queries requires is_causal=False: statistics over a sequence include the future'
            )
        check_divisor('num_heads', num_heads, 'embed_dim', embed_dim)
        check_fraction('dropout', dropout)
        positions = self.choose_positions(position, options)
        head_dim = embed_dim // num_heads
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.is_causal = is_causal
        self.normalize_queries = normalize_queries
        self.dropout = dropout
        self.scale = content_scale(content_smoothing, head_dim**-0.5)
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        window = dict(in_channels=embed_dim, embed_channels=embed_dim, num_heads=num_heads, is_causal=is_causal)
        self.build_positions(1, head_dim, positions, **window)
        init_xavier(self)
        nn.init.xavier_uniform_(self.in_proj_weight)
        if device is not None or dtype is not None:  # torch.func forbids it where layers are built in a transform
            self.to(device=device, dtype=dtype)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Attend over the sequence. Returns ``(B, L, E)`` or ``(L, E)``, and None.

        Args:
            query (Tensor): float ``(B, L, E)``, or ``(L, E)`` without a batch.
            key, value (Tensor, optional): float ``(B, M, E)``, or ``(M, E)`` without a batch. M must be L, except with
                ``position='none'`` and ``is_causal=False``. If M is 0 or all keys are padding, the output is the bias
                of ``out_proj``. ``key`` defaults to ``query``, ``value`` to ``key``.
            key_padding_mask (Tensor, optional): ``(B, M)``, or ``(M)`` without a batch. A bool mask is True where a key
                is padding. A float mask is added to the logits of the keys, and −1e9 or less means padding.
            need_weights (bool): must be False.
            attn_mask (Tensor, optional): ``(L, M)`` or ``(B · num_heads, L, M)``. A bool mask is True where a query may
                not attend to a key. A float mask is added to the logits. Without any key, the output is the bias of
                ``out_proj``. Not with ``smoothing='zscore'`` or ``normalize_queries``, whose statistics would include
                the keys that the mask excludes. :meth:`attention_weights` does not take it.
            average_attn_weights (bool): without effect, as in ``nn.MultiheadAttention`` with ``need_weights=False``.
            is_causal (bool): as in ``nn.MultiheadAttention``, only a hint that ``attn_mask`` is causal. It may be True
                without a mask if the layer is causal.
        """
        if need_weights:
            raise ValueError('need_weights must be False: call attention_weights for the weights of selected queries')
        if is_causal and attn_mask is None and not self.is_causal:
            raise ValueError('is_causal requires attn_mask, or is_causal=True in the constructor')
        check_not_nested('query', query)
        key, value = key_and_value(query, key, value)
        if self.position != 'none' or self.is_causal:
            reason = f'with position={self.position!r} and is_causal={self.is_causal}'
            check_same_sequence(query, key, value, reason)
        check_key_padding_mask(key_padding_mask, key, floating=True)
        if query.dim() == 2:
            mask = None if key_padding_mask is None else key_padding_mask[None]
            out, _ = self(query[None], key[None], value[None], mask, attn_mask=attn_mask)
            return out[0], None
        operands = self.operands(query, key, value, key_padding_mask)
        if attn_mask is not None:
            bias = self._mask_bias(attn_mask, len(query), query.shape[1], key.shape[1])
            if key.shape[1]:
                operands['axis_bias'] = [sum(operands.get('axis_bias', ()), bias.to(query.dtype))]
        out = self._attended(**operands)
        return self.out_proj(out.transpose(1, 2).flatten(2)), None

    def operands(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> dict:
        """Prepare the arguments of ``global_attention`` from inputs of ``forward`` with a batch dimension."""
        key, value = key_and_value(query, key, value)
        padding = key_padding_mask
        if key_padding_mask is not None and key_padding_mask.is_floating_point():
            padding = key_padding_mask <= PADDING  # statistics omit these keys, as those of a bool mask
            key_padding_mask = key_padding_mask.masked_fill(padding, -math.inf)
        if not key.shape[1] and query.shape[1]:
            key, key_padding_mask = _one_masked(key)
            (value, _), padding = _one_masked(value), None
        q, k, v = self._projected(query, key, value)
        if self.normalize_queries:
            q = normalize_queries(q, padding)
        q, k, v = map(self._heads, (q, k, v))
        operands = dict(query=q, key=k, value=v, scale=self.scale, is_causal=self.is_causal)
        if key_padding_mask is not None:
            if key_padding_mask.is_floating_point():
                operands['key_bias'] = key_padding_mask[:, None]
            else:
                operands['key_mask'] = ~key_padding_mask
        key_mask = None if padding is None else ~padding
        return operands | self.position_logits(query.transpose(1, 2), q, key_mask)

    def start(self, memory: Tensor | None = None, key_padding_mask: Tensor | None = None) -> dict[str, Tensor]:
        """Start incremental decoding with :meth:`step`. Returns the state before the first token.

        Without ``memory``, it is self-attention. For attention to an encoder, ``memory`` is its output for S sentences,
        float ``(S, M, E)``, and ``key_padding_mask`` is bool ``(S, M)``, True where a position is padding.
        """
        if memory is None:
            if key_padding_mask is not None:
                raise ValueError('key_padding_mask must be None without memory')
            if not self.is_causal:
                raise ValueError('is_causal must be True to decode step by step without memory')
            return {}
        if self.is_causal or self.position != 'none' or self.normalize_queries:
            raise ValueError(
                f"memory requires position='none', is_causal=False and normalize_queries=False; got {self.position!r}, "
                f'{self.is_causal} and {self.normalize_queries}'
            )
        check_key_padding_mask(key_padding_mask, memory)
        if not memory.shape[1]:
            memory, key_padding_mask = _one_masked(memory)
        key, value = map(self._heads, self._projected(memory, memory, first=1))
        state = dict(memory_key=key, memory_value=value)
        if key_padding_mask is not None:
            state['memory_mask'] = key_padding_mask
        return state

    def step(self, x: Tensor, state: dict[str, Tensor], position: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Decode one more token ``(n, 1, E)`` of n hypotheses. Returns the output ``(n, 1, E)`` and the next state.

        ``state`` comes from :meth:`start` or the last step, and ``position`` counts from 0. Self-attention has keys and
        values ``(n, heads, t, D)``, one per hypothesis. Attention to ``memory`` has ``(S, heads, M, D)``, one per
        sentence, and the n / S hypotheses of a sentence are adjacent.
        """
        check_step(x, self.embed_dim, position)
        if 'memory_key' in state:
            (query,) = self._projected(x)
            key, value = state['memory_key'], state['memory_value']
            query = self._heads(query.view(len(key), -1, self.embed_dim))  # hypotheses of a sentence share its keys
            mask = state.get('memory_mask')
            mask = None if mask is None else ~mask
            out = self._attended(query=query, key=key, value=value, scale=self.scale, key_mask=mask)
            return self.out_proj(out.transpose(1, 2).reshape(len(x), 1, self.embed_dim)), state
        check_cached(self.is_causal, state['key'].shape[2] if state else 0, position)
        query, key, value = map(self._heads, self._projected(x, x, x))
        if state:
            key, value = torch.cat([state['key'], key], 2), torch.cat([state['value'], value], 2)
        bias = None
        if self.position == 'bilateral':
            bias = self.window_position.last_row(x.transpose(1, 2), position + 1)
        elif self.position == 'relative':
            bias = self.relative_position.last_row(query * self.scale, position + 1)
        mask = None if bias is None else bias.unsqueeze(2).to(query.dtype)
        # With one query there is no table of all pairs, and SDPA is several times faster than global_attention.
        dropout = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(query, key, value, mask, dropout, scale=self.scale)
        return self.out_proj(out.transpose(1, 2).flatten(2)), dict(key=key, value=value)

    def _mask_bias(self, attn_mask: Tensor, batch: int, length: int, count: int) -> Tensor:
        # Logits (length, count) or (batch, num_heads, length, count).
        if self.normalize_queries or (self.position == 'bilateral' and self.window_position.support is not None):
            raise ValueError(
                "attn_mask requires normalize_queries=False and another smoothing than 'zscore': their statistics "
                'would include keys that the mask excludes. For a decoder, set is_causal=True in the constructor'
            )
        if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
            raise TypeError(f'attn_mask must be bool or float; got {attn_mask.dtype}')
        shapes = (length, count), (batch * self.num_heads, length, count)
        if attn_mask.shape not in shapes:
            raise ValueError(f'attn_mask must be {shapes[0]} or {shapes[1]}; got {tuple(attn_mask.shape)}')
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros(attn_mask.shape, device=attn_mask.device).masked_fill(attn_mask, -math.inf)
        return attn_mask.unflatten(0, (batch, self.num_heads)) if attn_mask.dim() == 3 else attn_mask

    def _attended(self, **operands: Any) -> Tensor:
        if not self.training or not self.dropout:
            return global_attention(**operands)
        # The operator has no dropout. With the identity as values, its output is the table of weights.
        value, masked = operands.pop('value'), operands.get('key_mask')
        if masked is not None:  # NaN would reach all queries, since 0 · NaN is NaN
            value = value.masked_fill(~masked[:, None, :, None], 0)
        identity = torch.eye(value.shape[2], dtype=value.dtype, device=value.device).expand(*value.shape[:2], -1, -1)
        return F.dropout(global_attention(**operands, value=identity), self.dropout) @ value

    def _projected(self, *inputs: Tensor, first: int = 0) -> Sequence[Tensor]:
        # ``first`` is what inputs[0] becomes: 0 queries, 1 keys, 2 values.
        rows = slice(first * self.embed_dim, (first + len(inputs)) * self.embed_dim)
        bias = None if self.in_proj_bias is None else self.in_proj_bias[rows]
        return in_projection(self.in_proj_weight[rows], bias, *inputs)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def _one_masked(memory: Tensor) -> tuple[Tensor, Tensor]:
    """Pad an empty memory ``(B, 0, E)`` to one position, and return its padding mask."""
    return F.pad(memory, (0, 0, 0, 1)), memory.new_ones(len(memory), 1, dtype=torch.bool)
