"""The hook that has the images and boxes of a detector's data sets checked before its first iteration."""

from collections.abc import Sequence

from mmengine.runner import Runner

from mmattn.engine.hooks.data_check import DataCheckHook
from mmattn.registry import HOOKS


@HOOKS.register_module()
class DetDataCheckHook(DataCheckHook):
    """Before training, look at the annotations and images of mmdet's data sets, and list what is wrong in one error.

    The hook checks the data sets in the configs of ``train_dataloader`` and ``val_dataloader``, before testing those
    of ``test_dataloader``, that derive from mmdet's ``BaseDetDataset``, inside wrappers, too. Faults are

    * annotation files that are missing or cannot be parsed; a data set of which no image is left after its
      ``filter_cfg``;
    * an image that is missing, unreadable, or not of the width and height that its annotations say;
    * categories of a COCO file in another order than ``metainfo['classes']``, because mmdet numbers labels in the order
      of the file;
    * a class without a box in the training set, except those in ``allow_absent``; ignored boxes do not count.

    The log has warnings for boxes that are not used, because they have no area or lie outside the image, because their
    class is not in ``metainfo['classes']``, and for a class without a box in validation or test. Whether
    ``num_classes`` of the heads fits is checked by mmdet's ``NumClassCheckHook``.

    Only the headers of images are read. Files that are not on a local disk are not looked at. When the check runs, and
    in which process, is in :class:`~mmattn.engine.hooks.data_check.DataCheckHook`.

    Args:
        enabled (bool): False turns the check off; in the shipped configs by
            ``--cfg-options default_hooks.data_check.enabled=False``. Defaults to True.
        allow_absent (sequence of str): classes that need not have a box in the training set. Defaults to none.

    Raises:
        ValueError: before the first iteration, there are faults; it lists up to 20 of them.

    Example:
        >>> default_hooks = dict(data_check=dict(type='mmattn.DetDataCheckHook', allow_absent=['Platelets']))
    """

    def __init__(self, enabled: bool = True, allow_absent: Sequence[str] = ()) -> None:
        super().__init__(enabled)
        self.allow_absent = [allow_absent] if isinstance(allow_absent, str) else list(allow_absent)

    def find_faults(self, runner: Runner, loaders: tuple[str, ...]) -> dict[str, list[str]]:
        """Look at the annotations and images of the data loaders' data sets."""
        from .data_check import find_faults  # late: mmdet.datasets prints and takes a second to import

        return find_faults(runner.cfg, loaders, self.allow_absent)
