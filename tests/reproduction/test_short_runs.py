"""tools/benchmarks/short_runs.py on small images: what is scored is what the runs have, the rows, the pictures."""

import json
import runpy
import signal
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image

from mmattn.reproduction.short_runs import bccd, davis, fasseg
from mmattn.utils import config_path
from mmattn.video import read_mask

pytestmark = pytest.mark.e2e

TOOL = Path(__file__).parents[2] / 'tools/benchmarks/short_runs.py'


@pytest.fixture
def rows(data, monkeypatch, tmp_path):
    """Run the tool for some methods of a data set and seed 0; return the rows of results.json by name."""

    def run(module, *methods, **settings):
        name = module.__name__.rpartition('.')[2]
        chosen = {method: module.RUNS.methods[method] for method in methods}
        monkeypatch.setattr(module, 'RUNS', module.RUNS._replace(methods=chosen, **settings))
        root = data[module.RUNS.dataset]
        arguments = [name, '--data-root', root, '--seeds', 0, '--iters', 2, '--work-dir', tmp_path]
        monkeypatch.setattr(sys, 'argv', [TOOL.name, *map(str, arguments)])
        handler = signal.getsignal(signal.SIGTERM)
        try:
            runpy.run_path(str(TOOL), run_name='__main__')
        finally:
            signal.signal(signal.SIGTERM, handler)
        return {row['name']: row for row in json.loads((tmp_path / 'results.json').read_text())['rows']}

    return run


def logged(folder):
    """The last line of a training's log: its metrics."""
    (path,) = folder.glob('*/vis_data/scalars.json')
    return json.loads(path.read_text().splitlines()[-1])


def folder(module, method, work_dir):
    return work_dir / f'{Path(module.RUNS.methods[method]).stem}_seed-0'


def test_bccd(rows, tmp_path, capsys):
    found = rows(bccd, bccd.STOCK, 'attn0010')
    said = capsys.readouterr().out
    assert "**Not the configs' protocol**: 2 iterations of 150." in said
    for method, row in found.items():
        metrics = logged(folder(bccd, method, tmp_path))
        expected = {name: 100 * metrics[f'pascal_voc/{name}'] for name in ('mAP', 'AP50', 'AP75')}
        assert row['seeds']['0']['metrics'] == pytest.approx(expected)
    assert [row['baseline'] for row in found.values()] == [None, bccd.STOCK]
    ours, stock = (found[name]['mean']['mAP'] for name in ('attn0010', bccd.STOCK))
    assert found['attn0010']['difference']['mean'] == pytest.approx(ours - stock)
    with Image.open(tmp_path / 'detections.jpg') as sheet:  # two methods below each other
        assert sheet.size[1] == 2 * (150 + 18) + 4


def test_fasseg(rows, tmp_path):
    ours = 'U-Net-BA, UNetBAHead'
    metrics = rows(fasseg, ours, baseline=ours)[ours]['seeds']['0']['metrics']
    runs = folder(fasseg, ours, tmp_path)
    upright = logged(runs)
    assert {name: metrics[name] for name in ('overall', 'accuracy')} == {
        name: upright[name] for name in ('overall', 'accuracy')
    }
    assert metrics['hair'] == upright['F1.hair']
    for angle in (30, -30):
        *_, turn, _ = Config.fromfile(runs / f'rotated_{angle}/config.py').test_dataloader.dataset.pipeline
        assert turn == dict(type='RandomRotate', prob=1.0, degree=(angle, angle))
    turned = [json.loads((runs / f'rotated_{angle}/test/metrics.json').read_text())['overall'] for angle in (30, -30)]
    assert metrics['overall, turned by ±30°'] == pytest.approx(statistics.mean(turned))
    for name, count in (('photos.png', 3), ('predictions.png', 1)):
        with Image.open(tmp_path / name) as sheet:
            assert sheet.size[1] == count * (150 + 18) + 4


def test_davis(rows, data, tmp_path):
    """The first mask, repeated, is scored as its overlap with the clips' masks; blind runs know no object."""
    found = rows(davis, 'SST, grid')
    assert list(found) == [davis.REPEATED, 'SST, grid', 'SST, grid, empty reference mask']
    repeated, given, blind = found.values()
    assert (repeated['parameters'], repeated['seeds']['0']['seconds']) == (0, None)
    network = MODELS.build(Config.fromfile(config_path(davis.RUNS.methods['SST, grid'])).model)
    assert given['parameters'] == blind['parameters'] == sum(p.numel() for p in network.parameters())
    clips = sorted((data['davis_240p'] / 'Annotations/240p').iterdir())
    overlaps = {}
    for clip in clips:
        first, *others, _ = (read_mask(str(path), True) > 0 for path in sorted(clip.iterdir()))  # not the last
        overlaps[clip.name] = 100 * np.mean([(first & mask).sum() / (first | mask).sum() for mask in others])
    assert repeated['mean']['J'] == pytest.approx(np.mean([*overlaps.values()]))
    metrics = logged(folder(davis, 'SST, grid', tmp_path))
    assert given['mean']['J&F'] == pytest.approx(metrics['JF'])
    assert given['difference']['mean'] == pytest.approx(metrics['JF'] - repeated['mean']['J&F'])
    for name, count in (('overlays.jpg', 2), ('predictions.png', 1), ('scene.jpg', 2)):
        with Image.open(tmp_path / name) as sheet:
            assert sheet.size[1] == count * (150 + 18) + 4
