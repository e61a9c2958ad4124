"""The hook that has all files of a run's data sets checked before its first iteration."""

from collections.abc import Sequence
from pathlib import Path

from mmengine.runner import Runner

from mmattn.engine.hooks.data_check import DataCheckHook
from mmattn.registry import HOOKS


@HOOKS.register_module()
class SegDataCheckHook(DataCheckHook):
    """Before training, look at every image and mask, and list all that is wrong with them in one error.

    The hook checks the data sets in the configs of ``train_dataloader`` and ``val_dataloader``, before testing those
    of ``test_dataloader``, that derive from mmseg's ``BaseSegDataset``, inside wrappers, too. Faults are

    * an empty data set, an image without a mask, an unreadable file, an image and a mask of different sizes, a mask
      of a lossy format or with more than one value per pixel, an image of 12 bits in 16;
    * a label that is, after ``reduce_zero_label`` and ``label_map``, neither a class nor ignored; a mask whose pixels
      are all ignored; masks of 0 and 255 alone; a class without a pixel in all training masks;
    * what a folder holds beside the images and masks that are read: images with another suffix, links to nothing,
      folders named like images, masks without an image; not with ``ann_file``, which selects images on purpose;
    * ``num_classes`` of a head that is not the number of classes of the data, ``class_weight`` of another length, an
      ``ignore_index`` in which heads, metrics and data differ; names of classes that repeat, or that validation has in
      another order.

    A class without a pixel in validation or test is a warning, as are a mask of the test set whose pixels are all
    ignored, and images that are listed twice or both in training and validation.

    Masks are decoded. Of a JPEG or PNG image the header and the last bytes are read, which finds a file that was cut
    short, not one damaged in its middle; images of other formats are decoded. What is not read by
    ``LoadImageFromFile`` and mmseg's ``LoadAnnotations``, and what is not on a local disk, is left out, and the log
    says so.

    All faults go to ``data_check.txt`` in the work dir. What was seen of the files is kept in ``data_check.json``
    there: a later run looks again only at files whose size or time has changed. When the check runs, and in which
    process, is in :class:`~mmattn.engine.hooks.data_check.DataCheckHook`.

    Args:
        enabled (bool): False turns the check off; in the shipped configs by
            ``--cfg-options default_hooks.data_check.enabled=False``. Defaults to True.
        allow_absent (sequence of str): classes that need not have a pixel in the training masks, for a subset that
            lacks them. Defaults to none.
        allow_ignored (bool): whether all pixels of a mask may be ignored. Defaults to False.

    Raises:
        ValueError: before the first iteration, there are faults, or ``allow_absent`` names no class of the data; it
            lists up to 20 of them.

    Example:
        >>> default_hooks = dict(data_check=dict(type='mmattn.SegDataCheckHook', allow_absent=['train']))
    """

    def __init__(self, enabled: bool = True, allow_absent: Sequence[str] = (), allow_ignored: bool = False) -> None:
        super().__init__(enabled)
        self.allow_absent = [allow_absent] if isinstance(allow_absent, str) else list(allow_absent)
        self.allow_ignored = allow_ignored

    def find_faults(self, runner: Runner, loaders: tuple[str, ...]) -> dict[str, list[str]]:
        """Look at all files of the data loaders' data sets."""
        from .data_check import find_faults  # late: mmseg.datasets prints and takes a second to import

        return find_faults(runner.cfg, Path(runner.work_dir), loaders, self.allow_absent, self.allow_ignored)
