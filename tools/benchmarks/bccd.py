"""Train a small Faster R-CNN and its attended variants on BCCD in the same short budget, and draw table and detections.

    BCCD_ROOT=… python tools/benchmarks/bccd.py [--seeds 0 1] [--work-dir work_dirs/bccd] [--jobs 1]

Every row is a config of the package, trained by tools/train.py and scored on the validation images after the last
iteration. Interrupted, the command goes on where it stopped; finished runs are not repeated. It leaves table.md and
detections.jpg, by the runs of the first seed, in the work dir.
"""

import os
from collections import defaultdict
from pathlib import Path

import mmattn.utils.command

from PIL import Image
from short_runs import ROOT, Run, arguments, call, each, markdown, runs, sheet, spread, train

from mmattn.utils.files import replace_folder

ITERATIONS = 150
RUN = f'fpn_1xb8-{ITERATIONS}_bccd-320x240.py'
METHODS: dict[str, tuple[str, list[str]]] = {
    'Faster R-CNN (mmdet)': (f'attended_residual/faster-rcnn_r50-w16_{RUN}', []),
    'attn0010': (f'attended_residual/faster-rcnn_r50-w16-attn0010_{RUN}', []),
    'attn0010-dcn': (f'attended_residual/faster-rcnn_r50-w16-attn0010-dcn_{RUN}', []),
    'dynconv13': (f'attended_residual/faster-rcnn_r50-w16-dynconv13_{RUN}', []),
}
METRICS = ('mAP', 'AP50', 'AP75')
SHOWN = 4  # images in the picture


def drawn(run: Run, jobs: int) -> list[Path]:
    """Return pictures of a finished run's detections beside the ground truth, drawn by tools/test.py."""
    folder = run.folder / 'shown'
    if not folder.is_dir():
        with replace_folder(folder) as scratch:
            call(
                run,
                jobs,
                'test.py',
                ROOT / 'configs' / run.config,
                run.folder / f'iter_{ITERATIONS}.pth',
                '--work-dir',
                run.folder / 'test',
                '--show-dir',
                (scratch / 'new').resolve(),
                '--cfg-options',
                'model.test_cfg.rcnn.score_thr=0.3',
            )
    return sorted(folder.rglob('*.png')) + sorted(folder.rglob('*.jpg'))


def main() -> None:
    """Run what is missing, then write table and picture."""
    args = arguments('Short trainings on BCCD', 'work_dirs/bccd', [0, 1])
    data = Path(os.environ.get('BCCD_ROOT', 'data/bccd'))
    if not (data / 'Annotations').is_dir():
        raise SystemExit(f'no BCCD in {data}: set BCCD_ROOT to the folder with Annotations and JPEGImages')
    todo = runs(METHODS, args.seeds, args.work_dir)
    scores: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run, found in each(lambda run: train(run, args.jobs, 'pascal_voc/mAP', ITERATIONS), todo, args.jobs):
        for name in METRICS:
            scores[run.method][name].append(100 * found[f'pascal_voc/{name}'])
    heads = [
        *(f'{name}, seed {seed}' for name in METRICS[:2] for seed in args.seeds),
        *(f'{name}, mean' for name in METRICS),
    ]
    text = markdown(
        heads,
        (
            [
                method,
                *(f'{value:.1f}' for name in METRICS[:2] for value in found[name]),
                *(spread(found[name]) for name in METRICS),
            ]
            for method, found in scores.items()
        ),
    )
    print(text)
    (args.work_dir / 'table.md').write_text(text, encoding='utf-8')
    first = todo[: len(METHODS)]
    rows = [[Image.open(path) for path in drawn(run, args.jobs)[:SHOWN]] for run in first]
    sheet([list(column) for column in zip(*rows)], [run.method for run in first], args.work_dir / 'detections.jpg')


if __name__ == '__main__':
    mmattn.utils.command.run(main)
