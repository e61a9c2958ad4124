"""A small convolutional network, trained with the model that reads its map."""

from torch import Tensor, nn

from mmattn.registry import MODELS
from mmattn.utils.checks import check_count


@MODELS.register_module()
class ConvImageEncoder(nn.Module):
    """Convolutions of stride 2, each followed by batch norm and ReLU; the positions of the last map are the regions.

    For pictures without region features that need no pretrained network, such as those of Easy-VQA: 64×64 pixels give
    4×4 positions of 128 channels.

    Args:
        channels (sequence of int): channels of each convolution. Defaults to (32, 64, 128, 128).

    Raises:
        TypeError: a number of channels is not an integer.
        ValueError: a number of channels is below 1, or there is none.

    Example:
        >>> import torch
        >>> ConvImageEncoder()(torch.rand(2, 3, 64, 64)).shape
        torch.Size([2, 16, 128])
    """

    def __init__(self, channels: tuple[int, ...] = (32, 64, 128, 128)) -> None:
        super().__init__()
        if not channels:
            raise ValueError('channels must have one number per convolution; got none')
        for number in channels:
            check_count('channels', number)
        self.embed_dim = channels[-1]
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
                for before, after in zip((3, *channels), channels)
            )
        )

    def forward(self, image: Tensor) -> Tensor:
        """Return the positions of the last map, row by row, ``(B, H' · W', C)``.

        Args:
            image (Tensor): float ``(B, 3, H, W)``, in [0, 1].
        """
        return self.layers(image).flatten(2).mT
