"""mmseg's IoUMetric with means over the foreground."""

from collections.abc import Sequence

import mmseg.evaluation
import numpy as np

from mmattn.registry import METRICS


@METRICS.register_module()
class ForegroundIoUMetric(mmseg.evaluation.IoUMetric):
    """mmseg's ``IoUMetric``, and the means over all classes but the background: 'mIoU_foreground', 'mAcc_foreground'.

    The pixels of the background are counted as before: a class that is predicted there has a smaller IoU. With
    ``iou_metrics``, there are also 'mDice_foreground', 'mFscore_foreground' and so on.

    Args:
        background (str or sequence of str): class, or classes, that these means leave out. If the data set has no such
            class, or no other, a ValueError says so before the test.
        output_dir (str, optional): folder for the predicted label maps. Defaults to None.
        keep_results (bool): no effect. ``tools/test.py --out`` sets it, as for mmseg's metrics. Defaults to False.
        **kwargs: as in mmseg's ``IoUMetric``.

    Example:
        >>> metric = METRICS.build(dict(type='mmattn.ForegroundIoUMetric', background='other'))
        >>> metric.dataset_meta = dict(classes=('other', 'road'))
    """

    def __init__(
        self, background: str | Sequence[str], output_dir: str | None = None, keep_results: bool = False, **kwargs
    ) -> None:
        super().__init__(output_dir=output_dir, **kwargs)
        self.background = [background] if isinstance(background, str) else [*background]

    @property
    def dataset_meta(self) -> dict | None:
        """Meta information of the data set, with the names of 'classes'. ``background`` is checked against them."""
        return self._dataset_meta

    @dataset_meta.setter
    def dataset_meta(self, dataset_meta: dict | None) -> None:
        self._dataset_meta = dataset_meta
        classes = (dataset_meta or {}).get('classes') or ()
        unknown = [name for name in self.background if name not in classes]
        if unknown or not set(classes) - set(self.background):
            raise ValueError(
                f'background must name some of the classes {", ".join(classes)}, but not all; got '
                f'{", ".join(self.background)}'
            )

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Compute mmseg's metrics, in percent, and those of the foreground."""
        metrics = super().compute_metrics(results)
        if self.format_only:
            return metrics
        areas = [sum(parts) for parts in zip(*results)]
        values = self.total_area_to_metrics(*areas, self.metrics, self.nan_to_num, self.beta)
        foreground = [name not in self.background for name in self._dataset_meta['classes']]  # type: ignore[index]
        means = {f'm{key}_foreground': np.nanmean(x[foreground]) for key, x in values.items() if key != 'aAcc'}
        return metrics | {key: np.round(mean * 100, 2) for key, mean in means.items()}
