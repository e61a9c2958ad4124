"""Trainings of several methods and seeds that can be interrupted: what the benchmarks of accuracy share."""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from PIL import Image, ImageDraw
from rich.progress import track

from mmattn.utils.files import exclusive, write_text

ROOT = Path(__file__).parents[2]
T = TypeVar('T')


class Run(NamedTuple):
    """One training: the method's name, the seed, the config's path in configs/, further options, its work dir."""

    method: str
    seed: int
    config: str
    options: list[str]
    folder: Path
    environment: dict[str, str] = {}


_running: set[subprocess.Popen] = set()
_locks: list[int] = []


def arguments(description: str, work_dir: str, seeds: list[int]) -> argparse.Namespace:
    """Parse the command line that the benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument('--seeds', type=int, nargs='+', default=seeds)
    parser.add_argument('--work-dir', type=Path, default=Path(work_dir))
    parser.add_argument('--jobs', type=int, default=1, help='runs at a time, sharing the cores; default: 1')
    return parser.parse_args()


def runs(methods: dict[str, tuple[str, list[str]]], seeds: Iterable[int], work_dir: Path) -> list[Run]:
    """Return the runs of all methods, ``name: (config, options)``, and seeds."""
    return [
        Run(method, seed, config, options, work_dir / f'{re.sub("[^A-Za-z0-9]+", "-", method)}_seed-{seed}')
        for seed in seeds
        for method, (config, options) in methods.items()
    ]


@contextmanager
def lock(work_dir: Path) -> Iterator[None]:
    """Keep the work dir for this process and the trainings that it starts, which may outlive it."""
    try:
        with exclusive(work_dir) as descriptor:
            _locks.append(descriptor)
            try:
                yield
            finally:
                _locks.clear()
    except BlockingIOError as error:
        raise SystemExit(f'{error}') from None


def call(run: Run, jobs: int, tool: str, *command: str | Path) -> None:
    """Run one of the tools with its share of the cores; what it prints is added to output.log in the run's folder.

    The most memory that the process ever had is kept in peak_memory.json, in MiB: that of its resident set.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, _cores() // jobs))
    words = [sys.executable, str(ROOT / 'tools' / tool), *map(str, command)]
    with open(run.folder / 'output.log', 'a', encoding='utf-8') as log:
        print('$', *words, file=log, flush=True)
        process = subprocess.Popen(
            words,
            env={'OMP_NUM_THREADS': threads, **os.environ, **run.environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=_locks,
        )
    _running.add(process)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    _running.discard(process)
    if tool == 'train.py':
        peak = usage.ru_maxrss / (2**20 if sys.platform == 'darwin' else 2**10)
        write_text(run.folder / 'peak_memory.json', json.dumps(max(peak, peak_memory(run.folder) or 0)))
    if process.returncode:
        raise SystemExit(f'{tool} ended with {process.returncode}, see {run.folder}/output.log')


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def peak_memory(folder: Path) -> float | None:
    """Return the most MiB that the trainings in a folder had resident, or None if none has ended."""
    path = folder / 'peak_memory.json'
    return json.loads(path.read_text(encoding='utf-8')) if path.exists() else None


def scalars(folder: Path) -> list[list[dict]]:
    """Return what the trainings in a folder logged, in order, each interrupted one and each resumed one a list."""
    logs = sorted(folder.glob('*/vis_data/scalars.json'))
    return [
        [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines() if line.endswith('}')]
        for path in logs
    ]


def last_scores(folder: Path, key: str, iterations: int) -> dict | None:
    """Return the metrics of a finished run, among them ``key``; None if it has not finished."""
    for line in (line for log in scalars(folder) for line in log):
        if key in line and line['step'] == iterations:
            return line
    return None


def checkpoint(run: Run, iterations: int) -> Path:
    """Return where a run's last checkpoint is or will be."""
    return run.folder / f'iter_{iterations}.pth'


def train(run: Run, jobs: int, key: str, iterations: int) -> dict:
    """Return the metrics of a run after its last iteration; train, or go on, if it has not finished."""
    finish(run, jobs, checkpoint(run, iterations))
    found = last_scores(run.folder, key, iterations)
    if found is None:  # interrupted between the last iteration and its validation
        found = test(run, jobs, checkpoint(run, iterations))
    if key not in found:
        raise SystemExit(f'{run.folder} has no {key} at iteration {iterations}; see {run.folder}/output.log')
    return found


def finish(run: Run, jobs: int, last: Path) -> None:
    """Train, or go on, until the last checkpoint is there."""
    if not last.exists():
        resume = ['--resume'] if any(run.folder.glob('*.pth')) else []
        call(
            run,
            jobs,
            'train.py',
            ROOT / 'configs' / run.config,
            '--work-dir',
            run.folder,
            *resume,
            '--cfg-options',
            f'randomness.seed={run.seed}',
            *run.options,
        )
    if not last.exists():
        raise SystemExit(f'{last} is missing after training; see {run.folder}/output.log')


def test(run: Run, jobs: int, last: Path, *arguments: str) -> dict:
    """Return the metrics of a checkpoint on the test images, by tools/test.py unless it has them already."""
    folder = run.folder / '_'.join(['test', *(word.strip('-') for word in arguments)])
    done = folder / 'metrics.json'
    if not done.exists():
        call(run, jobs, 'test.py', ROOT / 'configs' / run.config, last, '--work-dir', folder, *arguments)
        write_text(
            done, max(folder.glob('*/*.json')).read_text(encoding='utf-8')
        )  # their folders are called by the time
    return json.loads(done.read_text(encoding='utf-8'))


def each(function: Callable[[Run], T], todo: list[Run], jobs: int) -> Iterator[tuple[Run, T]]:
    """Yield every run with its result, ``jobs`` at a time, with a progress bar; when stopped, stop what is running."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield from track(zip(todo, pool.map(function, todo)), 'Training', len(todo))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in tuple(_running):
                process.terminate()
            raise


def spread(values: list[float]) -> str:
    """Write mean and sample deviation; of one value, the value."""
    deviation = f' ± {statistics.stdev(values):.2f}' if len(values) > 1 else ''
    return f'{statistics.mean(values):.2f}{deviation}'


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
