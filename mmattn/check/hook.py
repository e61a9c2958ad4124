"""The hook that checks a user's data before training and testing."""

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmattn.registry import HOOKS

from .driver import check_data, compare_checkpoint, run_rules, tell
from .rules import OF_SCHEDULE
from .sanity import sanity_validation


@HOOKS.register_module()
class CheckHook(Hook):
    """Checks data and settings before the first iteration, and lists all errors together.

    ``tools/train.py`` and ``tools/test.py`` add it to every run. In other tools, write it into ``custom_hooks``. An
    error is only what would end the run later, or makes a result wrong. All else is a warning. ``check.txt`` in the
    work dir lists both. In the config, ``check = dict(allow=['labels'])`` makes errors of the rule ``labels`` warnings,
    and with ``check = None``, the tools do not add the hook. The rules are in ``mmattn/check/rules.py``.

    Before a training, one batch of the validation data is then evaluated, see
    :func:`~mmattn.check.sanity.sanity_validation`.

    mmengine builds data sets before it calls any hook, and raises an error that does not name the data set if one is
    empty. Therefore, the tools call ``before_loops`` or ``before_test_loop`` first.

    Example:
        >>> from mmattn.registry import HOOKS
        >>> HOOKS.build(dict(type='CheckHook')).priority
        'HIGHEST'
        >>> custom_hooks = [dict(type='mmattn.CheckHook')]  # in a config, for other tools than ours
    """

    priority = 'HIGHEST'

    def __init__(self) -> None:
        self._checked: set[str] = set()

    def _check(self, runner: Runner, *loaders: str) -> None:
        if new := [loader for loader in loaders if loader not in self._checked]:
            self._checked.update(new)
            check_data(runner, new)

    def before_loops(self, runner: Runner) -> None:
        """Check the data of training and validation."""
        self._check(runner, 'train_dataloader', 'val_dataloader')

    def before_train(self, runner: Runner) -> None:
        """Check the data, unless that is done, and the schedule, and evaluate one batch."""
        self.before_loops(runner)
        tell(runner, [*run_rules(OF_SCHEDULE, runner)])
        sanity_validation(runner)

    def before_val(self, runner: Runner) -> None:
        """Check the data of validation, unless training has checked them."""
        self._check(runner, 'val_dataloader')

    def before_test(self, runner: Runner) -> None:
        """Check the data of testing."""
        self._check(runner, 'test_dataloader')

    before_test_loop = before_test

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Compare the checkpoint's classes and symbols with the data."""
        compare_checkpoint(runner, checkpoint)
