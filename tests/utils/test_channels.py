"""Which reader a file has, the axes of TIFFs and arrays, and the statistics and the picture of other channels."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from zlib import crc32

import cv2
import numpy as np
import pytest
from PIL import Image

from common.channel_statistics import measure_channels
from mmattn.utils.channels import as_picture, is_plain_picture, loaded_picture, read_channels
from mmattn.utils.faults import FaultsError


@pytest.mark.parametrize('name', ['a.tif', 'a.TIFF'])
def test_a_tiff_requires_tifffile(tmp_path, monkeypatch, name):
    """OpenCV would open this one."""
    Image.new('RGB', (3, 2)).save(tmp_path / name, format='TIFF')
    monkeypatch.setitem(sys.modules, 'tifffile', None)
    with pytest.raises(ImportError, match=rf'{name}.*pip install tifffile'):
        read_channels(tmp_path / name)


@pytest.mark.parametrize(
    ('axes', 'shape', 'order'),
    [
        ('YX', (5, 6), (0, 1)),
        ('YXS', (5, 6, 4), (0, 1, 2)),
        ('SYX', (4, 5, 6), (1, 2, 0)),
        ('ZYXS', (2, 5, 6, 4), None),
        ('SX', (4, 6), None),
        ('YS', (5, 4), None),
    ],
)
def test_the_axes_of_a_tiff_are_those_that_it_names(tmp_path, monkeypatch, axes, shape, order):
    """With a stand-in for tifffile, which not every machine has. Of two series, the second is a small copy."""
    stored = np.arange(np.prod(shape)).reshape(shape)
    series = [SimpleNamespace(axes=axes, asarray=lambda: stored), SimpleNamespace(axes='YX', asarray=lambda: stored[0])]
    package = SimpleNamespace(TiffFile=lambda path: nullcontext(SimpleNamespace(series=series)))
    monkeypatch.setitem(sys.modules, 'tifffile', package)
    if order is None:
        with pytest.raises(ValueError, match=rf'a\.tif: .* {axes} of \({shape[0]}, '):
            read_channels(tmp_path / 'a.tif')
        return
    expected = stored.transpose(order)
    np.testing.assert_array_equal(read_channels(tmp_path / 'a.tif'), expected.reshape(5, 6, -1))


def test_other_suffixes_are_read_by_opencv_with_red_first(tmp_path):
    pixels = np.arange(2 * 3 * 4, dtype=np.uint16).reshape(2, 3, 4) * 1000
    cv2.imwrite(str(tmp_path / 'a.PNG'), pixels[..., [2, 1, 0, 3]])
    np.testing.assert_array_equal(read_channels(tmp_path / 'a.PNG'), pixels)
    np.save(tmp_path / 'a.npy', pixels)
    (tmp_path / 'a.npy').rename(tmp_path / 'a.NPY')
    np.testing.assert_array_equal(read_channels(tmp_path / 'a.NPY', 4), pixels)
    (tmp_path / 'b.png').write_bytes(b'no picture')
    with pytest.raises(ValueError, match=r'b\.png'):
        read_channels(tmp_path / 'b.png')


@pytest.mark.parametrize(
    ('shape', 'channels', 'read'),
    [
        ((5, 6), None, (5, 6, 1)),
        ((5, 6), 1, (5, 6, 1)),
        ((4, 5, 6), None, (5, 6, 4)),
        ((5, 5, 6), None, (5, 5, 6)),  # the first axis is not the shortest
        ((6, 7, 5), 6, (7, 5, 6)),
        ((6, 7, 6), 6, (6, 7, 6)),
        ((2, 5, 6), 6, (2, 5, 6)),
    ],
)
def test_the_axis_of_channels_of_an_array(tmp_path, shape, channels, read):
    """It is the last one, unless only the first one has the number of channels, or is the shortest if none is given."""
    stored = np.arange(np.prod(shape)).reshape(shape)
    np.save(tmp_path / 'a.npy', stored)
    found = read_channels(tmp_path / 'a.npy', channels)
    expected = stored.transpose(1, 2, 0) if read[2] == shape[0] != shape[2] else stored
    np.testing.assert_array_equal(found, expected.reshape(read))


@pytest.mark.parametrize(
    ('pixels', 'said'),
    [
        (np.zeros((0, 6)), r'\(0, 6\) of float64'),
        (np.zeros(6), r'\(6,\)'),
        (np.array([['a']]), '<U1'),
        (np.array([[1, np.inf], [np.nan, -np.inf]]), '3 values'),
        (np.zeros((5, 6)), '1 channels.* 3'),
    ],
)
def test_what_is_no_image_of_three_channels(tmp_path, pixels, said):
    np.save(tmp_path / 'a.npy', pixels)
    with pytest.raises(ValueError, match=rf'a\.npy: .*{said}' if 'values' not in said else rf'a\.npy: {said}'):
        read_channels(tmp_path / 'a.npy', None if 'values' in said else 3)


@pytest.mark.parametrize(
    ('name', 'mode', 'plain'),
    [
        ('a.png', 'L', True),
        ('a.png', 'RGB', True),
        ('a.png', 'RGBA', True),
        ('a.tif', 'RGB', True),
        ('a.tif', 'RGBA', True),
        ('a.tif', 'RGBX', False),  # a fourth band that is no alpha
        ('a.png', 'I;16', False),
        ('a.tif', 'F', False),
        ('a.npy', None, False),
        ('b.tif', None, False),
        ('b.TIFF', None, False),
        ('b.png', None, True),  # what is wrong with it is said by its decoder
    ],
)
def test_a_plain_picture_has_8_bits_and_grey_or_colours(tmp_path, name, mode, plain):
    if mode:
        Image.new(mode, (3, 2)).save(tmp_path / name)
    else:
        (tmp_path / name).write_bytes(b'no picture')
    assert is_plain_picture(tmp_path / name) is plain


def test_a_picture_whose_header_claims_too_many_pixels_is_named(tmp_path):
    Image.new('RGB', (3, 2)).save(tmp_path / 'a.png')
    content = bytearray((tmp_path / 'a.png').read_bytes())
    header = content[12:16] + (2**31 - 1).to_bytes(4, 'big') + content[20:29]
    (tmp_path / 'a.png').write_bytes(content[:12] + header + crc32(header).to_bytes(4, 'big') + content[33:])
    with pytest.raises(FaultsError, match=r'a\.png.* pixels') as caught:
        is_plain_picture(tmp_path / 'a.png')
    assert {*caught.value.by_path} == {str(tmp_path / 'a.png')}


def test_statistics_are_over_all_pixels_of_all_images(tmp_path):
    """Images count by their pixels. A channel with one value has deviation 1, also if the value is large or 0."""
    first = np.stack([np.arange(6.0), np.full(6, 5e4 / 3), np.zeros(6), np.arange(6) * 1e-3], -1).reshape(3, 2, 4)
    second = np.stack([[10.0], [5e4 / 3], [0.0], [0.01]], -1).reshape(1, 1, 4)
    for name, pixels in (('a.npy', first), ('b.npy', second)):
        np.save(tmp_path / name, pixels)
    mean, std = measure_channels([tmp_path / 'a.npy', tmp_path / 'b.npy'])
    assert mean == pytest.approx([25 / 7, 5e4 / 3, 0, 25e-3 / 7], rel=1e-5)
    deviation = (155 / 7 - (25 / 7) ** 2) ** 0.5
    assert std == pytest.approx([deviation, 1, 1, deviation / 1e3], rel=1e-5)
    assert mean[1] == 16666.7  # six digits


def test_a_picture_is_stretched_by_channel_between_percentiles():
    """From the 2nd (2, 20, 200) to the 98th (98, 980, 9800); the fourth channel is not shown."""
    ramp = np.arange(101, dtype=np.uint16)
    pixels = np.stack([ramp, 10 * ramp, 100 * ramp[::-1], 0 * ramp], -1)[None]
    grey = np.clip(np.rint((np.arange(101) - 2) / 96 * 255), 0, 255)
    np.testing.assert_array_equal(as_picture(pixels)[0], np.stack([grey, grey, grey[::-1]], -1))
    np.testing.assert_array_equal(as_picture(pixels[..., :3]), as_picture(pixels))
    np.testing.assert_array_equal(as_picture(pixels[..., :2])[0], np.stack([grey] * 3, -1))
    assert not as_picture(pixels[..., 3:]).any()  # one value
    bytes_ = np.arange(8, dtype=np.uint8).reshape(1, 2, 4)
    np.testing.assert_array_equal(as_picture(bytes_), bytes_[..., :3])
    np.testing.assert_array_equal(as_picture(bytes_[..., :2]), bytes_[..., [0, 0, 0]])
    np.testing.assert_array_equal(as_picture(bytes_ > 3), 255 * np.uint8(bytes_[..., :3] > 3))


def test_a_loaded_image_has_the_colours_of_its_file(tmp_path):
    """Grey, colours, alpha, and 16 bits, as OpenCV reads them. It is not mirrored."""
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 4), np.uint8)
    for mode, channels in (('L', 0), ('RGB', slice(3)), ('RGBA', slice(4))):
        Image.fromarray(pixels[..., channels], mode).save(tmp_path / 'a.png')
        loaded = cv2.imread(str(tmp_path / 'a.png'), cv2.IMREAD_UNCHANGED)
        expected = pixels[..., [0, 0, 0]] if mode == 'L' else pixels[..., :3]
        for kind in (np.uint8, np.float32):  # to_float32
            np.testing.assert_array_equal(loaded_picture(loaded.astype(kind)), expected)
    deep = pixels[..., :3].astype(np.uint16) * 257
    for other in (deep, deep.astype(np.float32), pixels[..., :3] / np.float32(256), pixels[..., :3] - np.float32(1)):
        np.testing.assert_array_equal(loaded_picture(other[..., ::-1]), as_picture(other))
