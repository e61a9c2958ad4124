"""Pictures of validated and tested clips: which, and their pixels; from tools/test.py, too."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.structures import PixelData
from mmengine.visualization import Visualizer

from mmattn.registry import HOOKS
from mmattn.video.datasets import VideoFolderDataset
from mmattn.video.frame_files import read_frame
from mmattn.video.loading import LoadGivenMasks, PackClip
from mmattn.video.masks import draw_overlay, read_mask

from . import clips
from .clips import squares

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sample(tmp_path):
    """A clip of 7 frames with masks at every second one, and a prediction."""
    clips.clip(tmp_path, 'a', [squares(p, 1, 5) for p in range(7)], masked=(0, 2, 4, 6))
    sample = VideoFolderDataset(data_root=str(tmp_path), pipeline=[LoadGivenMasks(), PackClip()])[0]['data_samples']
    sample.pred_masks = PixelData(data=torch.from_numpy(np.stack([squares(p, 1, 9) for p in range(7)])))
    return sample


@pytest.fixture
def runner(tmp_path):
    visualizer = Visualizer(vis_backends=[dict(type='LocalVisBackend')], save_dir=str(tmp_path / 'shown'))
    return SimpleNamespace(visualizer=visualizer, iter=40)


def pictures(folder):
    """Left and right half of each picture, BGR, by name, without strips."""
    paths = [path for path in sorted(folder.rglob('*.png')) if 'strip' not in path.name]
    return {path.name: np.split(cv2.imread(str(path)), 2, 1) for path in paths}


@pytest.mark.parametrize(('event', 'step'), [('after_val_iter', 40), ('after_test_iter', 0)])
def test_every_third_frame_beside_its_truth(runner, sample, tmp_path, event, step):
    hook = HOOKS.build(dict(type='mmattn.VOSVisualizationHook', draw=True, interval=3))
    getattr(hook, event)(runner, 0, {}, [sample])
    found = pictures(tmp_path / 'shown')
    assert list(found) == [f'a_{position:05}_{step}.png' for position in (0, 3, 6)]
    for position, (left, right) in zip((0, 3, 6), found.values()):
        frame = read_frame(sample.frame_paths[position])
        truth = squares(position, 1, 5) * (position % 2 == 0)  # else the frame itself
        np.testing.assert_array_equal(left, draw_overlay(frame, truth, 0.5))
        np.testing.assert_array_equal(right, draw_overlay(frame, squares(position, 1, 9), 0.5))


def test_a_strip_has_the_truth_above_the_prediction(runner, sample, tmp_path):
    """Its frames are 240 pixels wide."""
    hook = HOOKS.build(dict(type='mmattn.VOSVisualizationHook', draw=True, interval=3, out_dir=str(tmp_path / 'shown')))
    hook.after_test_iter(runner, 0, {}, [sample])
    strip = cv2.imread(str(tmp_path / 'shown/a/strip.png'))
    assert strip.shape == (327, 3 * 240, 3)  # 240 · 60 / 44
    halves = pictures(tmp_path / 'shown').values()
    expected = np.concatenate([np.concatenate(pair) for pair in halves], 1)
    shrunk = cv2.resize(strip, expected.shape[1::-1], interpolation=cv2.INTER_AREA)
    assert np.abs(shrunk.astype(int) - expected).mean() < 4
    upside_down = np.concatenate([np.concatenate(pair[::-1]) for pair in halves], 1)
    assert np.abs(shrunk.astype(int) - upside_down).mean() > 8


def test_nothing_without_draw(runner, sample, tmp_path):
    hook = HOOKS.build(dict(type='mmattn.VOSVisualizationHook'))
    hook.after_test_iter(runner, 0, {}, [sample])
    assert not (tmp_path / 'shown').exists()


def test_windows_are_shown_as_long_as_asked(runner, sample, monkeypatch):
    shown = []
    monkeypatch.setattr(runner.visualizer, 'show', lambda picture, *args: shown.append(args))
    hook = HOOKS.build(dict(type='mmattn.VOSVisualizationHook', draw=True, interval=5, show=True, wait_time=0.5))
    hook.after_test_iter(runner, 0, {}, [sample])
    assert shown == [('a_00000', 0.5), ('a_00005', 0.5)]


def test_wrong_interval():
    with pytest.raises(ValueError, match='interval must be at least 1; got 0'):
        HOOKS.build(dict(type='mmattn.VOSVisualizationHook', interval=0))


def test_show_dir_of_the_test_tool(small_sst, tmp_path):
    clips.davis(tmp_path / 'data', a=[squares(p, 1) for p in range(4)], b=[squares(p, 5) for p in range(3)])
    command = [
        sys.executable,
        ROOT / 'tools/test.py',
        small_sst.config,
        small_sst.checkpoint,
        '--show-dir',
        'shown',
        '--out',
        tmp_path / 'out',
        '--work-dir',
        tmp_path / 'work',
        '--cfg-options',
        f'test_dataloader.dataset.data_root={tmp_path}/data',
        'test_dataloader.num_workers=0',
        'test_dataloader.persistent_workers=False',
    ]
    done = subprocess.run(
        command, env={**os.environ, 'PYTHONPATH': str(ROOT)}, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f'{done.stdout}\n{done.stderr}'
    names = [
        f'{clip}/{name}.png'
        for clip, count in (('a', 4), ('b', 3))
        for name in [f'{i:05}' for i in range(count)] + ['strip']
    ]
    assert sorted(str(path.relative_to(tmp_path / 'shown')) for path in tmp_path.glob('shown/**/*.*')) == names
    found = pictures(tmp_path / 'shown/b')
    frame = read_frame(tmp_path / 'data/JPEGImages/240p/b/00002.jpg')
    left, right = found['00002.png']
    np.testing.assert_array_equal(left, draw_overlay(frame, np.uint8(squares(2, 5) > 0), 0.5))  # one object, called 1
    np.testing.assert_array_equal(right, draw_overlay(frame, read_mask(tmp_path / 'out/b/00002.png'), 0.5))
