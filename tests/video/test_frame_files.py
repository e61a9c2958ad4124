"""The order and the numbers of frames, from their names."""

import logging

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
    'another suffix': (['9.rgb', '10.rgb', '11.rgb'], [0, 1, 2]),
    'in brackets': (['img (1)', 'img (2)', 'img (10)'], [0, 1, 9]),
    'a camera that does not vary': (['cam2_9', 'cam2_10', 'cam2_11'], [0, 1, 2]),
    'a date and a time': (['20240131_235959', '20240201_000000', '20240201_000001'], [0, 1, 2]),
    'a time with minutes': (['cam_12-00-58', 'cam_12-00-59', 'cam_12-01-00'], [0, 1, 2]),
    'seconds and nanoseconds': (['1305031102.9', '1305031102.10', '1305031103.2'], [0, 1, 2]),
    'decimals': (['t0.04', 't0.08', 't0.12', 't0.16', 't0.2', 't0.24'], [0, 1, 2, 3, 4, 5]),
    'decimals with a gap': (['t0.04', 't0.08', 't0.16'], [0, 1, 3]),
    'decimals in irregular steps': (['t0.04', 't0.15', 't0.29'], [0, 1, 2]),
    'decimals that end in 0': (['1.0', '1.25', '1.5'], [0, 1, 2]),
    'decimals in unequal steps': (['0.0371', '0.15', '0.2894', '1e1'], [0, 1, 2, 3]),
    'sections, of which one is lost': (['c1.7', 'c1.9', 'c1.11', 'c1.15'], [0, 2, 4, 8]),
    'decimals without a point': (['0_08', '0_12', '0_16', '0_2'], [0, 1, 2, 3]),
    'grouped digits': (['998', '999', '1,000', '1,001'], [0, 1, 2, 3]),
    'letters': (['x', 'y', 'z', 'aa', 'ab'], [0, 1, 2, 3, 4]),
    'hexadecimal': (['f_09', 'f_0a', 'f_0f', 'f_10'], [0, 1, 6, 7]),
    'a sign': (['f_-1', 'f_0', 'f_1'], [0, 1, 2]),
    'a sign behind a letter': (['T-2', 'T-1', 'T+0', 'T+1'], [0, 1, 2, 3]),
    'case and marks': (['Frame_1', 'FRAME-2', 'frame 10'], [0, 1, 9]),
    'days first': (['31-01-2024', '01-02-2024', '02-02-2024'], [0, 1, 2]),
    'months first': (['01-31-2024', '02-01-2024', '02-02-2024'], [0, 1, 2]),
    'names of months': (['5 jan', '5 feb', '5 may'], [0, 1, 4]),
    'a clock of 12 hours': (['11-59 am', '12-00 pm', '1-00 pm'], [0, 1, 2]),
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


def test_an_option_chooses_where_names_can_be_read_in_two_ways(folder, monkeypatch):
    said = []
    monkeypatch.setattr(frame_names, 'print_log', lambda text, *_: said.append(text))
    names = ['1.5', '1.25', '1.75', '2.5']
    path = folder(names)

    def order(reading):
        return [path.stem for path in find_files(path, path / 'none', reading, Faults())[0]]

    assert order(None) == order('decimals') == sorted(names)
    assert order('numbers') == names
    (text,) = said
    assert '1.25.png, 1.5.png, 1.75.png, 2.5.png. They could also be read as numbers' in text


@pytest.mark.parametrize(
    ('names', 'numbers', 'are_numbered'),
    [
        (['8', '9', '11'], [8, 9, 11], True),
        (['t1.04', 't1.08', 't1.16'], [0, 1, 3], False),  # steps of 0.04
        (['t0.04', 't0.15', 't0.29'], [0, 1, 2], False),
        (['20240131_235959', '20240201_000000', '20240201_000001'], [0, 1, 2], False),
    ],
)
def test_names_have_numbers_or_places(folder, names, numbers, are_numbered):
    paths, *found = frame_names.sort_frames([*folder(names).iterdir()])
    assert [path.stem for path in paths] == names
    assert found == [numbers, are_numbered]


@pytest.mark.parametrize(
    ('names', 'level'),
    [
        (['30Mai2024', '01Juni2024'], logging.WARNING),  # sorted as text
        (['first', 'second', 'third'], logging.WARNING),
        (['20240131_235959', '20240201_000000'], logging.INFO),
        (['29may2024', '30may2024', '31may2024', '01jun2024'], logging.INFO),
        (['3', '4'], None),
    ],
)
def test_an_order_by_words_is_a_warning(folder, names, level, monkeypatch):
    levels = []
    monkeypatch.setattr(frame_names, 'print_log', lambda text, logger, level: levels.append(level))
    frame_names.sort_frames([*folder(names).iterdir()])
    assert levels == ([] if level is None else [level])


def test_no_frames_are_no_names():
    assert frame_names.sort_frames([]) == ([], [], False)


def test_an_unknown_reading(folder):
    path = folder(['1', '2'])
    with pytest.raises(ValueError, match=r'frame_order must be one of day first, .*numbers.*text; got .number.'):
        find_files(path, path / 'none', 'number', Faults())
    with pytest.raises(ValueError, match=r"frame_order='letters': the names cannot be read so, such as 1\.png"):
        find_files(path, path / 'none', 'letters', Faults())
