"""Train the stock heads and ours on CamVid in the same short budget, and draw table and plot.

    CAMVID_ROOT=… python tools/benchmarks/camvid.py [--seeds 0 1 2] [--work-dir work_dirs/camvid] [--jobs 1]

Every row is a config of the package, trained by tools/train.py and scored on the validation images after the last
iteration. Interrupted, the command goes on where it stopped; finished runs are not repeated. It leaves table.md and
plot.png in the work dir.
"""
import os
import statistics
from collections import defaultdict
from pathlib import Path

from short_runs import arguments, each, markdown, runs, spread, train

RUN = 'r18-d8-half_1xb8-160_camvid-180x180.py'
ITERATIONS = 160
# name: (config, options)
METHODS: dict[str, tuple[str, list[str]]] = {
    'NL (mmseg NLHead)': (f'bi_nl/nl_{RUN}', []),
    'BiNLHead, position none': (f'bi_nl/bi-nl_{RUN}', ['model.decode_head.position=none']),
    'BiNLHead, position relative': (f'bi_nl/bi-nl_{RUN}', ['model.decode_head.position=relative']),
    'BiNLHead, position bilateral': (f'bi_nl/bi-nl_{RUN}', []),
    'CC (mmseg CCHead)': (f'bi_cc/cc_{RUN}', []),
    'BiCCHead, position none': (f'bi_cc/bi-cc_{RUN}', ['model.decode_head.position=none']),
    'BiCCHead, position relative': (f'bi_cc/bi-cc_{RUN}', ['model.decode_head.position=relative']),
    'BiCCHead, position bilateral': (f'bi_cc/bi-cc_{RUN}', []),
}


def plot(scores: dict[str, list[float]], path: Path) -> None:
    """Draw every seed as a dot and the mean as a bar."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot
    figure, axis = pyplot.subplots(figsize=(7, 3.2), layout='constrained')
    for row, (method, values) in enumerate(scores.items()):
        colour = '#999999' if 'mmseg' in method else '#ee6677' if 'bilateral' in method else '#4477aa'
        axis.plot(values, [row] * len(values), 'o', color=colour, alpha=0.6)
        axis.plot([statistics.mean(values)], [row], '|', color=colour, markersize=18, markeredgewidth=3)
    axis.set_yticks(range(len(scores)), list(scores))
    axis.invert_yaxis()
    axis.set(xlabel=f'mIoU on CamVid validation after {ITERATIONS} iterations (dots: seeds, bar: mean)')
    axis.grid(axis='x', alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run what is missing, then write table and plot."""
    args = arguments('Short trainings on CamVid', 'work_dirs/camvid', [0, 1, 2])
    data = Path(os.environ.get('CAMVID_ROOT', 'data/camvid'))
    if not (data / 'img_dir').is_dir():
        raise SystemExit(f'no CamVid in {data}: set CAMVID_ROOT to the folder with img_dir and ann_dir')
    scores: defaultdict[str, list[float]] = defaultdict(list)
    for run, found in each(lambda run: train(run, args.jobs, 'mIoU', ITERATIONS),
                           runs(METHODS, args.seeds, args.work_dir), args.jobs):
        scores[run.method].append(found['mIoU'])
    text = markdown([*(f'seed {seed}' for seed in args.seeds), 'mean ± deviation'],
                    ([method, *(f'{value:.2f}' for value in values), spread(values)]
                     for method, values in scores.items()))
    print(text)
    (args.work_dir / 'table.md').write_text(text)
    plot(scores, args.work_dir / 'plot.png')


if __name__ == '__main__':
    main()
