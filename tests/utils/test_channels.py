"""Which reader a file has, the axes of TIFFs and arrays, and the statistics and the picture of other channels."""

import sys
from contextlib import nullcontext
from itertools import product
from types import SimpleNamespace
from zlib import crc32

import cv2
import numpy as np
import pytest
from PIL import Image

from common.channel_statistics import measure_channels
from mmattn.utils.channels import as_picture, is_plain_picture, loaded_picture, read_channels, without_data
from mmattn.utils.faults import FaultsError

from ..requirements import requires


@pytest.mark.parametrize('name', ['a.tif', 'a.TIFF'])
def test_a_tiff_requires_tifffile(tmp_path, monkeypatch, name):
    """OpenCV would open this one."""
    Image.new('RGB', (3, 2)).save(tmp_path / name, format='TIFF')
    monkeypatch.setitem(sys.modules, 'tifffile', None)
    with pytest.raises(ImportError, match=rf'{name}.*pip install tifffile'):
        read_channels(tmp_path / name)


def test_a_compression_that_tifffile_cannot_read_names_the_package(tmp_path, monkeypatch):
    """With a stand-in for tifffile, which says so in a ValueError."""

    def asarray():
        raise ValueError("<COMPRESSION.LZW: 5> requires the 'imagecodecs' package")

    series = SimpleNamespace(axes='YX', asarray=asarray)
    package = SimpleNamespace(TiffFile=lambda path: nullcontext(SimpleNamespace(series=[series])))
    monkeypatch.setitem(sys.modules, 'tifffile', package)
    (tmp_path / 'a.tif').touch()
    with pytest.raises(ImportError, match=r'a\.tif.*pip install imagecodecs'):
        read_channels(tmp_path / 'a.tif')


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
    (tmp_path / 'a.tif').touch()
    if order is None:
        with pytest.raises(ValueError, match=rf'a\.tif: .* {axes} of \({shape[0]}, '):
            read_channels(tmp_path / 'a.tif')
        return
    expected = stored.transpose(order)
    np.testing.assert_array_equal(read_channels(tmp_path / 'a.tif'), expected.reshape(5, 6, -1))


def write_bands(planar):
    def write(path, pixels):
        import tifffile

        stored = pixels if planar == 'contig' else np.moveaxis(pixels, -1, 0)
        tifffile.imwrite(path, stored, photometric='minisblack', planarconfig=planar)

    return write


def write_png(path, pixels):
    """By OpenCV, which stores blue first in memory, and red first in the file."""
    cv2.imwrite(str(path), pixels if pixels.shape[2] == 1 else pixels[..., [2, 1, 0, 3][: pixels.shape[2]]])


def write_npy(path, pixels):
    with open(path, 'wb') as file:  # np.save would append a suffix to a.NPY
        np.save(file, pixels)


BYTES, ALL = (np.uint8, np.uint16), (np.uint8, np.uint16, np.float32)


@pytest.mark.parametrize(
    ('name', 'write', 'numbers', 'dtypes'),
    [
        ('a.npy', write_npy, (1, 2, 3, 4, 7), ALL),
        ('a.NPY', lambda path, pixels: write_npy(path, np.moveaxis(pixels, -1, 0)), (1, 2, 3, 4, 7), ALL),
        ('a.png', write_png, (1, 3, 4), BYTES),
        ('a.PNG', write_png, (1, 3, 4), BYTES),
        pytest.param('a.tif', write_bands('contig'), (2, 3, 4, 8), ALL, marks=requires('tifffile')),
        pytest.param('a.TIFF', write_bands('separate'), (2, 3, 4, 8), ALL, marks=requires('tifffile')),
    ],
)
def test_channels_and_values_are_those_of_the_file(tmp_path, name, write, numbers, dtypes):
    path = tmp_path / name
    for channels, dtype in product(numbers, dtypes):
        pixels = (np.random.default_rng(0).random((16, 12, channels)) * 250).astype(dtype)
        write(path, pixels)
        found = read_channels(path, channels)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, pixels)
        assert is_plain_picture(path) == (write is write_png and dtype == np.uint8)


@pytest.mark.parametrize(
    ('mode', 'number', 'written'),
    [
        ('RGB', 7, '7'),
        ('L', 0, '0 '),
        ('F', -9999.0, '-9999'),
        ('F', np.nan, 'nan'),
        ('F', -3.4028235e38, '-3.4028234663852886e+38'),
    ],
)
def test_pixels_of_a_geotiff_without_data(tmp_path, monkeypatch, mode, number, written):
    """They are marked, and 0 as channels, and no part of the statistics."""
    series = SimpleNamespace(axes='YXS' if mode == 'RGB' else 'YX')
    series.asarray = lambda: np.array(Image.open(tmp_path / 'a.tif'))
    package = SimpleNamespace(TiffFile=lambda path: nullcontext(SimpleNamespace(series=[series])))
    monkeypatch.setitem(sys.modules, 'tifffile', package)
    pixels = np.full((5, 6, *[3] * (mode == 'RGB')), 9, np.float32 if mode == 'F' else np.uint8)
    pixels[1, 2:4] = number
    pixels[3, 3, ...] = 11
    if mode == 'RGB':
        pixels[4, 4, 0] = number  # one channel of three
    Image.fromarray(pixels).save(tmp_path / 'a.tif')
    assert without_data(tmp_path / 'a.tif') is None
    Image.fromarray(pixels).save(tmp_path / 'a.tif', tiffinfo={42113: written})
    assert np.argwhere(without_data(tmp_path / 'a.tif')).tolist() == [[1, 2], [1, 3]]
    read = read_channels(tmp_path / 'a.tif')
    assert read[1, 2:4].tolist() == np.zeros((2, read.shape[2])).tolist()
    mean, deviation = measure_channels([tmp_path / 'a.tif'])
    counted = pixels.reshape(30, -1)[np.r_[:8, 10:30]].astype(float)
    assert mean == pytest.approx(counted.mean(0), rel=1e-5)
    assert deviation == pytest.approx(counted.std(0), rel=1e-4)


@pytest.mark.parametrize(
    ('shape', 'channels', 'read'),
    [
        ((5, 6), None, (5, 6, 1)),
        ((5, 6), 1, (5, 6, 1)),
        ((4, 5, 6), None, (5, 6, 4)),
        ((6, 6, 20), None, (6, 6, 20)),
        ((5, 6, 2), None, (5, 6, 2)),
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
    ('pixels', 'channels', 'said'),
    [
        (np.zeros((0, 6)), 3, r'\(0, 6\).*float64'),
        (np.zeros(6), 3, r'\(6,\)'),
        (np.zeros((2, 5, 6, 4)), 4, r'\(2, 5, 6, 4\)'),
        (np.array([['a']]), 3, '<U1'),
        (np.zeros((5, 6, 4), complex), 4, 'complex128'),
        (np.array([[1, np.inf], [np.nan, -np.inf]]), None, '3 '),
        (np.zeros((5, 6)), 3, '1 .* 3'),
        (None, 3, ''),  # no picture
    ],
)
def test_what_is_no_image_of_these_channels_is_named(tmp_path, pixels, channels, said):
    path = tmp_path / ('a.npy' if pixels is not None else 'a.png')
    path.write_bytes(b'no picture') if pixels is None else np.save(path, pixels)
    with pytest.raises(ValueError, match=rf'{path}.*{said}'):
        read_channels(path, channels)


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


def test_pictures_of_8_bits_are_plain_whatever_their_size(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (40, 720, 3), np.uint8)
    for side, (suffix, options) in product(range(1, 40), (('.bmp', {}), ('.tif', dict(compression='tiff_lzw')))):
        Image.fromarray(pixels[:side]).save(tmp_path / f'a{suffix}', **options)
        assert is_plain_picture(tmp_path / f'a{suffix}'), (suffix, side)


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
    np.save(tmp_path / 'c.npy', first[..., :3])
    with pytest.raises(ValueError, match=r'c\.npy'):
        measure_channels([tmp_path / 'a.npy', tmp_path / 'c.npy'])


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
