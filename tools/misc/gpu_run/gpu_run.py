"""Runs one part of ``gpu_run.sh``, which sets the environment: ``python gpu_run.py PART UNTIL``.

UNTIL is the time, as of ``date +%s``, at which the part ends.
"""

import sys
import time
from importlib import import_module

import mmattn.utils.command

from findings import guarded, record

MODULES = {
    'environment': ('env',),
    'correctness': ('edge', 'compare'),
    'times': ('layers', 'ops', 'shapes', 'time', 'flex'),
    'tuning': ('tune',),
    'training': ('train', 'capture'),
}


def main() -> None:
    """Run a part."""
    part, until = sys.argv[1:]
    module = next(name for name, parts in MODULES.items() if part in parts)
    start = time.monotonic()
    with guarded(part):
        getattr(import_module(module), f'run_{part}')(float(until) - time.time())
    record(part, seconds=round(time.monotonic() - start, 1))


if __name__ == '__main__':
    mmattn.utils.command.run(main)
