"""MobileNetV2 up to its maps of an eighth of the image's size, frozen."""

from hashlib import sha1

import torch
from mmseg.models.backbones import MobileNetV2
from mmseg.registry import MODELS
from torch import Tensor


@MODELS.register_module()
class FrozenBackbone(MobileNetV2):
    """The first three of the seven layers of mmseg's ``MobileNetV2``, always in evaluation mode and without gradients.

    Images ``(B, 3, H, W)`` become a map ``(B, 32, H/8, W/8)``. Each image is computed once, by its pixels: the training
    has 400 photographs and their mirror images, so a step costs little more than the head. Weights of a complete
    MobileNetV2 fit.
    """

    arch_settings = MobileNetV2.arch_settings[:3]

    def __init__(self, **kwargs) -> None:
        super().__init__(strides=(1, 2, 2), dilations=(1, 1, 1), out_indices=(2,), **kwargs)
        self.requires_grad_(False)
        self.maps: dict[bytes, Tensor] = {}

    def train(self, mode: bool = True) -> 'FrozenBackbone':
        """Stay in evaluation mode: the statistics of the normalisation are kept."""
        super().train(False)
        return self

    @torch.no_grad()
    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Return the map in a tuple, as heads read maps."""
        return (torch.cat([self._compute_once(image) for image in x.split(1)]),)

    def _compute_once(self, image: Tensor) -> Tensor:
        key = sha1(image.numpy().tobytes()).digest()
        if key not in self.maps:
            self.maps[key] = super().forward(image)
        return self.maps[key]
