"""Compares the state of a checkpoint from which a run resumes with the config, before the first iteration."""

import re

from mmengine.optim import OptimWrapper
from mmengine.runner import IterBasedTrainLoop, Runner

from mmattn._compat import checkpoint_path, is_resumed
from mmattn.utils.faults import shorten
from mmattn.utils.trained_model import ABSENT, differences, model_differences, trained_settings

# Settings of a config that change how the training goes on.
COMPARED = (
    'model',
    'train_dataloader',
    'train_cfg',
    'optim_wrapper',
    'param_scheduler',
    'custom_hooks',
    'randomness',
    'auto_scale_lr',
)
STREAM = ('train_dataloader.sampler', 'train_dataloader.batch_sampler')  # the order of the data
NO_OPTIONS = {'params', 'initial_lr', 'param_names'}  # keys of a parameter group that are not an optimizer's options


def check_resumed_state(runner: Runner, checkpoint: dict) -> None:
    """Check that the config can continue the run of a checkpoint. Warn of all settings that differ.

    The optimizer of ``runner`` has been built. A ValueError tells if the checkpoint has no state of a run, or the state
    of another optimizer or of other schedulers, or if training would skip or repeat data.
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
    needed = dict(optimizer='the optimizer', **{'param_schedulers': 'the schedules'} if runner.param_schedulers else {})
    if missing := [name for key, name in needed.items() if not checkpoint.get(key)]:
        raise ValueError(
            f'{path} cannot be resumed: it has no state of {" and ".join(missing)}, as best checkpoints by default. '
            'Resume from the last checkpoint: --resume; or start a new run from its weights: --cfg-options '
            f'load_from={path}. default_hooks.checkpoint.resumable_best=True saves best checkpoints with these states'
        )
    _check_settings(runner, checkpoint, path)
    groups = checkpoint['optimizer'].get('param_groups')
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


def _check_settings(runner: Runner, checkpoint: dict, path: str | None) -> None:
    """Warn of the settings that differ from those of the run, and refuse those that would skip or repeat data."""
    meta = checkpoint.get('meta') or {}
    settings, trained = runner.cfg.to_dict(), trained_settings(meta)
    named = set(re.findall(r'^(\w+) = ', str(meta.get('cfg')), re.MULTILINE))  # also with values that are not known
    told = model_differences(settings.get('model') or {}, trained.get('model') or {})  # by the check of the data
    changed = [
        text
        for key in COMPARED
        if key in trained or (trained and key not in named)
        for text in differences(key, settings.get(key) or ABSENT, trained.get(key) or ABSENT)
        if text not in told
    ]
    resumed = checkpoint['message_hub'].get('runtime_info', {}).get('to_resume', {})
    if isinstance(runner.train_loop, IterBasedTrainLoop) or resumed.get('batches_done'):  # not between two epochs
        faults = [text for text in changed if text.startswith(STREAM)]
        processes = len(resumed.get('rng_state', ())) or runner.world_size
        now, before = ((cfg.get('train_dataloader') or {}).get('batch_size') for cfg in (settings, trained))
        if now and before and now * runner.world_size != before * processes:
            faults.append(
                f'train_dataloader.batch_size is {now}, of {runner.world_size} processes (in training: {before}, of '
                f'{processes})'
            )
        if faults:
            raise ValueError(
                f'{path} cannot be resumed, since training would skip or repeat data: {"; ".join(faults)}. Resume with '
                f'as many samples per iteration, in the same order, or start a new run with load_from={path}'
            )
    if changed:
        continues = any(text.startswith(('optim_wrapper', 'param_scheduler')) for text in changed)
        runner.logger.warning(
            f'{path} is of a run with other settings: {"; ".join(shorten(changed))}'
            + '. The states of optimizer and schedulers, with their options, continue from the checkpoint' * continues
        )


def _rate(group: dict) -> float:
    return float(group.get('initial_lr', group['lr']))
