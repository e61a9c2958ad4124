"""Training on images with any number of channels and any range of values: normalisation, first layer."""

from typing import Any, Literal

import torch
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner
from mmseg.models import SegDataPreProcessor
from torch import Tensor, nn

from mmattn._compat import before_loading
from mmattn.registry import HOOKS, MODELS
from mmattn.utils.model_wrappers import unwrapped


@MODELS.register_module()
class ChannelsPreprocessor(SegDataPreProcessor):
    """mmseg's ``SegDataPreProcessor`` for any number of channels: ``mean`` and ``std`` have one value for each.

    Args:
        mean, std (sequence of float): in the units of the files, and in the order of their channels.
        **settings: of ``SegDataPreProcessor``. Channels are not exchanged.

    Example:
        >>> preprocessor = MODELS.build(dict(type='mmattn.ChannelsPreprocessor', mean=[9, 9, 9, 9], std=[1, 2, 3, 4]))
        >>> preprocessor(dict(inputs=[torch.full((4, 2, 2), 21.0)]))['inputs'][0, :, 0, 0].tolist()
        [12.0, 6.0, 4.0, 3.0]
    """

    def __init__(self, mean: Any, std: Any, **settings: Any) -> None:
        if any([settings.pop('bgr_to_rgb', False), settings.pop('rgb_to_bgr', False)]):
            raise ValueError('bgr_to_rgb and rgb_to_bgr must be False: channels have the order of the file')
        if len(mean) != len(std) or not all(value > 0 for value in std):
            raise ValueError(f'mean and std must have one value per channel, std above 0; got {mean} and {std}')
        super().__init__(**settings)
        self.register_buffer('mean', torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1), False)
        self.register_buffer('std', torch.tensor(std, dtype=torch.float32).view(-1, 1, 1), False)
        self._enable_normalize = True


@HOOKS.register_module()
class FirstLayerHook(Hook):
    """Let pretrained weights of the backbone, usually for RGB, start a network with another number of channels.

    Where the first convolution of the backbone has other input channels than the weights, these are repeated, or their
    mean is used for all, and multiplied by the ratio of both numbers, so that activations keep their size. The log says
    so. Weights that fit are loaded as they are.

    Args:
        mode (str): 'repeat' gives channel c the weights of channel c modulo their number; 'mean' gives all the mean.
            Defaults to 'repeat'.

    Example:
        >>> hook = HOOKS.build(dict(type='mmattn.FirstLayerHook', mode='mean'))
        >>> hook.fit(torch.tensor([3.0, 6.0, 9.0]).view(1, 3, 1, 1), 2).flatten().tolist()
        [9.0, 9.0]
    """

    def __init__(self, mode: Literal['repeat', 'mean'] = 'repeat') -> None:
        if mode not in ('repeat', 'mean'):
            raise ValueError(f"mode must be 'repeat' or 'mean'; got {mode!r}")
        self.mode = mode

    def fit(self, weight: Tensor, channels: int) -> Tensor:
        """Return the weights of a convolution, ``(out, in, …)``, for another number of input channels."""
        stored = weight.shape[1]
        if self.mode == 'mean':
            fitted = weight.mean(1, keepdim=True).repeat_interleave(channels, 1)
        else:
            fitted = weight[:, torch.arange(channels) % stored]
        return fitted * (stored / channels)

    def before_run(self, runner: Runner) -> None:
        """Watch the first convolution, before weights are loaded."""
        backbone = unwrapped(runner.model).backbone
        convolutions = ((name, part) for name, part in backbone.named_modules() if isinstance(part, nn.Conv2d))
        name, layer = next(convolutions, ('', None))
        if layer is None:
            raise ValueError(f'FirstLayerHook is for a backbone with a convolution; got {type(backbone).__name__}')

        def hook(state: dict, prefix: str, *_: Any) -> None:
            weight = state.get(f'{prefix}weight')
            if weight is None or (weight.shape[0], weight.shape[2:]) != (layer.out_channels, layer.kernel_size):
                return  # the loader reports it
            if weight.shape[1] != layer.in_channels and layer.groups == 1:
                state[f'{prefix}weight'] = self.fit(weight, layer.in_channels)
                print_log(
                    f'backbone.{name}: weights for {weight.shape[1]} channels start {layer.in_channels}: '
                    f'{"repeated" if self.mode == "repeat" else "their mean"}, '
                    f'times {weight.shape[1] / layer.in_channels:.3g}',
                    'current',
                )

        before_loading(layer, hook)
