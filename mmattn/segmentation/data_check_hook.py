"""Hook that checks all files of mmseg's data sets before the first iteration."""

from collections.abc import Sequence
from pathlib import Path

from mmengine.runner import Runner

from mmattn.data_check.hook import DataCheckHook
from mmattn.registry import HOOKS


@HOOKS.register_module()
class SegDataCheckHook(DataCheckHook):
    """Checks images and masks of mmseg's data sets before the first iteration, and lists all faults in one error.

    The hook checks data sets that derive from mmseg's ``BaseSegDataset``, also within wrappers: before training, those
    of ``train_dataloader`` and ``val_dataloader``; before testing, those of ``test_dataloader``. Faults are:

    * an empty data set; an image without a mask; an unreadable file; an image and a mask of different sizes; a mask in
      a lossy format or with more than one value per pixel; a 16-bit image with values of 12 bits or fewer; a
      TIFF with bands or pages that loading drops;
    * a label that is, after ``reduce_zero_label`` and ``label_map``, neither a class nor ignored; a mask with only
      ignored pixels; masks that contain only 0 and 255; a class without a pixel in the training masks;
    * files in the folders that are not read: images with another suffix, broken links, folders named like images,
      masks without an image. This is not checked with ``ann_file``, which selects images;
    * ``num_classes`` of a head that differs from the number of classes of the data; ``class_weight`` of another
      length; different values of ``ignore_index`` in heads, metrics and data; duplicate class names; validation
      classes in another order than those of training.

    The hook logs a warning for a class without a pixel in validation or test, for test masks with only ignored pixels,
    and for images that are listed twice or are in both training and validation.

    Masks are decoded. For JPEG and PNG images, only the header and the last bytes are read: this detects truncation,
    but not damage in the middle. Images of other formats are decoded. Data sets that are not read by
    ``LoadImageFromFile`` and mmseg's ``LoadAnnotations``, or not from a local disk, are skipped, and the log names
    them.

    All faults are written to ``data_check.txt`` in the work dir. Results for files without faults are cached in
    ``data_check.json`` there: later runs check a file again only if its size or modification time has changed.
    :class:`~mmattn.data_check.hook.DataCheckHook` describes when the check runs, and in which process.

    Args:
        enabled (bool): whether to check. In the shipped configs,
            ``--cfg-options default_hooks.data_check.enabled=False`` turns the check off. Defaults to True.
        allow_absent (sequence of str): classes that may be missing from all training masks, for a subset that lacks
            them. Defaults to none.
        allow_ignored (bool): whether all pixels of a mask may be ignored. Defaults to False.

    Raises:
        ValueError: before the first iteration, if there are faults, or if ``allow_absent`` names an unknown class. The
            message lists up to 20 faults.

    Example:
        >>> from mmattn.registry import HOOKS
        >>> hook = HOOKS.build(dict(type='SegDataCheckHook', allow_absent=['train']))
        >>> hook.allow_absent
        ['train']
        >>> default_hooks = dict(data_check=dict(type='mmattn.SegDataCheckHook'))  # in a config
    """

    def __init__(self, enabled: bool = True, allow_absent: Sequence[str] = (), allow_ignored: bool = False) -> None:
        super().__init__(enabled)
        self.allow_absent = [allow_absent] if isinstance(allow_absent, str) else list(allow_absent)
        self.allow_ignored = allow_ignored

    def find_faults(self, runner: Runner, loaders: tuple[str, ...]) -> dict[str, list[str]]:
        """Check all files of the data sets of these data loaders."""
        from .data_check import find_faults  # lazy: importing mmseg.datasets prints, and takes a second

        return find_faults(runner.cfg, Path(runner.work_dir), loaders, self.allow_absent, self.allow_ignored)
