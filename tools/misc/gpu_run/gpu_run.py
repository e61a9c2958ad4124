"""Runs one part of ``gpu_run.sh``, which sets the environment: ``python gpu_run.py PART UNTIL``.

UNTIL is the time, as of ``date +%s``, at which the part ends.
"""

import argparse
import time
from importlib import import_module

from findings import guarded, record

import mmattn.utils.command

MODULES = {
    'environment': ('env',),
    'correctness': ('edge', 'compare'),
    'times': ('layers', 'ops', 'flex'),
    'tuning': ('tune',),
    'training': ('train', 'capture'),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog='gpu_run', description='Run a part of gpu_run.sh.')
    parser.add_argument('part', choices=[part for parts in MODULES.values() for part in parts])
    parser.add_argument('until', type=float, help='end of the part, in seconds since 1970')
    args = parser.parse_args()
    module = next(name for name, parts in MODULES.items() if args.part in parts)
    start = time.monotonic()
    with guarded(args.part):
        getattr(import_module(module), f'run_{args.part}')(args.until - time.time())
    record(args.part, seconds=round(time.monotonic() - start, 1))


if __name__ == '__main__':
    mmattn.utils.command.run(main)
