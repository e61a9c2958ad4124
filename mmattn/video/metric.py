"""J and F of predicted clips: per object, per clip and overall, and for seen and unseen categories."""

import csv
import logging
from collections.abc import Iterable, Sequence
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any
from zipfile import ZipFile

import numpy as np
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from prettytable import PrettyTable

from mmattn.registry import METRICS
from mmattn.utils.files import atomic_write, check_writable

from .masks import object_ids, read_mask, write_mask
from .similarity import boundary_similarity, region_similarity, summarize

COLUMNS = ('JF', 'J', 'J_recall', 'J_decay', 'F', 'F_recall', 'F_decay')


@METRICS.register_module()
class VOSMetric(BaseMetric):
    """Compute region similarity J and boundary similarity F of the followed objects, in percent.

    An object is scored on the frames with a mask after its first frame. Frames at which another object begins do not
    count, because their masks need not show all objects. In YouTube-VOS, these are the frames that ``meta.json`` names,
    also where the mask does not show the new object. J and F of an object have a mean over these frames, a recall
    (share of frames above 50) and a decay (mean of the first quarter minus mean of the last). A clip's scores are means
    over its objects. The overall scores are means over all objects, as in DAVIS, so clips with more objects count more.

    The metrics are 'J' and 'F', their mean 'JF', 'J_recall', 'J_decay', 'F_recall' and 'F_decay'. If the data set has
    ``metainfo['seen_categories']``, like ``YouTubeVOSDataset`` with ``seen``, there is also 'G', the mean of 'J_seen',
    'F_seen', 'J_unseen' and 'F_unseen'. This is a local estimate, because the ground truth of the server is not public.
    Objects without a frame have nan, printed as '-', and are excluded from means. Without any scored frame there are no
    metrics.

    Args:
        skip_last (bool): ignore the last frame of a clip, as in DAVIS. Use False for YouTube-VOS. Defaults to True.
        csv_file (str, optional): file for the table of all objects and clips. Defaults to ``results.csv`` in
            ``output_dir``, if there is one.
        output_dir (str, optional): folder for the predictions, palette PNGs ``<clip>/<frame>.png``. Defaults to None,
            no files.
        submission (bool): also write ``submission.zip`` to ``output_dir``, the archive for the server of YouTube-VOS,
            with ``Annotations/<clip>/<frame>.png``. Defaults to False.
        format_only (bool): write the predictions to ``output_dir`` without scoring them. Defaults to False.
        keep_results (bool): has no effect. ``tools/test.py --out`` sets it, as for the metrics of mmseg.
        **kwargs: ``collect_device``, ``prefix`` and so on, as in mmengine's ``BaseMetric``.

    Raises:
        OSError: ``output_dir`` or the folder of ``csv_file`` is not writable.

    Example:
        >>> masks = np.eye(4, dtype=np.uint8)
        >>> write_mask('0.png', masks)
        >>> clip = dict(clip='cat', frame_paths=['0.jpg', '1.jpg'], mask_paths=['0.png'] * 2, first_frames={1: 0})
        >>> metric = METRICS.build(dict(type='mmattn.VOSMetric', skip_last=False))
        >>> metric.process(None, [dict(clip, single_object=False, pred_masks=dict(data=np.stack([masks] * 2)))])
        >>> metric.compute_metrics(metric.results)['J']
        100.0
    """

    metric_names = (*COLUMNS, 'G', 'J_seen', 'F_seen', 'J_unseen', 'F_unseen')  # what it computes
    less_is_better = ('J_decay', 'F_decay')

    def __init__(
        self,
        skip_last: bool = True,
        csv_file: str | None = None,
        output_dir: str | None = None,
        submission: bool = False,
        format_only: bool = False,
        keep_results: bool = False,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        if output_dir is None and format_only:
            raise ValueError('format_only requires output_dir (tools/test.py --out DIR)')
        self.skip_last = skip_last
        self.csv_file = Path(output_dir, 'results.csv') if csv_file is None and output_dir is not None else csv_file
        self.output_dir = output_dir
        for folder in (output_dir, self.csv_file and Path(self.csv_file).parent):
            if folder is not None:
                check_writable(folder)
        self.submission = submission
        self.format_only = format_only

    def process(self, data_batch: dict | None, data_samples: Sequence[dict]) -> None:
        """Write and score the predictions for some clips.

        The samples are whole clips, as made by ``PackClip``, with ``pred_masks`` whose ``data``, ``(T, H, W)`` of any
        integer type, are the predicted ids at the size of the files.
        """
        for sample in data_samples:
            predicted = sample['pred_masks']['data']
            if len(predicted) != len(sample['frame_paths']):
                raise ValueError(
                    f'{sample["clip"]}: {len(predicted)} predicted masks for {len(sample["frame_paths"])} frames'
                )
            predicted = predicted.cpu().numpy() if hasattr(predicted, 'cpu') else np.asarray(predicted)
            written = []
            if self.output_dir is not None:
                for i in sample['output_positions']:
                    written.append(f'{sample["clip"]}/{Path(sample["frame_paths"][i]).stem}.png')
                    write_mask(Path(self.output_dir, written[-1]), predicted[i])
            # one result per clip: with several processes, mmengine removes the sampler's padding by counting results
            self.results.append(
                dict(
                    clip=sample['clip'],
                    written=written,
                    categories=sample.get('categories', {}),
                    objects={} if self.format_only else self._score(sample, predicted),
                )
            )

    def _score(self, sample: dict, predicted: np.ndarray) -> dict[int, np.ndarray]:
        first_frames: dict[int, int] = sample['first_frames']
        scores: dict[int, list[tuple[float, float]]] = {i: [] for i in first_frames}
        begins = {*first_frames.values(), *sample.get('unscored_positions', ())}
        last = len(predicted) - 1 if self.skip_last else len(predicted)
        unknown: set[int] = set()
        for position, path in enumerate(sample['mask_paths'][:last]):
            ids = [i for i, first in first_frames.items() if first < position]
            if path is None or not ids or position in begins:
                continue
            truth = read_mask(path, sample['single_object'])
            if truth.shape != predicted[position].shape:
                raise ValueError(
                    f'{path}: the ground truth is of shape {truth.shape}, the prediction {predicted[position].shape}'
                )
            unknown.update({*object_ids(truth)} - {*first_frames})
            for i in ids:
                masks = predicted[position] == i, truth == i
                scores[i].append((region_similarity(*masks), boundary_similarity(*masks)))
        if unknown:
            print_log(
                f'{sample["clip"]}: later masks show objects {", ".join(map(str, sorted(unknown)))}, which are in no '
                'given mask; they are neither followed nor scored',
                'current',
                logging.WARNING,
            )
        return {i: np.array(values).reshape(-1, 2).T for i, values in scores.items()}

    def compute_metrics(self, results: list[dict]) -> dict[str, float]:
        """Compute the metrics in percent, print the table and write the requested files.

        The dict is empty with ``format_only``, or if there is no ground truth.
        """
        if self.submission and self.output_dir is not None:
            self._zip(name for result in results for name in result['written'])
        objects = [
            (result['clip'], i, result['categories'].get(i), _row(*values))
            for result in results
            for i, values in result['objects'].items()
        ]
        if all(isnan(row['J']) for *_, row in objects):
            where = f'; the predictions are in {self.output_dir}' if self.output_dir is not None else ''
            print_log(f'No ground truth was compared with the predictions of {len(results)} clips{where}', 'current')
            return {}
        metrics = _mean(row for *_, row in objects)
        rows: list[tuple[str, int | str, dict[str, float]]] = [('all', '', metrics)]
        for clip in dict.fromkeys(clip for clip, *_ in objects):
            of_clip = [(clip, i, row) for name, i, _, row in objects if name == clip]
            rows += [(clip, '', _mean(row for *_, row in of_clip)), *of_clip]
        self._write(rows)
        text = f'J and F in percent, {len(objects)} objects in {len(results)} clips:\n{_table(rows)}'
        seen = (self.dataset_meta or {}).get('seen_categories')
        if seen is not None:
            parts = {
                name: _mean(row for _, _, category, row in objects if category and (category in seen) is is_seen)
                for name, is_seen in (('seen', True), ('unseen', False))
            }
            estimate = {f'{score}_{name}': part[score] for name, part in parts.items() for score in ('J', 'F')}
            metrics = {**metrics, 'G': fmean(estimate.values()), **estimate}
            text += '\nLocal estimate: ' + ', '.join(f'{name} {_number(metrics[name])}' for name in ('G', *estimate))
        print_log(text, 'current')
        return metrics

    def _write(self, rows: list[tuple[str, int | str, dict[str, float]]]) -> None:
        if self.csv_file is None:
            return
        with atomic_write(self.csv_file) as temporary, temporary.open('w', newline='', encoding='utf-8') as file:
            writer = csv.writer(file)
            writer.writerow(['clip', 'object', *COLUMNS])
            writer.writerows([clip, i, *row.values()] for clip, i, row in rows)

    def _zip(self, names: Iterable[str]) -> None:
        folder = Path(self.output_dir)  # type: ignore[arg-type]
        with (
            atomic_write(folder / 'submission.zip') as temporary,
            ZipFile(temporary, 'w') as archive,  # PNGs are compressed
        ):
            for name in names:
                archive.write(folder / name, f'Annotations/{name}')


def _row(j: np.ndarray, f: np.ndarray) -> dict[str, float]:
    values = [100 * value for value in (*summarize(j), *summarize(f))]
    return dict(zip(COLUMNS, [(values[0] + values[3]) / 2, *values]))


def _mean(rows: Iterable[dict[str, float]]) -> dict[str, float]:
    counted = [row for row in rows if not isnan(row['J'])]
    return {name: fmean(row[name] for row in counted) if counted else nan for name in COLUMNS}


def _table(rows: list[tuple[str, int | str, dict[str, float]]]) -> Any:
    table = PrettyTable(['clip', 'object', *(name.replace('JF', 'J&F').replace('_', ' ') for name in COLUMNS)])
    table.add_rows([[clip, i, *map(_number, row.values())] for clip, i, row in rows])
    table.align = 'r'
    table.align['clip'] = 'l'
    return table


def _number(value: float) -> str:
    return '-' if isnan(value) else f'{value:.1f}'
