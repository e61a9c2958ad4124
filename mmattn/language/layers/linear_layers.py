"""Linear layers: Xavier initialisation, weight norm, and matrices of valid positions without padding."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm


def init_xavier(part: nn.Module) -> None:
    """Reset all linear layers and convolutions of a module: Xavier-uniform weights, and biases of 0."""
    for module in part.modules():
        if isinstance(module, nn.Linear | nn.Conv1d):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def normalized(linear: nn.Linear) -> nn.Linear:
    """Write the weight of a linear layer as s · v / ‖v‖ with one scale s ``(1,)``, and return the layer."""
    weight_norm(linear, dim=None)  # type: ignore[arg-type]  # None is one scale for the matrix
    parts: Any = linear.get_submodule('parametrizations.weight')
    parts.original0 = nn.Parameter(parts.original0.detach().view(1))  # FSDP takes no parameter without a dimension
    return linear


def weight_norm_linear(in_dim: int, out_dim: int, dropout: float, relu: bool = True) -> nn.Sequential:
    """Stack dropout, a linear layer whose weight is s · v / ‖v‖ with one scalar s, and, with ``relu``, ReLU."""
    return nn.Sequential(nn.Dropout(dropout), normalized(nn.Linear(in_dim, out_dim)), *([nn.ReLU()] if relu else []))


def in_projection(weight: Tensor, bias: Tensor | None, *inputs: Tensor) -> Sequence[Tensor]:
    """Project each of n inputs ``(B, L, E)`` with its rows of a weight ``(n·E, E)`` and of a bias ``(n·E)``."""
    if len(set(map(id, inputs))) == 1:  # one product
        return F.linear(inputs[0], weight, bias).chunk(len(inputs), -1)
    biases = [None] * len(inputs) if bias is None else bias.chunk(len(inputs))
    return [F.linear(x, w, b) for x, w, b in zip(inputs, weight.chunk(len(inputs)), biases)]


class PackedPositions:
    """The valid positions of a padded batch, as rows of a matrix.

    ``x`` is float ``(B, L, C)``, and ``padding_mask`` is bool ``(B, L)``, True where a position is padding. Padding may
    have any value, NaN too. The attribute ``rows`` has the n valid positions, ``(n, C)``.
    """

    def __init__(self, x: Tensor, padding_mask: Tensor | None = None) -> None:
        self.shape = x.shape[:2]
        self.index = None if padding_mask is None else (~padding_mask).flatten().nonzero().squeeze(1)
        rows = x.flatten(0, 1)
        self.rows = rows if self.index is None else rows.index_select(0, self.index)

    def padded(self, rows: Tensor) -> Tensor:
        """Put rows ``(n, D)`` back in place, into ``(B, L, D)`` with 0 at padding."""
        if self.index is not None:
            rows = rows.new_zeros(self.shape.numel(), rows.shape[-1]).index_copy(0, self.index, rows)
        return rows.view(*self.shape, rows.shape[-1])
