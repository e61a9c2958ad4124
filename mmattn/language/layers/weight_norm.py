"""The linear layer of bilinear attention networks: dropout of the input, and weight norm with one scale per matrix."""

from typing import Any

from torch import nn
from torch.nn.utils.parametrizations import weight_norm


def normalized(linear: nn.Linear) -> nn.Linear:
    """Write the weight of a linear layer as s · v / ‖v‖, with one scale s ``(1,)``; return the layer.

    Example:
        >>> [tuple(parameter.shape) for parameter in normalized(nn.Linear(16, 8)).parameters()]
        [(8,), (1,), (8, 16)]
    """
    weight_norm(linear, dim=None)  # type: ignore[arg-type]  # None is one scale for the matrix
    parts: Any = linear.get_submodule('parametrizations.weight')
    parts.original0 = nn.Parameter(parts.original0.detach().view(1))  # FSDP takes no parameter without a dimension
    return linear


def weight_norm_linear(in_dim: int, out_dim: int, dropout: float = 0.2, relu: bool = True) -> nn.Sequential:
    """Return dropout, an affine map whose weight is s · v / ‖v‖ with one scalar s, and ReLU.

    The weight starts as that of ``nn.Linear``.

    Args:
        in_dim, out_dim (int): channels.
        dropout (float): probability. Defaults to 0.2.
        relu (bool): apply ReLU. Defaults to True.

    Example:
        >>> layer = weight_norm_linear(16, 8)
        >>> layer(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 8])
        >>> sum(parameter.numel() for parameter in layer.parameters())  # weight, bias and scale
        137
    """
    return nn.Sequential(nn.Dropout(dropout), normalized(nn.Linear(in_dim, out_dim)), *([nn.ReLU()] if relu else []))
