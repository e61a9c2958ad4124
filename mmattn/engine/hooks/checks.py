"""Hooks that stop a run at an invalid loss or an unsuitable checkpoint. The stock Runner would continue."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from mmengine.dataset import InfiniteSampler
from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.data import DataLoader

from mmattn._compat import checkpoint_path, copy_versions
from mmattn.registry import HOOKS


@HOOKS.register_module()
class InvalidLossHook(Hook):
    """Stop training when a loss is NaN or infinite, and report the iteration and the images of the batch.

    The FloatingPointError comes before the checkpoint of the same iteration is written. With several processes, the
    process with the invalid loss reports its own batch. Training without any batch, because of ``drop_last``, is also
    an error.

    Args:
        interval (int): check every ``interval`` iterations, at least 1. Defaults to 1, which costs little because the
            logger reads the losses at each iteration.

    Example:
        >>> hook = HOOKS.build(dict(type='mmattn.InvalidLossHook', interval=10))
        >>> hook.interval
        10
    """

    priority = 'VERY_HIGH'

    def __init__(self, interval: int = 1) -> None:
        if interval < 1:
            raise ValueError(f'interval must be at least 1; got {interval}')
        self.interval = interval

    def before_train(self, runner: Runner) -> None:
        """Check that there is a batch."""
        loader = runner.train_dataloader
        if isinstance(loader, DataLoader) and not isinstance(loader.sampler, InfiniteSampler) and len(loader) == 0:
            sampler: Any = loader.sampler
            dataset: Any = loader.dataset
            raise ValueError(
                f'train_dataloader: no batch, because drop_last=True, the batch_size is {loader.batch_size}, and this '
                f'process has {len(sampler)} of the {len(dataset)} images'
            )

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs: dict | None = None) -> None:
        """Check the losses in ``outputs``, the ``log_vars`` of the step."""
        if not self.every_n_train_iters(runner, self.interval):
            return
        invalid = [
            f'{name} = {float(value)}'
            for name, value in (outputs or {}).items()
            if 'loss' in name and not torch.as_tensor(value).isfinite()
        ]
        if invalid:
            paths = ''.join(f'\n  {path}' for path in _image_paths(data_batch))
            of = f', for a batch of{paths}' if paths else ''  # text has no paths
            raise FloatingPointError(f'Iteration {runner.iter + 1}: {", ".join(invalid)}{of}')


@HOOKS.register_module()
class CheckpointKeysHook(Hook):
    """Raise an error that lists all mismatched keys if a checkpoint does not fit the model. mmengine only warns.

    The RuntimeError covers ``load_from``, testing and resuming, but not ``pretrained`` or ``init_cfg`` of a part of the
    model. The check uses ``load_state_dict`` of the modules, because some modules convert older keys and shapes.
    Modules wrapped by FSDP hold shards and cannot be checked. The log then has a warning.

    Args:
        allow (str or sequence of str): regular expressions. A key that matches one of them may be missing, unexpected
            or of another shape, for example ``r'\\.conv_seg\\.'`` to fine-tune on other classes. Defaults to none.
        enabled (bool): False disables the check. Defaults to True.

    Example:
        >>> hook = HOOKS.build(dict(type='mmattn.CheckpointKeysHook', allow=r'\\.conv_seg\\.'))
        >>> bool(hook.allow.search('decode_head.conv_seg.weight'))
        True
    """

    priority = 'VERY_HIGH'

    def __init__(self, allow: str | Sequence[str] = (), enabled: bool = True) -> None:
        # As in mmengine, checkpoints from before PyTorch 0.4.1 may lack num_batches_tracked.
        self.allow = re.compile('|'.join([*([allow] if isinstance(allow, str) else allow), r'\.num_batches_tracked$']))
        self.enabled = enabled

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Load the weights strictly, before the Runner loads them without checks."""
        if not self.enabled:
            return
        model = runner.model
        if isinstance(model, FullyShardedDataParallel):
            runner.logger.warning('FSDP: the keys of the checkpoint are not checked')
            return
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        weights = checkpoint.get('state_dict', checkpoint)
        stripped = type(weights)((re.sub(r'^module\.', '', key), value) for key, value in weights.items())
        expected = type(weights)((key, value) for key, value in stripped.items() if not self.allow.search(key))
        expected.update((key, value) for key, value in model.state_dict().items() if self.allow.search(key))
        copy_versions(weights, expected)
        try:
            model.load_state_dict(expected)
        except RuntimeError as error:
            name = checkpoint_path(runner) or f'of {runner.work_dir}'
            raise RuntimeError(
                f'The checkpoint {name} does not fit the model (to allow different keys, add their patterns to '
                f'default_hooks.checkpoint_keys.allow). {error}'
            ) from None


def _image_paths(batch: object) -> Iterator[str]:
    if isinstance(batch, BaseDataElement):
        yield str(batch.get('img_path'))
    elif isinstance(batch, dict | list | tuple):
        for part in batch.values() if isinstance(batch, dict) else batch:
            yield from _image_paths(part)
