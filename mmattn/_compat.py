"""The private members of Python, mmengine, mmcv and torch that mmattn uses: one function each, with the reason.

mmattn.registry imports this module, so it imports only mmengine's registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.queues import Queue
from typing import TYPE_CHECKING, Any

from mmengine.registry import DefaultScope

if TYPE_CHECKING:
    from mmengine.logging import MessageHub
    from mmengine.runner import BaseLoop, Runner
    from torch import Tensor, nn
    from torch.utils.data import DataLoader


def default_scopes() -> list[str]:
    """List all default scopes, the latest first. mmengine's public function returns only the latest."""
    return [scope.scope_name for scope in reversed(DefaultScope._instance_dict.values())]


def resumes_without_path(runner: Runner) -> bool:
    """Tell whether a run is to be resumed from a checkpoint that mmengine finds, which may be incomplete."""
    return runner._resume and runner._load_from is None


def is_resumed(runner: Runner) -> bool:
    """Tell whether a run is to be resumed from a checkpoint."""
    return runner._resume


def has_loaded(runner: Runner) -> bool:
    """Tell whether a run has started from a checkpoint."""
    return runner._has_loaded


def checkpoint_path(runner: Runner) -> str | None:
    """Get the checkpoint that a run starts from. The Runner has no public attribute for it."""
    return runner._load_from


def set_checkpoint_path(runner: Runner, path: str | None) -> None:
    """Set the checkpoint that a run starts from, after the construction of the Runner and before its start."""
    runner._load_from = path


def learning_rate_scaling(runner: Runner) -> dict[str, Any]:
    """Get the ``auto_scale_lr`` that a Runner applies. In a FlexibleRunner, it is that of the strategy, and private."""
    return runner.strategy._auto_scale_lr if hasattr(runner, 'strategy') else runner.auto_scale_lr


def built_data_loaders(runner: Runner) -> dict[str, DataLoader]:
    """Get the data loaders that a Runner has built, by key of the config. Its public properties would build others."""
    loops = {f'{part}_dataloader': getattr(runner, f'_{part}_loop', None) for part in ('train', 'val', 'test')}
    return {key: loop.dataloader for key, loop in loops.items() if loop is not None and not isinstance(loop, dict)}


def default_flop_handles() -> dict[str, Callable]:
    """Get mmengine's dict of functions that count operators. get_model_complexity_info takes no other functions."""
    from mmengine.analysis.complexity_analysis import _DEFAULT_SUPPORTED_FLOP_OPS  # lazy: only a counter needs it

    return _DEFAULT_SUPPORTED_FLOP_OPS


def load_weights(model: nn.Module, checkpoint: dict, path: object) -> None:
    """Load the weights of the checkpoint ``path`` strictly. mmengine's function reads a file, and does not name it."""
    from mmengine.runner.checkpoint import _load_checkpoint_to_model  # lazy: it imports the Runner

    try:
        _load_checkpoint_to_model(model, checkpoint, strict=True)
    except RuntimeError as error:  # it lists the keys
        raise RuntimeError(f'{path}: {error}') from error


def mmengine_home() -> str:
    """Get the folder in which mmengine looks for files of ``open-mmlab://``."""
    from mmengine.runner.checkpoint import _get_mmengine_home  # lazy: it imports the Runner

    return _get_mmengine_home()


def replace_load_state_dict(function: Callable[..., None]) -> None:
    """Let mmengine load all weights by ``function(load, module, state_dict, …)``, with ``load`` as its own function.

    ``load_from``, ``resume``, ``init_cfg`` and inferencers come together in ``load_state_dict``, which has no hook.
    """
    from mmengine.runner import checkpoint  # lazy: it imports the Runner

    if getattr(checkpoint.load_state_dict, 'func', None) is not function:
        checkpoint.load_state_dict = partial(function, checkpoint.load_state_dict)


def replace_queue_error(function: Callable[[Exception, Any], None]) -> None:
    """Call ``function(error, sent)`` where a process cannot send. multiprocessing prints the error, and all wait on."""
    Queue._on_queue_feeder_error = staticmethod(function)  # type: ignore[attr-defined]


def tensor_version(x: Tensor) -> int:
    """Get a number that changes with each change of a tensor in place. torch has no public function for it."""
    return x._version


def set_position(loop: BaseLoop, epoch: int, iteration: int) -> None:
    """Set the position of a training loop, whose public properties are read-only."""
    loop._epoch, loop._iter = epoch, iteration


def forget_info(message_hub: MessageHub, key: str) -> None:
    """Remove runtime information. mmengine's ``pop_info`` keeps the entry that marks it for saving."""
    message_hub.pop_info(key)
    message_hub._resumed_keys.pop(key, None)


def replace_batch_sampler(loader: DataLoader, batch_sampler: Any) -> None:
    """Replace the batch sampler of a data loader, which torch forbids. A new loader would start new workers."""
    vars(loader)['batch_sampler'] = batch_sampler


def copy_versions(source: dict, target: dict) -> None:
    """Copy the versions of modules, which control the conversion of old weights, from one state dict to another."""
    if hasattr(source, '_metadata'):
        target._metadata = source._metadata  # type: ignore[attr-defined]


def before_loading(module: nn.Module, hook: Callable[..., None]) -> None:
    """Call ``hook(state_dict, prefix, …)`` before weights are loaded. torch 2.4 has no public function for it."""
    module._register_load_state_dict_pre_hook(hook)


def persistent_buffers(model: nn.Module) -> Iterator[Tensor]:
    """List the buffers that a state dict has, without collecting one. torch has no public function for it."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield buffer


def process_store(distributed: Any) -> Any:
    """Get the store that the processes of a group share. torch has no public function for it."""
    return distributed.distributed_c10d._get_default_store()


@contextmanager
def resize_without_warning() -> Iterator[None]:
    """Switch off the check in mmseg's ``resize`` of whether sizes fit ``align_corners``, within the block.

    It converts the sides of the map to ``int``, which ``torch.export`` takes for a condition on the size of the image.
    Heads call ``resize`` without its argument ``warning``, so its default is changed.
    """
    from mmseg.models.utils import resize  # lazy: it imports mmcv

    defaults = resize.__defaults__
    resize.__defaults__ = *defaults[:-1], False
    try:
        yield
    finally:
        resize.__defaults__ = defaults
