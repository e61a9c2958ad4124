"""Transformer attention with four terms between sequences ("An Empirical Study of Spatial Attention Mechanisms")."""

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from mmattn.layers.attention_weights import TermWeights, check_terms
from mmattn.ops import global_attention
from mmattn.ops.arguments import as_window_size
from mmattn.registry import MODELS
from mmattn.utils.checks import check_divisor

from .position_encodings import sinusoids
from .sequence_checks import (
    State,
    check_cached,
    check_key_padding_mask,
    check_same_sequence,
    check_sequence,
    check_step,
    key_and_value,
)


@MODELS.register_module()
class TransformerAttention1d(TermWeights, nn.Module):
    """Multi-head attention over sequences whose logits are the sum of up to four terms, each with a switch.

    y_i = W_o Σ_j softmax_j [(β1 E1 + β2 E2 + β3 E3 + β4 E4) / √d_k] W_v x_j in each head of d_k channels, with these
    terms (Eq. 2 and 8, with the relative encodings of Transformer-XL):

    ====  ==========================  ==========================
    E1    (W_q z_i)ᵀ W_k x_j          query and key content
    E2    (W_q z_i)ᵀ W_r R_{i−j}      query content and position
    E3    uᵀ W_k x_j                  key content
    E4    vᵀ W_r R_{i−j}              position
    ====  ==========================  ==========================

    Channels 2c and 2c + 1 of R_o are the sine and cosine of o · 10000^(−2c/E). Positions count from 0 in both
    sequences. E2 and E4 need one logit per query, head and offset. Only the parameters of the selected terms exist.
    Without terms, the output is the mean of the values of all keys. The layer has the interface of
    ``nn.MultiheadAttention(batch_first=True)`` and, with ``terms='1000', query_bias=True``, the same output.

    Source: "An Empirical Study of Spatial Attention Mechanisms in Deep Networks", 2019.

    Args:
        embed_dim (int): channels E of the sequences, even with E2 or E4.
        num_heads (int): number of heads, a divisor of E.
        terms (str): β1 β2 β3 β4, each '0' or '1'. Defaults to '1111'.
        spatial_range (int, optional): odd n_k. In self-attention, a query attends only to keys with |i − j| ≤ (n_k −
            1)/2. Defaults to None, the whole sequence.
        bias (bool): biases of W_k, W_v and W_o. W_r has none. Defaults to True.
        query_bias (bool): a bias of W_q, which the equation does not have. A bias b adds bᵀ W_k x_j to E1, which is an
            E3, and bᵀ W_r R_{i−j} to E2, which is an E4: '1000' is then the model of '1010', and '0100' of '0101', so
            set it only to load such weights. Layers of 0.3.0 have it with ``bias=True``. Defaults to False.
        is_causal (bool): self-attention in which position i attends only to positions j ≤ i. Defaults to False.

    Example:
        >>> attention = TransformerAttention1d(16, num_heads=4, terms='0110', is_causal=True)
        >>> x = torch.randn(2, 10, 16)
        >>> out, _ = attention(x, x, x)
        >>> first, state = attention.step(x[:, :1], attention.start(), position=0)
        >>> torch.allclose(first, out[:, :1], atol=1e-6)
        True
    """

    operator = staticmethod(global_attention)
    query_bias_key = 'q_proj.bias'

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        terms: str = '1111',
        spatial_range: int | None = None,
        bias: bool = True,
        is_causal: bool = False,
        query_bias: bool = False,
    ) -> None:
        super().__init__()
        check_terms(terms)
        check_divisor('num_heads', num_heads, 'embed_dim', embed_dim)
        e1, e2, e3, e4 = (term == '1' for term in terms)
        if (e2 or e4) and embed_dim % 2:
            raise ValueError(f'embed_dim must be even with terms={terms!r}, for sines and cosines; got {embed_dim}')
        if spatial_range is not None:
            (spatial_range,) = as_window_size(spatial_range, axes=1, name='spatial_range')
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.terms = terms
        self.spatial_range = spatial_range
        self.is_causal = is_causal
        self.query_bias = query_bias
        self._warn_of_query_bias()
        self.scale = (embed_dim // num_heads) ** -0.5
        shape = (num_heads, embed_dim // num_heads)
        self.q_proj = nn.Linear(embed_dim, embed_dim, query_bias) if e1 or e2 else None
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias) if e1 or e3 else None
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias)
        # R gets dtype and device from these weights; quantize_dynamic does not replace this class.
        self.r_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=False) if e2 or e4 else None
        self.content_bias = nn.Parameter(torch.empty(shape)) if e3 else None  # u
        self.position_bias = nn.Parameter(torch.empty(shape)) if e4 else None  # v
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias)
        self.init_weights()

    def init_weights(self) -> None:
        """Reset every parameter: Xavier-uniform matrices, with gain 1/√2 for W_q, W_k and W_v, and zeros elsewhere."""
        for layer, gain in (
            (self.q_proj, 0.5**0.5),
            (self.k_proj, 0.5**0.5),
            (self.v_proj, 0.5**0.5),
            (self.r_proj, 1.0),
            (self.out_proj, 1.0),
        ):
            if layer is not None:
                nn.init.xavier_uniform_(layer.weight, gain)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        for parameter in (self.content_bias, self.position_bias):
            if parameter is not None:
                nn.init.zeros_(parameter)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Attend to a sequence. Returns ``(B, L, E)``, and None in place of attention weights.

        Args:
            query (Tensor): float ``(B, L, E)``.
            key, value (Tensor, optional): float ``(B, M, E)``. M must be L if the layer is causal or has a range.
                ``key`` defaults to ``query``, ``value`` to ``key``.
            key_padding_mask (Tensor, optional): bool ``(B, M)``, True where a key is padding.
        """
        out = global_attention(**self.operands(query, key, value, key_padding_mask))
        return self._output(out), None

    def operands(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        used: str = '1111',
    ) -> dict:
        """Prepare the arguments of ``global_attention`` from the inputs of ``forward``.

        ``used`` has the switches β1 β2 β3 β4 of the terms to use, as far as ``terms`` has them.
        """
        key, value = key_and_value(query, key, value)
        for name, x in (('query', query), ('key', key), ('value', value)):
            check_sequence(name, x, self.embed_dim)
        if self._within_one_sequence:
            check_same_sequence(query, key, value, self._within_one_sequence)
        check_key_padding_mask(key_padding_mask, key)
        (batch, length, _), count = query.shape, key.shape[1]
        queries, (keys, values) = self._queries(query), self._memory(key, value)
        _, e2, _, e4 = self.switches(used)
        operands = self._content(queries, keys, values, length, used)
        operands['is_causal'] = self.is_causal
        if key_padding_mask is not None:
            operands['key_mask'] = ~key_padding_mask
        if self.spatial_range is not None:
            radius = self.spatial_range // 2
            offsets = torch.arange(radius, -1 if self.is_causal else -radius - 1, -1, device=query.device)
            window = self._position(queries, offsets, used) if e2 or e4 else values.new_zeros(len(offsets))
            operands.update(
                window_bias=window.expand(batch, self.num_heads, length, -1),
                window_size=self.spatial_range,
                outside_bias=-math.inf,
            )
        elif (e2 or e4) and length:
            offsets = torch.arange(length - 1, -2 if self.is_causal else -count - 1, -1, device=query.device)
            operands.update(axis_bias=(_shifted(self._position(queries, offsets, used), length, count),))
        return operands

    def start(self, memory: Tensor | None = None, key_padding_mask: Tensor | None = None) -> State:
        """Start incremental decoding. Returns the state before the first token, empty without ``memory``.

        ``memory`` has the sequences of S sentences to attend to, float ``(S, M, E)``, and ``key_padding_mask`` is bool
        ``(S, M)``, True where ``memory`` is padding. The state then has the projected values ``'memory_value'`` and,
        with E1 or E3, keys ``'memory_key'``, both ``(S, heads, M, E/heads)``, and the mask ``'memory_mask'``, if there
        is one.
        """
        if memory is None:
            if key_padding_mask is not None:
                raise ValueError('key_padding_mask must be None without memory')
            return {}
        if self._within_one_sequence:
            raise ValueError(f'memory must be None {self._within_one_sequence}')
        check_sequence('memory', memory, self.embed_dim)
        check_key_padding_mask(key_padding_mask, memory)
        keys, values = self._memory(memory, memory)
        named = {'memory_key': keys, 'memory_value': values, 'memory_mask': key_padding_mask}
        return {name: x for name, x in named.items() if x is not None}

    def step(self, x: Tensor, state: State, position: int) -> tuple[Tensor, State]:
        """Decode one token as ``forward`` does. Returns the output ``(n, 1, E)`` and the next state.

        ``x`` is the token at ``position``, from 0, of n hypotheses, float ``(n, 1, E)``. With a memory of S sentences,
        n is a multiple of S, and the hypotheses of a sentence are adjacent. The state, from :meth:`start` or the last
        step, is not changed. Without memory, it has values ``'value'`` and, with E1 or E3, keys ``'key'`` of the
        tokens, both ``(n, heads, t, E/heads)``. With ``spatial_range``, it has at most the last (n_k − 1)/2 tokens.
        """
        check_step(x, self.embed_dim, position)
        if 'memory_value' in state:
            keys, values, mask = state.get('memory_key'), state['memory_value'], state.get('memory_mask')
            sentences, _, count, _ = values.shape
            if len(x) % sentences:
                raise ValueError(f'x must have a multiple of {sentences} hypotheses, one per sentence; got {len(x)}')
            # The hypotheses of a sentence are the queries of one batch item, so its memory is not repeated.
            inputs, first, state = x.reshape(sentences, -1, self.embed_dim), position, dict(state)
        else:
            most = None if self.spatial_range is None else self.spatial_range // 2
            cached = 0 if 'value' not in state else state['value'].shape[2]
            check_cached(self.is_causal, cached, position, most)
            keys, values = self._memory(x, x)
            if cached:
                keys = None if keys is None else torch.cat([state['key'], keys], 2)
                values = torch.cat([state['value'], values], 2)
            mask, inputs, count = None, x, cached + 1
            first = cached
            state = self._cache(keys, values, most)
        queries = self._queries(inputs)
        operands = self._content(queries, keys, values, inputs.shape[1])
        if mask is not None:
            operands['key_mask'] = ~mask
        if self.r_proj is not None:
            offsets = torch.arange(first, first - count, -1, device=x.device)
            operands['axis_bias'] = (self._position(queries, offsets),)
        return self._output(global_attention(**operands)).reshape(x.shape), state

    @property
    def _within_one_sequence(self) -> str:
        # Why another sequence cannot be attended to, if so.
        if self.is_causal or self.spatial_range is not None:
            return f'with is_causal={self.is_causal} and spatial_range={self.spatial_range}'
        return ''

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _output(self, out: Tensor) -> Tensor:
        return self.out_proj(out.transpose(1, 2).flatten(2))

    def _queries(self, query: Tensor) -> Tensor | None:
        return None if self.q_proj is None else self._heads(self.q_proj(query))

    def _memory(self, key: Tensor, value: Tensor) -> tuple[Tensor | None, Tensor]:
        keys = None if self.k_proj is None else self._heads(self.k_proj(key))
        return keys, self._heads(self.v_proj(value))

    @staticmethod
    def _cache(keys: Tensor | None, values: Tensor, most: int | None) -> State:
        kept = values.shape[2] if most is None else min(most, values.shape[2])
        if not kept:
            return {}
        return {name: x[:, :, -kept:] for name, x in (('key', keys), ('value', values)) if x is not None}

    def _content(
        self, queries: Tensor | None, keys: Tensor | None, values: Tensor, length: int, used: str = '1111'
    ) -> dict:
        # The operator's arguments for ``length`` queries, with E1 and E3 if they are used.
        # Without E1, query and key have no channels: the operator computes no product of them.
        batch, heads, count, _ = values.shape
        e1, _, e3, _ = self.switches(used)
        operands = dict(
            query=values.new_empty(batch, heads, length, 0),
            key=values.new_empty(batch, heads, count, 0),
            value=values,
            scale=self.scale,
        )
        if e1:
            assert queries is not None
            assert keys is not None
            if e3:
                queries = (queries + self.content_bias.unsqueeze(1)).to(keys.dtype)  # type: ignore[union-attr]
            operands.update(query=queries, key=keys)
        elif e3:
            assert self.content_bias is not None
            assert keys is not None
            towards = (self.content_bias * self.scale).to(keys.dtype)
            operands.update(key_bias=torch.einsum('hd,bhmd->bhm', towards, keys))
        return operands

    def _position(self, queries: Tensor | None, offsets: Tensor, used: str = '1111') -> Tensor:
        # Scaled E2 + E4 for offsets i − j, (B, heads, L, offsets). With E4 alone, B and L are 1.
        assert self.r_proj is not None
        _, e2, _, e4 = self.switches(used)
        dtype = self.r_proj.weight.dtype
        encoding = sinusoids(offsets.to(torch.promote_types(dtype, torch.float32)), self.embed_dim).to(dtype)
        vectors = self.r_proj(encoding).unflatten(-1, (self.num_heads, -1))  # (offsets, heads, d_k)
        towards = self.position_bias[None, :, None] if e4 else None  # type: ignore[index]
        if e2:
            towards = queries if towards is None else queries + towards  # type: ignore[operator]
        assert towards is not None
        return torch.einsum('bhld,ohd->bhlo', towards * self.scale, vectors.to(towards.dtype))


def _shifted(table: Tensor, length: int, count: int) -> Tensor:
    """Turn one logit per offset into one per pair, ``(B, heads, L, M)``, by the shift of Transformer-XL.

    ``table`` is ``(B, heads, L or 1, offsets)`` for the offsets L − 1, L − 2, … in this order: L + M offsets, or L + 1
    if only keys j ≤ i are used. Logits of offsets outside ``table`` are arbitrary.
    """
    offsets = table.shape[-1]
    flat = table.expand(-1, -1, length, -1).flatten(-2)
    # Query i finds key j at entry L − 1 − i + j of its row. So rows with one entry less start at the same key.
    rows = flat[..., length - 1 : length - 1 + length * (offsets - 1)].unflatten(-1, (length, offsets - 1))
    return rows[..., :count]
