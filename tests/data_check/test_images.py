"""The decoders' own idea of size and label, and files that are damaged."""

import re
import struct
import sys
import zlib
from functools import partial
from itertools import count
from types import SimpleNamespace

import cv2
import mmcv
import numpy as np
import pytest
from mmcv.transforms import LoadImageFromFile
from PIL import Image, ImageOps

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
    assert facts[:3] == ((image.shape[1], image.shape[0]), (), '')
    is_turned = facts.size == (4, 7)
    assert facts.doubts == (() if suffix == 'bmp' else (image_files.TURNED[is_turned],))


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
    assert [image_files.look(file)[:3] for file in files] == [((64, 64), (), '')] * 2
    path.write_bytes(whole)
    cut(path, share)
    assert all(image_files.look(file).fault.startswith('unreadable: ') for file in files)
    path.write_bytes(path.read_bytes().ljust(len(whole), b'\0'))
    if suffix in ('jpg', 'png'):
        assert all(image_files.look(file).fault.startswith('unreadable: ') for file in files)


@pytest.mark.parametrize(('backend', 'is_mask'), [('cv2', False), ('cv2', True), ('pillow', False), ('pillow', True)])
def test_a_png_with_a_damaged_byte(tmp_path, is_mask, backend):
    """Anywhere: of images, checksums are compared, and masks are decoded."""
    path = tmp_path / 'image.png'
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    write(path, pixels[..., 0] % 3 if is_mask else pixels)
    whole = bytearray(path.read_bytes())
    file = image_files.ImageFile(str(path), backend, 'unchanged' if is_mask else 'color', is_mask)
    assert not image_files.look(file).fault
    for place in (20, 60, len(whole) // 2, len(whole) - 20):
        damaged = whole.copy()
        damaged[place] ^= 8
        path.write_bytes(damaged)
        assert image_files.look(file).fault.startswith('unreadable: '), place


def test_a_png_with_damaged_text_has_all_its_pixels(tmp_path):
    """OpenCV reads it, so it is not a fault."""
    path, pixels = tmp_path / 'image.png', np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    write(path, pixels)
    content, end = path.read_bytes()[:-12], path.read_bytes()[-12:]
    path.write_bytes(content + struct.pack('>I', 3) + b'tEXta\0b' + bytes(4) + end)  # its checksum is not 0
    facts = image_files.look(image_files.ImageFile(str(path), 'cv2', 'color'))
    assert (facts.size, facts.fault) == ((64, 64), '')
    np.testing.assert_array_equal(cv2.imread(str(path)), pixels[..., ::-1])


@pytest.mark.parametrize('width', [54, 100, 540, 720])
@pytest.mark.parametrize('suffix', ['bmp', 'tif'])
def test_8_bits_in_rows_of_any_length(tmp_path, suffix, width):
    """A row of a BMP of 720 pixels has 2160 bytes, which PIL's decoder is told beside the depth."""
    path = tmp_path / f'image.{suffix}'
    write(path, np.full((width // 6, width, 3), 200, np.uint8))
    facts = image_files.look(image_files.ImageFile(str(path), 'cv2', 'color'))
    assert facts[:4] == ((width, width // 6), (), '', ())


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
        counts = tuple(int((np.asarray(mask) == label).sum()) for label in expected)
        assert image_files.look(file) == ((64, 64), expected, '', (), (), counts)
        cut(path)
        assert image_files.look(file).fault.startswith('unreadable: ')


@pytest.mark.parametrize(
    ('mode', 'options', 'tags', 'said'),
    [
        ('F', {}, {}, '32-bit'),
        ('LAB', {}, {}, 'CIE'),
        ('RGB', dict(save_all=True, append_images=[Image.new('RGB', (7, 4))]), {}, '2 pages'),
        ('RGB', {}, {}, ''),
        ('RGBA', {}, {}, ''),  # transparency
        ('RGBA', {}, {338: (2, 0)}, '4 bands, of which loading keeps 3'),  # another, such as infrared
        ('RGBA', {}, {262: (2, 1)}, '4 bands, of which loading keeps 1'),  # grey and others, as GDAL writes
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
    assert said in fault
    assert bool(fault) == bool(said)


@pytest.mark.parametrize(
    ('mode', 'options'),
    [
        ('CMYK', dict(format='JPEG')),
        ('RGB', dict(format='JPEG', progressive=True)),
        ('RGB', dict(format='WEBP', lossless=True)),
        ('LA', {}),
        ('P', {}),
    ],
)
def test_images_of_any_kind_pass_whatever_their_suffix(tmp_path, mode, options):
    Image.new(mode, (7, 4)).save(tmp_path / 'image.png', **options)
    file = image_files.ImageFile(str(tmp_path / 'image.png'), 'cv2', 'color')
    assert image_files.look(file)[:3] == ((7, 4), (), '')


def test_an_image_that_opencv_alone_reads(tmp_path):
    path = tmp_path / 'image.hdr'
    cv2.imwrite(str(path), np.ones((4, 7, 3), np.float32))
    file = image_files.ImageFile(str(path), 'cv2', 'color')
    assert image_files.look(file)[:3] == ((7, 4), (), '')
    path.write_bytes(b'no image')
    assert 'cv2' in image_files.look(file).fault


@pytest.mark.parametrize('orientation', [2, 6, 8])
def test_decoders_that_turn_an_image_of_another_format(tmp_path, monkeypatch, orientation):
    """Whether they do differs between versions of OpenCV: the pixels tell."""
    exif, path = Image.Exif(), tmp_path / 'image.tif'
    exif[image_files.ORIENTATION] = orientation
    pixels = np.arange(4 * 7, dtype=np.uint8).reshape(4, 7, 1).repeat(3, 2) * 9
    write(path, pixels, exif=exif)
    with Image.open(path) as image:
        turned = np.asarray(ImageOps.exif_transpose(image))
    for shown, is_turned in ((pixels, False), (turned, True), (turned[..., 0], True)):
        monkeypatch.setattr(mmcv, 'imread', lambda *_, shown=shown, **options: shown)
        facts = image_files.look(image_files.ImageFile(str(path), 'cv2', 'color'))
        assert (facts.size, facts.fault) == ((shown.shape[1], shown.shape[0]), '')
        assert facts.doubts == (image_files.TURNED[is_turned],)


def black_png(path, width, height):
    """Write a grey PNG without holding it in memory."""

    def chunk(name, data):
        return struct.pack('>I', len(data)) + name + data + struct.pack('>I', zlib.crc32(name + data))

    compressor = zlib.compressobj(1)
    row = bytes(width + 1)
    data = b''.join(compressor.compress(row) for _ in range(height)) + compressor.flush()
    header = struct.pack('>IIBBBBB', width, height, 8, 0, 0, 0, 0)
    path.write_bytes(b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header) + chunk(b'IDAT', data) + chunk(b'IEND', b''))


def test_images_of_the_size_that_their_decoder_reads(tmp_path, monkeypatch):
    """The limits of PIL and OpenCV, here 200 and 400 pixels, for images and masks."""
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 100)  # an error above twice as many
    monkeypatch.setattr('mmattn.utils.images.MAX_PIXELS', 400)
    path = tmp_path / 'image.png'
    for width, height in ((10, 20), (10, 21), (20, 20), (20, 21)):
        black_png(path, width, height)
        for backend, limit in (('cv2', 400), ('pillow', 200)):
            for is_mask in (False, True):
                file = image_files.ImageFile(str(path), backend, 'unchanged', is_mask)
                size, _, fault, *_ = image_files.look(file)
                if width * height <= limit:
                    assert (size, fault) == ((width, height), '')
                    assert mmcv.imread(str(path), 'unchanged', backend=backend).shape == (height, width)
                else:
                    assert 'crop it' in fault
                    assert f'{width * height} pixels' in fault or f'{width}×{height} pixels' in fault
                    assert ("imdecode_backend='cv2'" in fault) == (width * height <= 400)
    assert Image.MAX_IMAGE_PIXELS == 100


def test_a_long_inspection_shows_how_far_it_is(tmp_path, monkeypatch, capsys):
    """After more than two seconds, and then more than a second apart."""
    for i in range(6):
        write(tmp_path / f'{i}.png', np.zeros((2, 2), np.uint8))
    files = [image_files.ImageFile(str(tmp_path / f'{i}.png'), 'cv2', 'color') for i in range(6)]
    monkeypatch.setattr(image_files, 'ProgressBar', partial(image_files.ProgressBar, file=sys.stdout))
    for seconds, shown in ((0, []), (1, ['0', '3', '5'])):  # from one look at the clock to the next
        monkeypatch.setattr(image_files, 'time', SimpleNamespace(monotonic=count(0, seconds).__next__))
        facts, inspected = image_files.inspect_files(files, tmp_path / f'{seconds}.json')
        assert [*facts] == files
        assert inspected == 6
        said = capsys.readouterr().out
        assert re.findall(r'(\d+)/6', said) == shown
        assert said[-1:] == ('\n' if shown else '')
