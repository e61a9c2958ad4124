"""Faster convolutions on a CPU: batch norms folded into them in tests, and channels last."""

import copy
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils.hooks import RemovableHandle

from mmattn._compat import hook_ids, is_last_hook, is_plain, share_tensors, states

COMPARED = 4096  # numbers of each output, at even distances


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
        self._folded: FoldedNorms | None = None

    def before_run(self, runner: Runner) -> None:
        """Prepare the backbone for channels last."""
        if self._use_channels_last and _is_on_cpu(runner.model):
            use_channels_last(runner.model)
            self._use_channels_last = False  # once, if a Runner trains and then tests

    def before_test_iter(self, runner: Runner, batch_idx: int, data_batch: object = None) -> None:
        """Prepare to fold the norms in the first batch, when all weights are loaded."""
        model = runner.model
        if batch_idx == 0 and _is_on_cpu(model) and not isinstance(model, FullyShardedDataParallel):
            self._folded = fold_norms(model)

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        """Restore the norms."""
        if self._folded is not None:
            self._folded.restore()
        self._folded = None


def prepare_for_inference(model: nn.Module, channels_last: bool = False) -> None:
    """Make a trained model compute its convolutions faster on a CPU.

    Batch norms are folded when the model is called for the first time without gradients, see :class:`FoldedNorms`.
    Outputs differ by rounding. State dicts are as before, and so are calls with gradients. On other devices, nothing
    changes.

    Args:
        model (nn.Module): with its weights, on its device, and in evaluation mode.
        channels_last (bool): whether backbones receive images with channels last. Defaults to False.
    """
    if _is_on_cpu(model):
        if channels_last:
            use_channels_last(model)
        fold_norms(model)


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


class FoldedNorms:
    """Batch norms that are folded into the convolutions before them, in a model in evaluation mode, without gradients.

    A module that has both is folded when it is called for the first time: with the norms, and then without them. If it,
    or a module in it, returns something else, an error names the module, its first result is returned, and all norms of
    the model are restored. Modules that are not called are left alone, and calls that are traced or compiled, or whose
    modules have hooks of others, which would run twice, do not fold. Whatever calls a folded convolution or its norm by
    itself, outside the module that has both, or with gradients, gets what it returned before. The model keeps its
    parameters and buffers, and a convolution is folded again after they have changed.

    Args:
        model (nn.Module): with its weights.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {module: name or 'the model' for name, module in model.named_modules()}
        self._parents = Counter(child for module in model.modules() for child in module.children())
        self._replaced: list[tuple[nn.Module, str, nn.Module]] = []
        self._calls: list[RemovableHandle] = []  # hooks that tell when a folded module is being called
        self._expected: list[tuple[nn.Module, list[Tensor]]] = []  # what the modules that are compared return
        self._actual: list[tuple[nn.Module, list[Tensor]]] = []
        self._compared: nn.Module | None = None  # the module that is compared, with the modules in it
        self._is_folded = False
        self._thread: dict[str, int] = {}  # the one that compares: other threads compute meanwhile
        self._result: Any = None
        self._handles: dict[nn.Module, list] = {}
        for module in model.modules():
            if any(self._pairs(module)):
                before = module.register_forward_pre_hook(self._before, with_kwargs=True)
                # before other hooks, which may change the outputs
                self._handles[module] = [before, module.register_forward_hook(self._after, prepend=True)]

    def restore(self) -> None:
        """Put the norms back."""
        for parent, name, module in self._replaced:
            setattr(parent, name, module)
        for handle in self._calls:
            handle.remove()
        self._replaced, self._calls = [], []
        self._compared = None
        self._thread.clear()
        self._leave([*self._handles])

    def _leave(self, modules: list[nn.Module]) -> None:
        for module in modules:
            for handle in self._handles.pop(module, ()):
                handle.remove()

    def _pairs(self, parent: nn.Module) -> Iterator[tuple[str, nn.Conv2d, str, _BatchNorm]]:
        if not _runs_in_order(parent):
            return
        for (name, conv), (norm_name, norm) in pairwise([*parent.named_children()]):
            if (
                type(conv) is nn.Conv2d  # a subclass may change its weight in `forward`
                and isinstance(norm, _BatchNorm)
                and type(norm).forward in (_BatchNorm.forward, nn.SyncBatchNorm.forward)
                and not norm.training
                and norm.running_var is not None
                and isinstance(conv.weight, nn.Parameter)  # not of `spectral_norm`
                and is_plain(conv)
                and is_plain(norm)
                and self._parents[conv] == self._parents[norm] == 1  # not shared
            ):
                yield name, conv, norm_name, norm

    def _before(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # there are no numbers to compare
            return
        if torch.is_grad_enabled() or any(part.training for part in module.modules()):
            return
        if module not in self._handles:  # another thread has just folded it
            return
        thread = threading.get_ident()
        if self._thread.setdefault('id', thread) != thread:
            return
        if self._compared is module:  # which raised an error when it was called before
            self.restore()
        if self._compared is not None or module not in self._handles:
            return
        if not self._can_fold(module):
            self._thread.clear()
            return
        self._compared = module
        inputs = copy.deepcopy((args, kwargs))  # which the module may change
        random = torch.get_rng_state()
        self._result = module.forward(*inputs[0], **inputs[1])
        torch.set_rng_state(random)
        self._expected.append((module, _samples(self._result)))
        for parent in {parent: None for parent, _ in self._expected}:
            calls = _Calls()
            for name, conv, norm_name, norm in [*self._pairs(parent)]:
                setattr(parent, name, _FoldedConv(conv, norm, calls))
                setattr(parent, norm_name, _FoldedNorm(norm, norm, calls))
                self._replaced += [(parent, name, conv), (parent, norm_name, norm)]
            self._calls.append(parent.register_forward_hook(calls.end, always_call=True))
            self._calls.append(parent.register_forward_pre_hook(calls.begin))
            if parent is module:  # whose hooks before this call are running
                calls.begin()
        self._is_folded = True

    def _can_fold(self, module: nn.Module) -> bool:
        """Tell whether no hook of others runs between the two calls that are compared."""
        before = self._handles[module][0]
        if not is_last_hook(module, before):  # one after it may change the arguments: next time
            before.remove()
            self._handles[module][0] = module.register_forward_pre_hook(self._before, with_kwargs=True)
            return False
        own = {handle.id for handle in (*self._calls, *chain(*self._handles.values()))}
        return all(hook_ids(part) <= own for part in module.modules() if part is not module)

    def _after(self, module: nn.Module, args: tuple, output: Any) -> Any:
        if self._compared is None or self._thread.get('id') != threading.get_ident():
            return None
        (self._actual if self._is_folded else self._expected).append((module, _samples(output)))
        if module is not self._compared:
            return None
        result, expected, actual = self._result, self._expected, self._actual
        self._compared, self._is_folded, self._expected, self._actual, self._result = None, False, [], [], None
        self._thread.clear()
        self._leave([module for module, _ in expected])
        for (this, samples), (other, others) in zip(expected, actual):
            if this is not other or not _agree(samples, others):
                print_log(
                    f'{self._names[this]} ({type(this).__name__}) uses a convolution in another way than before the '
                    'batch norm after it: norms are not folded in this run, which takes longer; results are right',
                    'current',
                    logging.ERROR,
                )
                self.restore()
                return result
        return None


class _Calls(threading.local):
    """How many calls of a module have begun in this thread, and not ended."""

    count = 0

    def __reduce__(self) -> tuple:  # for copies and pickles
        return _Calls, ()

    def begin(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self.count += 1

    def end(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self.count = max(0, self.count - 1)  # a hook before ``begin`` may raise an error


class _Folded(nn.Module):
    """A convolution or the norm after it, with its parameters and buffers."""

    def __init__(self, original: nn.Module, norm: _BatchNorm, calls: _Calls) -> None:
        super().__init__()
        self._calls = calls
        self._original: tuple[Any] = (original,)  # not a child, whose norm would count as one that is left
        self._norm = (norm,)
        share_tensors(self, original)
        self.train(original.training)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if '_original' not in vars(self):  # while it is copied
                raise
            return getattr(self._original[0], name)

    def train(self, mode: bool = True) -> '_Folded':
        self._original[0].train(mode)
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        is_plain_call = torch.compiler.is_compiling() or torch.is_grad_enabled() or self._norm[0].training
        return self._original[0](x) if is_plain_call or not self._calls.count else self._fold(x)


class _FoldedConv(_Folded):
    """A convolution that computes the norm, too, within calls of the module that has both."""

    _current: tuple[list[tuple], nn.Module | None] = [], None

    def _fold(self, x: Tensor) -> Tensor:
        conv, norm = self._original[0], self._norm[0]
        (now, folded), states_now = self._current, states(conv) + states(norm)
        if folded is None or now != states_now:
            with torch.inference_mode(False), torch.no_grad():
                folded = fuse_conv_bn_eval(conv, norm)
            self._current = states_now, folded
        return folded(x)


class _FoldedNorm(_Folded):
    """A norm that does nothing within calls of the module that has it and the convolution."""

    def _fold(self, x: Tensor) -> Tensor:
        return x


def fold_norms(model: nn.Module) -> FoldedNorms:
    """Fold batch norms into the convolutions before them, in a model in evaluation mode, at its first call.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
        >>> folded = fold_norms(model)
        >>> with torch.no_grad():
        ...     _ = model(torch.ones(1, 3, 8, 8))
        >>> model[1]
        _FoldedNorm()
        >>> folded.restore()
    """
    return FoldedNorms(model)


def _runs_in_order(module: nn.Module) -> bool:
    # a plain Sequential, ConvModule of mmcv, and the ResNets of mmseg and mmdet with their blocks
    if 'forward' in vars(module):
        return False
    if isinstance(module, nn.Sequential):
        return type(module).forward is nn.Sequential.forward
    return getattr(module, 'order', None) == ('conv', 'norm', 'act') or hasattr(module, 'norm1_name')


def _samples(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output.detach().reshape(-1)[:: output.numel() // COMPARED + 1].clone()]
    if isinstance(output, dict):
        output = output.values()
    return (
        [x for part in output for x in _samples(part)] if isinstance(output, list | tuple | type({}.values())) else []
    )


def _agree(expected: list[Tensor], actual: list[Tensor]) -> bool:
    """Check whether tensors are equal, except for rounding: to half of the digits of the largest number."""
    if [x.shape for x in expected] != [x.shape for x in actual]:
        return False
    for x, y in zip(expected, actual):
        if x.is_floating_point() and x.numel():
            largest = x.nan_to_num(0, 0, 0).abs().max().item()
            tolerance = torch.finfo(x.dtype).eps ** 0.5 * largest + 1e-6
            if not torch.allclose(x, y, rtol=0, atol=tolerance, equal_nan=True):
                return False
    return True


def _is_on_cpu(model: nn.Module) -> bool:
    return all(x.device.type == 'cpu' for x in model.parameters())
