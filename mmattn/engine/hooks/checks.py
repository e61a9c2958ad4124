"""Hooks that stop a run where the stock Runner goes on: at a loss that is NaN, and a checkpoint that does not fit."""

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
    """Stop training when a loss is NaN or infinite, and name the iteration and the images of the batch.

    Training without any batch, which has no loss, is an error, too.

    It runs before the checkpoint of the same iteration is written. With several processes, the one that met the loss
    names its own batch.

    Args:
        interval (int): check every ``interval`` iterations. Defaults to 1; the logger reads the losses at each one
            anyway.

    Raises:
        ValueError: ``interval`` is below 1; or at the start of training, ``drop_last`` leaves no batch.
        FloatingPointError: in training, a loss is not finite.
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
                f'train_dataloader: no batch, as drop_last=True, the batch_size is {loader.batch_size}, and this '
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
            raise FloatingPointError(f'Iteration {runner.iter + 1}: {", ".join(invalid)}, for a batch of{paths}')


@HOOKS.register_module()
class CheckpointKeysHook(Hook):
    """Make a checkpoint whose keys do not fit the model an error that lists them, where mmengine warns and goes on.

    It covers ``load_from``, testing and resuming, not the ``pretrained`` or ``init_cfg`` of a part of the model. The
    modules themselves say whether a key fits, as some convert older keys and shapes. Those of FSDP hold shards and
    cannot say; the log tells.

    Args:
        allow (str or sequence of str): regular expressions; a key in which one is found may be missing, unexpected or
            of another shape: ``r'\\.conv_seg\\.'`` to fine-tune on other classes. Defaults to none.
        enabled (bool): False leaves it to mmengine. Defaults to True.

    Raises:
        RuntimeError: on loading, keys that are missing, unexpected or of another shape; it lists all of them.
    """

    priority = 'VERY_HIGH'

    def __init__(self, allow: str | Sequence[str] = (), enabled: bool = True) -> None:
        # As in mmengine, checkpoints from before PyTorch 0.4.1 may lack num_batches_tracked.
        self.allow = re.compile('|'.join([*([allow] if isinstance(allow, str) else allow), r'\.num_batches_tracked$']))
        self.enabled = enabled

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Load the weights strictly, before the Runner does it leniently."""
        if not self.enabled:
            return
        model = runner.model
        if isinstance(model, FullyShardedDataParallel):
            runner.logger.warning('FSDP: whether the keys of the checkpoint fit the model is not checked')
            return
        while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
            model = model.module
        given = checkpoint.get('state_dict', checkpoint)
        stripped = type(given)((re.sub(r'^module\.', '', key), value) for key, value in given.items())
        expected = type(given)((key, value) for key, value in stripped.items() if not self.allow.search(key))
        expected.update((key, value) for key, value in model.state_dict().items() if self.allow.search(key))
        copy_versions(given, expected)
        try:
            model.load_state_dict(expected)
        except RuntimeError as error:
            name = checkpoint_path(runner) or f'of {runner.work_dir}'
            raise RuntimeError(
                f'The checkpoint {name} does not fit the model (patterns of keys that may differ go to '
                f'default_hooks.checkpoint_keys.allow). {error}'
            ) from None


def _image_paths(batch: object) -> Iterator[str]:
    """Yield the ``img_path`` of every data sample in a batch, however it is nested."""
    if isinstance(batch, BaseDataElement):
        yield str(batch.get('img_path'))
    elif isinstance(batch, dict | list | tuple):
        for part in batch.values() if isinstance(batch, dict) else batch:
            yield from _image_paths(part)
