"""A residual block around any attention layer, for the plugin slots of a backbone."""

from torch import Tensor, nn, zeros

from mmattn.registry import MODELS


@MODELS.register_module()
class AttendedResidual(nn.Module):
    """Residual block around an attention layer: y = x + γ · attention(x), with a learned scalar γ that starts at 0.

    Use it for layers that have no residual connection, such as :class:`~mmattn.layers.LocalBilateralAttention`. The
    block is the identity at first, so inserting it does not change the output of a pretrained network. The ``init_cfg``
    of a network initialises convolutions and norms, but not the scalar γ.
    Source: "An Empirical Study of Spatial Attention Mechanisms in Deep Networks", 2019, Fig. 2a.

    Args:
        in_channels (int): channels of the map.
        attention (dict): config of a layer that accepts the argument ``in_channels`` and keeps the shape of the map.

    Example:
        >>> layer = AttendedResidual(16, dict(type='mmattn.LocalBilateralAttention', num_heads=2))
        >>> x = torch.randn(1, 16, 8, 8)
        >>> torch.equal(layer(x), x)  # γ is 0
        True
    """

    def __init__(self, in_channels: int, attention: dict) -> None:
        if not isinstance(attention, dict):
            raise TypeError(f'attention must be the config of a layer, a dict; got {type(attention).__name__}')
        super().__init__()
        self.attention = MODELS.build(dict(attention, in_channels=in_channels))
        self.gamma = nn.Parameter(zeros(1))

    def init_weights(self) -> None:
        """Initialise the attention layer, if it has ``init_weights``, and set γ to 0."""
        if hasattr(self.attention, 'init_weights'):
            self.attention.init_weights()
        nn.init.zeros_(self.gamma)

    def forward(self, x: Tensor) -> Tensor:
        """Compute x + γ · attention(x), ``(B, C, H, W)`` in the dtype of ``x``, for float x ``(B, C, H, W)``."""
        return x + (self.gamma * self.attention(x)).to(x.dtype)
