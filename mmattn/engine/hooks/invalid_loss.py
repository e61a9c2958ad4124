"""A hook that stops training at an invalid loss. mmengine would continue."""

from collections.abc import Iterator
from typing import Any

import torch
from mmengine.dataset import InfiniteSampler
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch.utils.data import DataLoader

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


def _image_paths(batch: object) -> Iterator[str]:
    if isinstance(batch, BaseDataElement):
        yield str(batch.get('img_path'))
    elif isinstance(batch, dict | list | tuple):
        for part in batch.values() if isinstance(batch, dict) else batch:
            yield from _image_paths(part)
