"""Language configs set the default scope 'mmengine'; tests of other tasks in the same process do not see it."""

import pytest
from mmengine.registry import DefaultScope


@pytest.fixture(autouse=True)
def default_scope():
    known = dict(DefaultScope._instance_dict)
    yield
    DefaultScope._instance_dict.clear()
    DefaultScope._instance_dict.update(known)


@pytest.fixture(scope='module')
def uninterrupted(train, tmp_path_factory):
    """The work dir of a run; ``train`` is the trainer of the module."""
    folder = tmp_path_factory.mktemp('uninterrupted')
    assert train(folder) == [0], train.log
    return folder
