"""Validation of several processes with the model that checkpoints hold."""

from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmattn._compat import persistent_buffers
from mmattn.registry import HOOKS


@HOOKS.register_module()
class SharedBuffersHook(Hook):
    """Give all processes the buffers of process 0 before a validation, such as the running statistics of batch norms.

    Each process of DDP has statistics of its own, and process 0 writes the checkpoints. With this hook, the processes
    validate what the checkpoint of the same iteration holds. A mean over the processes, as from mmengine's
    ``SyncBuffersHook``, would be a model that no earlier checkpoint holds, a resumed run would differ from an
    uninterrupted one, and integers have no mean. Checkpoints need no copy, and training does not read the statistics.

    ``tools/train.py`` registers the hook. With one process, it does nothing.

    Example:
        >>> HOOKS.build(dict(type='mmattn.SharedBuffersHook')).priority
        'LOWEST'
    """

    priority = 'LOWEST'  # after EMAHook has exchanged the model's tensors

    def before_val_epoch(self, runner: Runner) -> None:
        """Send what a checkpoint would hold."""
        for buffer in persistent_buffers(runner.model):
            broadcast(buffer)
