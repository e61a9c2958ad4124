"""Short trainings of several methods and seeds that can be interrupted: what the benchmarks of accuracy share."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from PIL import Image, ImageDraw
from rich.progress import track

ROOT = Path(__file__).parents[2]
T = TypeVar('T')


class Run(NamedTuple):
    """One training: the method's name, the seed, the config's path in configs/, further options, its work dir."""

    method: str
    seed: int
    config: str
    options: list[str]
    folder: Path


def arguments(description: str, work_dir: str, seeds: list[int]) -> argparse.Namespace:
    """Parse the command line that the benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument('--seeds', type=int, nargs='+', default=seeds)
    parser.add_argument('--work-dir', type=Path, default=Path(work_dir))
    parser.add_argument('--jobs', type=int, default=1, help='runs at a time, sharing the cores; default: 1')
    return parser.parse_args()


def runs(methods: dict[str, tuple[str, list[str]]], seeds: Iterable[int], work_dir: Path) -> list[Run]:
    """Return the runs of all methods, ``name: (config, options)``, and seeds."""
    return [Run(method, seed, config, options, work_dir / f'{re.sub("[^A-Za-z0-9]+", "-", method)}_seed-{seed}')
            for seed in seeds for method, (config, options) in methods.items()]


def call(run: Run, jobs: int, tool: str, *command: str | Path) -> None:
    """Run one of the tools with its share of the cores; what it prints is added to output.log in the run's folder."""
    run.folder.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    with open(run.folder / 'output.log', 'a') as log:
        done = subprocess.run([sys.executable, ROOT / 'tools' / tool, *command],
                              env={**os.environ, 'OMP_NUM_THREADS': threads}, stdout=log, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SystemExit(f'{tool} failed, see {run.folder}/output.log')


def last_scores(folder: Path, key: str, iterations: int) -> dict | None:
    """Return the metrics of a finished run, among them ``key``; None if it has not finished."""
    for path in sorted(folder.glob('*/vis_data/scalars.json')):
        for line in path.read_text().splitlines():
            scalars = json.loads(line)
            if key in scalars and scalars['step'] == iterations:
                return scalars
    return None


def train(run: Run, jobs: int, key: str, iterations: int) -> dict:
    """Return the metrics of a run after its last iteration; train, or go on, if it has not finished."""
    found = last_scores(run.folder, key, iterations)
    if found is None:
        call(run, jobs, 'train.py', ROOT / 'configs' / run.config, '--work-dir', run.folder, '--resume',
             '--cfg-options', f'randomness.seed={run.seed}', *run.options)
        found = last_scores(run.folder, key, iterations)
    if found is None:
        raise SystemExit(f'{run.folder} has no {key} at iteration {iterations}; see {run.folder}/output.log')
    return found


def each(function: Callable[[Run], T], todo: list[Run], jobs: int) -> Iterator[tuple[Run, T]]:
    """Yield every run with its result, ``jobs`` at a time, with a progress bar."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from track(zip(todo, pool.map(function, todo)), 'Training', len(todo))


def spread(values: list[float]) -> str:
    """Write mean and sample deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f'{statistics.mean(values):.2f} ± {deviation:.2f}'


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; the first column has no head."""
    heads = ['', *heads]
    lines = [heads, ['---'] * len(heads), *rows]
    return ''.join('| ' + ' | '.join(line) + ' |\n' for line in lines)


def sheet(columns: list[list[Image.Image]], names: list[str], path: Path, height: int = 150) -> None:
    """Lay images out in columns, all of one height, the rows under their names."""
    gap = 4
    widths = [column[0].width * height // column[0].height for column in columns]
    canvas = Image.new('RGB', (sum(widths) + gap * (len(widths) + 1), (height + 18) * len(names) + gap), 'white')
    for row, name in enumerate(names):
        ImageDraw.Draw(canvas).text((gap, row * (height + 18) + gap), name, fill='black')
        x = gap
        for column, width in zip(columns, widths):
            canvas.paste(column[row].convert('RGB').resize((width, height)), (x, row * (height + 18) + 18))
            x += width + gap
    canvas.save(path)
