"""Ids survive from file to file, whatever the image's mode."""

import numpy as np
import pytest
from PIL import Image

from mmattn.video.frame_files import read_frame
from mmattn.video.masks import PALETTE, keep_objects, object_ids, read_mask, write_mask


@pytest.mark.parametrize('ids', [(), (1, 5), (254,), tuple(range(1, 255))])
@pytest.mark.parametrize('dtype', [np.uint8, np.int64])
def test_ids_are_the_same_from_file_to_file(tmp_path, ids, dtype):
    mask = np.resize(np.array([0, *ids], np.uint8), (17, 31))
    write_mask(tmp_path / 'a.png', mask.astype(dtype))
    once = read_mask(tmp_path / 'a.png')
    write_mask(tmp_path / 'b.png', once)
    assert once.dtype == np.uint8
    np.testing.assert_array_equal(once, mask)
    np.testing.assert_array_equal(read_mask(tmp_path / 'b.png'), mask)
    assert object_ids(once) == list(ids)
    assert (tmp_path / 'a.png').read_bytes() == (tmp_path / 'b.png').read_bytes()


def test_colours_are_those_of_davis(tmp_path):
    assert PALETTE[[1, 2, 3, 4, 7, 8, 9, 21]].tolist() == [
        *([128, 0, 0], [0, 128, 0], [128, 128, 0], [0, 0, 128]),
        *([128, 128, 128], [64, 0, 0], [191, 0, 0], [128, 64, 128]),
    ]
    assert len({*map(tuple, PALETTE.tolist())}) == 256
    write_mask(tmp_path / 'm.png', np.array([[0, 5], [1, 255]]))
    with Image.open(tmp_path / 'm.png') as image:
        assert image.mode == 'P'
        assert np.array(image.convert('RGB'))[0, 1].tolist() == [128, 0, 128]


def save(path, mode, values):
    """Not as we would: colours other than DAVIS's, no more bits a pixel than it takes."""
    image = Image.fromarray(np.array(values, {'I;16': np.uint16, '1': bool}.get(mode, np.uint8)))
    if mode == 'P':
        image.putpalette([9, 9, 9, 200, 0, 0] * (2 if np.max(values) < 4 else 128))
    image.save(path)


@pytest.mark.parametrize(
    ('mode', 'values'),
    [('P', [[0, 3, 1]]), ('P', [[0, 200, 5]]), ('L', [[0, 5, 1]]), ('1', [[0, 1, 1]]), ('I;16', [[0, 5, 254]])],
)
def test_indices_and_grey_values_are_the_ids_whatever_the_palette(tmp_path, mode, values):
    save(tmp_path / 'm.png', mode, values)
    assert read_mask(tmp_path / 'm.png').tolist() == values


@pytest.mark.parametrize('mode', ['P', 'L'])
def test_void_is_background_and_in_masks_of_one_object_the_object(tmp_path, mode):
    save(tmp_path / 'm.png', mode, [[0, 2, 255]])
    assert read_mask(tmp_path / 'm.png').tolist() == [[0, 2, 0]]
    assert read_mask(tmp_path / 'm.png', single_object=True).tolist() == [[0, 1, 1]]


def test_ids_above_those_of_8_bits(tmp_path):
    Image.fromarray(np.array([[0, 256], [65535, 0]], np.uint16)).save(tmp_path / 'm.png')
    with pytest.raises(ValueError, match=r'm\.png.*0…255; .* 0…65535'):
        read_mask(tmp_path / 'm.png')
    assert read_mask(tmp_path / 'm.png', single_object=True).tolist() == [[0, 1], [1, 0]]
    with pytest.raises(ValueError, match=r'm\.png: .*8 bits'):  # PIL would make it white
        read_frame(tmp_path / 'm.png')


@pytest.mark.parametrize(
    'ids',
    [np.zeros((2, 3, 1), int), np.zeros((2, 3)), np.full((2, 3), 256), np.full((2, 3), -1), np.zeros((0, 3), int)],
)
def test_what_are_no_ids_is_not_written(tmp_path, ids):
    with pytest.raises(ValueError, match=r'm\.png'):
        write_mask(tmp_path / 'new/m.png', ids)
    assert list(tmp_path.iterdir()) == []


def test_keep_objects():
    mask = np.array([[0, 1, 5, 7, 255]], np.uint8)
    assert keep_objects(mask, [5, 1, 9]).tolist() == [[0, 1, 5, 0, 255]]
    assert mask.tolist() == [[0, 1, 5, 7, 255]]
