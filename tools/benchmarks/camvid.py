"""Train the stock heads and ours on CamVid in the same short budget, and draw table and plot.

    CAMVID_ROOT=… python tools/benchmarks/camvid.py [--seeds 0 1 2] [--work-dir work_dirs/camvid] [--jobs 1]

Every row is a config of the package, trained by tools/train.py and scored on the validation images after the last
iteration. Interrupted, the command goes on where it stopped; finished runs are not repeated. It leaves table.md and
plot.png in the work dir.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).parents[2]
RUN = 'r18-d8-half_1xb8-160_camvid-180x180.py'
ITERATIONS = 160
# name: (config, options)
METHODS = {
    'NL (mmseg NLHead)': ('bi_nl/nl', []),
    'BiNLHead, position none': ('bi_nl/bi-nl', ['model.decode_head.position=none']),
    'BiNLHead, position relative': ('bi_nl/bi-nl', ['model.decode_head.position=relative']),
    'BiNLHead, position bilateral': ('bi_nl/bi-nl', []),
    'CC (mmseg CCHead)': ('bi_cc/cc', []),
    'BiCCHead, position none': ('bi_cc/bi-cc', ['model.decode_head.position=none']),
    'BiCCHead, position relative': ('bi_cc/bi-cc', ['model.decode_head.position=relative']),
    'BiCCHead, position bilateral': ('bi_cc/bi-cc', []),
}


def score(folder: Path) -> float | None:
    """Return the mIoU that a finished run left, None if it has not finished."""
    for path in sorted(folder.glob('*/vis_data/scalars.json')):
        for line in path.read_text().splitlines():
            scalars = json.loads(line)
            if 'mIoU' in scalars and scalars['step'] == ITERATIONS:
                return scalars['mIoU']
    return None


def train(method: str, seed: int, folder: Path, jobs: int) -> float:
    """Return the mIoU of a run; train, or go on, if it has not finished."""
    found = score(folder)
    if found is not None:
        return found
    config, options = METHODS[method]
    command = [sys.executable, ROOT / 'tools/train.py', ROOT / f'configs/{config}_{RUN}', '--work-dir', folder,
               '--resume', '--cfg-options', f'randomness.seed={seed}', *options]
    folder.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    with open(folder / 'output.log', 'a') as log:
        subprocess.run([str(part) for part in command], env={**os.environ, 'OMP_NUM_THREADS': threads}, stdout=log,
                       stderr=subprocess.STDOUT, check=True)
    found = score(folder)
    if found is None:
        raise SystemExit(f'{folder} has no mIoU at iteration {ITERATIONS}; see {folder}/output.log')
    return found


def table(scores: dict[str, list[float]], seeds: list[int]) -> str:
    """Return Markdown: a row a method, a column a seed, mean and sample deviation."""
    heads = ''.join(f' seed {seed} |' for seed in seeds)
    lines = [f'| |{heads} mean ± deviation |', '|---' * (len(seeds) + 2) + '|']
    for method, values in scores.items():
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        cells = ''.join(f' {value:.2f} |' for value in values)
        lines.append(f'| {method} |{cells} {statistics.mean(values):.2f} ± {spread:.2f} |')
    return '\n'.join(lines) + '\n'


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
    parser = argparse.ArgumentParser(description='Short trainings on CamVid')
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1, 2])
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/camvid'))
    parser.add_argument('--jobs', type=int, default=1, help='runs at a time, sharing the cores; default: 1')
    args = parser.parse_args()
    data = Path(os.environ.get('CAMVID_ROOT', 'data/camvid'))
    if not (data / 'img_dir').is_dir():
        raise SystemExit(f'no CamVid in {data}: set CAMVID_ROOT to the folder with img_dir and ann_dir')
    runs = [(method, seed, args.work_dir / f'{re.sub("[^A-Za-z]+", "-", method)}_seed-{seed}', args.jobs)
            for seed in args.seeds for method in METHODS]
    scores: dict[str, list[float]] = {method: [] for method in METHODS}
    with ThreadPoolExecutor(args.jobs) as pool:
        found = pool.map(lambda run: train(*run), runs)
        for (method, *_), miou in zip(runs, tqdm(found, total=len(runs), unit='run')):
            scores[method].append(miou)
    text = table(scores, args.seeds)
    print(text)
    (args.work_dir / 'table.md').write_text(text)
    plot(scores, args.work_dir / 'plot.png')


if __name__ == '__main__':
    main()
