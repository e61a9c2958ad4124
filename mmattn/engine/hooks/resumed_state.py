"""Checks that a checkpoint has what a run needs to go on, before the first iteration."""

from mmengine.optim import OptimWrapper
from mmengine.runner import Runner

from mmattn._compat import checkpoint_path, is_resumed


def check_resumed_state(runner: Runner, checkpoint: dict) -> None:
    """Raise a ValueError if a run is to be resumed from a checkpoint without the states of optimizer or schedules."""
    if not is_resumed(runner) or not isinstance(runner.optim_wrapper, OptimWrapper):
        return
    needed = dict(optimizer='the optimizer', **{'param_schedulers': 'the schedules'} if runner.param_schedulers else {})
    if missing := [name for key, name in needed.items() if not checkpoint.get(key)]:
        path = checkpoint_path(runner)
        raise ValueError(
            f'{path} cannot be resumed: it has no state of {" and ".join(missing)}, as best checkpoints by default. '
            'Resume from the last checkpoint: --resume; or start a new run from its weights: --cfg-options '
            f'load_from={path}. default_hooks.checkpoint.resumable_best=True saves best checkpoints with these states'
        )
