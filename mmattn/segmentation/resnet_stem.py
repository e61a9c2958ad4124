"""A ResNet that also returns its stem, the one map at half the image's size."""

from mmseg.models.backbones import ResNet
from torch import Tensor

from mmattn.registry import MODELS


@MODELS.register_module()
class ResNetStem(ResNet):
    """mmseg's ``ResNet`` whose first output is the stem before max-pooling (res-1 of Table 4.5), then the stages.

    Same arguments, weights and stages as ``ResNet``; ``out_indices`` counts stages, the stem always comes first. Its
    channels are ``stem_channels``, 64 by default.
    """

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the stem ``(B, stem_channels, H/2, W/2)`` and the maps of ``out_indices``, for ``(B, 3, H, W)``."""
        x = self.stem(x) if self.deep_stem else self.relu(self.norm1(self.conv1(x)))
        outs = [x]
        x = self.maxpool(x)
        for i, name in enumerate(self.res_layers):
            x = getattr(self, name)(x)
            if i in self.out_indices:
                outs.append(x)
        return tuple(outs)
