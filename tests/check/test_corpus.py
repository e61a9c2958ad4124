"""No official config that mmengine loads is refused, and no project that stock MMSegmentation trains."""

import runpy
import shutil
import sys
from types import SimpleNamespace

import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmengine.runner import Runner
from mmengine.utils import get_installed_path

from mmattn.check.driver import find_faults

from ..forked_tools import ROOT, tool
from ..requirements import requires
from .projects import PROJECTS, write_project

PARTS = 6  # of a library, which pytest-xdist divides between processes
LEAST = dict(mmseg=650, mmdet=700)  # configs that are loaded; others require packages that are not installed
ABSENT = 'empty', 'files'  # rules of files


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
    """By what tools/train.py does before it builds a Runner, and by the rules, although its data are not here."""

    def build(cfg):
        raise Built(cfg)

    monkeypatch.setattr(Runner, 'from_cfg', build)
    monkeypatch.setitem(main.__globals__, 'check_checkpoint', lambda path: None)  # those to start from are not here
    refused, loaded = [], 0
    for path in clone(library)[part::PARTS]:
        monkeypatch.setattr(sys, 'argv', ['train.py', str(path), '--work-dir', str(tmp_path)])
        try:
            main()
        except Built as built:
            loaded += 1
            [cfg] = built.args
            init_default_scope(cfg.get('default_scope') or library)
            faults = find_faults(SimpleNamespace(cfg=cfg), ('train_dataloader', 'val_dataloader'))
            refused += [f'{path.name}: {fault}' for fault in faults if fault.rule not in ABSENT]
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
@pytest.mark.parametrize('name', PROJECTS)
def test_no_sound_project_is_refused(name, attempt, tmp_path):
    config = write_project(name, tmp_path)
    done = attempt(*tool('train.py', config, '--work-dir', tmp_path / 'work'), merged=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert [*(tmp_path / 'work').glob('*.pth')]
