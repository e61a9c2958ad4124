"""Faster convolutions: batch norms folded into them in tests, and channels last on a CPU."""

import logging
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from mmcv.cnn import fuse_conv_bn
from mmengine.logging import print_log
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

MOST = 1e-3  # relative difference of the outputs with and without norms


def fuse_at_first_call(model: nn.Module) -> None:
    """Fold the batch norms of a model's backbones into convolutions, by mmcv's ``fuse_conv_bn``, at their first call.

    mmcv folds a norm into the convolution that is declared before it, which need not be the one that is called before
    it. So the first input passes a copy with and one without norms. If their outputs differ by more than 1e-3 of the
    largest number, the call raises a ValueError, and nothing is folded.

    Args:
        model (nn.Module): in evaluation mode when it is called. Its weights may be loaded later.

    Example:
        >>> model = nn.ModuleDict({'backbone': nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))}).eval()
        >>> fuse_at_first_call(model)
        >>> with torch.no_grad():
        ...     _ = model['backbone'](torch.ones(1, 3, 8, 8))
        >>> model['backbone'][1]
        Identity()
    """
    handles: dict[str, RemovableHandle] = {}
    for name, backbone in _backbones(model):

        def fold(module: nn.Module, args: tuple, name: str = name) -> None:
            folded = fuse_conv_bn(deepcopy(module))
            with torch.autocast(next(module.parameters()).device.type, enabled=False):
                difference = _difference(module.forward(*args), folded.forward(*args))
            if not difference <= MOST:
                raise ValueError(
                    f'--fuse-conv-bn: {name} ({type(module).__name__}) returns other numbers with folded norms: they '
                    f'differ by {difference:.2g} of the largest one; run without the option'
                )
            handles[name].remove()
            fuse_conv_bn(module)
            print_log(
                f'{name}: batch norms are folded into convolutions; outputs differ by {difference:.1g}', 'current'
            )

        handles[name] = backbone.register_forward_pre_hook(fold)
    if not handles:
        print_log('--fuse-conv-bn: the model has no backbone, so no norm is folded', 'current', logging.WARNING)


def _difference(expected: Any, actual: Any) -> float:
    pairs = zip(tree_leaves(expected), tree_leaves(actual), strict=True)
    return max(((x - y).abs().max() / x.abs().max().clamp(min=1e-30)).item() for x, y in pairs)


def use_channels_last(model: nn.Module) -> None:
    """Make the backbones of a model on a CPU receive images with channels last. Convolutions keep this layout.

    A model with an operator of mmcv, such as RoIAlign, which would compute wrong values, is a ValueError.
    """
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    if operators := sorted(kind.__name__ for kind in kinds if kind.__module__.startswith('mmcv.ops.')):
        raise ValueError(f'--channels-last: {", ".join(operators)} of mmcv cannot read this layout')
    for _, backbone in _backbones(model):
        backbone.register_forward_pre_hook(_channels_last)


def _channels_last(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    is_on_cpu = args[0].device.type == 'cpu'
    return tuple(x.contiguous(memory_format=torch.channels_last) for x in args) if is_on_cpu else args


def _backbones(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    yield from ((name, x) for name, x in model.named_modules() if name.rpartition('.')[2] == 'backbone')
