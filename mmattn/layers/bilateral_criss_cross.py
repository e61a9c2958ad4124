"""Bilateral criss-cross attention (Bi-CC), section 3.4.4 of the bilateral-attention thesis."""

import torch
from mmcv.cnn import Scale
from torch import Tensor, nn
from typing_extensions import Unpack

from mmattn._compat import before_loading
from mmattn.ops import grid_attention
from mmattn.registry import MODELS
from mmattn.utils.checks import check_count, check_map

from .channels_last import compute_channels_last
from .positions import PositionOptions, Positions, content_scale


@MODELS.register_module()
class BilateralCrissCrossAttention(Positions, nn.Module):
    """Criss-cross attention with position logits: each position attends to its row and its column.

    y_i = x_i + γ · Σ_j softmax_j [q_iᵀk_j/σc + δp(i, j)/σp] v_j over the H + W − 1 positions j in the row and the
    column of i (Eq. 3.9 to 3.12). It extends mmcv's ``CrissCrossAttention``: with ``position='none'`` it has the same
    ``state_dict`` keys and the same output. γ has shape (1,), and () in mmcv. Checkpoints load in both directions.
    Source: "The Attention Mechanism in Vision and Language Analysis", PhD thesis, UTS, 2021, section 3.4.4.

    Args:
        in_channels (int): channels C of the map.
        reduction (int): q and k have C / reduction channels (rounded down, at least 1), v has C. Defaults to 8.
        position (str or dict): see :class:`.PositionOptions`. 'relative' is the relative encoding of Shaw et al. along
            row and column, as in Table 3.2. Defaults to 'bilateral'.
        content_smoothing (float, optional): σc, the divisor of the content logits. Defaults to √d, d the channels of q,
            and with 'none' to 1, as in mmcv.
        zero_init (bool): with positions, start as the stock layer: position logits are 0, and content logits have the
            factor of mmcv's layer. Load its weights to continue a trained network. Not with 'neg_inf', which leaves
            out keys. With 'zscore', position logits have their full size after one update, with 'sqrt_dim' they grow
            from 0. Defaults to False.
        **options: ``window_size``, ``padding``, ``smoothing`` and ``max_offset``, as in ``position``.

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
        *,
        position: str | dict = 'bilateral',
        content_smoothing: float | None = None,
        zero_init: bool = False,
        **options: Unpack[PositionOptions],
    ) -> None:
        check_count('in_channels', in_channels)
        check_count('reduction', reduction)
        super().__init__()
        positions = self.choose_positions(position, options)
        channels = max(in_channels // reduction, 1)
        self.in_channels = in_channels
        stock = self.position == 'none' or zero_init
        self.scale = content_scale(content_smoothing, 1.0 if stock else channels**-0.5)
        self.query_conv = nn.Conv2d(in_channels, channels, 1)
        self.key_conv = nn.Conv2d(in_channels, channels, 1)
        self.value_conv = nn.Conv2d(in_channels, in_channels, 1)
        self.gamma = Scale(0.0)
        # Sharded training does not support 0-dimensional parameters. Loading reshapes γ of mmcv's block.
        self.gamma.scale = nn.Parameter(torch.zeros(1))
        before_loading(self.gamma, _as_vector)
        window = dict(in_channels=in_channels, embed_channels=channels, zero_init=zero_init, support='grid')
        self.build_positions(2, channels, positions, **window)

    def init_weights(self) -> None:
        """Initialise the position logits again, after the ``init_cfg`` of a backbone."""
        if self.position == 'bilateral':
            self.window_position.init_weights()

    def forward(self, x: Tensor) -> Tensor:
        """Attend along the row and the column of each position, from float ``(B, C, H, W)`` to ``(B, C, H, W)``."""
        check_map(self, x, self.in_channels)
        return compute_channels_last(self._attend, x)

    def _attend(self, x: Tensor) -> Tensor:
        y = grid_attention(**self.operands(x))
        return x + self.gamma(y.squeeze(1).movedim(-1, 1)).to(x.dtype)  # x first: the sum has the strides of x

    def operands(self, x: Tensor) -> dict:
        """Compute the arguments of ``grid_attention`` for a map ``x`` of ``(B, C, H, W)``."""
        query = self.query_conv(x).movedim(1, -1).unsqueeze(1)  # (B, 1, H, W, C / reduction)
        key = self.key_conv(x).movedim(1, -1).unsqueeze(1)  # (B, 1, H, W, C / reduction)
        value = self.value_conv(x).movedim(1, -1).unsqueeze(1)  # (B, 1, H, W, C)
        position = self.position_logits(x, query)
        return dict(query=query, key=key, value=value, scale=self.scale, **position)


def _as_vector(state_dict: dict, prefix: str, *_: object) -> None:
    key = prefix + 'scale'
    if key in state_dict:
        state_dict[key] = state_dict[key].reshape(1)
