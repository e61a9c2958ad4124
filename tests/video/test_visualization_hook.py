"""Pictures of validated and tested clips: which, and their pixels; from tools/test.py, too."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.structures import PixelData
from mmengine.visualization import Visualizer

from mmattn.registry import HOOKS
from mmattn.video.frame_files import read_frame
from mmattn.video.masks import draw_overlay

from . import clips
from .clips import packed, squares


@pytest.fixture
def sample(tmp_path):
    """A clip of 7 frames with masks at every second one, and a prediction."""
    clips.clip(tmp_path, 'a', [squares(p, 1, 5) for p in range(7)], masked=(0, 2, 4, 6))
    sample = packed(tmp_path)
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


def test_the_interval_is_at_least_1():
    with pytest.raises(ValueError, match=r'interval .* 0'):
        HOOKS.build(dict(type='mmattn.VOSVisualizationHook', interval=0))
    assert HOOKS.build(dict(type='mmattn.VOSVisualizationHook', interval=1)).interval == 1


def test_windows_are_shown_as_long_as_asked(runner, sample, monkeypatch):
    shown = []
    monkeypatch.setattr(runner.visualizer, 'show', lambda picture, *args: shown.append(args))
    hook = HOOKS.build(dict(type='mmattn.VOSVisualizationHook', draw=True, interval=5, show=True, wait_time=0.5))
    hook.after_test_iter(runner, 0, {}, [sample])
    assert shown == [('a_00000', 0.5), ('a_00005', 0.5)]


def test_nothing_is_drawn_by_default_and_every_tenth_frame_if_asked(runner, tmp_path, monkeypatch):
    """A window opens only if it is asked for, too, and then for two seconds."""
    masks = [squares(p % 5, 1) for p in range(11)]
    clips.clip(tmp_path, 'a', masks, masked=(0,))
    sample, shown = packed(tmp_path), []
    sample.pred_masks = PixelData(data=torch.from_numpy(np.stack(masks)))
    monkeypatch.setattr(runner.visualizer, 'show', lambda picture, *args: shown.append(args))
    for options, drawn, windows in (
        ({}, [], []),
        (dict(draw=True), ['a_00000_0.png', 'a_00010_0.png'], []),
        (dict(draw=True, show=True), ['a_00000_0.png', 'a_00010_0.png'], [('a_00000', 2.0), ('a_00010', 2.0)]),
    ):
        HOOKS.build(dict(type='mmattn.VOSVisualizationHook', **options)).after_test_iter(runner, 0, {}, [sample])
        assert list(pictures(tmp_path / 'shown')) == drawn
        assert shown == windows
