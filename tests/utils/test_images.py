"""Files that are cut short, masks that lossy compression changed, and pictures of more than 8 bits."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageFile, UnidentifiedImageError

from mmattn.utils.images import deep_picture_fault, lossy_mask_fault, open_whole, unreadable

LABELS = np.kron(np.eye(4, dtype=np.uint8) * 3, np.ones((5, 5), np.uint8))


@pytest.mark.parametrize(
    ('suffix', 'options', 'named'),
    [
        ('.jpg', {}, 'JPEG'),
        ('.webp', {}, 'WEBP'),
        ('.webp', dict(lossless=True), 'WEBP'),
        ('.jp2', {}, 'JPEG2000'),
        ('.avif', {}, 'AVIF'),
        ('.tif', dict(compression='jpeg'), 'TIFF (jpeg)'),
        *((suffix, {}, '') for suffix in ('.png', '.bmp', '.gif', '.tif')),
        ('.tif', dict(compression='lzw'), ''),
    ],
)
def test_lossy_masks_are_refused_and_others_hold_their_labels_whatever_their_suffix(tmp_path, suffix, options, named):
    Image.fromarray(LABELS).save(tmp_path / f'mask{suffix}', **options)
    path = (tmp_path / f'mask{suffix}').rename(tmp_path / 'mask.any')
    with Image.open(path) as image:
        fault = lossy_mask_fault(image)
        assert named in fault
        if not named:
            assert fault == ''
            np.testing.assert_array_equal(np.array(image.convert('L')), LABELS)


def test_pictures_that_pil_would_cut_off_are_refused(tmp_path):
    Image.fromarray(np.full((4, 4), 40000, np.uint16)).save(tmp_path / 'deep.png')
    with Image.open(tmp_path / 'deep.png') as image:
        assert np.array(image.convert('RGB')).max() == 255  # what makes the rule necessary: 40000 / 257 is 156
        assert 'this one is of mode I;16' in deep_picture_fault(image)
    for mode in ('1', 'L', 'LA', 'P', 'RGB', 'RGBA', 'CMYK', 'YCbCr'):
        assert deep_picture_fault(Image.new(mode, (2, 2))) == ''


@pytest.mark.parametrize('suffix', ['.png', '.jpg'])
def test_a_whole_file_is_not_decoded_and_one_cut_short_is_an_error(tmp_path, suffix, monkeypatch):
    path = tmp_path / f'a{suffix}'
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(path)
    content = path.read_bytes()
    for cut in (content[:-500], content[:-500] + bytes(500)):  # as after a power failure
        with pytest.raises(OSError, match=r'truncated|zeros|broken'):
            open_whole(BytesIO(cut))
    with pytest.raises(UnidentifiedImageError) as caught:
        open_whole(BytesIO(b'no image'))
    assert unreadable(caught.value).startswith('unreadable: ')
    assert unreadable(OSError('two\n  lines')) == 'unreadable: two lines'
    monkeypatch.setattr(ImageFile.ImageFile, 'load', lambda image: pytest.fail('decoded'))
    assert open_whole(BytesIO(content)).size == (64, 64)
