"""Faster convolutions on a CPU: batch norms folded into them in tests, and channels last."""

from collections import Counter
from itertools import pairwise

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

Replaced = list[tuple[nn.Module, str, nn.Module]]


class CPUConvolutionsHook(Hook):
    """Test on a CPU with folded batch norms, and compute convolutions with channels last if that is wanted.

    Results differ by rounding. Parameters keep their layout, and a test restores the norms, so state dicts are
    unchanged. Elsewhere than on a CPU, the hook does nothing. ``tools/train.py`` and ``tools/test.py`` register it.

    Args:
        channels_last (bool): whether the backbone receives images with channels last, in training, too. Defaults to
            False.
    """

    priority = 'VERY_HIGH'  # the norms are restored before another hook, such as EMAHook, changes weights

    def __init__(self, channels_last: bool = False) -> None:
        self._use_channels_last = channels_last
        self._replaced: Replaced = []

    def before_run(self, runner: Runner) -> None:
        """Prepare the backbone for channels last."""
        if self._use_channels_last and _is_on_cpu(runner.model):
            use_channels_last(runner.model)
            self._use_channels_last = False  # once, if a Runner trains and then tests

    def before_test_iter(self, runner: Runner, batch_idx: int, data_batch: object = None) -> None:
        """Fold the norms before the first batch, when all weights are loaded."""
        model = runner.model
        if batch_idx == 0 and _is_on_cpu(model) and not isinstance(model, FullyShardedDataParallel):
            self._replaced = fold_norms(model)

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        """Restore the norms."""
        for parent, name, module in self._replaced:
            setattr(parent, name, module)
        self._replaced = []


def prepare_for_inference(model: nn.Module, channels_last: bool = False) -> None:
    """Make a trained model compute its convolutions faster on a CPU. It cannot be trained or saved afterwards.

    Batch norms are folded. Outputs differ by rounding. On other devices, nothing changes.

    Args:
        model (nn.Module): with its weights, on its device, and in evaluation mode.
        channels_last (bool): whether backbones receive images with channels last. Defaults to False.
    """
    if _is_on_cpu(model):
        fold_norms(model)
        if channels_last:
            use_channels_last(model)


def use_channels_last(model: nn.Module) -> None:
    """Make the backbones in a model receive images with channels last. Convolutions keep the layout of their input.

    A model with an operator of mmcv, such as RoIAlign, which would compute wrong values, is a ValueError.
    """
    operators = {type(module).__name__ for module in model.modules() if _is_of_mmcv_ops(module)}
    if operators:
        raise ValueError(
            f'channels last: {", ".join(sorted(operators))} of mmcv cannot read this layout; '
            'run without --channels-last'
        )
    for name, module in model.named_modules():
        if name.rpartition('.')[2] == 'backbone':
            module.register_forward_pre_hook(_channels_last)


def _is_of_mmcv_ops(module: nn.Module) -> bool:
    return any(kind.__module__.startswith('mmcv.ops.') for kind in type(module).__mro__)


def _channels_last(module: nn.Module, args: tuple) -> tuple:
    is_map = [isinstance(x, Tensor) and x.dim() == 4 for x in args]
    return tuple(x.contiguous(memory_format=torch.channels_last) if image else x for x, image in zip(args, is_map))


def fold_norms(model: nn.Module) -> Replaced:
    """Fold batch norms into the convolutions before them, in a model in evaluation mode.

    Returns:
        list of tuple[nn.Module, str, nn.Module]: the replaced modules, after their parents and their names in them.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
        >>> _ = fold_norms(model)
        >>> model[1]
        Identity()
    """
    replaced: Replaced = []
    parents = Counter(child for module in model.modules() for child in module.children())
    for parent in filter(_runs_in_order, [*model.modules()]):
        for (name, conv), (norm_name, norm) in pairwise([*parent.named_children()]):
            if (
                type(conv) is nn.Conv2d  # a subclass may change its weight in `forward`
                and isinstance(norm, _BatchNorm)
                and norm.running_var is not None
                and isinstance(conv.weight, nn.Parameter)  # not of `spectral_norm`
                and parents[conv] == parents[norm] == 1  # not shared
            ):
                setattr(parent, name, fuse_conv_bn_eval(conv, norm))
                setattr(parent, norm_name, nn.Identity())
                replaced += [(parent, name, conv), (parent, norm_name, norm)]
    return replaced


def _runs_in_order(module: nn.Module) -> bool:
    # a Sequential, ConvModule of mmcv, and the ResNets of mmseg and mmdet with their blocks; others may run otherwise
    is_conv_module = getattr(module, 'order', None) == ('conv', 'norm', 'act')
    return isinstance(module, nn.Sequential) or is_conv_module or hasattr(module, 'norm1_name')


def _is_on_cpu(model: nn.Module) -> bool:
    return all(x.device.type == 'cpu' for x in model.parameters())
