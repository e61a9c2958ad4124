"""What the tests of language share: the files of a small world, shipped configs at a small size, a training, tools."""

import re
import runpy
import sys
from types import SimpleNamespace

import pytest
from mmengine.config import Config

from mmattn.check.driver import find_faults
from mmattn.registry import DATASETS
from mmattn.utils import config_path
from mmattn.utils.faults import Faults

from ..requirements import real_data
from .world import write_world


@pytest.fixture(scope='session')
def world(tmp_path_factory):
    """What ``write_world`` returns."""
    return write_world(tmp_path_factory.mktemp('world'))


@pytest.fixture(scope='session')
def flickr8k():
    """The folder of Flickr8k, for tests that require it."""
    return real_data('flickr8k')


@pytest.fixture
def small(tiny_data, tmp_path, monkeypatch):
    """``small(name)``: a shipped config for small data: batches of 3, one validation, no checkpoint, no worker."""

    def read(name):
        for variable, value in tiny_data.items():
            monkeypatch.setenv(variable, value)
        cfg = Config.fromfile(config_path(name))
        for loader in filter(None, (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader)):
            loader.update(num_workers=0, persistent_workers=False, batch_size=3)
        by_epoch = cfg.train_cfg.type == 'EpochBasedTrainLoop'
        cfg.train_cfg.update({'max_epochs' if by_epoch else 'max_iters': 1}, val_interval=1)
        cfg.default_hooks.checkpoint.update(interval=1000, save_best=None)
        cfg.work_dir, cfg.log_level, cfg.experiment_name = str(tmp_path / 'work'), 'ERROR', name
        cfg.randomness = dict(seed=0)
        return cfg

    return read


class BuiltRunner(SimpleNamespace):
    """A Runner that builds data sets when they are asked for, as mmengine's."""

    def __getattr__(self, name):
        if not name.endswith('_dataloader'):
            raise AttributeError(name)
        loop = SimpleNamespace(dataloader=SimpleNamespace(dataset=DATASETS.build(self.cfg[name].dataset)))
        setattr(self, f'_{name.removesuffix("_dataloader")}_loop', loop)
        setattr(self, name, loop.dataloader)
        return loop.dataloader


@pytest.fixture
def check():
    """``check(name, loaders, change, **model)``: the faults of the data sets of a config, for a model, by path.

    ``check.warned`` has the places of warnings.
    """

    def run(name, loaders, change=lambda cfg: None, **model):
        cfg = Config.fromfile(config_path(name))
        change(cfg)
        cfg.model = {}
        runner = BuiltRunner(cfg=cfg, model=SimpleNamespace(modules=lambda: [], **model))
        faults, data_sets = Faults(), []
        for loader in filter(cfg.get, loaders):
            with faults.catch(loader):
                data_sets.append(getattr(runner, loader).dataset)
        found = find_faults(runner, loaders, data_sets)
        faults.extend((fault.place, fault.text) for fault in found if fault.is_error)
        run.warned = {fault.place for fault in found if not fault.is_error}
        return faults.by_path

    return run


@pytest.fixture(scope='module')
def uninterrupted(train, tmp_path_factory):
    """The work dir of a run; ``train`` is the trainer of the module."""
    folder = tmp_path_factory.mktemp('uninterrupted')
    assert train(folder) == [0], train.log
    return folder


@pytest.fixture
def logged(monkeypatch):
    """``logged(module)`` returns the list of the messages that the module logs from now on."""

    def listen(module):
        messages = []
        monkeypatch.setattr(module, 'print_log', lambda message, *_, **__: messages.append(message))
        return messages

    return listen


@pytest.fixture
def run_tool(monkeypatch, capfd):
    """``run_tool(path, *arguments)`` runs a tool in this process; returns the lines that it prints, not mmengine's."""

    def run(path, *arguments):
        monkeypatch.setattr(sys, 'argv', [str(path), *map(str, arguments)])
        monkeypatch.syspath_prepend(str(path.parent))
        runpy.run_path(str(path))['main']()
        return [line for line in capfd.readouterr().out.splitlines() if not line.startswith('Loads checkpoint')]

    return run


@pytest.fixture
def refuse(run_tool, capfd):
    """``refuse(words, path, *arguments)``: the tool ends with an error whose message has these words."""

    def run(words, path, *arguments):
        with pytest.raises((OSError, SystemExit, ValueError)) as caught:
            run_tool(path, *arguments)
        assert re.search(words, f'{caught.value}{capfd.readouterr().err}')

    return run
