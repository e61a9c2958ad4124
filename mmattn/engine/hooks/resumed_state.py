"""Compares the state of a checkpoint from which a run resumes with the config, before the first iteration."""

from mmengine.optim import OptimWrapper
from mmengine.runner import Runner

from mmattn._compat import checkpoint_path, is_resumed

NO_OPTIONS = {'params', 'initial_lr', 'param_names'}  # keys of a parameter group that are not an optimizer's options


def check_resumed_state(runner: Runner, checkpoint: dict) -> None:
    """Check that the config's optimizer and schedulers can continue from a checkpoint. Warn of another learning rate.

    The optimizer of ``runner`` has been built. A ValueError tells if the checkpoint has no state of a run, or the state
    of another optimizer or of other schedulers.
    """
    wrapper = runner.optim_wrapper
    if not is_resumed(runner) or not isinstance(wrapper, OptimWrapper):
        return
    path = checkpoint_path(runner)
    if 'message_hub' not in checkpoint:
        raise ValueError(
            f'{path} cannot be resumed: it has weights, but no state of a run, as after publish_model.py or '
            f'average_checkpoints.py; to start a new run from its weights: --cfg-options load_from={path}'
        )
    groups = checkpoint.get('optimizer', {}).get('param_groups')
    if groups:
        options, saved = set(wrapper.optimizer.defaults), set(groups[0]) - NO_OPTIONS
        if options - saved and saved - options:  # versions of torch differ in one direction only
            raise ValueError(
                f'{path} is of another optimizer: its options are {", ".join(sorted(saved))}, and those of '
                f'{type(wrapper.optimizer).__name__} in the config {", ".join(sorted(options))}; resume with the '
                'optimizer of the run, or start a new run with load_from'
            )
        rates = [[_rate(group) for group in state] for state in (groups, wrapper.param_groups)]
        if rates[0] != rates[1]:
            runner.logger.warning(
                f'The learning rate of the checkpoint, {rates[0][0]:g}, continues; that of the config, '
                f'{rates[1][0]:g}, is not used. For another rate, start a new run with load_from={path}'
            )
    schedulers, states = runner.param_schedulers, checkpoint.get('param_schedulers')
    if isinstance(schedulers, list) and isinstance(states, list):
        before, now = ([sorted(state) for state in parts] for parts in (states, [x.state_dict() for x in schedulers]))
        if before != now:
            names = ', '.join(type(scheduler).__name__ for scheduler in schedulers)
            raise ValueError(
                f'{path} has the states of {len(states)} other param_schedulers than the config, which has {names}; '
                'resume with the schedulers of the run, or start a new run with load_from'
            )


def _rate(group: dict) -> float:
    return float(group.get('initial_lr', group['lr']))
