"""The loader of images with any number of channels."""

import numpy as np
from mmcv.transforms import LoadImageFromFile

from mmattn.registry import TRANSFORMS
from mmattn.utils.channels import as_picture, read_channels
from mmattn.utils.checks import check_count


@TRANSFORMS.register_module()
class LoadChannels(LoadImageFromFile):
    """Load an image with all its channels and values, in place of ``LoadImageFromFile``.

    ``img`` is float32 of shape ``(H, W, channels)``, in the order of the file, see
    :func:`~mmattn.utils.channels.read_channels`. Transforms of colours, such as ``PhotoMetricDistortion``, are for
    8-bit images of three channels: leave them out.

    Args:
        channels (int): the number of channels that every image must have.

    Example:
        >>> loader = TRANSFORMS.build(dict(type='mmattn.LoadChannels', channels=4))
        >>> loader.channels
        4
    """

    def __init__(self, channels: int) -> None:
        check_count('channels', channels)
        super().__init__(to_float32=True, color_type='unchanged')
        self.channels = channels

    def transform(self, results: dict) -> dict:
        """Read ``results['img_path']``."""
        image = read_channels(results['img_path'], self.channels).astype('float32')
        results['img'] = image
        results['img_shape'] = results['ori_shape'] = image.shape[:2]
        return results

    def picture(self, path: str) -> np.ndarray:
        """Read an image to look at, see :func:`~mmattn.utils.channels.as_picture`."""
        return as_picture(read_channels(path, self.channels))

    def __repr__(self) -> str:
        return f'{type(self).__name__}(channels={self.channels})'
