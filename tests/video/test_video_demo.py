"""The command line: what it writes and says, and what is wrong in one line."""

import re
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image

from mmattn.registry import MODELS
from mmattn.utils.paths import config_path
from mmattn.video.frame_files import read_frame
from mmattn.video.inferencer import DEFAULT_CONFIG
from mmattn.video.masks import read_mask, write_mask

from ..forked_tools import run_command, tool
from . import clips
from .clips import LENGTH, squares, write_video

ROOT = Path(__file__).parents[2]
TOOL = ROOT / 'tools/video_demo.py'


@pytest.fixture
def arguments(root, small_sst):
    """The arguments, without ``--out``."""
    inputs = root / 'JPEGImages', root / 'Annotations/00000.png'
    model = '--config', small_sst.config, '--checkpoint', small_sst.checkpoint
    return [*map(str, (*inputs, *model)), '--device', 'cpu', '--max-frames', '8']


@pytest.fixture
def demo(monkeypatch, arguments, tmp_path):
    """Run the tool; ``positional`` replaces video and masks. Return the folder of the results."""

    def demo(*options, positional=arguments[:2]):
        call(monkeypatch, TOOL, *positional, *arguments[2:], '--out', tmp_path / 'out', *options)
        return tmp_path / 'out'

    return demo


def call(monkeypatch, *words):
    monkeypatch.setattr(sys, 'argv', [*map(str, words)])
    runpy.run_path(str(ROOT / words[0]), run_name='__main__')


def test_the_options(demo, root, tmp_path, capsys, small_sst):
    """What is wrong is said without a traceback."""
    Image.fromarray(squares(0, 1, 5) > 0).save(tmp_path / 'mask.png')
    options = '--no-overlay', '--single-object', '--cfg-options', 'model.test_cfg.scale=(32,32)'
    out = demo(*options, positional=(root / 'JPEGImages', f'{tmp_path}/mask.png@2'))
    assert not (out / 'overlay.mp4').exists()
    assert 'overlay' not in capsys.readouterr().out.splitlines()[-1]
    assert not read_mask(out / 'masks/00001.png').any()
    np.testing.assert_array_equal(read_mask(out / 'masks/00002.png'), squares(0, 1, 5) > 0)
    with pytest.raises(SystemExit, match='masks_sha256, config'):
        demo()
    demo('--overwrite')
    assert sorted(path.name for path in out.iterdir()) == ['.lock', 'masks', 'overlay.mp4', 'run.json']
    assert sorted(path.name for path in (out / 'masks').iterdir()) == [f'{number:05}.png' for number in range(LENGTH)]
    said = capsys.readouterr().out.splitlines()[-1]
    assert re.search(rf'24 .*{out}/masks,.*{out}/overlay\.mp4; \d+\.\d\d frames per second, .*\d+ MiB', said)
    assert set(np.unique(read_mask(out / 'masks/00001.png'))) == {0, 1, 5}
    for words, said in (
        ('', '--out'),
        ('--out out --first-frame x.png', '--first-frame'),
        (f'--out out --config {small_sst.config}', '--checkpoint'),
    ):
        done = run_command(tool('video_demo.py', 'video', 'mask.png', *words.split()))
        assert done.returncode
        assert said in done.stderr


def test_a_folder_in_which_frames_are_missing(demo, root, monkeypatch, tmp_path):
    shutil.copytree(root / 'JPEGImages', tmp_path / 'frames')
    for number in (1, 20):
        (tmp_path / f'frames/{number:05}.jpg').unlink()
    paint = TOOL, tmp_path / 'frames', '--first-frame', f'{tmp_path}/frame.png@21'
    with pytest.raises(SystemExit, match='--allow-gaps'):
        call(monkeypatch, *paint)
    call(monkeypatch, *paint, '--allow-gaps')
    assert np.array_equal(read_frame(tmp_path / 'frame.png'), read_frame(root / 'JPEGImages/00021.jpg'))
    positional = tmp_path / 'frames', root / 'Annotations/00000.png'
    out = demo('--allow-gaps', '--no-overlay', positional=positional)
    assert len([*(out / 'masks').iterdir()]) == LENGTH - 2


def test_the_command_of_the_page_on_own_data(monkeypatch, arguments, tmp_path):
    page = (ROOT / 'docs/custom_data.md').read_text('utf-8')
    paint, untrained, command = re.findall(r'^python (tools/video_demo\.py .*)$', page, re.MULTILINE)
    write_video(tmp_path / 'clip.mp4', [clips.frame(squares(p, 1, 5), p) for p in range(LENGTH)])
    monkeypatch.chdir(tmp_path)

    def masks():
        found = [read_mask(path) for path in sorted((tmp_path / 'followed/masks').iterdir())]
        assert len(found) == LENGTH
        return found

    call(monkeypatch, *paint.split())
    square = Image.fromarray(255 * squares(0, 1))
    Image.merge('RGBA', [square, square, square, square]).resize(Image.open('frame.png').size).save('first.png')
    backbone = MODELS.build(Config.fromfile(config_path(DEFAULT_CONFIG)).model.backbone)
    torch.save(dict(state_dict=backbone.state_dict()), 'w')
    call(
        monkeypatch,
        *f'{untrained} --device cpu --no-overlay'.split(),
        '--cfg-options',
        'model.backbone.init_cfg.checkpoint=w',
        'model.test_cfg.scale=(64,64)',
    )
    np.testing.assert_array_equal(masks()[0], squares(0, 1))
    write_mask(tmp_path / 'first.png', squares(0, 1))
    write_mask(tmp_path / 'later.png', squares(20, 5))
    names = dict(CONFIG=arguments[3], CHECKPOINT=arguments[5])
    call(monkeypatch, *(names.get(word, word) for word in command.split()), '--overwrite')
    found = masks()
    assert np.unique(found[0]).tolist() == [0, 1]
    assert not any((mask == 5).any() for mask in found[:20])
    np.testing.assert_array_equal(found[20] == 5, squares(20, 5) == 5)
