"""Trainings of several methods and seeds, as processes of the tools, which resume after an interruption."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import ForkProcess
from pathlib import Path
from threading import Event, Lock
from typing import NamedTuple, TypeVar

from rich.progress import track

from mmattn.engine import awaits_validation, read_checkpoint
from mmattn.utils import config_path
from mmattn.utils.files import exclusive, write_text

from .forks import run_script

T = TypeVar('T')


class Run(NamedTuple):
    """One training.

    Args:
        method (str): name of the method.
        seed (int): seed of the training.
        config (Path): the config file.
        folder (Path): the work dir.
        options (list[str]): ``key=value``, as for ``--cfg-options``.
        environment (dict[str, str]): environment variables of the processes.
        in_fork (bool): the tools run in forks of this process, which has no other thread and does not use a GPU.
    """

    method: str
    seed: int
    config: Path
    folder: Path
    options: list[str] = []
    environment: dict[str, str] = {}
    in_fork: bool = False


FORK = multiprocessing.get_context('fork')
_running: set[subprocess.Popen | ForkProcess] = set()
_stopped = Event()
_locks: list[int] = []
_trainings: defaultdict[str, Lock] = defaultdict(Lock)  # by the name of the folder, whose lookup is atomic


@contextmanager
def lock(work_dir: Path) -> Iterator[None]:
    """Lock the work dir for this process and the trainings that it starts, which may outlive it."""
    with exclusive(work_dir) as descriptor:
        _locks.append(descriptor)
        try:
            yield
        finally:
            _locks.clear()


def call(run: Run, jobs: int, tool: str, *command: str | Path) -> None:
    """Run one of the tools on its share of the cores; append its output to output.log in the run's folder.

    The peak resident memory of all trainings in the folder, in MiB, is written to peak_memory.json.

    Args:
        run (Run): the run, for its folder and environment.
        jobs (int): processes that share the cores.
        tool (str): file in tools/.
        command (str or Path): arguments of the tool.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, cores() // jobs))
    words = [sys.executable, str(config_path().parent / 'tools' / tool), *map(str, command)]
    environment = {'OMP_NUM_THREADS': threads, **os.environ, **run.environment}
    log = run.folder / 'output.log'
    before = log.stat().st_size if log.exists() else 0
    with open(log, 'a', encoding='utf-8') as file:
        print('$', *words, file=file, flush=True)
        process = (
            _fork(words[1:], environment, log)
            if run.in_fork
            else subprocess.Popen(words, env=environment, stdout=file, stderr=subprocess.STDOUT, pass_fds=_locks)
        )
    _running.add(process)
    if _stopped.is_set():  # it was set while the process started
        process.terminate()
    assert process.pid is not None
    _, status, usage = os.wait4(process.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if isinstance(process, subprocess.Popen):
        process.returncode = code
    _running.discard(process)
    if tool == 'train.py':
        peak = usage.ru_maxrss / (2**20 if sys.platform == 'darwin' else 2**10)
        write_text(run.folder / 'peak_memory.json', json.dumps(max(peak, peak_memory(run.folder) or 0)))
    if code:
        text = log.read_bytes()[before:].decode('utf-8', 'replace')
        said = re.findall(rf'^{re.escape(Path(tool).name)}: error: (.+)', text, re.M)
        reason = f': {said[-1]}' if said else ''
        raise RuntimeError(f'{tool} failed with exit code {code}{reason}; see {log}')


def _fork(words: list[str], environment: dict[str, str], log: Path) -> ForkProcess:
    process = FORK.Process(target=run_script, args=(words, environment, os.getcwd(), [str(log)] * 2))
    process.start()
    return process


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def peak_memory(folder: Path) -> float | None:
    """Return the peak resident memory, in MiB, of the trainings in a folder, or None if none has ended."""
    path = folder / 'peak_memory.json'
    return json.loads(path.read_text(encoding='utf-8')) if path.exists() else None


def scalars(folder: Path) -> list[list[dict]]:
    """Return the logged values of the trainings in a folder, in order: one list per interrupted or resumed training."""
    texts = [path.read_text(encoding='utf-8') for path in sorted(folder.glob('*/vis_data/scalars.json'))]
    return [[json.loads(line) for line in text.splitlines() if line.endswith('}')] for text in texts]


def last_scores(folder: Path, key: str, iterations: int) -> dict | None:
    """Return the metrics of a finished run, including ``key``; None if it has not finished."""
    for line in (line for log in scalars(folder) for line in log):
        if key in line and line['step'] == iterations:
            return line
    return None


def finish(run: Run, jobs: int, last: Path, step: int | None = None) -> None:
    """Train, or resume, unless the last checkpoint exists; if another thread trains in the folder, wait for it.

    Args:
        run (Run): the run.
        jobs (int): processes that share the cores.
        last (Path): its last checkpoint, which is written before the last validation.
        step (int, optional): iteration or epoch of that validation, which the log must have. Defaults to None.

    A training that was killed in its last validation is resumed: the log may have the scores, but no best checkpoint.
    """

    def validated() -> bool:
        return step is None or any(
            line['step'] == step and 'loss' not in line for log in scalars(run.folder) for line in log
        )

    with _trainings[str(run.folder)]:
        if not last.exists() or not validated() or awaits_validation(read_checkpoint(last)):
            resume = ['--resume'] if any(run.folder.glob('*.pth')) else []
            options = ['--cfg-options', f'randomness.seed={run.seed}', *run.options]
            call(run, jobs, 'train.py', run.config, '--work-dir', run.folder, *resume, *options)
    if not last.exists():
        raise RuntimeError(f'{last} is missing after training; see {run.folder}/output.log')
    if not validated():
        raise RuntimeError(f'{last} exists, but the log of its training has no validation of it: remove {run.folder}')


def scores(run: Run, jobs: int, last: Path, key: str, step: int | None, *arguments: str, files: bool = False) -> dict:
    """Return the metrics of a run's last checkpoint, from the log of the training or from tools/test.py.

    Args:
        run (Run): a finished run.
        jobs (int): processes that share the cores.
        last (Path): its checkpoint.
        key (str): a required metric.
        step (int, optional): iteration or epoch of the checkpoint, whose validation is used; None: tools/test.py is.
        arguments (str): arguments of tools/test.py; if there are any, the log of the training is not used.
        files (bool): tools/test.py writes the files of its metric to :func:`test_folder`. Defaults to False.
    """
    results = None if arguments or step is None else last_scores(run.folder, key, step)
    if results is None:  # also if the run was interrupted between the last iteration and its validation
        results = test(run, jobs, last, test_folder(run, *arguments), *arguments, files=files)
    if key not in results:
        raise RuntimeError(f'{run.folder} has no {key} of {last.name}; see {run.folder}/output.log')
    return results


def test_folder(run: Run, *arguments: str) -> Path:
    return run.folder / '_'.join(['test', *(word.strip('-') for word in arguments)])


def test(run: Run, jobs: int, last: Path, folder: Path, *arguments: str, files: bool) -> dict:
    """Return the metrics of a checkpoint on the test images: those in a folder, or else tools/test.py's."""
    done = folder / 'metrics.json'
    if not done.exists() or (files and not (folder / 'scores.json').exists()):
        out = ['--out', str(folder)] if files else []
        call(run, jobs, 'test.py', run.config, last, '--work-dir', folder, *arguments, *out)
        write_text(done, max(folder.glob('*/*.json')).read_text(encoding='utf-8'))  # the folders are named by time
    return json.loads(done.read_text(encoding='utf-8'))


def each(function: Callable[[Run], T], todo: list[Run], jobs: int) -> Iterator[tuple[Run, T]]:
    """Yield every run with its result, ``jobs`` at a time, with a progress bar; when stopped, stop what is running."""
    if todo[0].in_fork:  # threads and forks do not go together
        yield from ((run, function(run)) for run in todo)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _stopped.clear()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            # The bar is drawn ten times a second by default, which takes 2 % of a core from the trainings.
            yield from track(zip(todo, pool.map(function, todo)), 'Training', len(todo), refresh_per_second=1)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            _stopped.set()
            for process in tuple(_running):
                process.terminate()
            raise
