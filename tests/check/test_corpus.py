"""No official config that mmengine loads is refused, and no project that stock MMSegmentation trains."""

import runpy
import shutil
import sys

import pytest
from mmengine.config import Config
from mmengine.runner import Runner
from mmengine.utils import get_installed_path

from ..forked_tools import ROOT, tool
from ..requirements import requires
from .projects import PROJECTS, write_project

PARTS = 6  # of a library, which pytest-xdist divides between processes
LEAST = dict(mmseg=650, mmdet=700)  # configs that are loaded; others require packages that are not installed
COPIES = 'same_pictures', 'grey'
REFUSED = pytest.mark.xfail(reason='the check of data refuses copies, and a learning rate of 0', strict=False)


class Built(Exception):
    """tools/train.py has come as far as the Runner."""


@pytest.fixture(scope='module')
def main():
    return runpy.run_path(str(ROOT / 'tools/train.py'))['main']


@pytest.fixture(scope='session')
def clone(tmp_path_factory):
    """Copy the configs of a library as they are in a clone of its repository; list those that are trained."""

    def clone(library):
        folder = tmp_path_factory.getbasetemp() / f'clone of {library}'
        if not folder.exists():
            shutil.copytree(f'{get_installed_path(library)}/.mim/configs', folder / 'configs')
        return [path for path in sorted(folder.rglob('*.py')) if '_base_' not in path.parts]

    return clone


@pytest.mark.slow
@pytest.mark.parametrize(
    ('library', 'part'),
    [
        pytest.param(library, part, marks=[requires('mmdet')] if library == 'mmdet' else [])
        for library in LEAST
        for part in range(PARTS)
    ],
)
def test_no_official_config_is_refused(library, part, clone, main, monkeypatch, tmp_path):
    """By what tools/train.py does before it builds a Runner."""

    def build(cfg):
        raise Built(cfg)

    monkeypatch.setattr(Runner, 'from_cfg', build)
    monkeypatch.setitem(main.__globals__, 'check_checkpoint', lambda path: None)  # those to start from are not here
    refused, loaded = [], 0
    for path in clone(library)[part::PARTS]:
        monkeypatch.setattr(sys, 'argv', ['train.py', str(path), '--work-dir', str(tmp_path)])
        try:
            main()
        except Built:
            loaded += 1
        except (Exception, SystemExit) as error:
            if is_loaded(path):
                refused.append(f'{path.name}: {error}')
    assert refused == []
    assert loaded >= LEAST[library] / PARTS


def is_loaded(path):
    """Whether mmengine loads a config."""
    try:
        Config.fromfile(path)
    except Exception:  # such as a package that is missing
        return False
    return True


@pytest.mark.e2e
@pytest.mark.parametrize('name', [pytest.param(name, marks=REFUSED if name in COPIES else ()) for name in PROJECTS])
def test_no_sound_project_is_refused(name, attempt, tmp_path):
    config = write_project(name, tmp_path)
    done = attempt(*tool('train.py', config, '--work-dir', tmp_path / 'work'), merged=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert [*(tmp_path / 'work').glob('*.pth')]
