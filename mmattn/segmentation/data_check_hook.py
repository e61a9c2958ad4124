"""The hook that has all files of a run's data sets checked before its first iteration."""

from collections.abc import Sequence
from pathlib import Path

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmattn.registry import HOOKS
from mmattn.utils.files import write_text

SHOWN = 20


@HOOKS.register_module()
class SegDataCheckHook(Hook):
    """Before training, look at every image and mask, and list all that is wrong with them in one error.

    The hook checks the data sets in the configs of ``train_dataloader`` and ``val_dataloader``, before testing those
    of ``test_dataloader``, that derive from mmseg's ``BaseSegDataset``, inside wrappers, too. Faults are

    * an empty data set, an image without a mask, an unreadable file, an image and a mask of different sizes, a mask
      that is a JPEG or has more than one value per pixel;
    * a label that is, after ``reduce_zero_label`` and ``label_map``, neither a class nor ignored; a mask whose pixels
      are all ignored; masks of 0 and 255 alone; a class without a pixel in all training masks;
    * what a folder holds beside the images and masks that are read: images with another suffix, links to nothing,
      folders named like images, masks without an image; not with ``ann_file``, which selects images on purpose;
    * ``num_classes`` of a head that is not the number of classes of the data.

    A class without a pixel in validation or test is a warning, as is a mask of the test set whose pixels are all
    ignored.

    Masks are decoded. Of a JPEG or PNG image the header and the last bytes are read, which finds a file that was cut
    short, not one damaged in its middle; images of other formats are decoded. What is not read by
    ``LoadImageFromFile`` and mmseg's ``LoadAnnotations``, and what is not on a local disk, is left out, and the log
    says so.

    All faults go to ``data_check.txt`` in the work dir. What was seen of the files is kept in ``data_check.json``
    there: a later run looks again only at files whose size or time has changed. The first process checks, all raise.

    mmengine builds data sets before any hook of its own runs, and an empty one is an error that does not name it.
    Therefore ``tools/train.py`` calls ``before_loops`` first, and ``tools/test.py`` calls ``before_test_loop``; under
    other tools the check comes with ``before_train``, ``before_val`` or ``before_test``.

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

    priority = 'VERY_HIGH'

    def __init__(self, enabled: bool = True, allow_absent: Sequence[str] = (), allow_ignored: bool = False) -> None:
        self.enabled = enabled
        self.allow_absent = [allow_absent] if isinstance(allow_absent, str) else list(allow_absent)
        self.allow_ignored = allow_ignored
        self._checked: set[str] = set()

    def before_loops(self, runner: Runner) -> None:
        """Check what training reads."""
        self._check(runner, 'train_dataloader', 'val_dataloader')

    def before_val(self, runner: Runner) -> None:
        """Check what validation reads, if training did not come first."""
        self._check(runner, 'val_dataloader')

    def before_test(self, runner: Runner) -> None:
        """Check what testing reads."""
        self._check(runner, 'test_dataloader')

    before_train = before_loops
    before_test_loop = before_test

    def _check(self, runner: Runner, *loaders: str) -> None:
        """Check data loaders, each once.

        Raises:
            ValueError: there are faults.
        """
        loaders = tuple(loader for loader in loaders if loader not in self._checked)
        if not self.enabled or not loaders:
            return
        self._checked.update(loaders)
        from .data_check import find_faults  # late: mmseg.datasets prints and takes a second to import

        work_dir = Path(runner.work_dir)
        report = work_dir / 'data_check.txt'
        lines: list[str] = []
        if is_main_process():
            faults = find_faults(runner.cfg, work_dir, loaders, self.allow_absent, self.allow_ignored)
            lines = [f'{path}: {"; ".join(reasons)}' for path, reasons in faults.items()]
            lines = [line.encode(errors='backslashreplace').decode() for line in lines]  # any bytes are a file's name
            report.unlink(missing_ok=True)  # that of an earlier run
            if lines:
                write_text(report, ''.join(f'{line}\n' for line in lines))
        shared = [lines]
        broadcast_object_list(shared)
        (lines,) = shared
        if lines:
            more = [f'… and {len(lines) - SHOWN} more'] if len(lines) > SHOWN else []
            raise ValueError(
                '\n  '.join(
                    [
                        f'The data check found {len(lines)} faults (listed in {report}; '
                        'default_hooks.data_check.enabled=False turns the check off):',
                        *lines[:SHOWN],
                        *more,
                    ]
                )
            )
