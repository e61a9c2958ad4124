"""The network Φ that follows the product in a branch of Hadamard fusion."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mmattn.utils.checks import check_count

SKIPS = ('add', 'concat')


class PostFusionNetwork(nn.Module):
    """Blocks of three layers; the input and the output of each block skip to the output of the network.

    With 'add', a block maps C → H → H → C channels, and the output is x + h_3 + h_6 + …. With 'concat', a block ends
    with H channels, and the output is Lin([x; h_3; h_6; …]). The activation follows each layer of a block. The thesis
    does not say which it is.

    Source: "Attention and Fusion of Deep Representations for Computer Vision", master's thesis, University of Guelph,
    2020, section 3.4.

    Args:
        channels (int): channels C of input and output.
        activation (Callable): f.
        hidden_dim (int): H. Defaults to 128.
        num_blocks (int): number of blocks. Defaults to 2.
        skip (str): 'add' or 'concat'. Defaults to 'add'.

    Raises:
        TypeError: a number is not an integer.
        ValueError: a number is below 1, or ``skip`` is unknown.

    Example:
        >>> network = PostFusionNetwork(510, torch.tanh)
        >>> network(torch.randn(2, 510)).shape, sum(parameter.numel() for parameter in network.parameters())
        (torch.Size([2, 510]), 295420)
    """

    def __init__(
        self,
        channels: int,
        activation: Callable[[Tensor], Tensor],
        hidden_dim: int = 128,
        num_blocks: int = 2,
        skip: str = 'add',
    ) -> None:
        super().__init__()
        for name, number in (('channels', channels), ('hidden_dim', hidden_dim), ('num_blocks', num_blocks)):
            check_count(name, number)
        if skip not in SKIPS:
            raise ValueError(f'skip must be one of {SKIPS}; got {skip!r}')
        self.activation, self.skip = activation, skip
        last = channels if skip == 'add' else hidden_dim
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.Linear(channels if i == 0 else last, hidden_dim),
                    nn.Linear(hidden_dim, hidden_dim),
                    nn.Linear(hidden_dim, last),
                ]
            )
            for i in range(num_blocks)
        )
        self.out_proj = nn.Linear(channels + num_blocks * hidden_dim, channels) if skip == 'concat' else None

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(*, C)`` for ``(*, C)``."""
        found = [x]
        for block in self.blocks:
            h = found[-1]
            for layer in block:  # type: ignore[attr-defined]
                h = self.activation(layer(h))
            found.append(h)
        return sum(found[1:], x) if self.out_proj is None else self.out_proj(torch.cat(found, -1))
