"""Encodings of positions: sinusoids, and the relative geometry of boxes."""

import math

import torch
from torch import Tensor

from mmattn.ops.dtypes import accumulator

from .sequence_checks import check_key_padding_mask


def sinusoids(positions: Tensor, channels: int) -> Tensor:
    """Encode positions ``(*)`` by sinusoids ``(*, C)``: channels 2c and 2c + 1 are sin and cos of t · 10000^(−2c/C).

    ``channels`` C is even. The result is float64 for float64 positions, otherwise float32.

    Example:
        >>> sinusoids(torch.arange(3), 4)[0]
        tensor([0., 1., 0., 1.])
    """
    dtype = torch.promote_types(positions.dtype, torch.float32) if positions.is_floating_point() else torch.float32
    rates = torch.exp(
        torch.arange(0, channels, 2, device=positions.device, dtype=dtype) * (-math.log(10000) / channels)
    )
    angles = positions[..., None].to(dtype) * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


MIN_DISTANCE = 1e-3
PADDING_BOX = (0.0, 0.0, 1.0, 1.0)


def relative_geometry(boxes: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Compute position and size of each box relative to each other box of its image, ``(B, N, N, 4)``.

    f_ij = (log |x_i − x_j|/w_i, log |y_i − y_j|/h_i, log w_i/w_j, log h_i/h_j) for boxes with centres (x, y) and sides
    w, h. Sides below 1 pixel count as 1, and distances |x_i − x_j|/w_i and |y_i − y_j|/h_i below 1e-3 as 1e-3. The
    result is float32, or float64 for float64 boxes.

    Source: "Normalized and Geometry-Aware Self-Attention Network for Image Captioning", 2020, Eq. 8.

    Args:
        boxes (Tensor): float ``(B, N, 4)``, left, top, right and bottom of each region in pixels, not checked.
        key_padding_mask (Tensor, optional): bool ``(B, N)``, True where a region is padding. Its box may be NaN.

    Example:
        >>> boxes = torch.tensor([[[0.0, 0.0, 10.0, 20.0], [30.0, 10.0, 50.0, 30.0]]])
        >>> relative_geometry(boxes)[0, 0, 1]
        tensor([ 1.2528, -0.6931, -0.6931,  0.0000])
    """
    if boxes.dim() != 3 or boxes.shape[-1] != 4:
        raise ValueError(f'boxes must be (B, N, 4); got {tuple(boxes.shape)}')
    if not boxes.is_floating_point():
        raise TypeError(f'boxes must be floating-point; got {boxes.dtype}')
    check_key_padding_mask(key_padding_mask, boxes)
    boxes = boxes.to(accumulator(boxes))
    if key_padding_mask is not None:  # before the logarithm: NaN would reach the gradients, even where it is masked
        boxes = torch.where(key_padding_mask[..., None], boxes.new_tensor(PADDING_BOX), boxes)
    first, last = boxes.chunk(2, -1)
    centre, sides = (first + last) / 2, (last - first).clamp(min=1)  # both (B, N, 2)
    distance = (centre[:, :, None] - centre[:, None]).abs() / sides[:, :, None]
    return torch.cat([distance.clamp(min=MIN_DISTANCE), sides[:, :, None] / sides[:, None]], -1).log()
