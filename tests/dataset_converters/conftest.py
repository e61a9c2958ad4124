"""What the tests of the converters share: the scripts, their runs, their faults and their output."""

import importlib
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

OF_PYTHON = re.compile(  # what Python and numpy say of values of another type or shape
    r"'\w+' object|Error|could not|unhashable|indices|out of range|invalid literal|unpack|reshape|broadcast|line \d+ c"
)
FOLDER = Path(__file__).parents[2] / 'tools' / 'dataset_converters'


def scripts(*names):
    """Import scripts of the folder."""
    sys.path.insert(0, str(FOLDER))  # as Python does for a script
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(FOLDER))


def content(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob('*')
        if path.is_file() and path.name != 'converted.txt'
    }


def pixels(path):
    with Image.open(path) as image:
        return np.array(image)


def faults_of(lines):
    """Return the faults that a converter has printed on stderr."""
    lines = [line for line in lines if not line.startswith('warning: ')]
    if len(lines) == 1:
        assert lines[0].startswith('error: ')
        return [lines[0].removeprefix('error: ')]
    hidden = [int(line.split()[-2]) - 1 for line in lines if re.search(r': … and \d+ more$', line)]
    assert lines[0] == f'error: {len(lines) - 1 + sum(hidden)} faults'
    return [line.removeprefix('  ') for line in lines[1:]]


def places(faults):
    """Files, lines and samples of faults, without what is wrong there."""
    return [fault.split(': ')[0] for fault in faults]


@pytest.fixture
def out(tmp_path):
    return tmp_path / 'data' / 'out'


@pytest.fixture
def command(out, capfd):
    """Run a converter; return its exit code and the lines on stdout and stderr."""

    def run(module, *args, out=out):
        handler = signal.getsignal(signal.SIGTERM)
        code = module.main([*map(str, args), *(['--out-dir', str(out)] if out else [])])
        assert signal.getsignal(signal.SIGTERM) == handler
        said = capfd.readouterr()
        return code, said.out.splitlines(), said.err.splitlines()

    return run


@pytest.fixture
def fails(command, out):
    """Run a converter that must fail and change nothing; return the faults."""

    def run(*args, expected=1):
        before = content(out.parent), sorted(out.parent.glob('*'))
        code, _, said = command(*args)
        assert code == expected
        assert (content(out.parent), sorted(out.parent.glob('*'))) == before
        return faults_of(said)

    return run
