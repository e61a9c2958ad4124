"""First masks: one object in two values, ids of several, and values that are neither."""

import re
from contextlib import nullcontext

import cv2
import numpy as np
import pytest
from PIL import Image

from mmattn.video import VideoFolderDataset, datasets, given_masks
from mmattn.video.clip_readers import FrameFolder
from mmattn.video.masks import read_single_object, write_mask

SIZE = (60, 88)
DISK = cv2.circle(np.zeros(SIZE, np.uint8), (30, 30), 15, 1, -1)
BOX = np.pad(np.ones((30, 20), np.uint8), ((20, 10), (60, 8)))
BOTH = DISK | BOX
WIDE = np.pad(np.ones((30, 24), np.uint8), ((20, 10), (60, 4)))
NOISE = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)


def soften(mask, size=5):
    return cv2.GaussianBlur(255 * mask, (size, size), 0)


def paint(strength, colour, background=(0, 0, 0)):
    share = strength[..., None] / 255
    return np.rint(share * np.array(colour) + (1 - share) * np.array(background)).astype(np.uint8)


def with_alpha(rgb, alpha):
    return np.dstack([rgb, alpha])


@pytest.mark.parametrize(
    'image',
    [
        255 * BOTH,
        128 + BOTH,
        paint(255 * BOTH, (90, 0, 20)),
        paint(255 * BOTH, (255, 255, 255), (90, 0, 20)),
        with_alpha(paint(255 * BOTH, (0, 0, 255)), np.full(SIZE, 255, np.uint8)),  # opaque
        with_alpha(np.zeros((*SIZE, 3), np.uint8), 255 * BOTH),  # in black on nothing
        with_alpha(NOISE, 255 * BOTH),  # cut out of a photograph
        np.dstack([np.full(SIZE, 9, np.uint8), 200 * BOTH]),  # LA
        BOTH.astype(np.uint16),
        BOTH.astype(bool),
    ],
)
def test_one_object_in_any_two_values(tmp_path, image):
    Image.fromarray(image).save(tmp_path / 'm.png')
    found = read_single_object(tmp_path / 'm.png')
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, BOTH)


def test_indices_of_a_palette_are_the_values_of_one_object(tmp_path):
    image = Image.fromarray(DISK)
    image.putpalette([255, 255, 255, 0, 0, 0])
    image.save(tmp_path / 'm.png')
    np.testing.assert_array_equal(read_single_object(tmp_path / 'm.png'), DISK)


@pytest.fixture
def clip(tmp_path):
    """A clip of one frame, in the layout of a data set."""
    path = tmp_path / 'JPEGImages/clip/0.png'
    path.parent.mkdir(parents=True)
    Image.new('RGB', SIZE[::-1]).save(path)
    return FrameFolder(path.parent)


def test_a_folder_without_masks(tmp_path, clip):
    (tmp_path / 'none').mkdir()
    with pytest.raises(ValueError, match=f'^masks: .*{tmp_path}/none'):
        given_masks.find_masks(clip, tmp_path / 'none')


@pytest.fixture
def warned(monkeypatch):
    """Warnings of the inferencer and of data sets."""
    lines = []
    for module in (datasets, given_masks):
        monkeypatch.setattr(module, 'print_log', lambda text, logger, *level: lines.extend([text] if level else []))
    return lines


@pytest.fixture
def read(tmp_path, clip, warned):
    """Read a mask of one frame as the inferencer does."""

    def read(image, name='m.png', single_object=True):
        Image.fromarray(image).save(tmp_path / name)
        return given_masks.read_masks({0: (tmp_path / name, True)}, clip, single_object)[0]

    return read


@pytest.mark.parametrize(
    ('image', 'options', 'said'),
    [
        (paint(255 * DISK, (255, 0, 0)), dict(single_object=False), 'RGB.*--single-object'),
        (DISK + 2 * WIDE, {}, '3 values, 0, 1, 2;'),
        (paint(255 * DISK, (255, 0, 0)) + paint(255 * BOX, (0, 128, 0)), {}, '3 values, 000000, 008000, ff0000;'),
        (soften(DISK), {}, r'\d+ values, 0, 1, '),
        (with_alpha(NOISE, soften(DISK)), {}, r'\d+ values, 0, 1, '),
        (NOISE, {}, r'\d+ values, '),
        (0 * NOISE, {}, 'shows no object$'),
        (0 * DISK, dict(single_object=False), 'shows no object$'),
        (255 * DISK, dict(single_object=False), 'shows no object; 255 is void.*single_object=True'),
        (paint(255 * DISK, (255, 0, 0)), dict(name='m.jpg'), 'JPEG'),
    ],
)
def test_what_is_no_mask_is_told_with_its_values(read, image, options, said):
    with pytest.raises(ValueError, match=rf'm\.(png|jpg): .*{said}'):
        read(image, **options)


def test_a_white_background_is_told(read, warned):
    assert read(255 - 255 * DISK).mean() > 0.8
    assert ['corners' in text for text in warned] == [True]


@pytest.mark.parametrize(('background', 'told'), [((9, 0, 0), True), ((0, 0, 0), False)])
def test_a_black_object_on_a_coloured_background_is_told(tmp_path, clip, warned, background, told):
    """Programs number the colours of a palette in any order."""
    image = Image.fromarray(DISK + 2 * WIDE)
    image.putpalette([*background, 0, 200, 0, 0, 0, 0])
    image.save(tmp_path / 'm.png')
    mask = given_masks.read_masks({0: (tmp_path / 'm.png', True)}, clip, False)[0]
    np.testing.assert_array_equal(mask, DISK + 2 * WIDE)
    assert [bool(re.search('m.png: object 2 is black', text)) for text in warned] == [True] * told


@pytest.mark.parametrize('count', [1, 2, 3])
def test_masks_that_correct_an_object_are_told_by_the_first_their_number_and_the_last(tmp_path, warned, count):
    paths = [tmp_path / f'masks/{number}.png' for number in range(1 + count)]
    for path in paths:
        write_mask(path, DISK)
        write_mask(tmp_path / 'frames' / path.name, DISK)
    given_masks.read_masks({i: (path, True) for i, path in enumerate(paths)}, FrameFolder(tmp_path / 'frames'), False)
    (text,) = warned
    assert re.match(rf'{paths[1]}\b' if count == 1 else rf'{paths[1]}\D* {count - 1}\D.*\b{count}\.png', text)


# Values that are no ids, in a data set and in the demo alike.


def scaled(mask):
    return cv2.resize(cv2.resize(mask, (44, 30), interpolation=cv2.INTER_AREA), SIZE[::-1])


def smooth_circle(value):
    return cv2.circle(np.zeros(SIZE, np.uint8), (30, 30), 15, value, -1, cv2.LINE_AA)


FAULT, WARNING, NEITHER = 'fault', 'warning', ''


@pytest.mark.parametrize(
    ('mask', 'kind', 'said'),
    [
        (soften(DISK), FAULT, '46 of its 47 values'),
        (smooth_circle(255), FAULT, '28 of its 29'),
        (smooth_circle(5), FAULT, '4 of its 5'),
        (cv2.GaussianBlur(12 * DISK, (5, 5), 0), FAULT, 'of its 11'),
        (cv2.GaussianBlur(100 * DISK + 200 * WIDE, (5, 5), 0), FAULT, 'edges'),
        (scaled(3 * DISK), FAULT, '2 of its 3'),
        (scaled(2 * DISK), WARNING, ': 1: one or two pixels wide'),
        (128 * DISK + 255 * WIDE, WARNING, '255 .* void'),
        (DISK, NEITHER, ''),
        (DISK + 2 * WIDE, NEITHER, ''),
        (np.where(np.eye(*SIZE, k=3) > 0, 2, DISK), NEITHER, ''),  # a leash in front of a dog
        (np.where(np.eye(*SIZE, k=3) > 0, 1, 2 * DISK), NEITHER, ''),
        (np.where(cv2.dilate(DISK, np.ones((5, 5))) > DISK, 255, DISK), NEITHER, ''),  # void contours
        (np.where(np.eye(*SIZE, k=30) * DISK > 0, 2, DISK), NEITHER, ''),
    ],
)
def test_values_that_are_no_ids(tmp_path, clip, warned, mask, kind, said):
    path = tmp_path / 'Annotations/clip/0.png'
    path.parent.mkdir(parents=True)
    Image.fromarray(mask.astype(np.uint8)).save(path)

    def follow():
        return given_masks.read_masks({0: (path, True)}, clip, single_object=False)

    for use in (lambda: VideoFolderDataset(data_root=str(tmp_path)), follow):
        with pytest.raises(ValueError, match=said) if kind == FAULT else nullcontext():
            use()
            assert [bool(re.search(rf'{path}(?s:.*){said}', text)) for text in warned] == [True] * (kind == WARNING)
        warned.clear()
    VideoFolderDataset(data_root=str(tmp_path), single_object=True)
    assert warned == []
