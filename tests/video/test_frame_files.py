"""The order and the numbers of frames, from their names."""

import logging
import sys

import numpy as np
import pytest
from PIL import Image

from mmattn.utils.faults import Faults
from mmattn.video import frame_names
from mmattn.video.frame_files import check_gaps, find_files

# Names in the order of time, and their numbers.
ORDERS = {
    'zeros in front': (['00000', '00005', '00010'], [0, 5, 10]),
    'no zeros': (['8', '9', '10', '11'], [0, 1, 2, 3]),
    'text after the number': (['frame8_left', 'frame9_left', 'frame10_left'], [0, 1, 2]),
    'hyphens': (['frame-9', 'frame-10', 'frame-11'], [0, 1, 2]),
    'in brackets': (['img (1)', 'img (2)', 'img (10)'], [0, 1, 9]),
    'a camera that does not vary': (['cam2_9', 'cam2_10', 'cam2_11'], [0, 1, 2]),
    'a date and a time': (['20240131_235959', '20240201_000000', '20240201_000001'], [0, 1, 2]),
    'a time with minutes': (['cam_12-00-58', 'cam_12-00-59', 'cam_12-01-00'], [0, 1, 2]),
    'one frame': (['17'], [0]),
}
# Names in the order of time, the reading that gives it, and whether the log warns without it.
READINGS = {
    'seconds and nanoseconds': (['1305031102.9', '1305031102.10', '1305031103.2'], 'numbers', True),
    'decimals': (['t0.04', 't0.08', 't0.12', 't0.16', 't0.2', 't0.24'], 'decimals', True),
    'hexadecimal': (['f_09', 'f_0a', 'f_0f', 'f_10'], 'text', True),
    'a sign': (['f_-1', 'f_0', 'f_1'], 'signed', True),
    'another suffix': (['9.rgb', '10.rgb', '11.rgb'], 'numbers', False),
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
    paths, actual, _ = find_files(folder(sorted(names)), folder([]) / 'none', None, faults := Faults())
    assert [path.stem for path in paths] == names
    assert actual == numbers
    assert not faults


def test_a_gap_is_between_frames_that_exist(folder):
    paths, numbers, _ = find_files(folder(['a08_x2', 'a09_x2', 'a12_x2']), folder([]) / 'none', None, Faults())
    assert numbers == [0, 1, 4]
    check_gaps(paths, numbers, faults := Faults())
    ((path, (fault,)),) = faults.by_path.items()
    assert path == str(paths[2])
    assert fault.startswith('follows a09_x2.png; frames missing between them: 2; ')
    assert 'allow_gaps' in fault


def test_frames_of_one_number_are_a_fault(folder):
    path = folder(['1', '01'])
    find_files(path, path / 'none', None, faults := Faults())
    [[fault]] = faults.by_path.values()
    assert 'has the same number as' in fault


@pytest.mark.parametrize(('names', 'reading', 'told'), READINGS.values(), ids=READINGS)
def test_an_option_chooses_where_two_orders_are_possible(folder, monkeypatch, names, reading, told):
    said = []
    monkeypatch.setattr(frame_names, 'print_log', lambda text, logger, level: said.append((text, level)))
    path = folder(names)

    def order(reading):
        return [path.stem for path in find_files(path, path / 'none', reading, Faults())[0]]

    assert order(reading) == names
    assert said == []
    assert (order(None) == names) == (reading == 'numbers')
    assert [(level, 'frame_order' in text, str(path) in text) for text, level in said] == [
        (logging.WARNING, True, True)
    ] * told


@pytest.mark.parametrize(
    ('names', 'numbers', 'are_numbered'),
    [(['8', '9', '11'], [8, 9, 11], True), (['20240131_235959', '20240201_000000'], [0, 1], False)],
)
def test_names_have_numbers_or_places(folder, names, numbers, are_numbered):
    paths, *found = frame_names.sort_frames([*folder(names).iterdir()])
    assert [path.stem for path in paths] == names
    assert found == [numbers, are_numbered]


def test_without_natsort_the_extra_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, 'natsort', None)
    with pytest.raises(ImportError, match=r'natsort.*mmattn\[video\]'):
        find_files(path := folder(['1', '2']), path / 'none', None, Faults())


def test_no_frames_are_no_names():
    assert frame_names.sort_frames([]) == ([], [], False)


def test_an_unknown_reading(folder):
    path = folder(['1', '2'])
    with pytest.raises(ValueError, match=r'frame_order must be one of .*numbers.*text.*; got .number.'):
        find_files(path, path / 'none', 'number', Faults())
