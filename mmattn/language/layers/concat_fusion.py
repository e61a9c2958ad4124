"""Fusion of two vectors by their concatenation."""

import torch
from torch import Tensor, nn

from mmattn.registry import MODELS
from mmattn.utils.checks import check_count


@MODELS.register_module()
class ConcatFusion(nn.Module):
    """Fuse a question and a value by a layer, or two, that read their concatenation.

    Source: "Attention and Fusion of Deep Representations for Computer Vision", master's thesis, University of Guelph,
    2020, a baseline of section 3.2.

    Args:
        query_dim, value_dim, out_dim (int): channels of both inputs and of the output.
        hidden (bool): add a hidden layer of ``out_dim`` channels with ReLU. Defaults to False.

    Raises:
        TypeError: a number is not an integer.
        ValueError: a number is below 1.

    Example:
        >>> ConcatFusion(310, 620, 510)(torch.randn(2, 1, 310), torch.randn(2, 9, 620)).shape
        torch.Size([2, 9, 510])
    """

    def __init__(self, query_dim: int, value_dim: int, out_dim: int, hidden: bool = False) -> None:
        super().__init__()
        for name, number in (('query_dim', query_dim), ('value_dim', value_dim), ('out_dim', out_dim)):
            check_count(name, number)
        first = nn.Linear(query_dim + value_dim, out_dim)
        self.layers = nn.Sequential(first, nn.ReLU(), nn.Linear(out_dim, out_dim)) if hidden else first

    def forward(self, query: Tensor, value: Tensor) -> Tensor:
        """Return ``(*, out_dim)`` for ``(*, query_dim)`` and ``(*, value_dim)``; the other dimensions are broadcast."""
        shape = torch.broadcast_shapes(query.shape[:-1], value.shape[:-1])
        return self.layers(torch.cat([x.expand(*shape, -1) for x in (query, value)], -1))
