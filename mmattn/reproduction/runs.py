"""Trainings of several methods and seeds, as processes of the tools, that resume after an interruption."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import NamedTuple, TypeVar

from rich.progress import track

from mmattn.utils import config_path
from mmattn.utils.files import exclusive, write_text

T = TypeVar('T')


class Run(NamedTuple):
    """One training.

    Args:
        method (str): its name.
        seed (int): of the training.
        config (Path): the file.
        folder (Path): its work dir.
        options (list[str]): ``key=value``, as ``--cfg-options`` takes them.
        environment (dict[str, str]): variables for the processes.
    """

    method: str
    seed: int
    config: Path
    folder: Path
    options: list[str] = []
    environment: dict[str, str] = {}


_running: set[subprocess.Popen] = set()
_stopped = Event()
_locks: list[int] = []


@contextmanager
def lock(work_dir: Path) -> Iterator[None]:
    """Keep the work dir for this process and the trainings that it starts, which may outlive it.

    Raises:
        BlockingIOError: another process has it.
    """
    with exclusive(work_dir) as descriptor:
        _locks.append(descriptor)
        try:
            yield
        finally:
            _locks.clear()


def call(run: Run, jobs: int, tool: str, *command: str | Path) -> None:
    """Run one of the tools with its share of the cores; what it prints is added to output.log in the run's folder.

    The most memory that a training ever had is kept in peak_memory.json, in MiB: that of its resident set.

    Args:
        run (Run): whose folder and environment are used.
        jobs (int): processes that share the cores.
        tool (str): file in tools/.
        command (str or Path): the tool's arguments.

    Raises:
        RuntimeError: the tool has failed; the message names the log.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, _cores() // jobs))
    words = [sys.executable, str(config_path().parent / 'tools' / tool), *map(str, command)]
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
    if _stopped.is_set():  # while the process started
        process.terminate()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    _running.discard(process)
    if tool == 'train.py':
        peak = usage.ru_maxrss / (2**20 if sys.platform == 'darwin' else 2**10)
        write_text(run.folder / 'peak_memory.json', json.dumps(max(peak, peak_memory(run.folder) or 0)))
    if process.returncode:
        raise RuntimeError(f'{tool} ended with {process.returncode}, see {run.folder}/output.log')


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


def finish(run: Run, jobs: int, last: Path) -> None:
    """Train, or resume, until the last checkpoint is there.

    Raises:
        RuntimeError: the training has failed, or has left no such checkpoint.
    """
    if not last.exists():
        resume = ['--resume'] if any(run.folder.glob('*.pth')) else []
        call(
            run,
            jobs,
            'train.py',
            run.config,
            '--work-dir',
            run.folder,
            *resume,
            '--cfg-options',
            f'randomness.seed={run.seed}',
            *run.options,
        )
    if not last.exists():
        raise RuntimeError(f'{last} is missing after training; see {run.folder}/output.log')


def scores(run: Run, jobs: int, last: Path, key: str, step: int, *arguments: str) -> dict:
    """Return the metrics of a run's last checkpoint, as the training has logged them or tools/test.py returns them.

    Args:
        run (Run): a finished one.
        jobs (int): processes that share the cores.
        last (Path): its checkpoint.
        key (str): a metric that must be among them.
        step (int): the iteration or epoch of the checkpoint.
        arguments (str): of tools/test.py; then the metrics of the training do not count.

    Raises:
        RuntimeError: there is no such metric.
    """
    found = None if arguments else last_scores(run.folder, key, step)
    if found is None:  # or interrupted between the last iteration and its validation
        found = test(run, jobs, last, *arguments)
    if key not in found:
        raise RuntimeError(f'{run.folder} has no {key} at {step}; see {run.folder}/output.log')
    return found


def test(run: Run, jobs: int, last: Path, *arguments: str) -> dict:
    """Return the metrics of a checkpoint on the test images, by tools/test.py unless it has them already."""
    folder = run.folder / '_'.join(['test', *(word.strip('-') for word in arguments)])
    done = folder / 'metrics.json'
    if not done.exists():
        call(run, jobs, 'test.py', run.config, last, '--work-dir', folder, *arguments)
        write_text(
            done, max(folder.glob('*/*.json')).read_text(encoding='utf-8')
        )  # their folders are called by the time
    return json.loads(done.read_text(encoding='utf-8'))


def each(function: Callable[[Run], T], todo: list[Run], jobs: int) -> Iterator[tuple[Run, T]]:
    """Yield every run with its result, ``jobs`` at a time, with a progress bar; when stopped, stop what is running."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _stopped.clear()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield from track(zip(todo, pool.map(function, todo)), 'Training', len(todo))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            _stopped.set()
            for process in tuple(_running):
                process.terminate()
            raise
