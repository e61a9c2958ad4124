"""Hook that gives a captioner the reward of self-critical training."""

from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner

from mmattn._compat import has_loaded
from mmattn.registry import HOOKS

from .self_critical import CiderReward


@HOOKS.register_module()
class SelfCriticalHook(Hook):
    """Sets the reward of a captioner, CIDEr-D with the references of the training images, before training.

    It also requires that training starts from a checkpoint: a model that was not trained by cross-entropy draws
    captions whose reward is 0.

    Raises:
        ValueError: before the first iteration, if no checkpoint has been loaded, the model has no
            ``self_critical``, or the training data have no ``references``.

    Example:
        >>> custom_hooks = [dict(type='mmattn.SelfCriticalHook')]  # in a config
    """

    def before_train(self, runner: Runner) -> None:
        """Build the reward."""
        model = runner.model
        while is_model_wrapper(model):
            model = model.module
        if getattr(model, 'self_critical', None) is None:
            raise ValueError(f'SelfCriticalHook requires a captioner with self_critical; got {type(model).__name__}')
        if not has_loaded(runner):  # also where `resume` has found no checkpoint
            raise ValueError(
                'self-critical training requires load_from, a checkpoint that was trained by cross-entropy: '
                '--cfg-options load_from=CHECKPOINT'
            )
        dataset = runner.train_dataloader.dataset
        if not hasattr(dataset, 'references'):
            raise ValueError(f'the training data must have references; got {type(dataset).__name__}')
        model.reward = CiderReward(dataset.references())
