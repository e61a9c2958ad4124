"""Runs a call, or some parts: ``python gpu_run.py 1``, ``python gpu_run.py tune flex``. ``gpu_run.sh`` prepares it.

A call is as long as a machine can be had for; its parts are in the order of what is asked first. A part that fails or
runs out of time stops no other part.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from findings import OUT, SMALL, brief, guarded, record

import mmattn.utils.command


class Part(NamedTuple):
    """What ``run_<name>`` of a module measures."""

    module: str
    seconds: int  # at most; the last part of a call gets all that are left


PARTS = {
    'env': Part('environment', 15),
    'tune': Part('tuning', 60),
    'ops': Part('times', 40),
    'layers': Part('times', 40),
    'tests': Part('testing', 95),
    'train': Part('training', 60),
    'capture': Part('training', 35),
    'sanitize': Part('testing', 35),
    'flex': Part('times', 25),
}
CALLS = {
    '1': (165, ('env', 'tune', 'ops', 'layers')),
    '2': (245, ('tests', 'train', 'capture', 'sanitize', 'flex')),
}
LEAST = 5  # seconds that are worth a start
SLACK = 4 if SMALL else 1  # a rehearsal shares its cores with others
MOST_FAILURES = 25


def main() -> int:
    """Run calls or parts, then list what failed. Return the exit code."""
    parser = argparse.ArgumentParser(prog='gpu_run', description='Run calls of gpu_run.sh, or some parts of them.')
    parser.add_argument('names', nargs='+', choices=[*CALLS, *PARTS], metavar='NAME', help=', '.join([*CALLS, *PARTS]))
    start = float(os.environ.get('START') or time.time())
    for name in parser.parse_args().names:
        seconds, parts = CALLS.get(name) or (PARTS[name].seconds, (name,))
        run(parts, start + SLACK * seconds)
        start = time.time()
    lines = map(json.loads, (OUT / 'results.jsonl').read_text(encoding='utf-8').splitlines())
    failures = [line for line in lines if line.get('ok') is False or 'error' in line]
    print(f'== {len(failures)} failures', *map(brief, failures[:MOST_FAILURES]), sep='\n', flush=True)
    return int(bool(failures))


def run(parts: Sequence[str], end: float) -> None:
    for part in parts:
        left = end - time.time()
        seconds = left if part == parts[-1] else min(left, SLACK * PARTS[part].seconds)
        if seconds < LEAST:
            record(part, error='ran out of time')
            continue
        start = time.monotonic()
        with guarded(part):
            getattr(import_module(PARTS[part].module), f'run_{part}')(seconds)
        record(part, seconds=round(time.monotonic() - start, 1))


if __name__ == '__main__':
    mmattn.utils.command.run(main)
