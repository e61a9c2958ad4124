"""Dynamic and deformable convolution of a sequence, with the interface of attention."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.ops import dynamic_conv
from mmattn.ops.arguments import as_window_size
from mmattn.ops.dtypes import accumulator
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count, check_divisor

from .linear_layers import init_xavier
from .sequence_checks import (
    State,
    check_cached,
    check_key_padding_mask,
    check_same_sequence,
    check_sequence,
    check_step,
)


class SequenceConv(nn.Module):
    """Base of sequence convolutions.

    A subclass defines ``convolve(x, key_padding_mask)``, with the arguments of :meth:`forward`, which returns ``(B, L,
    E)``, and ``step(x, state, position)``, which decodes one token as :meth:`forward` of a causal layer does. It
    returns the output ``(n, 1, E)`` and the next state. ``x`` is the token at ``position``, from 0, of n hypotheses,
    float ``(n, 1, E)``. The state, from :meth:`start` or the last step, is not changed. Its tensors have n as first
    dimension.
    """

    convolve: Callable[[Tensor, Tensor | None], Tensor]
    step: Callable[[Tensor, State, int], tuple[Tensor, State]]

    def __init__(self, embed_dim: int, is_causal: bool) -> None:
        super().__init__()
        check_count('embed_dim', embed_dim)
        self.embed_dim = embed_dim
        self.is_causal = is_causal

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Convolve ``query``, float ``(B, L, E)``. Returns ``(B, L, E)``, and None in place of attention weights.

        ``key`` and ``value`` are None, ``query`` or copies of it, and are not read. ``key_padding_mask`` is bool ``(B,
        L)``, True at padding, which is to the right of the sentence. Outputs at valid positions do not depend on it.
        """
        check_sequence('query', query, self.embed_dim)
        check_same_sequence(query, key, value, f'since {type(self).__name__} convolves one sequence')
        check_key_padding_mask(key_padding_mask, query)
        return self.convolve(query, key_padding_mask), None

    def start(self, memory: Tensor | None = None, key_padding_mask: Tensor | None = None) -> State:
        """Start incremental decoding with an empty state. Both arguments must be None."""
        if memory is not None or key_padding_mask is not None:
            raise ValueError(f'memory and key_padding_mask must be None: {type(self).__name__} convolves one sequence')
        return {}


@MODELS.register_module()
class DynamicConv1d(SequenceConv):
    """Gated linear unit (GLU) and depth-wise convolution of a sequence, whose kernel each position predicts.

    y_t = W_c Σ_j softmax_j [d_{j,g}ᵀ u_t] u_{t + p_j} over the n_k offsets p_j (Eq. 5 to 7, in one dimension), with u =
    GLU(W x). Each group g of channels has its own softmax. Outside the sentence and in padding, u is 0. The offsets are
    −r … r with r = (n_k − 1)/2, or −2r … 0 if the layer is causal.

    It replaces the self-attention of a Transformer (Fig. 2b), with the interface of
    ``nn.MultiheadAttention(batch_first=True)``. Its operations have the order of :class:`DynamicConv2d`. The layer has
    no residual connection and no γ.

    Source: "An Empirical Study of Spatial Attention Mechanisms in Deep Networks", 2019.

    Args:
        embed_dim (int): channels E of the sequence.
        num_heads (int): number of groups, a divisor of E. The channels of a group share a kernel. Defaults to 16.
        kernel_size (int): odd length n_k of the kernel. Defaults to 31.
        is_causal (bool): position t depends only on positions up to t. Defaults to False.
        gated (bool): with the GLU. If False, u = W x, as Wu et al. train on IWSLT'14. Defaults to True.

    Example:
        >>> layer = DynamicConv1d(16, num_heads=4, kernel_size=5)
        >>> x = torch.randn(2, 10, 16)
        >>> layer(x, x, x)[0].shape
        torch.Size([2, 10, 16])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 16,
        kernel_size: int = 31,
        is_causal: bool = False,
        gated: bool = True,
    ) -> None:
        super().__init__(embed_dim, is_causal)
        check_divisor('num_heads', num_heads, 'embed_dim', embed_dim)
        (self.kernel_size,) = as_window_size(kernel_size, axes=1, name='kernel_size')
        self.num_heads = num_heads
        self.gated = gated
        self.glu = nn.Linear(embed_dim, 2 * embed_dim if gated else embed_dim)
        self.kernel = nn.Linear(embed_dim, num_heads * self.kernel_size, bias=False)
        self.output = nn.Linear(embed_dim, embed_dim)
        self.init_weights()

    def init_weights(self) -> None:
        """Reset every parameter: Xavier-uniform matrices and zero biases."""
        init_xavier(self)

    def convolve(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Filter each position of ``(B, L, E)`` with its own kernel."""
        u = self._inputs(x)
        if key_padding_mask is not None:
            u = u.masked_fill(key_padding_mask.unsqueeze(-1), 0)
        value, logits = self._split(u), self._split(self.kernel(u))
        # The kernels of the operator are centred: the output at t must read the values up to t − r.
        delay = self.kernel_size // 2 if self.is_causal else 0
        value, logits = F.pad(value, (0, 0, delay, 0)), F.pad(logits, (0, 0, 0, delay))
        y = dynamic_conv(value, logits, kernel_size=(1, self.kernel_size))[:, :, 0, : x.shape[1]]
        return self.output(y.transpose(1, 2).flatten(2))

    def step(self, x: Tensor, state: State, position: int) -> tuple[Tensor, State]:
        """Decode one token, see :class:`SequenceConv`. The state ``'inputs'`` has the last n_k − 1 values of u."""
        check_step(x, self.embed_dim, position)
        before = state.get('inputs')
        check_cached(self.is_causal, 0 if before is None else before.shape[1], position, self.kernel_size - 1)
        u = self._inputs(x)
        inputs = u if before is None else torch.cat([before, u], 1)
        logits = self.kernel(u).unflatten(-1, (self.num_heads, -1))  # (n, 1, heads, n_k)
        kernels = logits.to(accumulator(logits)).softmax(-1)[:, 0, :, -inputs.shape[1] :].to(inputs.dtype)
        y = torch.einsum('nhk,nkhd->nhd', kernels, inputs.unflatten(-1, (self.num_heads, -1)))
        kept = inputs[:, max(inputs.shape[1] - self.kernel_size + 1, 0) :]
        return self.output(y.flatten(1).unsqueeze(1)), {'inputs': kept}

    def _inputs(self, x: Tensor) -> Tensor:
        return F.glu(self.glu(x)) if self.gated else self.glu(x)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).unsqueeze(2)


@MODELS.register_module()
class DeformConv1d(SequenceConv):
    """Convolution of a sequence that samples at learned offsets from its regular positions.

    y_t = b + Σ_n W_n x(t + n + Δ_n(t)) (Eq. 3 and 4, in one dimension, unmodulated). Another convolution of length k
    predicts the offsets Δ_n(t), in positions. It starts at 0, so a new layer is an ordinary convolution. Between two
    positions, x is interpolated linearly. Outside the sentence and in padding, x is 0.

    The k regular positions are n = −r … r with r = (k − 1)/2, or n = −2r … 0 if the layer is causal. A causal layer
    clamps the sampled position to at most t. At an integer position, the gradient of an offset is the left one, so the
    backward pass reads no later position either.

    It precedes the self-attention of a Transformer (Fig. 2c), with the interface of
    ``nn.MultiheadAttention(batch_first=True)``. The layer has no residual connection.

    Source: "An Empirical Study of Spatial Attention Mechanisms in Deep Networks", 2019.

    Args:
        embed_dim (int): channels E of the sequence.
        num_heads (int): not used. All sequence layers are built with this argument. Defaults to 1.
        kernel_size (int): odd number k of positions. Defaults to 3.
        is_causal (bool): position t depends only on positions up to t. Defaults to False.

    Example:
        >>> layer = DeformConv1d(16)
        >>> x = torch.randn(2, 10, 16)
        >>> torch.allclose(layer(x, x, x)[0].mT, layer.conv(x.mT), atol=1e-5)  # the offsets start at 0
        True
    """

    def __init__(self, embed_dim: int, num_heads: int = 1, kernel_size: int = 3, is_causal: bool = False) -> None:
        super().__init__(embed_dim, is_causal)
        (k,) = as_window_size(kernel_size, axes=1, name='kernel_size')
        self.kernel_size = k
        self.conv = nn.Conv1d(embed_dim, embed_dim, k, padding=k // 2)  # W, b
        self.offset = nn.Conv1d(embed_dim, k, k)  # Δ; padded in _offsets
        self.init_weights()

    def init_weights(self) -> None:
        """Reset W and b as in ``nn.Conv1d``, and the predictor of the offsets to 0."""
        self.conv.reset_parameters()
        nn.init.zeros_(self.offset.weight)
        assert self.offset.bias is not None
        nn.init.zeros_(self.offset.bias)

    def convolve(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Convolve ``(B, L, E)``."""
        if not x.numel():  # torch's convolution takes no empty sequence
            return x
        if key_padding_mask is not None:
            x = x.masked_fill(key_padding_mask.unsqueeze(-1), 0)
        before, after = self._sides
        return self._sample(x, self.offset(F.pad(x.mT, (before, after))).mT, first=0)

    def step(self, x: Tensor, state: State, position: int) -> tuple[Tensor, State]:
        """Decode one token, see :class:`SequenceConv`. The state has all ``'inputs'``: offsets have no limit."""
        check_step(x, self.embed_dim, position)
        inputs = state.get('inputs')
        check_cached(self.is_causal, 0 if inputs is None else inputs.shape[1], position)
        inputs = x if inputs is None else torch.cat([inputs, x], 1)
        last = inputs[:, -self.kernel_size :].mT
        offsets = self.offset(F.pad(last, (self.kernel_size - last.shape[-1], 0))).mT
        return self._sample(inputs, offsets, first=position), {'inputs': inputs}

    @property
    def _sides(self) -> tuple[int, int]:
        k = self.kernel_size
        return (k - 1, 0) if self.is_causal else (k // 2, k // 2)

    def _sample(self, x: Tensor, offsets: Tensor, first: int) -> Tensor:
        # x is (B, M, E) and offsets are (B, L, k), for the positions from ``first``.
        batch, length, _ = offsets.shape
        before, after = self._sides
        dtype = torch.promote_types(offsets.dtype, torch.float32)  # bfloat16 has no odd integers above 256
        at = torch.arange(first, first + length, device=x.device, dtype=dtype)[:, None]
        regular = at + torch.arange(-before, after + 1, device=x.device, dtype=dtype)
        # x is 0 at −1 and at M, and everywhere beyond.
        latest = at if self.is_causal else torch.full_like(at, x.shape[1])
        where = (regular + offsets.to(dtype)).clamp(torch.full_like(at, -1), latest)
        right = where.detach().ceil()
        weight = (where - right + 1).to(x.dtype).flatten(1).unsqueeze(-1)  # of the position on the right
        index = right.nan_to_num(0).long().flatten(1).unsqueeze(-1).expand(-1, -1, x.shape[-1])
        padded = F.pad(x, (0, 0, 2, 0 if self.is_causal else 1))  # row p + 2 holds position p
        samples = torch.lerp(padded.gather(1, index + 1), padded.gather(1, index + 2), weight)  # (B, L·k, E)
        return F.linear(samples.view(batch, length, -1), self.conv.weight.permute(0, 2, 1).flatten(1), self.conv.bias)
