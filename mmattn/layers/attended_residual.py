"""A residual around any attention layer that starts as the identity, for a backbone's plugin slots."""

from torch import Tensor, nn, zeros

from mmattn.registry import MODELS


@MODELS.register_module()
class AttendedResidual(nn.Module):
    """y = x + γ · attention(x), where γ is a scalar that starts at 0 (Fig. 2a of the empirical study of attention).

    For layers without a residual of their own, such as :class:`~mmattn.layers.LocalBilateralAttention`. A scalar
    survives what a network's ``init_cfg`` does to convolutions and norms; so a network keeps its output when the block
    is inserted.

    Args:
        in_channels (int): channels of the map.
        attention (dict): config of a layer of ``in_channels`` that keeps the map's shape.

    Raises:
        TypeError: ``attention`` is no dict.
    """

    def __init__(self, in_channels: int, attention: dict) -> None:
        if not isinstance(attention, dict):
            raise TypeError(f'attention must be the config of a layer, a dict; got {type(attention).__name__}')
        super().__init__()
        self.attention = MODELS.build(dict(attention, in_channels=in_channels))
        self.gamma = nn.Parameter(zeros(1))

    def init_weights(self) -> None:
        """Initialise the layer, if it can, and γ."""
        if hasattr(self.attention, 'init_weights'):
            self.attention.init_weights()
        nn.init.zeros_(self.gamma)

    def forward(self, x: Tensor) -> Tensor:
        """Add the attended map to ``x``, ``(B, C, H, W)``."""
        return x + (self.gamma * self.attention(x)).to(x.dtype)
