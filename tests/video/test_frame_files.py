"""The order and the numbers of frames, from their names."""

import numpy as np
import pytest
from PIL import Image

from mmattn.video.frame_files import find_files, find_gaps

# Names in the order of time, and their numbers.
ORDERS = {
    'zeros in front': (['00000', '00005', '00010'], [0, 5, 10]),
    'no zeros': (['8', '9', '10', '11'], [0, 1, 2, 3]),
    'text after the number': (['frame8_left', 'frame9_left', 'frame10_left'], [0, 1, 2]),
    'another suffix': (['9.rgb', '10.rgb', '11.rgb'], [0, 1, 2]),
    'in brackets': (['img (1)', 'img (2)', 'img (10)'], [0, 1, 9]),
    'a camera that does not vary': (['cam2_9', 'cam2_10', 'cam2_11'], [0, 1, 2]),
    'a date and a time': (['20240131_235959', '20240201_000000', '20240201_000001'], [0, 1, 2]),
    'a time with minutes': (['cam_12-00-58', 'cam_12-00-59', 'cam_12-01-00'], [0, 1, 2]),
    'seconds and their fraction': (['1305031102.9', '1305031102.10', '1305031103.2'], [0, 1, 2]),
    'words': (['first', 'second', 'third'], [0, 1, 2]),
    'one frame': (['17'], [0]),
}


@pytest.fixture
def folder(tmp_path):
    def write(names):
        for name in names:
            Image.fromarray(np.zeros((2, 3, 3), np.uint8)).save(tmp_path / f'{name}.png')
        return tmp_path

    return write


@pytest.mark.parametrize(('names', 'numbers'), ORDERS.values(), ids=ORDERS)
def test_frames_are_in_the_order_of_their_numbers(folder, names, numbers):
    paths, actual, _, faults = find_files(folder(sorted(names)), folder([]) / 'none')
    assert [path.stem for path in paths] == names
    assert actual == numbers
    assert faults == []


def test_a_gap_is_named_like_the_frames(folder):
    paths, numbers, _, _ = find_files(folder(['a08_x2', 'a09_x2', 'a12_x2']), folder([]) / 'none')
    assert numbers == [0, 1, 4]
    (gap,) = find_gaps(paths, numbers)
    assert gap.endswith('a10_x2.png … a11_x2.png: 2 frames are missing')


def test_frames_of_one_number_are_a_fault(folder):
    path = folder(['1', '01'])
    assert 'has the same number as' in find_files(path, path / 'none')[3][0]
