"""The exit code of torch's launcher with real processes, a signal to it, a port in use, and the time to save."""

import os
import signal
import socket

import pytest

from mmattn.utils import launch as module
from mmattn.utils.launch import launch

TIMEOUT = 'TORCH_ELASTIC_SHUTDOWN_TIMEOUT'
ONE = '--nproc-per-node', '1', '--no-python'


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    """The launcher sets handlers and variables of this process."""
    monkeypatch.setenv(TIMEOUT, '300')  # so that it is restored
    monkeypatch.delenv(TIMEOUT)
    handlers = {number: signal.getsignal(number) for number in (1, 2, 3, signal.SIGTERM, signal.SIGUSR1)}
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # by default, it would end the tests
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ('script', 'code'),
    [
        ('exit 0', 0),
        ('exit 3', 3),
        ('kill -KILL $$$$', 128 + signal.SIGKILL),  # torch reads $$ as $
        # once the launcher waits: an exception while torch still starts the process may be lost in a destructor
        ('sleep 1; kill -USR1 $$PPID; exec sleep 30', 128 + signal.SIGTERM),
    ],
)
def test_the_code_is_that_of_the_process_or_of_the_signal(script, code):
    assert launch(['--standalone', *ONE, 'sh', '-c', script]) == code


@pytest.mark.parametrize(('given', 'expected'), [(None, '300'), ('7', '7')])
def test_the_seconds_in_which_processes_may_save(monkeypatch, given, expected):
    if given:
        monkeypatch.setenv(TIMEOUT, given)
    found = []
    monkeypatch.setattr(module, 'main', lambda arguments: found.append((arguments, os.environ[TIMEOUT])))
    assert launch([*ONE, 'true']) == 0
    assert found == [([*ONE, 'true'], expected)]


def test_a_port_in_use_is_named(capsys):
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert launch(['--master-addr', '127.0.0.1', '--master-port', port, *ONE, 'true']) == 1
    assert f'port {port} ' in capsys.readouterr().err


def test_another_error_of_the_launcher_is_raised(monkeypatch):
    def main(arguments):
        raise RuntimeError('the store is gone')

    monkeypatch.setattr(module, 'main', main)
    with pytest.raises(RuntimeError, match='the store is gone'):
        launch([*ONE, 'true'])
