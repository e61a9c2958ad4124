"""What several tests share: code in a fresh interpreter, and the original mmengine beside the installed one."""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from mmengine.logging import MMLogger
from mmengine.registry import DefaultScope
from mmengine.visualization import Visualizer

from . import tiny_data as tiny_data_sets
from .covering import left_out, marked
from .forked_tools import run_command
from .requirements import ADDED, missing_of, required_parts


def pytest_addoption(parser):
    parser.addoption('--update-golden', action='store_true', help='record what tests/golden compares with')
    parser.addoption('--all-cases', action='store_true', help='all combinations of the parameters of a test')
    parser.addoption('--rest', action='store_true', help='what run_tests.sh without options leaves out or skips')


def pytest_collection_modifyitems(config, items):
    if config.getoption('--all-cases'):
        return
    leave = left_out(items)
    if config.getoption('--rest'):
        rest = lambda item: item in leave or marked(item) or not ADDED.isdisjoint(required_parts(item))  # noqa: E731
        leave = {item for item in items if not rest(item)}
    config.hook.pytest_deselected(items=[item for item in items if item in leave])
    items[:] = [item for item in items if item not in leave]


def pytest_runtest_setup(item):
    if missing := missing_of(required_parts(item)):
        pytest.skip(missing)


@pytest.fixture(autouse=True, scope='session')
def _logger():
    """mmengine's logger keeps the stream that it finds first. A test that captures its own would close it."""
    return MMLogger.get_current_instance()


@pytest.fixture(autouse=True)
def _named_instances():
    """No test finds the default scope, or the visualizer and its folder, of another one under the same name."""
    classes = lambda: (DefaultScope, Visualizer, *Visualizer.__subclasses__())  # noqa: E731
    before = {each: each._instance_dict.copy() for each in classes()}
    yield
    for each in classes():
        each._instance_dict.clear()
        each._instance_dict.update(before.get(each, {}))


@pytest.fixture
def drawn_panels(monkeypatch):
    """The panels of all pictures that a test draws, in their order; those within a panel come before it."""
    from mmattn.visualization import panels

    recorded, parts = [], panels._parts
    monkeypatch.setattr(panels, '_parts', lambda panel: recorded.append(panel) or parts(panel))
    return recorded


PACKAGE = Path(find_spec('mmattn').origin).parent
ORIGINAL_MMENGINE = '0.10.7'
# Of what tests install and compile, for further runs.
CACHE = Path(
    os.environ.get('MMATTN_CACHE') or Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache', 'mmattn')
)


@pytest.fixture(autouse=True, scope='session')
def _own_cache(tmp_path_factory):
    """What a program keeps for the user, such as facts of images, one that is tested does not leave in ``CACHE``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('MMATTN_CACHE', str(tmp_path_factory.mktemp('cache')))
        yield


@pytest.fixture(scope='session')
def run_python(tmp_path_factory, pytestconfig):
    """``run_python(code, **env)`` runs code in a fresh interpreter and an empty folder, and returns what it prints.

    It sees the ``mmattn``, the tests and the libraries of tools that pytest sees, unless ``PYTHONPATH`` says otherwise;
    the interpreter is ``python``.
    """
    folder = tmp_path_factory.mktemp('elsewhere')
    path = os.pathsep.join(map(str, [PACKAGE.parent, pytestconfig.rootpath, *pytestconfig.getini('pythonpath')]))

    def run(code, /, *, python=sys.executable, **env):
        env = {**os.environ, 'PYTHONPATH': path, 'PYTHONDONTWRITEBYTECODE': '1', **env}
        done = subprocess.run([python, '-c', code], cwd=folder, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f'{done.stdout}\n{done.stderr}'
        return done.stdout

    return run


def installed(package, version):
    """The folder of a package, without those that it requires, installed once into the cache."""
    target = CACHE / f'{package}-{version}'
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as aside:
            folder = Path(aside, 'installed')
            command = [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps', '--target', folder]
            subprocess.run([*command, f'{package}=={version}'], check=True, timeout=300)
            try:
                folder.rename(target)
            except OSError:
                if not target.is_dir():  # else another run was faster
                    raise
    return target


@pytest.fixture(scope='session')
def original_mmengine():
    return installed('mmengine', ORIGINAL_MMENGINE)


@pytest.fixture(scope='session')
def tiny_data(tmp_path_factory):
    """Environment variables that point the configs' data sets to small images."""
    return tiny_data_sets.make_all(tmp_path_factory.mktemp('data'))


@pytest.fixture(scope='session')
def attempt(tiny_data):
    """Run a command on the small data, one thread per process. A Python script runs in a fork."""

    def attempt(*command, merged=False, **env):
        environment = {
            **os.environ,
            **tiny_data,
            'OMP_NUM_THREADS': '1',
            'PYTHONFAULTHANDLER': '1',
            'PATH': f'{Path(sys.executable).parent}:{os.environ["PATH"]}',
            **env,
        }
        return run_command(command, environment, merged=merged)

    return attempt


@pytest.fixture(scope='session')
def run(attempt):
    """Run a command that must succeed, as ``attempt`` does; return its output."""

    def run(*command, **env):
        done = attempt(*command, merged=True, **env)
        assert done.returncode == 0, done.stdout[-4000:]  # the end says why
        return done.stdout

    return run


@pytest.fixture(scope='session')
def train(tiny_data, tmp_path_factory):
    """Run a training on the small data in processes that are killed where it says, and return their exit codes."""
    from .engine.trainer import Trainer

    trainer = Trainer(tmp_path_factory.mktemp('trainer'), tiny_data)
    yield trainer
    trainer.close()
