"""The loader of images with any number of channels, and transforms of 8-bit colours behind it."""

import random
from types import SimpleNamespace

import numpy as np
from PIL import Image

from mmattn.data_check.colours import colour_faults
from mmattn.data_check.data_sets import Part
from mmattn.data_check.images import look
from mmattn.data_check.masks import image_file
from mmattn.registry import TRANSFORMS
from mmattn.segmentation.load_channels import LoadChannels


def test_an_image_is_inspected_as_it_is_loaded(tmp_path):
    """Width comes before height. A png of three channels is not one of four, and an array is no image of mmcv."""
    np.save(tmp_path / 'a.npy', np.zeros((5, 6, 4)))
    Image.new('RGB', (6, 5)).save(tmp_path / 'b.png')
    usual = TRANSFORMS.build(dict(type='mmcv.LoadImageFromFile', imdecode_backend='pillow', color_type='grayscale'))
    assert look(image_file(str(tmp_path / 'a.npy'), LoadChannels(4))).size == (6, 5)
    assert '4 channels' in look(image_file(str(tmp_path / 'a.npy'), LoadChannels(3))).fault
    assert '3 channels' in look(image_file(str(tmp_path / 'b.png'), LoadChannels(4))).fault
    file = image_file(str(tmp_path / 'b.png'), usual)
    assert file == (str(tmp_path / 'b.png'), 'pillow', 'grayscale', False)
    assert (look(file).size, look(file).fault) == ((6, 5), '')
    assert look(image_file(str(tmp_path / 'a.npy'), usual)).fault


class Turns:
    """Turns the image, whose labels have its size, and draws random numbers."""

    def __call__(self, sample):
        random.random()
        np.random.random()
        height, width = sample['img_shape']
        assert sample['ori_shape'] == sample['gt_seg_map'].shape == sample['img'].shape[:2] == (height, width)
        assert sample['gt_seg_map'].dtype == np.uint8
        return dict(sample, img=sample['img'].swapaxes(0, 1))


class Clips:
    """Clips values, as it is called the last of several times."""

    def __init__(self, most, last):
        self.most, self.last = most, last

    def __call__(self, sample):
        self.last -= 1
        return dict(sample, img=sample['img'] if self.last else np.minimum(sample['img'], self.most))


class Fails:
    def __init__(self, error):
        self.error = error

    def __call__(self, sample):
        raise self.error


class Empties:
    def __call__(self, sample):
        return dict(sample, img=sample['img'][:0])


def part(name, *transforms):
    return Part(name, SimpleNamespace(pipeline=SimpleNamespace(transforms=transforms)), [])


def test_transforms_that_spoil_other_images_are_named():
    """Clipping that happens by chance is found within eight tries; other maxima are a matter of the transform."""
    random.seed(0)
    np.random.seed(0)
    states = random.getstate(), np.random.get_state()[1].copy()
    loader = LoadChannels(4)
    found = [
        *colour_faults(
            [
                part('usual', Clips(255, 1), Fails(ValueError('in no check'))),
                part('first', loader, Turns(), Clips(255, 8), Fails(KeyError('img_path')), Clips(255, 9)),
                part('second', Turns(), loader, Clips(256, 1), Empties(), Fails(ValueError('two\nlines'))),
                Part('none', SimpleNamespace(pipeline=None), []),
            ]
        )
    ]
    assert [where for where, _ in found] == ['first.pipeline', 'second.pipeline']
    assert found[0][1].startswith('Clips ')
    assert '255' in found[0][1]
    assert found[1][1].startswith('Fails ')
    assert ' 4 channels: two lines' in found[1][1]
    assert random.getstate() == states[0]
    assert (np.random.get_state()[1] == states[1]).all()
