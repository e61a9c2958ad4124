"""What the runs of a command may use: GPUs, simultaneous runs, processes that load data."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import NamedTuple

import torch


class Machine(NamedTuple):
    """What the runs may use.

    Attributes:
        gpus (sequence of str): numbers of GPUs, with ``jobs`` simultaneous runs on each. Defaults to (), the first, if
            any.
        jobs (int): simultaneous runs; they share the cores. Defaults to 1.
        workers (int, optional): data loading processes of a run. Defaults to None, the config's.
        in_forks (bool): trainings and tests are forks of this process, one at a time, without a GPU. Defaults to False:
            processes of their own.
    """

    gpus: Sequence[str] = ()
    jobs: int = 1
    workers: int | None = None
    in_forks: bool = False


def add_machine(parser: ArgumentParser) -> None:
    """Add the arguments ``--gpus``, ``--jobs`` and ``--workers``."""
    parser.add_argument('--gpus', help='numbers of the GPUs, each for one run at a time: 0,1,…; default: the first')
    parser.add_argument(
        '--jobs',
        type=int,
        help='simultaneous runs, per GPU if any; they share the cores; default: 1, for --rehearse --all of '
        'reproduce.py the cores',
    )
    parser.add_argument('--workers', type=int, help="data loading processes of a run; default: the config's")


def read_machine(parser: ArgumentParser, args: Namespace) -> Machine:
    """Return the machine of the arguments. Wrong ones are usage errors."""
    for name, least in (('jobs', 1), ('workers', 0)):
        if getattr(args, name) is not None and getattr(args, name) < least:
            parser.error(f'--{name} must be {least} or more; got {getattr(args, name)}')
    gpus = args.gpus.split(',') if args.gpus else []
    unknown = [gpu for gpu in gpus if not gpu.isdecimal() or int(gpu) >= torch.cuda.device_count()]
    if unknown or len(set(gpus)) < len(gpus):
        parser.error(f'--gpus must be different numbers below {torch.cuda.device_count()}; got {",".join(gpus)}')
    return Machine(gpus, args.jobs or 1, args.workers)
