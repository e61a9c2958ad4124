"""Normalisation and padding of clips before the backbone."""

from collections.abc import Sequence

import torch
from mmengine.model import BaseDataPreprocessor
from torch import Tensor
from torch.nn import functional as F

from mmattn.registry import MODELS


@MODELS.register_module()
class ClipDataPreprocessor(BaseDataPreprocessor):
    """Normalise the frames of clips, and pad them on the right and at the bottom with zeros.

    Args:
        mean, std (sequence of float): statistics per channel, on the scale 0 to 255, in the channel order of the model.
            Default to the statistics of ImageNet.
        bgr_to_rgb (bool): reverse the order of the channels. Defaults to True.
        pad_size_divisor (int): pad height and width to multiples of this number. Defaults to 8.

    Example:
        >>> preprocess = ClipDataPreprocessor(pad_size_divisor=16)
        >>> batch = dict(inputs=[torch.zeros(2, 3, 30, 44, dtype=torch.uint8)], data_samples=[None])
        >>> preprocess(batch)['inputs'].shape
        torch.Size([1, 2, 3, 32, 48])
    """

    def __init__(
        self,
        mean: Sequence[float] = (123.675, 116.28, 103.53),
        std: Sequence[float] = (58.395, 57.12, 57.375),
        bgr_to_rgb: bool = True,
        pad_size_divisor: int = 8,
    ) -> None:
        super().__init__()
        self.register_buffer('mean', torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer('std', torch.tensor(std).view(-1, 1, 1), persistent=False)
        self.bgr_to_rgb = bgr_to_rgb
        self.pad_size_divisor = pad_size_divisor

    def normalize(self, frames: Tensor) -> Tensor:
        """Normalise uint8 BGR frames ``(…, 3, H, W)``, and pad them with zeros to float32 ``(…, 3, H', W')``."""
        if self.bgr_to_rgb:
            frames = frames.flip(-3)
        frames = (frames.float() - self.mean) / self.std
        return F.pad(
            frames, (0, -frames.shape[-1] % self.pad_size_divisor, 0, -frames.shape[-2] % self.pad_size_divisor)
        )

    def forward(self, data: dict, training: bool = False) -> dict:
        """Move a batch to the device, and stack and normalise its clips to float32 ``(B, T, 3, H', W')``.

        ``inputs`` is a list of uint8 ``(T, 3, H, W)``, all of one shape. Without it, the result holds None.
        """
        data = self.cast_data(data)
        clips = data.get('inputs')
        if clips is not None:
            if len({clip.shape for clip in clips}) > 1:
                raise ValueError(
                    'the clips of a batch must be of one shape (use ClipRandomCrop); got '
                    f'{[tuple(clip.shape) for clip in clips]}'
                )
            clips = self.normalize(torch.stack(list(clips)))
        return dict(inputs=clips, data_samples=data.get('data_samples'))
