"""Run Python scripts in forked processes: as isolated as fresh interpreters, without their imports of many seconds.

A server process imports the large packages once and runs nothing; each script runs in a fork of it.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

# The first silences what the others say at import, as it does in a tool.
PACKAGES = [
    'mmattn.utils.command',
    'torch',
    'mmseg.models',
    'mmseg.datasets',
    'mmseg.engine',
    'mmattn.layers',
    'mmattn.engine',
]
SERVER = multiprocessing.get_context('forkserver')
SERVER.set_forkserver_preload(PACKAGES)


def run_script(command, env, cwd=None, timeout=300):
    """Run ``[script, *arguments]``; return a CompletedProcess whose ``stdout`` has both streams."""
    arguments = [str(part) for part in command]
    with tempfile.TemporaryFile('w+b') as said:
        process = SERVER.Process(
            target=_run, args=(arguments, dict(env), str(cwd or Path.cwd()), os.fspath(_path(said)))
        )
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(arguments, timeout)
        said.seek(0)
        return subprocess.CompletedProcess(arguments, process.exitcode, said.read().decode())


def _path(file):
    return f'/proc/{os.getpid()}/fd/{file.fileno()}'


def _run(arguments, env, cwd, out):
    output = os.open(out, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for stream in sys.stdout, sys.stderr:
        stream.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    import torch

    torch.set_num_threads(int(env.get('OMP_NUM_THREADS', torch.get_num_threads())))
    sys.argv = arguments
    sys.path[:] = [str(Path(arguments[0]).parent), *(entry for entry in sys.path if entry)]
    try:
        runpy.run_path(arguments[0], run_name='__main__')
    finally:
        sys.stdout.flush()
