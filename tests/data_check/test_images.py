"""The decoders' own idea of size and label, and files that are damaged."""

import struct

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
    """Space may be reserved, but never filled. Bytes behind the end, as some cameras leave them, do no harm."""
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    path = tmp_path / f'image.{suffix}'
    write(path, noise)
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(20) * (suffix in ('jpg', 'png')))
    files = [image_files.ImageFile(str(path), 'cv2', 'color'), image_files.ImageFile(str(path), 'pillow', 'color')]
    assert [image_files.look(file)[::2] for file in files] == [((64, 64), '')] * 2
    path.write_bytes(whole)
    cut(path, share)
    assert all(image_files.look(file).fault.startswith('unreadable: ') for file in files)
    path.write_bytes(path.read_bytes().ljust(len(whole), b'\0'))
    if suffix in ('jpg', 'png'):
        assert all(image_files.look(file).fault.startswith('unreadable: ') for file in files)


@pytest.mark.parametrize('backend', ['cv2', 'pillow'])
def test_labels_of_masks(tmp_path, backend):
    """Grey values, one bit, and indices of a palette."""
    labels = np.random.default_rng(0).integers(0, 2, (64, 64)).astype(bool)
    palette = Image.fromarray(labels.astype(np.uint8) * 5, 'P')
    palette.putpalette([7] * 768)
    masks = {'grey': (Image.fromarray(np.uint8(3 - labels)), (2, 3))}
    if backend == 'pillow':
        masks |= {'bit': (Image.fromarray(labels), (0, 1)), 'palette': (palette, (0, 5))}
    for name, (mask, expected) in masks.items():
        path = tmp_path / f'{name}.png'
        mask.save(path)
        file = image_files.ImageFile(str(path), backend, 'unchanged', is_mask=True)
        assert image_files.look(file) == ((64, 64), expected, '')
        cut(path)
        assert image_files.look(file).fault.startswith('unreadable: ')


@pytest.mark.parametrize(
    ('mode', 'options', 'tags', 'said'),
    [
        ('F', {}, {}, 'a TIFF of 32-bit floating point'),
        ('LAB', {}, {}, 'a TIFF of CIE L'),
        ('RGB', dict(save_all=True, append_images=[Image.new('RGB', (7, 4))]), {}, 'a TIFF of 2 pages'),
        ('RGB', {}, {}, ''),
        ('RGBA', {}, {}, ''),  # transparency
        ('RGBA', {}, {338: (2, 0)}, 'a TIFF of 4 bands, of which loading keeps 3'),  # another, such as infrared
        ('RGBA', {}, {262: (2, 1)}, 'a TIFF of 4 bands, of which loading keeps 1'),  # grey and others, as GDAL writes
        ('RGBA', {}, {262: (2, 5)}, ''),  # CMYK
    ],
)
def test_what_loading_would_change_in_a_tiff_is_a_fault(tmp_path, mode, options, tags, said):
    path = tmp_path / 'image.tif'
    Image.new(mode, (7, 4)).save(path, **options)
    for tag, (before, after) in tags.items():
        entries = [struct.pack('<HHIHH', tag, 3, 1, value, 0) for value in (before, after)]
        assert path.read_bytes().count(entries[0]) == 1
        path.write_bytes(path.read_bytes().replace(*entries))
    fault = image_files.look(image_files.ImageFile(str(path), 'cv2', 'color')).fault
    assert fault.startswith(said)
    assert bool(fault) == bool(said)
