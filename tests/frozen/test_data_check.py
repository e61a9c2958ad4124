"""The check before training: in a faulty case of its tests it names a place that was named, in a sound one none."""

from types import SimpleNamespace

import pytest
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from .cases import Cases

CASES = Cases('data_check.zip')


def places(case, folder):
    """The files, or places in the config, that are named."""
    from mmattn.segmentation import SegDataCheckHook

    init_default_scope('mmseg')
    runner = SimpleNamespace(cfg=Config(case['config']), work_dir=str(folder / 'work'), train_loop=None, val_loop=None)
    runner.model = MODELS.build(case['model']) if case['model'] else None
    (folder / 'work').mkdir(exist_ok=True)
    return {*SegDataCheckHook(**case['allowed']).faults_by_path(runner, tuple(case['loaders']))}


def found(kind, folder):
    """The cases in which what is named is what is to be named, at least one of the places, and the others."""
    right, wrong = [], {}
    for name in CASES.cases:
        if name.startswith(kind):
            (folder / name).mkdir()
            case = CASES.write(name, folder / name)
            now = places(case, folder / name)
            if now & {*case['faults']} if case['faults'] else not now:
                right.append(name)
            else:
                wrong[case['test']] = case['faults'], sorted(now)
    return right, wrong


@pytest.mark.slow
def test_faulty(tmp_path):
    right, wrong = found('faulty', tmp_path)
    assert len(right) >= 0.8 * (len(right) + len(wrong)), wrong


@pytest.mark.slow
def test_sound(tmp_path):
    _, wrong = found('sound', tmp_path)
    assert wrong == {}
