"""Hook that checks the images and boxes of mmdet's data sets before the first iteration."""

from collections.abc import Sequence
from pathlib import Path

from mmengine.runner import Runner

from mmattn.data_check.hook import DataCheckHook
from mmattn.registry import HOOKS


@HOOKS.register_module()
class DetDataCheckHook(DataCheckHook):
    """Checks annotations and images of mmdet's data sets before the first iteration, and lists all faults in one error.

    The hook checks data sets that derive from mmdet's ``BaseDetDataset``, also within wrappers: before training, those
    of ``train_dataloader`` and ``val_dataloader``; before testing, those of ``test_dataloader``. Faults are:

    * an annotation file that is missing or cannot be parsed; a data set whose ``filter_cfg`` leaves no image;
    * in a COCO file: repeated image ids, boxes that are not four finite numbers, boxes of no image, boxes
      with an area of 0, boxes in 0…1, boxes given as corners;
    * a metric that compares with another annotation file than the data set reads;
    * an image that is missing, truncated or unreadable, or whose size differs from that in its annotations;
    * categories of a COCO file in another order than ``metainfo['classes']``: mmdet numbers labels in the order of the
      file;
    * a class without a box in the training set, except those in ``allow_absent``. Ignored boxes do not count.

    The hook logs a warning for unused boxes (no area, outside the image, or a class that is not in
    ``metainfo['classes']``), and for a class without a box in validation or test. mmdet's ``NumClassCheckHook`` checks
    ``num_classes`` of the heads.

    Files that are not on a local disk are not checked.
    :class:`~mmattn.data_check.hook.DataCheckHook` describes when the check runs, and in which process.

    Args:
        enabled (bool): whether to check. In the shipped configs,
            ``--cfg-options default_hooks.data_check.enabled=False`` turns the check off. Defaults to True.
        allow_absent (sequence of str): classes that may have no box in the training set. Defaults to none.

    Raises:
        ValueError: before the first iteration, if there are faults. The message lists up to 20 of them.

    Example:
        >>> from mmattn.registry import HOOKS
        >>> hook = HOOKS.build(dict(type='DetDataCheckHook', allow_absent=['Platelets']))
        >>> hook.allow_absent
        ['Platelets']
        >>> default_hooks = dict(data_check=dict(type='mmattn.DetDataCheckHook'))  # in a config
    """

    def __init__(self, enabled: bool = True, allow_absent: Sequence[str] = ()) -> None:
        super().__init__(enabled)
        self.allow_absent = [allow_absent] if isinstance(allow_absent, str) else list(allow_absent)

    def find_faults(self, runner: Runner, loaders: tuple[str, ...]) -> dict[str, list[str]]:
        """Check the annotations and images of the data sets of these data loaders."""
        from .data_check import find_faults  # lazy: importing mmdet.datasets prints, and takes a second

        return find_faults(runner.cfg, Path(runner.work_dir), loaders, self.allow_absent)
