"""Bilateral multi-head self-attention (Bi-SA), section 3.4.4 of the bilateral-attention thesis."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.ops import global_attention, global_attention_weights
from mmattn.ops.checks import check_divisor
from mmattn.ops.window_bias import as_window_size, window_entries
from mmattn.registry import MODELS

from .attention_weights import AttentionWeights
from .bilateral_non_local import POSITIONS
from .relative_position import RelativePosition
from .window_position import WindowPosition


@MODELS.register_module()
class BilateralMultiheadAttention(AttentionWeights, nn.Module):
    """Multi-head attention over a sequence, with position logits in each head.

    It replaces ``nn.MultiheadAttention(batch_first=True)`` and has the same parameter names. With ``position='none'``
    the output is the same. It does not compute the N×N table of attention weights: the second output is always None,
    and ``attention_weights`` returns the weights of selected queries.

    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, University of Technology Sydney,
    2021, section 3.4.4.

    Args:
        embed_dim (int): channels E of the sequence.
        num_heads (int): number of heads, a divisor of E.
        bias (bool): biases in the projections. Defaults to True.
        window_size (int): odd length k of the position window. A causal layer uses the (k + 1)/2 entries with j ≤ i:
            the default 21 corresponds to 21 in the encoder and 11 in the decoder of the thesis (Table 3.7).
        position (str): 'bilateral' (Eq. 3.12), 'relative' (Shaw et al., q·(k + r_{j−i})) or 'none' (content only).
            Defaults to 'bilateral'.
        padding (str): with 'bilateral', the logit of keys outside the window: 'learned', 'zero', 'neg_inf', 'mean' or
            'min' (Table 3.6). Defaults to 'zero'.
        smoothing (str): with 'bilateral', how position logits are scaled: 'sqrt_dim' (divided by √d) or 'zscore'
            (normalised over the keys of a query). Defaults to 'sqrt_dim'.
        max_offset (int): with 'relative', offsets are clipped to ±``max_offset``. Defaults to 96.
        causal (bool): position i attends only to positions j ≤ i. Defaults to False.

    Raises:
        TypeError: ``embed_dim``, ``num_heads`` or ``max_offset`` is not an integer.
        ValueError: ``num_heads`` does not divide ``embed_dim``, an option is unknown, the window is even, or 'zscore'
            is combined with 'neg_inf'.

    Example:
        >>> attention = BilateralMultiheadAttention(16, num_heads=4, window_size=5, causal=True)
        >>> x = torch.randn(2, 10, 16)
        >>> out, _ = attention(x, x, x)
        >>> out.shape
        torch.Size([2, 10, 16])
    """

    operator_weights = staticmethod(global_attention_weights)
    # nn.TransformerEncoder reads both. False disables its fast path, which would ignore positions.
    batch_first = True
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        bias: bool = True,
        window_size: int = 21,
        position: str = 'bilateral',
        padding: str = 'zero',
        smoothing: str = 'sqrt_dim',
        max_offset: int = 96,
        causal: bool = False,
    ) -> None:
        super().__init__()
        check_divisor('num_heads', num_heads, 'embed_dim', embed_dim)
        if position not in POSITIONS:
            raise ValueError(f'position must be one of {POSITIONS}; got {position!r}')
        head_dim = embed_dim // num_heads
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.position = position
        self.causal = causal
        self.scale = head_dim**-0.5
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        if position == 'bilateral':
            sizes = as_window_size(window_size, axes=1)
            self.window_position = WindowPosition(
                1,
                embed_dim,
                embed_dim,
                sizes,
                window_entries(sizes, causal),
                head_dim,
                padding,
                smoothing,
                num_heads,
                is_causal=causal,
            )
        elif position == 'relative':
            self.relative_position = RelativePosition(1, head_dim, max_offset)
        nn.init.xavier_uniform_(self.in_proj_weight)
        if bias:
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        """Attend over the sequence.

        Args:
            query (Tensor): float ``(B, L, E)``, or ``(L, E)`` without a batch.
            key, value (Tensor): float ``(B, M, E)``, or ``(M, E)`` without a batch. ``key`` must be the object
                ``query`` itself, unless ``position='none'`` and ``causal=False``.
            key_padding_mask (Tensor, optional): ``(B, M)``, or ``(M)`` without a batch; bool, True where a key is
                padding, or float, added to the logits of the key.
            need_weights (bool): must be False. Defaults to False.
            attn_mask (Tensor, optional): must be None; for a decoder, set ``causal=True`` in the constructor.
            is_causal (bool): passed by ``nn.TransformerEncoderLayer``; True is accepted only if the layer is causal.
                Defaults to False.

        Returns:
            tuple[Tensor, None]: ``(B, L, E)`` or ``(L, E)``, and None.

        Raises:
            TypeError: ``key_padding_mask`` is neither bool nor float.
            ValueError: ``key`` is not ``query`` although the layer uses positions or is causal; ``need_weights`` is
                True; ``attn_mask`` is given; ``is_causal`` is True, but the layer is not causal; or
                ``key_padding_mask`` has another shape.
        """
        if need_weights:
            raise ValueError('need_weights must be False: the table of all weights is never computed')
        if is_causal and not self.causal:
            raise ValueError('is_causal must be False; for a decoder set causal=True in the constructor')
        if attn_mask is not None:
            raise ValueError('attn_mask must be None; for a decoder set causal=True in the constructor')
        if key is not query and (self.position != 'none' or self.causal):
            raise ValueError(
                f'key must be query itself with position={self.position!r} and causal={self.causal}: '
                'offsets are not defined between positions of two sequences'
            )
        if key_padding_mask is not None:
            if key_padding_mask.dtype != torch.bool and not key_padding_mask.is_floating_point():
                raise TypeError(f'key_padding_mask must be bool or float; got {key_padding_mask.dtype}')
            if key_padding_mask.shape != key.shape[:-1]:
                found = tuple(key_padding_mask.shape)
                raise ValueError(f'key_padding_mask must be {tuple(key.shape[:-1])}, one entry per key; got {found}')
        if query.dim() == 2:
            mask = None if key_padding_mask is None else key_padding_mask[None]
            x = query[None]
            out, _ = self(x, x if key is query else key[None], value[None], mask)
            return out[0], None
        out = global_attention(**self.operands(query, key, value, key_padding_mask))
        return self.out_proj(out.transpose(1, 2).flatten(2)), None

    def operands(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None) -> dict:
        """Return the arguments of ``global_attention`` for the inputs of ``forward``, with a batch dimension."""
        weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(x, weight, bias).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for x, weight, bias in zip((query, key, value), weights, biases)
        )  # (B, heads, L or M, E/heads)
        operands = dict(query=q, key=k, value=v, scale=self.scale, is_causal=self.causal)
        mask = None
        if key_padding_mask is not None:
            if key_padding_mask.dtype == torch.bool:
                operands['key_mask'] = mask = ~key_padding_mask
            else:
                operands['key_bias'] = key_padding_mask[:, None]
        if self.position == 'bilateral':
            operands |= self.window_position(query.transpose(1, 2), mask)
        elif self.position == 'relative':
            operands |= self.relative_position.axis_bias(q * self.scale)
        return operands
