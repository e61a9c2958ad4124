"""SST as a user has it: tools/train.py, tools/test.py, in one process and in two, to the files that a server takes."""

import csv
import re
import shutil
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from PIL import Image

from mmattn.video import read_mask

from ..engine.test_tools import ROOT, weights
from ..forked_tools import tool
from . import clips

pytestmark = pytest.mark.e2e

DAVIS = ROOT / 'configs/sst/sst-grid_r18-d8-half_1xb4-400_davis-240p.py'
STRIDED = ROOT / 'configs/sst/sst-strided_r50-d8_4xb1-20k_youtube-vos-2018-480x864.py'
# Fewer channels than 8 make oneDNN write past its memory on AVX2 (1×1, stride 2, channels last: oneDNN#6035).
# SyncBN and pretrained weights are off in either; the loaders work in the process itself.
MODEL = [
    'model.backbone.base_channels=8',
    'model.in_channels=16',
    'model.embed_dims=16',
    'model.attention.num_heads=2',
    'model.encoder_layers=1',
    'model.decoder_layers=1',
    'model.backbone.depth=18',
    'model.backbone.num_stages=2',
    'model.backbone.out_indices=(1,)',
    'model.backbone.strides=(1,2)',
    'model.backbone.dilations=(1,1)',
    'model.backbone.init_cfg=None',
    'model.test_cfg.max_frames=2',
]
LOADERS = [
    f'{part}_dataloader.{option}'
    for part in ('train', 'val', 'test')
    for option in ('num_workers=0', 'persistent_workers=False')
]
TRAIN = [
    'train_dataloader.batch_size=2',
    'train_dataloader.dataset.pipeline.6.crop_size=(32,32)',
    'train_cfg.max_iters=4',
    'train_cfg.val_interval=2',
    'default_hooks.checkpoint.interval=2',
    'default_hooks.logger.interval=1',
    'default_hooks.checkpoint.max_keep_ckpts=3',
]


def losses(said):
    return [float(loss) for loss in re.findall(r'  loss_mask: (\S+)', said)]


@pytest.fixture(scope='module')
def trained(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp('trained')
    return folder, run(*tool('train.py', DAVIS, '--work-dir', folder, '--cfg-options', *MODEL, *LOADERS, *TRAIN))


def test_training_validates_and_scores(trained):
    folder, said = trained
    assert len(losses(said)) == 4
    assert re.search(r'\| bear +\| +1 \|', said)
    assert all(x.isfinite().all() for x in weights(folder / 'iter_4.pth').values())
    assert (folder / 'best_JF_iter_2.pth').exists() or (folder / 'best_JF_iter_4.pth').exists()


def test_a_resumed_run_ends_like_an_uninterrupted_one(trained, run, tmp_path):
    middle = shutil.copy(trained[0] / 'iter_2.pth', tmp_path)
    command = tool('train.py', DAVIS, '--work-dir', tmp_path, '--resume', middle, '--cfg-options', *MODEL, *LOADERS)
    assert losses(run(*command, *TRAIN)) == losses(trained[1])[2:]
    ours, expected = weights(tmp_path / 'iter_4.pth'), weights(trained[0] / 'iter_4.pth')
    assert all(torch.equal(ours[name], x) for name, x in expected.items())


def test_testing_writes_masks_scores_and_pictures(trained, run, tiny_data, tmp_path):
    folders = '--work-dir', tmp_path, '--out', tmp_path / 'out', '--show-dir', tmp_path / 'shown'
    run(*tool('test.py', DAVIS, trained[0] / 'iter_4.pth', *folders, '--cfg-options', *MODEL, *LOADERS))
    names = [f'{clip}/{i:05}.png' for clip in ('bear', 'goat') for i in range(3)]
    assert sorted(path.relative_to(tmp_path / 'out').as_posix() for path in tmp_path.glob('out/*/*')) == names
    truth = Path(tiny_data['DAVIS_240P_ROOT'], 'Annotations/240p')
    for first in ('bear/00000.png', 'goat/00000.png'):
        np.testing.assert_array_equal(read_mask(tmp_path / 'out' / first), read_mask(truth / first))
    with open(tmp_path / 'out/results.csv', newline='') as file:
        rows = [' '.join(row[:2]) for row in csv.reader(file)]
    assert rows[1:] == ['all ', 'bear ', 'bear 1', 'goat ', 'goat 1']
    pictures = sorted(tmp_path.rglob('shown/**/*.png'))
    strips = ['bear/strip.png', 'goat/strip.png']
    assert [path.relative_to(tmp_path / 'shown').as_posix() for path in pictures] == sorted(names + strips)
    with Image.open(pictures[0]) as picture:
        assert picture.size == (2 * clips.SIZE[1], clips.SIZE[0])  # truth and prediction


def test_youtube_vos_is_written_as_the_server_takes_it(run, tiny_data, tmp_path):
    """In training nothing is validated; in testing the zip has the frames of meta.json alone."""
    train = [option for option in TRAIN if not option.startswith('train_cfg.val')]
    options = ['--cfg-options', *MODEL, *(option for option in LOADERS if not option.startswith('val'))]
    said = run(*tool('train.py', STRIDED, '--work-dir', tmp_path, *options, *train))
    assert len(losses(said)) == 4
    folders = '--work-dir', tmp_path, '--out', tmp_path / 'out'
    said = run(*tool('test.py', STRIDED, tmp_path / 'iter_4.pth', *folders, *options))
    assert 'Local estimate: G' in said  # the small data have their truth
    names = [f'{clip}/{number:05}.png' for clip in 'ab' for number in (0, 5, 10)]
    with ZipFile(tmp_path / 'out/submission.zip') as archive:
        assert archive.namelist() == [f'Annotations/{name}' for name in names]
    for name in names:
        assert set(np.unique(read_mask(tmp_path / 'out' / name))) <= ({0, 1, 5} if name[0] == 'a' else {0, 3})
    begins = Path(tiny_data['YOUTUBE_VOS_2018_ROOT'], 'valid/Annotations/a/00005.png')
    np.testing.assert_array_equal(read_mask(tmp_path / 'out/a/00005.png') == 5, read_mask(begins) == 5)
    assert not (read_mask(tmp_path / 'out/a/00000.png') == 5).any()


def test_browse_dataset_draws_the_clips_as_they_are_trained_on(run, tmp_path):
    browse = tool('analysis_tools/browse_dataset.py', DAVIS, '--output-dir', tmp_path, '--not-show')
    run(*browse, '--cfg-options', *TRAIN[1:2])
    assert sorted(path.name for path in tmp_path.iterdir()) == ['00000_bear.png', '00001_goat.png']
    with Image.open(tmp_path / '00000_bear.png') as picture:
        assert picture.size == (4 * 32, 32)  # four frames in a row
        assert len(set(picture.convert('L').tobytes())) > 10
    with pytest.raises(AssertionError, match='read by the model, frame by frame'):
        run(*browse, '--split', 'val')


def test_get_flops_follows_an_object_through_a_clip(run):
    """By hand, at 64×64: the backbone goes by frames, an axis of grid attention by its length, too."""
    found = []
    for frames in (4, 8):
        said = run(*tool('analysis_tools/get_flops.py', DAVIS, '--shape', 64, '--frames', frames))
        found.append({name: float(value) for name, value in re.findall(r'\| ([\w.]+) +\| +([\d.]+) +\|', said)})
    assert found[1]['ResNet'] == pytest.approx(2 * found[0]['ResNet'], abs=0.02)
    channels, layers = 64, 2 + 3
    for frames, counts in zip((4, 8), found):
        voxels, keys = frames * 8 * 8, frames + 8 + 8 - 2
        position = 15 + 14  # offsets in x and y, compared with the query
        attention = layers * voxels * channels * (4 * channels + 2 * (keys + 2) + position)  # each arm has all its keys
        assert counts['VideoTransformerLayer.attention'] == pytest.approx(attention / 1e9, abs=0.006)
        assert counts['VideoTransformerLayer.ffn'] == pytest.approx(layers * voxels * 8 * channels**2 / 1e9, abs=0.006)
