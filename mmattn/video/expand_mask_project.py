"""Expand-Mask-Project (Fig. 5.2), which writes a reference mask into features, and the appearance model (Eq. 5.8)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def shrink_masks(masks: Tensor, size: Sequence[int]) -> Tensor:
    """Average masks over the cells of a feature map.

    If every cell of an object would be below 0.5, its largest cell is set to 1, so that no object is lost.

    Args:
        masks (Tensor): ``(O, H, W)`` of any dtype, 1 or True on the object. H and W are multiples of h and w.
        size (sequence of int): ``(h, w)`` of the feature map.

    Returns:
        Tensor: float32 ``(O, h, w)``, from 0 to 1. Masks without a pixel remain empty.

    Example:
        >>> masks = torch.zeros(1, 8, 8)
        >>> masks[0, 2, 3] = 1
        >>> shrink_masks(masks, (2, 2))
        tensor([[[1., 0.],
                 [0., 0.]]])
    """
    shares = F.adaptive_avg_pool2d(masks.float().unsqueeze(1), (size[0], size[1])).squeeze(1)
    flat = shares.flatten(1)
    most, cell = flat.max(1, keepdim=True)
    lost = (most > 0) & (most < 0.5)
    flat.scatter_(1, cell, torch.where(lost, 1.0, most))
    return shares


class ExpandMaskProject(nn.Module):
    """Project the features of an object and of its background by separate affine maps, and add the two (Fig. 5.2).

    R_o = T_foreground(M_o · x) + T_background((1 − M_o) · x) for each object o.

    Args:
        channels (int): C.

    Example:
        >>> layer = ExpandMaskProject(8)
        >>> layer(torch.randn(2, 4, 4, 8), torch.ones(2, 4, 4)).shape
        torch.Size([2, 4, 4, 8])
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.foreground = nn.Linear(channels, channels)
        self.background = nn.Linear(channels, channels)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialise the maps to the identity plus and minus a random projection, to separate object and background."""
        channels = len(self.foreground.bias)
        nn.init.normal_(self.foreground.weight, std=channels**-0.5)
        with torch.no_grad():
            self.background.weight.copy_(-self.foreground.weight)
            for projection in (self.foreground, self.background):
                projection.weight += torch.eye(channels)
                nn.init.zeros_(projection.bias)  # both biases are added at every voxel, so they separate nothing

    def forward(self, features: Tensor, masks: Tensor) -> Tensor:
        """Project features ``(O, H, W, C)`` of each object's reference frame, with masks ``(O, H, W)`` of 0 to 1."""
        masks = masks.unsqueeze(-1).to(features.dtype)
        return self.foreground(masks * features) + self.background((1 - masks) * features)


class AppearanceModel(nn.Module):
    """Compute the log-probability of features under a Gaussian fitted to an object in its reference frame (Eq. 5.8).

    The covariance is diagonal, plus a learned positive term r_k per channel. The log-probability is divided by the
    number of channels, which keeps it in the range of a feature.

    Args:
        channels (int): C.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.r = nn.Parameter(torch.zeros(channels))

    def forward(self, features: Tensor, reference: Tensor, masks: Tensor) -> Tensor:
        """Compute the log-probability ``(O, T, H, W, 1)``, in the dtype of ``features``.

        Args:
            features (Tensor): ``(O, T, H, W, C)``.
            reference (Tensor): ``(O, H, W, C)``, features of each object's reference frame.
            masks (Tensor): ``(O, H, W)`` from 0 to 1, α in Eq. 5.8. For an object without a voxel, all voxels count.
        """
        with torch.autocast(features.device.type, enabled=False):
            x, reference = features.float(), reference.float()
            alpha = torch.where(masks.sum((1, 2), keepdim=True) > 0, masks.float(), 1).unsqueeze(-1)
            alpha = alpha / alpha.sum((1, 2), keepdim=True)
            mean = (alpha * reference).sum((1, 2), keepdim=True)
            variance = (alpha * (reference - mean) ** 2).sum((1, 2), keepdim=True) + F.softplus(self.r.float())
            mean, variance = mean.unsqueeze(1), variance.unsqueeze(1)  # (O, 1, 1, 1, C)
            log_probability = (x - mean) ** 2 / variance + (2 * torch.pi * variance).log()
            return (-0.5 * log_probability.mean(-1, keepdim=True)).to(features.dtype)
