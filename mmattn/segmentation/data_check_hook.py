"""The hook that has all training and validation files checked before training."""

from pathlib import Path

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmattn.registry import HOOKS

SHOWN = 20


@HOOKS.register_module()
class SegDataCheckHook(Hook):
    """Before training, look at every image and mask, and name all that training would stumble over, in one error.

    It checks the data sets in the configs of ``train_dataloader`` and ``val_dataloader`` that derive from mmseg's
    ``BaseSegDataset``, inside wrappers, too. It objects to an empty data set, an image without a mask, an unreadable
    file, an image and a mask of different sizes, a mask that is not one label a pixel, and a label that is, after
    ``reduce_zero_label`` and ``label_map``, neither a class nor ignored.

    Masks are decoded. Of a JPEG or PNG image the header and the last bytes are read, which tells a file that was cut
    short, not one damaged in its midst; images of other formats are decoded. What is not read by ``LoadImageFromFile``
    and mmseg's ``LoadAnnotations``, and what is not on a local disk, is left out, and the log says so.

    All faults go to ``data_check.txt`` in the work dir. What was seen of the files is kept in ``data_check.json``
    there: a later run looks again only at files whose size or time has changed. The first process checks, all raise.

    mmengine builds data sets before any hook of its own runs, and stumbles over an empty one without a name. Therefore
    ``tools/train.py`` calls ``before_loops`` first; under other tools the check comes with ``before_train``.

    Args:
        enabled (bool): False turns the check off; in the shipped configs by
            ``--cfg-options default_hooks.data_check.enabled=False``. Defaults to True.

    Raises:
        ValueError: before training, there are faults; it lists up to 20 of them.
    """

    priority = 'VERY_HIGH'

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._checked = False

    def before_loops(self, runner: Runner) -> None:
        """Check, once."""
        if not self.enabled or self._checked:
            return
        self._checked = True
        from .data_check import find_faults  # late: mmseg.datasets prints and takes a second to import

        faults = [find_faults(runner.cfg, Path(runner.work_dir)) if is_main_process() else None]
        broadcast_object_list(faults)
        report = Path(runner.work_dir, 'data_check.txt')
        if is_main_process():
            report.unlink(missing_ok=True)  # that of an earlier run
        if faults[0]:
            lines = [f'{path}: {"; ".join(reasons)}' for path, reasons in faults[0].items()]
            if is_main_process():
                report.write_text(''.join(f'{line}\n' for line in lines))
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

    before_train = before_loops
