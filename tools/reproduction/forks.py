"""Python scripts in forks of a process: as isolated as fresh interpreters, without their imports of many seconds."""

import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_script(arguments: Sequence[str], environment: Mapping[str, str], folder: str, streams: Sequence[str]) -> None:
    """Run a script in a process that was forked for it.

    Environment variables that are read at import have no effect.

    Args:
        arguments (sequence of str): path of the script, and its arguments.
        environment (mapping): all environment variables.
        folder (str): the current folder.
        streams (sequence of str): files to which stdout and stderr are appended.
    """
    for descriptor, name in enumerate(streams, 1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND), descriptor)
    sys.stdout = open(1, 'w', buffering=1, encoding='utf-8', closefd=False)  # noqa: SIM115
    sys.stderr = open(2, 'w', buffering=1, encoding='utf-8', closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    import torch

    torch.set_num_threads(int(environment.get('OMP_NUM_THREADS', torch.get_num_threads())))
    sys.argv = [*arguments]
    sys.path[:] = [str(Path(arguments[0]).parent), *(entry for entry in sys.path if entry)]
    runpy.run_path(arguments[0], run_name='__main__')
