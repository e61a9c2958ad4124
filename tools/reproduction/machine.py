"""What the runs of a command may use: GPUs, simultaneous runs, processes that load data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mmattn.utils.arguments import UsageError


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


@dataclass(kw_only=True)
class MachineArguments:
    """What commands with several runs are given.

    Args:
        gpus: numbers of the GPUs, each for one run at a time: 0,1,…; default: the first
        jobs: simultaneous runs, per GPU if any; they share the cores; default: 1, for --rehearse --all of reproduce.py
            the cores
        workers: data loading processes of a run; default: the config's
    """

    gpus: str | None = None
    jobs: int | None = None
    workers: int | None = None

    def read(self) -> Machine:
        """Return what the runs may use. Wrong arguments are errors of usage."""
        for name, least in (('jobs', 1), ('workers', 0)):
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise UsageError(f'--{name} must be {least} or more; got {getattr(self, name)}')
        gpus = self.gpus.split(',') if self.gpus else []
        unknown = [gpu for gpu in gpus if not gpu.isdecimal() or int(gpu) >= torch.cuda.device_count()]
        if unknown or len(set(gpus)) < len(gpus):
            raise UsageError(
                f'--gpus must be different numbers below {torch.cuda.device_count()}; got {",".join(gpus)}'
            )
        return Machine(gpus, self.jobs or 1, self.workers)
