"""ResNet backbone that also returns its stem, a map of half the image's size."""

from mmseg.models.backbones import ResNet
from torch import Tensor

from mmattn.registry import MODELS


@MODELS.register_module()
class ResNetStem(ResNet):
    """mmseg's ``ResNet`` that returns its stem before max-pooling, followed by its stages.

    The stem is res-1 in Table 4.5 of *The Attention Mechanism in Vision and Language Analysis* (PhD thesis, University
    of Technology Sydney, 2021). It has ``stem_channels`` channels, 64 by default. Arguments, weights and stages are as
    in ``ResNet``. ``out_indices`` selects stages. The stem is always the first output.

    Example:
        >>> backbone = ResNetStem(18, out_indices=(0, 1))
        >>> [tuple(x.shape) for x in backbone(torch.randn(1, 3, 32, 64))]
        [(1, 64, 16, 32), (1, 64, 8, 16), (1, 128, 4, 8)]
    """

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the stem, ``(B, stem_channels, H/2, W/2)`` for ``(B, 3, H, W)``, and the maps of ``out_indices``."""
        x = self.stem(x) if self.deep_stem else self.relu(self.norm1(self.conv1(x)))
        outs = [x]
        x = self.maxpool(x)
        for i, name in enumerate(self.res_layers):
            x = getattr(self, name)(x)
            if i in self.out_indices:
                outs.append(x)
        return tuple(outs)
