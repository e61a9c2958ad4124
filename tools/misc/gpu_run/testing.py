"""The parts tests and sanitize: ``tests/ops/test_gpu.py``, run by pytest. ``failures.py`` records what fails."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from findings import OUT, SMALL, WORKERS, record

import mmattn

TESTS = Path(mmattn.__file__).parents[1] / 'tests/ops/test_gpu.py'


def run_tests(seconds: float) -> None:
    """All tests, on half of the cores: they share the GPU. A rehearsal runs some, as run_tests.sh --all runs them."""
    every = ['-n', str((WORKERS + 1) // 2), '--all-cases', '--timeout', '60']
    _run('tests', ['-n', '0', '-k', 'two_calls and dynamic_conv'] if SMALL else every, seconds)


def run_sanitize(seconds: float) -> None:
    """Kernels in CUDA C++ under compute-sanitizer; a rehearsal runs the tests that are selected without it."""
    selected = ['-x', '-n', '0', '-k', 'two_calls and native and (local_attention or dynamic_conv)']
    _run('sanitize', selected, seconds, () if SMALL else ('compute-sanitizer', '--error-exitcode', '9'))


def _run(part: str, arguments: Sequence[str], seconds: float, prefix: Sequence[str] = ()) -> None:
    options = ['-o', 'addopts=-p pytester', '-q', '-p', 'no:cacheprovider', '-p', 'failures', '--tb=short']
    command = [*prefix, sys.executable, '-m', 'pytest', *options, *arguments, str(TESTS)]
    outside = {name: value for name, value in os.environ.items() if not name.startswith('PYTEST_')}
    screen = os.dup(1)  # for what failures.py records
    own = {'PART': part, 'SCREEN': str(screen)}
    with (OUT / 'tests.log').open('a', encoding='utf-8') as log, os.fdopen(screen):
        process = subprocess.Popen(
            command, env=outside | own, stdout=log, stderr=log, pass_fds=[screen], start_new_session=True
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            record(part, error='ran out of time')
            return
    if code not in (0, 1):  # 1: the failures are recorded; 5: no test is selected
        record(part, error=f'pytest ended with exit code {code}, see tests.log')
