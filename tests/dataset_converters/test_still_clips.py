"""Clips of one frame from photographs with label maps, and what a training pipeline makes of them."""

import numpy as np
import pytest
from mmengine.registry import DATASETS
from scipy import ndimage

from ..support.releases import save
from .conftest import pixels, scripts

(still_clips,) = scripts('still_clips')
COLOURS = np.uint8([[20, 20, 20], [240, 20, 20], [20, 240, 20], [20, 20, 240]])  # of values 0 to 3, RGB


@pytest.fixture
def photographs(tmp_path):
    """The arguments for random regions of the values 0 to 3, painted in their colours, and one without regions."""
    for seed, name in enumerate(('train/a', 'train/b', 'val/a')):
        values = np.kron(np.random.default_rng(seed).integers(0, 4, (6, 8)), np.ones((8, 8))).astype(np.uint8)
        values[-2:] = 255
        save(tmp_path / 'images' / f'{name}.png', COLOURS[np.where(values == 255, 0, values)])
        save(tmp_path / 'masks' / f'{name}.png', values)
    save(tmp_path / 'images' / 'val/empty.png', COLOURS[np.zeros((48, 64), int)])
    save(tmp_path / 'masks' / 'val/empty.png', np.zeros((48, 64), np.uint8))
    return ['--images', tmp_path / 'images', '--masks', tmp_path / 'masks']


def regions_of(values, groups, least):
    """The masks of all connected regions of at least so many pixels, the largest first."""
    regions = []
    for group in groups:
        numbers, count = ndimage.label(np.isin(values, group), np.ones((3, 3)))
        regions += [numbers == i for i in range(1, count + 1)]
    return sorted((region for region in regions if region.sum() >= least), key=lambda region: -region.sum())


@pytest.mark.parametrize('groups', [[[1], [2], [3]], [[2]], [[1, 3], [2]]], ids=str)
def test_every_region_is_an_object(command, photographs, out, tmp_path, groups):
    objects = [] if len(groups) == 3 else ['--objects', *(','.join(map(str, group)) for group in groups)]
    code, said, _ = command(still_clips, *photographs, *objects, '--min-area', 0.05, '--max-objects', 4)
    assert code == 0
    counts = []
    for name in ('train/a', 'train/b', 'val/a', 'val/empty'):
        values = pixels(tmp_path / 'masks' / f'{name}.png')
        expected = regions_of(values, groups, 0.05 * values.size)[:4]
        counts.append(len(expected))
        clip = name.replace('/', '_')
        if not expected:
            assert not (out / 'Annotations' / clip).exists()
            continue
        ids = pixels(out / 'Annotations' / clip / '00000.png')
        found = [ids == i for i in range(1, ids.max() + 1)]
        assert [region.sum() for region in found] == [region.sum() for region in expected]
        assert {region.tobytes() for region in found} == {region.tobytes() for region in expected}
        image = out / 'JPEGImages' / clip / '00000.png'
        assert image.read_bytes() == (tmp_path / 'images' / f'{name}.png').read_bytes()
    assert sum(counts) > 3
    absent = counts.count(0)
    assert said == [f'{4 - absent} clips with {sum(counts)} objects; {absent} photographs show none']


def test_frames_and_masks_move_together(command, photographs, out):
    """In every frame of a training clip, a pixel of an object still has the colour of its value."""
    assert command(still_clips, *photographs, '--objects', 1, '--min-area', 0.02)[0] == 0
    pipeline = [
        dict(type='mmattn.SampleClip', num_frames=3),
        dict(type='mmattn.LoadClipFrames'),
        dict(type='mmattn.LoadClipMasks'),
        dict(type='mmattn.ClipRandomAffine', drift=1, max_shift=0.3),
        dict(type='mmattn.PackClip'),
    ]
    np.random.seed(0)
    dataset = DATASETS.build(dict(type='mmattn.VideoFolderDataset', data_root=str(out), pipeline=pipeline))
    assert len(dataset) == 3
    for index in range(3):
        item = dataset[index]
        masks, frames = item['data_samples'].gt_masks.data.numpy(), item['inputs'].numpy().transpose(0, 2, 3, 1)
        on_object = (masks > 0) & (masks < 255)
        assert on_object[0].any()
        assert (on_object[0] != on_object[2]).any()
        inside = np.stack([ndimage.binary_erosion(mask, iterations=2) for mask in on_object])  # edges are blended
        assert np.abs(frames[inside].astype(int) - COLOURS[1][::-1]).max() <= 2
