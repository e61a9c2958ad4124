"""Deformable convolution of a sequence."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.ops.window_bias import as_window_size
from mmattn.registry import MODELS

from .sequence import SequenceConv, State, check_cached, check_step


@MODELS.register_module()
class DeformConv1d(SequenceConv):
    """Convolution of a sequence that samples at learned offsets from its regular positions.

    y_t = b + Σ_n W_n x(t + n + Δ_n(t)) (Eq. 3 and 4, in one dimension, unmodulated). The offsets Δ_n(t), in positions,
    are the output of a convolution of the same length, which starts at 0: a new layer is an ordinary convolution.
    Between two positions, x is interpolated linearly; outside the sentence and in padding, it is 0.

    The k regular positions are n = −r … r with r = (k − 1)/2, or n = −2r … 0 if the layer is causal. A causal layer
    clamps the sampled position to at most t. At an integer position, the gradient of an offset is that from the left,
    so a causal layer reads no later position in its backward pass either.

    It precedes the self-attention of a Transformer (Fig. 2c), and has the interface of
    ``nn.MultiheadAttention(batch_first=True)``. It has no residual connection.

    Source: "An Empirical Study of Spatial Attention Mechanisms in Deep Networks", 2019.

    Args:
        embed_dim (int): channels E of the sequence.
        num_heads (int): not used; accepted so that all sequence layers are built in the same way. Defaults to 1.
        kernel_size (int): odd number k of positions. Defaults to 3.
        causal (bool): position t depends only on positions up to t. Defaults to False.

    Raises:
        TypeError: ``embed_dim`` is not an integer.
        ValueError: the kernel is even.

    Example:
        >>> layer = DeformConv1d(16)
        >>> x = torch.randn(2, 10, 16)
        >>> torch.allclose(layer(x, x, x)[0].mT, layer.conv(x.mT), atol=1e-5)  # the offsets start at 0
        True
    """

    def __init__(self, embed_dim: int, num_heads: int = 1, kernel_size: int = 3, causal: bool = False) -> None:
        super().__init__(embed_dim, causal)
        (k,) = as_window_size(kernel_size, axes=1, name='kernel_size')
        self.kernel_size = k
        self.conv = nn.Conv1d(embed_dim, embed_dim, k, padding=k // 2)  # W, b
        self.offset = nn.Conv1d(embed_dim, k, k)  # Δ; padded in _offsets
        self.init_weights()

    def init_weights(self) -> None:
        """Reset every parameter: W and b as in ``nn.Conv1d``, and 0 for the convolution that predicts the offsets."""
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
        """As :meth:`SequenceConv.step`. The state holds all inputs, ``'inputs'``, because an offset has no limit."""
        check_step(x, self.embed_dim, position)
        inputs = state.get('inputs')
        check_cached(self.causal, 0 if inputs is None else inputs.shape[1], position)
        inputs = x if inputs is None else torch.cat([inputs, x], 1)
        last = inputs[:, -self.kernel_size :].mT
        offsets = self.offset(F.pad(last, (self.kernel_size - last.shape[-1], 0))).mT
        return self._sample(inputs, offsets, first=position), {'inputs': inputs}

    @property
    def _sides(self) -> tuple[int, int]:
        """Number of regular positions before and after the output's."""
        k = self.kernel_size
        return (k - 1, 0) if self.causal else (k // 2, k // 2)

    def _sample(self, x: Tensor, offsets: Tensor, first: int) -> Tensor:
        """Outputs ``(B, L, E)`` at positions from ``first``, from inputs ``(B, M, E)`` and offsets ``(B, L, k)``."""
        batch, length, _ = offsets.shape
        before, after = self._sides
        dtype = torch.promote_types(offsets.dtype, torch.float32)  # bfloat16 has no odd integers above 256
        at = torch.arange(first, first + length, device=x.device, dtype=dtype)[:, None]
        regular = at + torch.arange(-before, after + 1, device=x.device, dtype=dtype)
        # x is 0 at −1 and at M, and there is nothing else beyond them.
        latest = at if self.causal else torch.full_like(at, x.shape[1])
        where = (regular + offsets.to(dtype)).clamp(torch.full_like(at, -1), latest)
        right = where.detach().ceil()
        weight = (where - right + 1).to(x.dtype).flatten(1).unsqueeze(-1)  # of the position on the right
        index = right.nan_to_num(0).long().flatten(1).unsqueeze(-1).expand(-1, -1, x.shape[-1])
        padded = F.pad(x, (0, 0, 2, 0 if self.causal else 1))  # row p + 2 holds position p
        samples = torch.lerp(padded.gather(1, index + 1), padded.gather(1, index + 2), weight)  # (B, L·k, E)
        return F.linear(samples.view(batch, length, -1), self.conv.weight.permute(0, 2, 1).flatten(1), self.conv.bias)
