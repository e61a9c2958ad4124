"""The check of images and masks, and what it reads and says."""

from pathlib import Path

import pytest
from mmengine.registry import init_default_scope

from mmattn.data_check import data_sets
from mmattn.data_check import images as image_files
from mmattn.segmentation import SegDataCheckHook
from mmattn.utils.faults import SHOWN

from .image_folders import FakeRunner, add


@pytest.fixture
def root(tmp_path):
    """Sound data."""
    for i in range(3):
        add(tmp_path / 'data', f'sound_{i}')
    add(tmp_path / 'data', 'sound', part='val')
    return tmp_path / 'data'


@pytest.fixture
def check(tmp_path):
    """Run a fresh hook, at a stage; return ``{path: reasons}`` as in the report, {} if it is content."""
    init_default_scope('mmseg')
    work_dir = tmp_path / 'work'
    work_dir.mkdir()
    report = work_dir / 'data_check.txt'

    def check(*data_sets, stage='before_loops', model=None, val_evaluator=None, **options):
        said = ''
        try:
            runner = FakeRunner(work_dir, *data_sets, model=model, val_evaluator=val_evaluator)
            getattr(SegDataCheckHook(**options), stage)(runner)
        except ValueError as error:
            said = str(error)
        lines = report.read_text(encoding='utf-8').splitlines() if said else []
        assert report.exists() == bool(said)
        assert all(line in said for line in [f'found {len(lines)} fault', *lines][:SHOWN] if lines)
        return dict(line.split(': ', 1) for line in lines)

    check.work_dir = work_dir
    return check


@pytest.fixture
def looked(monkeypatch):
    """The names of the files that are looked into."""
    names = []

    def look(file, original=image_files.look):
        names.append(f'{"mask" if file.is_mask else "image"} {Path(file.path).name}')
        return original(file)

    monkeypatch.setattr(image_files, 'look', look)
    return names


@pytest.fixture
def warned(monkeypatch):
    """What the log says: pairs of level and text."""
    lines = []
    monkeypatch.setattr(data_sets, 'print_log', lambda text, logger, level: lines.append((level, text)))
    return lines
