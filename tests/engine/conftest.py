"""The training with which the tests of the tools begin."""

import pytest

from ..forked_tools import tool
from .test_tools import CONFIG, SMALL


@pytest.fixture(scope='session')
def trained(run, tmp_path_factory):
    """A work dir after two iterations in one process, and the log."""
    folder = tmp_path_factory.mktemp('trained')
    return folder, run(*tool('train.py', CONFIG, '--work-dir', folder, '--cfg-options', *SMALL))
