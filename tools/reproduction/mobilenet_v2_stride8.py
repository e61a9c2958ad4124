"""MobileNetV2 up to its maps of an eighth of the image's size."""

from mmseg.models.backbones import MobileNetV2
from torch import Tensor

from mmattn.registry import MODELS


@MODELS.register_module()
class MobileNetV2Stride8(MobileNetV2):
    """The first three of the seven layers of mmseg's ``MobileNetV2``, without the time and weights of the others.

    For images ``(B, 3, H, W)``, it returns maps ``(B, 24, H/4, W/4)`` and ``(B, 32, H/8, W/8)``. Weights of a complete
    MobileNetV2 fit; those of the other layers are not used.

    Args:
        strides, dilations (sequence of int): of the three layers. Default to (1, 2, 2) and (1, 1, 1).
        out_indices (sequence of int): from 0, 1 and 2. Defaults to (1, 2).
        **kwargs: as in ``MobileNetV2``.

    Example:
        >>> [tuple(x.shape) for x in MobileNetV2Stride8()(torch.randn(1, 3, 32, 64))]
        [(1, 24, 8, 16), (1, 32, 4, 8)]
    """

    arch_settings = MobileNetV2.arch_settings[:3]

    def __init__(self, strides=(1, 2, 2), dilations=(1, 1, 1), out_indices=(1, 2), **kwargs) -> None:
        super().__init__(strides=strides, dilations=dilations, out_indices=out_indices, **kwargs)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        maps = super().forward(x)
        return (
            maps if isinstance(maps, tuple) else (maps,)
        )  # mmseg's returns a single map as it is, which no head reads
