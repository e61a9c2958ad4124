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


@pytest.mark.parametrize(
    ('options', 'drawn', 'seconds'),
    [
        ({}, [], None),
        (dict(draw=True), ['a_00000', 'a_00010'], None),  # every tenth frame
        (dict(draw=True, show=True), ['a_00000', 'a_00010'], 2.0),
        (dict(draw=True, show=True, wait_time=0.5, interval=1), [f'a_{i:05}' for i in range(11)], 0.5),
    ],
)
def test_pictures_and_windows_are_those_asked_for(runner, tmp_path, monkeypatch, options, drawn, seconds):
    masks, shown = [squares(p % 5, 1) for p in range(11)], []
    clips.clip(tmp_path, 'a', masks, masked=(0,))
    sample = packed(tmp_path)
    sample.pred_masks = PixelData(data=torch.from_numpy(np.stack(masks)))
    monkeypatch.setattr(runner.visualizer, 'show', lambda picture, *args: shown.append(args))
    HOOKS.build(dict(type='mmattn.VOSVisualizationHook', **options)).after_test_iter(runner, 0, {}, [sample])
    assert list(pictures(tmp_path / 'shown')) == [f'{name}_0.png' for name in drawn]
    assert shown == ([(name, seconds) for name in drawn] if seconds else [])
    with pytest.raises(ValueError, match='interval'):
        HOOKS.build(dict(type='mmattn.VOSVisualizationHook', interval=0))
