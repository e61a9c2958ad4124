"""F1 as in face-parsing papers: per class and per group of merged classes, with the pixels of all images pooled."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import nan
from pathlib import Path

import numpy as np
import torch
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from PIL import Image
from prettytable import PrettyTable

from mmattn.registry import METRICS
from mmattn.utils.files import atomic_write, check_writable


@METRICS.register_module()
class FaceParsingMetric(BaseMetric):
    """F1 of classes and of groups of classes, overall F1, and pixel accuracy, in percent.

    F1 = 2TP / (2TP + FP + FN), with the pixels of the whole set pooled. The classes of a group are merged before
    counting: a left brow that is predicted as a right brow is correct for the group of brows. For 'overall', TP, FP and
    FN are summed over the components. A pixel of one component that is predicted as another is a false negative of the
    first and a false positive of the second. 'accuracy' is the share of pixels whose class is correct, without groups.

    The metrics are named 'F1.<name>', 'overall' and 'accuracy', for example for
    ``save_best='overall', rule='greater'``. F1 of a class that is in neither the ground truth nor the predictions is
    nan, printed as '-'.

    Args:
        columns (sequence of str, optional): metrics to compute and print, in this order. Defaults to all: classes,
            groups, 'overall', 'accuracy'.
        groups (mapping, optional): name of a group → its classes.
        overall (sequence of str): classes and groups that are the components of 'overall'. Defaults to none: 'overall'
            is not computed.
        overall_mode (str): 'sum', as above, or 'union', which merges all classes of the components into one. Defaults
            to 'sum'.
        ignore_index (int): label of pixels that do not count. Defaults to 255.
        output_dir (str, optional): folder for the predictions, 8-bit PNG files of labels, named
            ``<name of the image>.png``.
        format_only (bool): whether to write predictions without metrics or ground truth. Defaults to False.
        keep_results (bool): no effect. It exists because ``tools/test.py --out`` sets it, as for mmseg's metrics.
        **kwargs: ``collect_device``, ``prefix`` and so on, as in mmengine's ``BaseMetric``.

    Example:
        >>> from mmattn.registry import METRICS
        >>> brows = dict(brows=['left', 'right'])
        >>> metric = METRICS.build(dict(type='FaceParsingMetric', groups=brows, overall=['skin', 'brows']))
        >>> metric.dataset_meta = dict(classes=('background', 'skin', 'left', 'right'))
        >>> image = dict(gt_sem_seg=dict(data=torch.ones(1, 8, 8)), pred_sem_seg=dict(data=torch.ones(1, 8, 8)))
        >>> metric.process(None, [image])
    """

    metric_names = ('F1', 'overall', 'accuracy')  # what it computes; a name may go on after a dot

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        groups: Mapping[str, Sequence[str]] | None = None,
        overall: Sequence[str] = (),
        overall_mode: str = 'sum',
        ignore_index: int = 255,
        output_dir: str | None = None,
        format_only: bool = False,
        keep_results: bool = False,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        if overall_mode not in ('sum', 'union'):
            raise ValueError(f"overall_mode must be 'sum' or 'union'; got {overall_mode!r}")
        if format_only and output_dir is None:
            raise ValueError('format_only needs output_dir (tools/test.py --out DIR)')
        self.columns = columns
        self.groups = groups or {}
        self.overall = overall
        self.overall_mode = overall_mode
        self.ignore_index = ignore_index
        self.output_dir = output_dir
        self.format_only = format_only
        self._members: dict[str, list[int]] = {}
        self._written: dict[Path, str] = {}  # path of a prediction → path of its image
        if output_dir is not None:
            check_writable(output_dir)

    @property
    def dataset_meta(self) -> dict | None:
        """Meta information of the data set, with the names of 'classes'. The arguments are checked against them."""
        return self._dataset_meta

    @dataset_meta.setter
    def dataset_meta(self, dataset_meta: dict | None) -> None:
        self._dataset_meta = dataset_meta
        classes = (dataset_meta or {}).get('classes')
        if classes is None:
            if self.format_only:
                return
            raise ValueError("FaceParsingMetric requires metainfo['classes'] of the data set, which is not set")
        taken = [name for name in ('overall', 'accuracy', *classes) if name in self.groups]
        if taken:
            raise ValueError(f"groups must not have the name of a class, 'overall' or 'accuracy'; got {taken}")
        index = {name: i for i, name in enumerate(classes)}
        for group, names in self.groups.items():
            _check_names(f'groups[{group!r}]', names, index)
        members = {name: [i] for name, i in index.items()}
        members.update((group, sorted({index[name] for name in names})) for group, names in self.groups.items())
        _check_names('overall', self.overall, members)
        components = [i for name in self.overall for i in members[name]]
        if self.overall_mode == 'sum' and len(set(components)) < len(components):
            raise ValueError(
                f"overall must name components without common classes, or overall_mode must be 'union'; got "
                f'{list(self.overall)}'
            )
        metrics = [*members, *(['overall'] if self.overall else []), 'accuracy']
        _check_names('columns', self.columns or (), metrics)
        self._members = members
        self._columns = list(self.columns or metrics)

    def process(self, data_batch: dict | None, data_samples: Sequence[dict]) -> None:
        """Count the pixels of every image, and write its prediction.

        Each sample has ``img_path``, and ``pred_sem_seg`` and ``gt_sem_seg`` with ``data`` ``(1, H, W)`` of any numeric
        dtype.

        Raises:
            ValueError: ground truth and prediction differ in size, have a label that is neither a class nor ignored, or
                two images have the same name in ``output_dir``. The message names the image.
            OSError: the prediction cannot be written. The message names its file.
        """
        for sample in data_samples:
            predicted = sample['pred_sem_seg']['data'].long()
            if not self.format_only:
                # one result per image: with several processes, mmengine uses their number to drop the sampler's padding
                self.results.append(self._count(sample, predicted))
            if self.output_dir is not None:
                # as in mmseg's IoUMetric: labels as in the files, before reduce_zero_label
                labels = predicted[0].cpu().numpy() + bool(sample.get('reduce_zero_label'))
                path = Path(self.output_dir, f'{Path(sample["img_path"]).stem}.png')
                if labels.max() > 255:
                    raise ValueError(f'{path}: label {labels.max()} does not fit into 8 bits')
                if self._written.setdefault(path, sample['img_path']) != sample['img_path']:
                    raise ValueError(f'{path} is the prediction of both {self._written[path]} and {sample["img_path"]}')
                with atomic_write(path) as temporary:
                    Image.fromarray(labels.astype(np.uint8)).save(temporary)

    def _count(self, sample: dict, predicted: torch.Tensor) -> np.ndarray:
        truth = sample['gt_sem_seg']['data'].to(predicted)
        path = sample.get('img_path')
        if truth.shape != predicted.shape:
            raise ValueError(
                f'{path}: the ground truth has shape {tuple(truth.shape)}, the prediction '
                f'{tuple(predicted.shape)}; LoadAnnotations must come after Resize in the test pipeline'
            )
        classes = len(self._dataset_meta['classes'])  # type: ignore[index]
        counted = truth != self.ignore_index
        for what, labels in (('the ground truth', truth[counted]), ('the prediction', predicted[counted])):
            unknown = labels[(labels < 0) | (labels >= classes)].unique().tolist()
            if unknown:
                raise ValueError(
                    f'{path}: {what} has labels {unknown}; classes are 0…{classes - 1}, and '
                    f'{self.ignore_index} is ignored'
                )
        pairs = truth[counted] * classes + predicted[counted]
        return torch.bincount(pairs, minlength=classes**2).view(classes, classes).cpu().numpy()

    def count_pixels(self, confusion: np.ndarray) -> dict[str, np.ndarray]:
        """Compute numerator and denominator of every metric, int64 ``(2, )``: 2TP and 2TP + FP + FN for F1.

        ``confusion`` is int64 ``(classes, classes)``, with one row per class of the ground truth, of one image or
        summed over several.
        """
        counts = {name: _f1_counts(confusion, members) for name, members in self._members.items()}
        counts['accuracy'] = np.array([np.trace(confusion), confusion.sum()])
        if self.overall_mode == 'sum':
            counts['overall'] = sum((counts[name] for name in self.overall), np.zeros(2, np.int64))
        else:
            union = sorted({i for name in self.overall for i in self._members[name]})
            counts['overall'] = _f1_counts(confusion, union)
        return counts

    def compute_metrics(self, results: list[np.ndarray]) -> dict[str, float]:
        """Print and return the metrics in percent, rounded to two decimals. With ``format_only``, return ``{}``.

        ``results`` has one confusion matrix per image, int64 ``(classes, classes)``.
        """
        if self.format_only:
            print_log(f'The predictions were written to {self.output_dir}', 'current')
            return {}
        classes = len(self._dataset_meta['classes'])  # type: ignore[index]
        counts = self.count_pixels(sum(results, np.zeros((classes, classes), np.int64)))
        scores = {name: _percent(*counts[name]) for name in self._columns}
        table = PrettyTable(list(scores))
        table.add_row(['-' if score != score else f'{score:.2f}' for score in scores.values()])
        print_log(f'F1 in percent, pixels pooled over {len(results)} images:\n{table}', 'current')
        return {f'F1.{name}' if name in self._members else name: score for name, score in scores.items()}


def _check_names(argument: str, names: Iterable[str], allowed: Collection[str]) -> None:
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise ValueError(f'{argument} must be among {", ".join(allowed)}; got {", ".join(map(repr, unknown))}')


def _f1_counts(confusion: np.ndarray, classes: list[int]) -> np.ndarray:
    true_positive = confusion[np.ix_(classes, classes)].sum()
    return np.array([2 * true_positive, confusion[classes].sum() + confusion[:, classes].sum()])


def _percent(part: int, whole: int) -> float:
    return round(100 * int(part) / int(whole), 2) if whole else nan
