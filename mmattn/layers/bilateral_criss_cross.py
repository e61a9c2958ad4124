"""Bilateral criss-cross attention (Bi-CC), section 3.4.4 of the bilateral-attention thesis."""

import torch
from mmcv.cnn import Scale
from torch import Tensor, nn

from mmattn._compat import before_loading
from mmattn.ops import grid_attention
from mmattn.registry import MODELS
from mmattn.utils.checks import check_choice, check_count, check_map, check_positive

from .attention_weights import AttentionWeights
from .relative_position import RelativePosition
from .window_position import POSITIONS, WindowPosition


@MODELS.register_module()
class BilateralCrissCrossAttention(AttentionWeights, nn.Module):
    """Criss-cross attention with position logits: each position attends to its row and its column.

    y_i = x_i + γ · Σ_j softmax_j [q_iᵀk_j/σc + δp(i, j)/σp] v_j over the H + W − 1 positions j in the row and the
    column of i (Eq. 3.9 to 3.12). It extends mmcv's ``CrissCrossAttention``: with ``position='none'`` it has the same
    ``state_dict`` keys and the same output. γ has shape (1,), and () in mmcv. Checkpoints load in both directions.
    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, UTS, 2021, section 3.4.4.

    Args:
        in_channels (int): channels C of the map.
        reduction (int): q and k have C / reduction channels (rounded down, at least 1), v has C. Defaults to 8.
        window_size (int or tuple[int, int]): odd lengths (vertical, horizontal) of the position windows. Defaults to
            31.
        position (str): 'bilateral' (Eq. 3.12), 'relative' (relative encoding of Shaw et al. along row and column, as in
            Table 3.2) or 'none' (content only). Defaults to 'bilateral'.
        padding (str): with 'bilateral', the logit of keys outside the window: 'learned', 'zero', 'neg_inf', or the
            'mean' or 'min' of the logits within the window (Table 3.3). Defaults to 'learned'.
        smoothing (str or float): with 'bilateral', how position logits are scaled: 'zscore' (normalised over the keys
            of a query, not with 'neg_inf'), 'sqrt_dim' (divided by √d) (Table 3.3), or a number σp. Defaults to
            'zscore'.
        max_offset (int): with 'relative', offsets are clipped to ±``max_offset``. Defaults to 96.
        content_smoothing (float, optional): σc, the divisor of the content logits. Defaults to √d, d the channels of q,
            and with 'none' to 1, as in mmcv.
        zero_init (bool): with positions, start as the stock layer: position logits are 0, and content logits have the
            factor of mmcv's layer. Load its weights to continue a trained network. Not with 'neg_inf', which leaves
            out keys. With 'zscore', position logits have their full size after one update, with 'sqrt_dim' they grow
            from 0. Defaults to False.

    Example:
        >>> layer = BilateralCrissCrossAttention(16, window_size=5)
        >>> layer(torch.randn(1, 16, 8, 8)).shape
        torch.Size([1, 16, 8, 8])
    """

    operator = staticmethod(grid_attention)

    def __init__(
        self,
        in_channels: int,
        reduction: int = 8,
        window_size: int | tuple[int, int] = 31,
        position: str = 'bilateral',
        padding: str = 'learned',
        smoothing: str | float = 'zscore',
        max_offset: int = 96,
        content_smoothing: float | None = None,
        zero_init: bool = False,
    ) -> None:
        check_count('in_channels', in_channels)
        check_count('reduction', reduction)
        super().__init__()
        check_choice('position', position, POSITIONS)
        channels = max(in_channels // reduction, 1)
        self.in_channels = in_channels
        self.position = position
        self.scale = 1.0 if position == 'none' or zero_init else channels**-0.5
        if content_smoothing is not None:
            check_positive('content_smoothing', content_smoothing)
            self.scale = 1 / content_smoothing
        self.query_conv = nn.Conv2d(in_channels, channels, 1)
        self.key_conv = nn.Conv2d(in_channels, channels, 1)
        self.value_conv = nn.Conv2d(in_channels, in_channels, 1)
        self.gamma = Scale(0.0)
        # Sharded training does not support 0-dimensional parameters. Loading reshapes γ of mmcv's block.
        self.gamma.scale = nn.Parameter(torch.zeros(1))
        before_loading(self.gamma, _as_vector)
        if position == 'bilateral':
            self.window_position = WindowPosition(
                2, in_channels, channels, window_size, channels, padding, smoothing, support='grid', zero_init=zero_init
            )
        elif position == 'relative':
            self.relative_position = RelativePosition(2, channels, max_offset, zero_init=zero_init)

    def init_weights(self) -> None:
        """Initialise the position logits again, after the ``init_cfg`` of a backbone."""
        if self.position == 'bilateral':
            self.window_position.init_weights()

    def forward(self, x: Tensor) -> Tensor:
        """Attend along the row and the column of each position, from float ``(B, C, H, W)`` to ``(B, C, H, W)``."""
        check_map(self, x, self.in_channels)
        y = grid_attention(**self.operands(x))
        return x + self.gamma(y.squeeze(1).movedim(-1, 1)).to(x.dtype)  # x first: the sum has the strides of x

    def operands(self, x: Tensor) -> dict:
        """Compute the arguments of ``grid_attention`` for a map ``x`` of ``(B, C, H, W)``."""
        query = self.query_conv(x).movedim(1, -1).unsqueeze(1)  # (B, 1, H, W, C / reduction)
        key = self.key_conv(x).movedim(1, -1).unsqueeze(1)  # (B, 1, H, W, C / reduction)
        value = self.value_conv(x).movedim(1, -1).unsqueeze(1)  # (B, 1, H, W, C)
        position = {}
        if self.position == 'bilateral':
            position = self.window_position(x)
        elif self.position == 'relative':
            position = self.relative_position.arm_bias(query * self.scale)
        return dict(query=query, key=key, value=value, scale=self.scale, **position)


def _as_vector(state_dict: dict, prefix: str, *_: object) -> None:
    key = prefix + 'scale'
    if key in state_dict:
        state_dict[key] = state_dict[key].reshape(1)
