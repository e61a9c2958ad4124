"""Detection by the command line, which runs segmentors, too. The contract of inferencers has the rest."""

import json
import runpy
import sys

import pytest
from mmengine.config import Config

from ..contracts.inferencers import Detection
from ..forked_tools import tool
from ..requirements import requires

pytestmark = requires('mmcv operators')


@pytest.fixture(scope='module')
def case(tmp_path_factory):
    return Detection(tmp_path_factory.mktemp('detection'))


@pytest.fixture
def demo(monkeypatch, tmp_path, case):
    """Run the command line."""

    def demo(*options):
        words = [case.folder / 'images', case.config, case.checkpoint, '--out-dir', tmp_path / 'out', '--device', 'cpu']
        monkeypatch.setattr(sys, 'argv', [*map(str, tool('image_demo.py', *words, *options)[1:])])
        runpy.run_path(sys.argv[0], run_name='__main__')

    return demo


def test_the_threshold_reaches_the_inferencer(case, demo, tmp_path):
    demo('--pred-score-thr', '0.4')
    for path in case.make()(case.items, tmp_path / 'expected', 0.4):
        assert (tmp_path / 'out/pred' / path.name).read_bytes() == path.read_bytes()


def test_objects_are_kept_from_a_score_of_0_3_on_by_default(case, tmp_path):
    inferencer = case.make()
    (path,) = inferencer(case.items[:1], tmp_path / 'out')
    assert 0.3 <= min(json.loads(path.read_text())['scores']) < 0.6


@pytest.mark.parametrize(
    ('options', 'names'),
    [
        (['--pred-score-thr', '2'], 'pred_score_thr'),
        (['--probabilities', '--opacity', '0.3'], '--opacity, --probabilities'),
    ],
)
def test_options_are_checked_before_the_model_runs(tmp_path, demo, options, names):
    with pytest.raises(SystemExit, match=names):
        demo(*options)
    assert not list(tmp_path.glob('out/**/*.*'))


def test_a_palette_may_be_shorter_than_the_classes(case, tmp_path):
    """As that of VOC, which a data set of more classes inherits."""
    cfg = Config.fromfile(case.config)
    cfg.test_dataloader.dataset.metainfo.palette = case.meta['palette'][:1]
    (path,) = case.make(cfg)(case.items[:1], tmp_path / 'out', 0)
    assert max(json.loads(path.read_text())['labels']) > 0
