"""Dynamic convolution of a sequence."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmattn.ops import dynamic_conv
from mmattn.ops.window_bias import accumulator, as_window_size
from mmattn.registry import MODELS
from mmattn.utils.checks import check_divisor

from .sequence import SequenceConv, State, check_cached, check_step


@MODELS.register_module()
class DynamicConv1d(SequenceConv):
    """Gated linear unit (GLU) and depth-wise convolution of a sequence, whose kernel each position predicts.

    y_t = W_c Σ_j softmax_j [d_{j,g}ᵀ u_t] u_{t + p_j} over the n_k offsets p_j (Eq. 5 to 7, in one dimension), with
    u = GLU(W x). Each group g of channels has its own softmax. Outside the sentence and in padding, u is 0. The offsets
    are −r … r with r = (n_k − 1)/2, or −2r … 0 if the layer is causal. The layer has no residual connection and no γ.

    It replaces the self-attention of a Transformer (Fig. 2b), and has the interface of
    ``nn.MultiheadAttention(batch_first=True)``. The order of the operations is that of :class:`DynamicConv2d`.

    Source: "An Empirical Study of Spatial Attention Mechanisms in Deep Networks", 2019.

    Args:
        embed_dim (int): channels E of the sequence.
        num_heads (int): number of groups, a divisor of E; the channels of a group share a kernel. Defaults to 16.
        kernel_size (int): odd length n_k of the kernel. Defaults to 31.
        causal (bool): position t depends only on positions up to t. Defaults to False.

    Raises:
        TypeError: ``embed_dim`` or ``num_heads`` is not an integer.
        ValueError: the kernel is even, or ``num_heads`` does not divide ``embed_dim``.

    Example:
        >>> layer = DynamicConv1d(16, num_heads=4, kernel_size=5)
        >>> x = torch.randn(2, 10, 16)
        >>> layer(x, x, x)[0].shape
        torch.Size([2, 10, 16])
    """

    def __init__(self, embed_dim: int, num_heads: int = 16, kernel_size: int = 31, causal: bool = False) -> None:
        super().__init__(embed_dim, causal)
        check_divisor('num_heads', num_heads, 'embed_dim', embed_dim)
        (self.kernel_size,) = as_window_size(kernel_size, axes=1, name='kernel_size')
        self.num_heads = num_heads
        self.glu = nn.Linear(embed_dim, 2 * embed_dim)
        self.kernel = nn.Linear(embed_dim, num_heads * self.kernel_size, bias=False)
        self.output = nn.Linear(embed_dim, embed_dim)
        self.init_weights()

    def init_weights(self) -> None:
        """Reset every parameter: Xavier-uniform matrices and zero biases."""
        for layer in (self.glu, self.kernel, self.output):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def convolve(self, x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
        """Filter each position of ``(B, L, E)`` with its own kernel."""
        u = F.glu(self.glu(x))
        if key_padding_mask is not None:
            u = u.masked_fill(key_padding_mask.unsqueeze(-1), 0)
        value, logits = self._split(u), self._split(self.kernel(u))
        # The kernels of the operator are centred: the output at t must read the values up to t − r.
        delay = self.kernel_size // 2 if self.causal else 0
        value, logits = F.pad(value, (0, 0, delay, 0)), F.pad(logits, (0, 0, 0, delay))
        y = dynamic_conv(value, logits, kernel_size=(1, self.kernel_size))[:, :, 0, : x.shape[1]]
        return self.output(y.transpose(1, 2).flatten(2))

    def step(self, x: Tensor, state: State, position: int) -> tuple[Tensor, State]:
        """As :meth:`SequenceConv.step`. The state holds the last n_k − 1 values of u: ``'inputs'``."""
        check_step(x, self.embed_dim, position)
        before = state.get('inputs')
        check_cached(self.causal, 0 if before is None else before.shape[1], position, self.kernel_size - 1)
        u = F.glu(self.glu(x))
        inputs = u if before is None else torch.cat([before, u], 1)
        logits = self.kernel(u).unflatten(-1, (self.num_heads, -1))  # (n, 1, heads, n_k)
        kernels = logits.to(accumulator(logits)).softmax(-1)[:, 0, :, -inputs.shape[1] :].to(inputs.dtype)
        y = torch.einsum('nhk,nkhd->nhd', kernels, inputs.unflatten(-1, (self.num_heads, -1)))
        kept = inputs[:, max(inputs.shape[1] - self.kernel_size + 1, 0) :]
        return self.output(y.flatten(1).unsqueeze(1)), {'inputs': kept} if kept.shape[1] else {}

    def _split(self, x: Tensor) -> Tensor:
        """View ``(B, L, heads·D)`` as ``(B, heads, 1, L, D)``."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).unsqueeze(2)
