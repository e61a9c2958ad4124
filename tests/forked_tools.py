"""Run Python scripts in forked processes: as isolated as fresh interpreters, without their imports of many seconds.

A server process imports the large packages once and runs nothing; each script runs in a fork of it.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from reproduction.forks import run_script

ROOT = Path(__file__).parents[1]
SERVER = multiprocessing.get_context('forkserver')
SERVER.set_forkserver_preload(
    [
        'torch',
        'mmseg.models',
        'mmseg.datasets',
        'mmseg.engine',
        'mmattn.layers',
        'mmattn.engine',
    ]
)


def tool(name, *arguments):
    """The command that runs one of the tools, such as 'train.py' or 'dist_train.sh'."""
    return [sys.executable if name.endswith('.py') else 'bash', ROOT / 'tools' / name, *arguments]


def run_command(command, env=None, merged=False, timeout=300):
    """Run a command as ``subprocess.run`` does with ``text=True``; a Python script runs in a fork of the server.

    Its environment variables are set in the fork: those that are read at import need a command of another form, such as
    ``[sys.executable, '-u', script]``.

    Args:
        command (list): words or paths.
        env (dict, optional): environment variables. Defaults to those of the tests.
        merged (bool): ``stdout`` has both streams. Defaults to False.
        timeout (float): seconds.
    """
    words = [str(word) for word in command]
    env = dict(os.environ if env is None else env)
    if words[0] != sys.executable or not words[1].endswith('.py'):
        stderr = subprocess.STDOUT if merged else subprocess.PIPE
        return subprocess.run(words, env=env, text=True, stdout=subprocess.PIPE, stderr=stderr, timeout=timeout)
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        names = out.name, out.name if merged else err.name
        process = SERVER.Process(target=run_script, args=(words[1:], env, os.getcwd(), names))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout)
        said = (Path(file.name).read_text(encoding='utf-8') for file in (out, err))
        return subprocess.CompletedProcess(words, process.exitcode, *said)
