"""The decoders' own idea of size and label, and files that are damaged."""

import struct

import cv2
import numpy as np
import pytest
from mmcv.transforms import LoadImageFromFile
from PIL import Image

from mmattn.data_check import images as image_files

from .image_folders import cut, write


@pytest.mark.parametrize('flag', ['color', 'unchanged', 'color_ignore_orientation'])
@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
@pytest.mark.parametrize('suffix', ['jpg', 'png', 'bmp', 'tif', 'webp'])
def test_the_size_is_that_of_the_loaded_image(tmp_path, suffix, backend, flag):
    """For photographs that were taken upright, too."""
    exif = Image.Exif()
    exif[image_files.ORIENTATION] = 6
    path = tmp_path / f'image.{suffix}'
    write(path, np.zeros((4, 7, 3), np.uint8), **({} if suffix == 'bmp' else dict(exif=exif)))
    image = LoadImageFromFile(color_type=flag, imdecode_backend=backend)(dict(img_path=str(path)))['img']
    facts = image_files.look(image_files.ImageFile(str(path), backend, flag))
    assert facts == ((image.shape[1], image.shape[0]), (), '')


@pytest.mark.parametrize('suffix', ['jpg', 'png', 'bmp', 'tif', 'webp', 'gif'])
@pytest.mark.parametrize('share', [0.2, 0.6, 0.98])
def test_files_that_are_cut_short(tmp_path, suffix, share):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    path = tmp_path / f'image.{suffix}'
    write(path, noise)
    whole = path.stat().st_size
    files = [image_files.ImageFile(str(path), 'cv2', 'color'), image_files.ImageFile(str(path), 'pillow', 'color')]
    assert [image_files.look(file).fault for file in files] == ['', '']
    cut(path, share)
    assert path.stat().st_size < whole
    assert all(image_files.look(file).fault.startswith('unreadable: ') for file in files)
    path.write_bytes(path.read_bytes() + bytes(whole - path.stat().st_size))  # space was reserved, but never filled
    if suffix in ('jpg', 'png'):
        assert all(image_files.look(file).fault.startswith('unreadable: ') for file in files)


@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
def test_masks_that_are_cut_short_whatever_decodes_them(tmp_path, backend):
    path = tmp_path / 'mask.png'
    write(path, np.random.default_rng(0).integers(0, 3, (64, 64)).astype(np.uint8))
    file = image_files.ImageFile(str(path), backend, 'unchanged', is_mask=True)
    assert image_files.look(file) == ((64, 64), (0, 1, 2), '')
    cut(path)
    assert image_files.look(file).fault.startswith('unreadable: ')


def test_bytes_behind_the_end_do_no_harm(tmp_path):
    """As some cameras leave them."""
    for suffix in ('jpg', 'png'):
        path = tmp_path / f'image.{suffix}'
        write(path, np.zeros((4, 7, 3), np.uint8))
        path.write_bytes(path.read_bytes() + b'\0' * 20)
        assert cv2.imread(str(path)) is not None
        assert image_files.look(image_files.ImageFile(str(path), 'cv2', 'color')) == ((7, 4), (), '')


def test_masks_of_one_bit_and_with_a_palette(tmp_path):
    labels = np.random.default_rng(0).integers(0, 2, (5, 9)).astype(bool)
    Image.fromarray(labels).save(tmp_path / 'bit.png')
    palette = Image.fromarray(labels.astype(np.uint8) * 5, 'P')
    palette.putpalette([7] * 768)
    palette.save(tmp_path / 'palette.png')
    for name, expected in (('bit', (0, 1)), ('palette', (0, 5))):
        file = image_files.ImageFile(str(tmp_path / f'{name}.png'), 'pillow', 'unchanged', is_mask=True)
        assert image_files.look(file) == ((9, 5), expected, '')


@pytest.mark.parametrize(
    ('mode', 'options', 'said'),
    [
        ('F', {}, 'a TIFF of 32-bit floating point'),
        ('LAB', {}, 'a TIFF of CIE L'),
        ('RGB', dict(save_all=True, append_images=[Image.new('RGB', (7, 4))]), 'a TIFF of 2 pages, of which only'),
        ('RGB', {}, ''),
    ],
)
def test_what_loading_would_change_in_a_tiff_is_a_fault(tmp_path, mode, options, said):
    Image.new(mode, (7, 4)).save(tmp_path / 'image.tif', **options)
    fault = image_files.look(image_files.ImageFile(str(tmp_path / 'image.tif'), 'cv2', 'color')).fault
    assert fault.startswith(said)
    assert bool(fault) == bool(said)


@pytest.mark.parametrize(
    ('tags', 'said'),
    [
        ({}, ''),  # transparency
        ({338: (2, 0)}, 'a TIFF of 4 bands, of which loading keeps 3'),  # another band, such as infrared
        ({262: (2, 1)}, 'a TIFF of 4 bands, of which loading keeps 1'),  # grey and three others, as GDAL writes bands
        ({262: (2, 5)}, ''),  # CMYK
    ],
)
def test_bands_of_a_tiff_that_would_be_dropped_are_a_fault(tmp_path, tags, said):
    path = tmp_path / 'image.tif'
    Image.new('RGBA', (7, 4)).save(path)
    for tag, (before, after) in tags.items():
        entries = [struct.pack('<HHIHH', tag, 3, 1, value, 0) for value in (before, after)]
        assert path.read_bytes().count(entries[0]) == 1
        path.write_bytes(path.read_bytes().replace(*entries))
    fault = image_files.look(image_files.ImageFile(str(path), 'cv2', 'color')).fault
    assert fault.startswith(said)
    assert bool(fault) == bool(said)
