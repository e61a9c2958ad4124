"""Padded sequences without their padding: layers that act on each position skip the positions of padding."""

from torch import Tensor


class PackedPositions:
    """The valid positions of a padded batch, as rows of a matrix.

    Args:
        x (Tensor): float ``(B, L, C)``. Padding may have any value, NaN too.
        padding_mask (Tensor, optional): bool ``(B, L)``, True where a position is padding.

    Attributes:
        rows (Tensor): the n valid positions, ``(n, C)``.

    Example:
        >>> x, mask = torch.randn(2, 3, 4), torch.tensor([[False, False, True], [False, True, True]])
        >>> packed = PackedPositions(x, mask)
        >>> packed.rows.shape, packed.padded(packed.rows.exp()).shape
        (torch.Size([3, 4]), torch.Size([2, 3, 4]))
    """

    def __init__(self, x: Tensor, padding_mask: Tensor | None = None) -> None:
        self.shape = x.shape[:2]
        self.index = None if padding_mask is None else (~padding_mask).flatten().nonzero().squeeze(1)
        rows = x.flatten(0, 1)
        self.rows = rows if self.index is None else rows.index_select(0, self.index)

    def padded(self, rows: Tensor) -> Tensor:
        """Return ``(B, L, D)`` for rows ``(n, D)``; 0 where a position is padding."""
        if self.index is not None:
            rows = rows.new_zeros(self.shape.numel(), rows.shape[-1]).index_copy(0, self.index, rows)
        return rows.view(*self.shape, rows.shape[-1])
