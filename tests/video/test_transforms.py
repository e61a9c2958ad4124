"""Frames and masks of a clip move together, all alike; what lies beyond the image does not count."""

import cv2
import numpy as np
import pytest

from mmattn.registry import DATASETS
from mmattn.video.masks import object_ids
from mmattn.video.transforms import (
    ClipColorJitter,
    ClipCopyPaste,
    ClipRandomAffine,
    ClipRandomCrop,
    ClipRandomFlip,
    ClipResize,
)

COLOURS = np.array([[0, 0, 0], [250, 0, 0], [0, 250, 0], [0, 0, 250]], np.uint8)  # BGR, of background and objects


def clip(size=(48, 70), length=3, seed=0):
    """Frames that are painted by their masks."""
    rng = np.random.default_rng(seed)
    masks = []
    for _ in range(length):
        mask = np.zeros(size, np.uint8)
        for i in (1, 2, 3):
            top, left = int(rng.integers(size[0] - 14)), int(rng.integers(size[1] - 16))
            mask[top : top + 14, left : left + 16] = i
        masks.append(mask)
    return dict(frames=[COLOURS[mask] for mask in masks], masks=masks)


def agreement(results):
    """The share of pixels, of those that count, whose frame shows what the mask says."""
    said = np.stack(results['masks'])
    distance = np.abs(np.stack(results['frames'])[..., None, :].astype(int) - COLOURS).sum(-1)
    return (distance.argmin(-1) == said)[said != 255].mean()


FIXED = [ClipResize((35, 24)), ClipResize((40, 90), keep_ratio=False), ClipRandomCrop((150, 220)), ClipRandomFlip(1)]
TRANSFORMS = [
    *FIXED,
    ClipResize((160, 100), (0.5, 2)),
    ClipRandomAffine(),
    ClipRandomAffine(45, (0.5, 2), 30, 0.3),
    ClipRandomCrop((20, 33)),
    ClipRandomCrop((64, 33)),
]


@pytest.mark.parametrize(
    'transform', [*TRANSFORMS, ClipRandomAffine(20, (0.8, 1.2), 15, 0.2, drift=1)], ids=lambda t: type(t).__name__
)
def test_masks_go_with_their_frames(transform):
    np.random.seed(0)
    for seed in range(5):
        before = clip(seed=seed)
        after = transform(clip(seed=seed))
        assert agreement(before) == 1
        assert agreement(after) > 0.93  # the rest are mixed colours on the objects' outlines
        assert {image.shape for image in after['masks']} == {image.shape[:2] for image in after['frames']}
        assert len({image.shape for image in after['frames']}) == 1
        assert all(image.dtype == np.uint8 for image in (*after['frames'], *after['masks']))
        assert {*np.unique(after['masks'])} <= {0, 1, 2, 3, 255}


@pytest.mark.parametrize(
    'transform', [*TRANSFORMS, ClipRandomFlip(0.5), ClipColorJitter()], ids=lambda t: type(t).__name__
)
def test_all_frames_are_treated_alike_and_clips_are_not(transform):
    frame, mask = (clip(length=1)[key][0] for key in ('frames', 'masks'))
    np.random.seed(1)
    outcomes = set()
    for _ in range(12):
        after = transform(dict(frames=[frame] * 3, masks=[mask] * 3))
        assert all((image == after['frames'][0]).all() for image in after['frames'])
        assert all((image == after['masks'][0]).all() for image in after['masks'])
        outcomes.add(after['frames'][0].tobytes())
    random = not any(transform is one for one in FIXED)
    assert (len(outcomes) > 1) is random


@pytest.mark.parametrize('transform', [*TRANSFORMS, ClipColorJitter()], ids=lambda t: type(t).__name__)
def test_clips_without_masks(transform):
    np.random.seed(0)
    with_masks = transform(clip())['frames']
    if not isinstance(transform, ClipRandomCrop):  # whose window depends on the objects
        np.random.seed(0)
        without = clip()
        del without['masks']
        for image, expected in zip(transform(without)['frames'], with_masks):
            np.testing.assert_array_equal(image, expected)
    else:
        shape = with_masks[0].shape
        assert transform(dict(frames=clip()['frames']))['frames'][0].shape == shape


def test_resize():
    results = clip((48, 70))
    assert ClipResize((35, 35))(clip())['frames'][0].shape == (24, 35, 3)
    assert ClipResize((35, 100))(clip())['frames'][0].shape == (35, 51, 3)  # whichever way it is held
    assert ClipResize((35, 100), keep_ratio=False)(clip())['masks'][0].shape == (100, 35)
    twice = ClipResize((140, 96))(results)
    np.testing.assert_array_equal(twice['masks'][1], np.kron(clip()['masks'][1], np.ones((2, 2), int)))
    half = ClipResize((70, 48))(dict(frames=twice['frames'], masks=[mask.copy() for mask in twice['masks']]))
    np.testing.assert_array_equal(half['masks'][1], clip()['masks'][1])
    widths = {ClipResize((140, 96), (0.5, 1))(clip())['frames'][0].shape[1] for _ in range(60)}
    assert 70 <= min(widths) < 78
    assert 132 < max(widths) <= 140


def test_flip():
    before, after = clip(), ClipRandomFlip(1)(clip())
    np.testing.assert_array_equal(after['frames'][2], before['frames'][2][:, ::-1])
    np.testing.assert_array_equal(after['masks'][2], before['masks'][2][:, ::-1])
    np.random.seed(0)
    flipped = [(ClipRandomFlip()(clip())['masks'][0] != before['masks'][0]).any() for _ in range(200)]
    assert 80 < sum(flipped) < 120
    for image in (after['frames'][0], after['masks'][0]):  # a view that others take
        results = ClipRandomAffine()(ClipResize((35, 24))(dict(frames=[image])))
        assert results['frames'][0].shape[:2] == (24, 35)


def test_a_crop_shows_an_object_of_the_reference():
    """Objects so small that a window taken at random would miss them nine times in ten."""
    np.random.seed(0)
    masks = [np.zeros((100, 100), np.uint8) for _ in range(2)]
    masks[0][3, 90], masks[0][60:62, 10:12], masks[1][50, 50] = 1, 2, 3
    frames = [COLOURS[mask] for mask in masks]
    crops = [ClipRandomCrop((20, 30))(dict(frames=frames, masks=masks)) for _ in range(100)]
    shown = [object_ids(crop['masks'][0]) for crop in crops]
    assert min(map(len, shown)) == 1
    assert 30 < sum(ids == [1] for ids in shown) < 70  # each object as likely, large or small
    assert {crop['masks'][0].shape for crop in crops} == {(20, 30)}
    assert len({tuple(np.argwhere(crop['masks'][0])[0]) for crop in crops}) > 60  # anywhere in the window
    anywhere = [ClipRandomCrop((20, 30))(dict(frames=frames)) for _ in range(5)]
    assert {crop['frames'][0].shape for crop in anywhere} == {(20, 30, 3)}


def test_a_crop_larger_than_the_clip():
    after = ClipRandomCrop((60, 80))(clip())
    for image, mask, old in zip(after['frames'], after['masks'], clip()['masks']):
        np.testing.assert_array_equal(mask[:48, :70], old)
        assert (mask[48:] == 255).all()
        assert (mask[:, 70:] == 255).all()
        np.testing.assert_array_equal(image[48:, :70], COLOURS[old][46:34:-1])  # mirrored


def test_affine_maps_by_its_matrix(monkeypatch):
    """The largest of each that is drawn: half a turn about the middle, pixel by pixel, and all together."""
    monkeypatch.setattr(np.random, 'uniform', lambda low, high, size=(): np.full(size, high)[()])
    after = ClipRandomAffine(180, (1, 1), 0, 0)(clip())
    np.testing.assert_array_equal(after['masks'][1], clip()['masks'][1][::-1, ::-1])
    np.testing.assert_array_equal(after['frames'][1], clip()['frames'][1][::-1, ::-1])
    matrix = ClipRandomAffine(90, (0.5, 2), 45, 0.1)._draw(31, 41)
    np.testing.assert_allclose(matrix[:, :2], [[0, -2], [2, 2]], atol=1e-12)  # sheared, turned, twice as large
    np.testing.assert_allclose(matrix @ [20, 15, 1], [20 + 4.1, 15 + 3.1])  # where the middle goes
    monkeypatch.setattr(np.random, 'uniform', lambda low, high, size=(): np.full(size, low)[()])
    matrix = ClipRandomAffine(90, (0.5, 2), 45, 0.1)._draw(31, 41)
    np.testing.assert_allclose(matrix[:, :2], [[0, 0.5], [-0.5, 0.5]], atol=1e-12)  # the other way, half as large
    np.testing.assert_allclose(matrix @ [20, 15, 1], [20 - 4.1, 15 - 3.1])


def test_affine_leaves_out_what_it_does_not_know():
    np.random.seed(0)
    results = dict(frames=[np.full((40, 60, 3), 77, np.uint8)], masks=[np.ones((40, 60), np.uint8)])
    after = ClipRandomAffine(0, (1, 1), 0, 0.3)(results)
    assert (after['frames'][0] == 77).all()
    assert {*np.unique(after['masks'][0])} == {1, 255}
    assert (after['masks'][0] == 1).mean() >= 0.7**2 - 0.03


def test_no_change_is_none():
    for transform in (
        ClipRandomAffine(0, (1, 1), 0, 0),
        ClipResize((70, 48)),
        ClipRandomCrop((48, 70)),
        ClipRandomFlip(0),
        ClipColorJitter(0, 0, 0, 0),
    ):
        after = transform(clip())
        np.testing.assert_array_equal(after['masks'], clip()['masks'])
        rounding = 6 if isinstance(transform, ClipColorJitter) else 0  # of 8-bit hues
        np.testing.assert_allclose(after['frames'], np.array(clip()['frames'], float), atol=rounding)


def test_colours():
    np.random.seed(0)
    rng = np.random.default_rng(0)
    frames = [rng.integers(60, 180, (9, 8, 3)).astype(np.uint8) + shift for shift in (0, 40)]
    brighter, grey = ClipColorJitter(0.5, 0, 0, 0), ClipColorJitter(0, 0, 1, 0)
    ratios = []
    for _ in range(50):
        after = brighter(dict(frames=frames))['frames']
        ratios.append([(image.astype(float) / frame)[frame < 160].mean() for image, frame in zip(after, frames)])
    ratios = np.array(ratios)
    assert 0.49 < ratios.min() < 0.6
    assert 1.3 < ratios.max() < 1.5
    low = ratios[:, 0] < 1  # brighter ones are cut off at 255
    np.testing.assert_allclose(ratios[low, 0], ratios[low, 1], atol=0.01)
    spreads = [grey(dict(frames=frames))['frames'][1].astype(int).std(-1).mean() for _ in range(50)]
    assert min(spreads) < 0.3 * frames[1].std(-1).mean()
    # contrast is about the mean of the clip: what sets its frames apart changes, too
    apart = [
        np.diff([image.mean() for image in ClipColorJitter(0, 0.5, 0, 0)(dict(frames=frames))['frames']])
        for _ in range(50)
    ]
    assert np.min(apart) < 25
    assert np.max(apart) > 50
    with pytest.raises(ValueError, match='hue'):
        ClipColorJitter(hue=0.7)


def test_drift_moves_the_map_evenly_from_frame_to_frame():
    """The middle of a square goes along a line in equal steps; without drift it stays."""
    for drift in (0, 1):
        travelled = []
        for seed in range(20):
            np.random.seed(seed)
            mask = np.zeros((90, 130), np.uint8)
            mask[40:51, 60:71] = 1
            frames = [np.zeros((90, 130, 3), np.uint8)] * 3
            moved = ClipRandomAffine(5, (0.9, 1.1), 5, 0.2, drift)(dict(frames=frames, masks=[mask] * 3))['masks']
            first, middle, last = (np.argwhere(m == 1).mean(0) for m in moved)
            np.testing.assert_allclose(middle, (first + last) / 2, atol=0.8)  # masks keep whole pixels
            travelled.append(np.abs(last - first).max())
        assert max(travelled) > 10 if drift else max(travelled) == 0
        assert min(travelled) < 3  # cameras that hardly move are among them


@pytest.mark.parametrize(('length', 'shifts'), [(1, [-6]), (2, [-6, 6]), (4, [-6, -2, 2, 6])])
def test_drift_ends_at_the_last_frame(monkeypatch, length, shifts):
    """From the lowest to the highest shift that is drawn."""
    drawn = []

    def uniform(low, high, size=()):
        drawn.append(high)
        return np.full(size, low if len(drawn) <= 3 else high)[()]

    monkeypatch.setattr(np.random, 'uniform', uniform)
    mask = np.zeros((60, 60), np.uint8)
    mask[20:31, 20:31] = 1
    moved = ClipRandomAffine(0, (1, 1), 0, 0.1, drift=1)(dict(frames=[COLOURS[mask]] * length, masks=[mask] * length))
    assert [np.argwhere(x == 1).mean(0).tolist() for x in moved['masks']] == [[25 + x, 25 + x] for x in shifts]


@pytest.fixture
def paste(monkeypatch):
    """``paste(clips, **options)`` returns a transform that pastes from them."""

    def build(clips, **options):
        monkeypatch.setattr(DATASETS, 'build', lambda config: config['clips'])
        return ClipCopyPaste(dict(clips=clips), **options)

    return build


@pytest.mark.parametrize(
    ('before', 'other', 'ids'),
    [  # the objects of both first frames, and the id that each pasted one gets
        ((1, 5, 3), (1, 2, 3), {1: 2, 2: 4, 3: 6}),  # the lowest that are free
        ((1, 3), (1, 2, 3), {1: 4, 2: 5, 3: 6}),  # object 2 comes later
        ((1, 2, 3), (1, 3), {1: 4, 3: 5}),  # object 2 of the other clip comes later
    ],
)
def test_pasted_objects_move_as_in_their_clip_with_ids_that_are_free(paste, before, other, ids):
    here, there = clip(), clip(seed=1)
    for mask in here['masks'] if 5 in before else ():
        mask[mask == 2] = 5
        mask[:, :4] = 255
    for mask, kept in ((here['masks'][0], before), (there['masks'][0], other)):
        mask[~np.isin(mask, [*kept, 255])] = 0
    after = paste([there], prob=1)({key: [*images] for key, images in here.items()})
    table = np.zeros(256, np.uint8)
    for old, new in ids.items():
        table[old] = new
    for t in range(3):
        new = table[there['masks'][t]]
        np.testing.assert_array_equal(after['masks'][t], np.where(new, new, here['masks'][t]))
        changed = np.abs(after['frames'][t].astype(int) - here['frames'][t]).sum(-1) > 0
        around = cv2.dilate((new > 0).astype(np.uint8), np.ones((3, 3))) > 0
        inside = cv2.erode((new > 0).astype(np.uint8), np.ones((3, 3))) > 0
        assert not changed[~around].any()
        np.testing.assert_array_equal(after['frames'][t][inside], there['frames'][t][inside])


def test_objects_are_pasted_as_often_as_asked(paste):
    np.random.seed(0)
    transform = paste([clip(seed=1)], prob=0.3)
    pasted = [len(object_ids(transform(clip())['masks'][0])) > 3 for _ in range(200)]
    assert 40 < sum(pasted) < 80
    half = paste([clip(seed=1)])
    assert 20 < sum(len(object_ids(half(clip())['masks'][0])) > 3 for _ in range(60)) < 40
    assert not any(len(object_ids(paste([clip(seed=1)], prob=0)(clip())['masks'][0])) > 3 for _ in range(9))


def test_a_clip_of_another_size_is_cropped(paste):
    np.random.seed(0)
    for size in ((48, 90), (30, 40), (60, 50)):
        after = paste([clip(size, seed=1)], prob=1)(clip())
        assert len(object_ids(after['masks'][0])) > 3
        assert {image.shape for image in after['masks']} == {(48, 70)}
        assert agreement(after | {'masks': [np.where(mask > 3, mask - 3, mask) for mask in after['masks']]}) > 0.93


def test_a_clip_of_another_length_cannot_be_pasted(paste):
    with pytest.raises(ValueError, match=r'this one has 3 frames; that one, which would be pasted, has 2'):
        paste([clip(length=2) | {'clip': 'that one'}], prob=1)(clip() | {'clip': 'this one'})
