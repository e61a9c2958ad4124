"""Masks whose values are no ids, as drawing programs and scaling make them, in a data set and in the demo alike."""

import re

import cv2
import numpy as np
import pytest
from PIL import Image

from mmattn.video import VideoFolderDataset, datasets, given_masks
from mmattn.video.clip_readers import FrameFolder

SIZE = (60, 88)
DISK = cv2.circle(np.zeros(SIZE, np.uint8), (30, 30), 15, 1, -1)
BOX = np.pad(np.ones((30, 24), np.uint8), ((20, 10), (60, 4)))


def blurred(mask):
    return cv2.GaussianBlur(mask, (5, 5), 0)


def scaled(mask):
    return cv2.resize(cv2.resize(mask, (44, 30), interpolation=cv2.INTER_AREA), SIZE[::-1])


def smooth_circle(value):
    return cv2.circle(np.zeros(SIZE, np.uint8), (30, 30), 15, value, -1, cv2.LINE_AA)


@pytest.mark.parametrize(
    ('mask', 'kind', 'said'),
    [
        (blurred(255 * DISK), 'fault', '46 of its 47 values besides 0 .*single-object'),
        (smooth_circle(255), 'fault', '28 of its 29'),
        (smooth_circle(5), 'fault', '4 of its 5'),
        (blurred(12 * DISK), 'fault', 'of its 11'),
        (blurred(100 * DISK + 200 * BOX), 'fault', 'values besides 0 are edges'),
        (scaled(3 * DISK), 'fault', '2 of its 3'),
        (scaled(2 * DISK), 'warning', ': 1: one or two pixels wide between'),
        (128 * DISK + 255 * BOX, 'warning', '255 beside other ids is void.*single-object'),
        (DISK, '', ''),
        (DISK + 2 * BOX, '', ''),
        (np.where(np.eye(*SIZE, k=3) > 0, 2, DISK), '', ''),  # a leash in front of a dog
        (np.where(np.eye(*SIZE, k=3) > 0, 1, 2 * DISK), '', ''),
        (np.where(cv2.dilate(DISK, np.ones((5, 5))) > DISK, 255, DISK), '', ''),  # void contours
        (np.where(np.eye(*SIZE, k=30) * DISK > 0, 2, DISK), '', ''),
    ],
)
def test_values_that_are_no_ids(tmp_path, monkeypatch, mask, kind, said):
    frames, masks = tmp_path / 'JPEGImages/clip', tmp_path / 'Annotations/clip'
    for folder, array in ((frames, np.zeros((*SIZE, 3), np.uint8)), (masks, mask.astype(np.uint8))):
        folder.mkdir(parents=True)
        for i in range(2):
            Image.fromarray(array).save(folder / f'{i:05}.png')
    warnings = []
    for module in (datasets, given_masks):
        monkeypatch.setattr(module, 'print_log', lambda text, logger, *level: warnings.extend([text] if level else []))
    path = masks / '00000.png'

    def follow(single_object):
        return given_masks.read_masks({0: (path, True)}, FrameFolder(frames), single_object)

    for use in (lambda one: VideoFolderDataset(data_root=str(tmp_path), single_object=one), follow):
        warnings.clear()
        if kind == 'fault':
            with pytest.raises(ValueError, match=said):
                use(False)
        else:
            use(False)
            assert [bool(re.search(rf'{path}(?s:.*){said}', text)) for text in warnings] == [True] * (kind != '')
        warnings.clear()
        use(True)
        assert warnings == []
