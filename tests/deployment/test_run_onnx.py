"""The tool without PyTorch prepares images, and resizes logits, as mmseg does."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.dataset import Compose
from mmengine.registry import init_default_scope
from mmseg.registry import MODELS, TRANSFORMS
from PIL import Image
from torch.nn import functional as F

from mmattn.deployment.metadata import describe_network
from mmattn.deployment.network import LogitsNetwork
from mmattn.utils.images import CLASS_INDICES

from .networks import config, segmentor

PATH = Path(__file__).parents[2] / 'tools' / 'deployment' / 'run_onnx.py'
SPEC = importlib.util.spec_from_file_location('run_onnx_tool', PATH)
runner = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(runner)
ORIENTATION = 0x0112  # of EXIF


@pytest.fixture(scope='module')
def model():
    return segmentor(config('BiCCHead'))


@pytest.fixture
def photograph(tmp_path):
    """A smooth image that its EXIF orientation turns by 90°."""
    y, x = np.mgrid[:90, :133] / 20
    pixels = np.stack([np.sin(x + y), np.cos(x * y), np.sin(2 * x - y)], -1) * 127 + 128
    path = tmp_path / 'photograph.png'
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, exif=exif)
    return path


@pytest.mark.parametrize(
    'resize',
    [
        None,
        dict(scale=(100, 60), keep_ratio=True),
        dict(scale=(512, 2048), keep_ratio=True),
        dict(scale=(75, 50)),
        dict(scale=64, keep_ratio=True),
        dict(scale_factor=1.5, keep_ratio=True),
        dict(scale_factor=(0.5, 1.5)),
        dict(scale_factor=(0.5, 1.5), keep_ratio=True),
    ],
)
@pytest.mark.parametrize(('divisor', 'bgr_to_rgb'), [(None, True), (32, False)])
def test_images_are_prepared_as_in_mmseg(model, photograph, resize, divisor, bgr_to_rgb):
    cfg = config('BiCCHead')
    cfg.model.data_preprocessor.update(bgr_to_rgb=bgr_to_rgb, test_cfg=dict(size_divisor=divisor) if divisor else None)
    cfg.model.data_preprocessor.pad_val = 3
    pipeline = cfg.test_dataloader.dataset.pipeline
    pipeline[1:2] = [] if resize is None else [dict(resize, type='Resize')]
    init_default_scope('mmseg')
    steps = [TRANSFORMS.build(step) for step in pipeline if step['type'] != 'LoadAnnotations']
    item = Compose(steps)(dict(img_path=str(photograph)))
    preprocessor = MODELS.build(cfg.model.data_preprocessor)
    batch = dict(inputs=[item['inputs']], data_samples=[item['data_samples']])
    expected = preprocessor(batch, False)['inputs'].numpy()

    model.data_preprocessor = preprocessor
    about = describe_network(cfg, model)
    found, (height, width) = runner.preprocess(runner.read(photograph), about)
    assert (height, width) == item['data_samples'].img_shape
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    levels = np.abs(found - expected) * np.array([60, 50, 40])[:, None, None]
    assert levels[..., height:, :].sum() == levels[..., width:].sum() == 0  # the padding
    assert levels.max() <= 1.001
    assert levels.mean() < 0.15  # OpenCV truncates when it resizes 8-bit images: by 0.12 levels on average


@pytest.mark.parametrize('align_corners', [False, True])
@pytest.mark.parametrize('size', [(7, 9), (20, 5), (1, 31), (3, 1)])
def test_logits_are_resized_as_in_torch(align_corners, size):
    x = torch.randn(4, 7, 9, generator=torch.Generator().manual_seed(0))
    expected = F.interpolate(x[None], size=size, mode='bilinear', align_corners=align_corners)[0]
    found = runner.resize(x.numpy(), *size, align_corners)
    torch.testing.assert_close(torch.from_numpy(found).float(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize('size', [(150, 170), (64, 200), (70, 90)])
def test_a_window_slides_as_in_mmseg(size):
    cfg = config('BiCCHead')
    cfg.model.test_cfg = dict(mode='slide', crop_size=(64, 96), stride=(40, 96))
    cfg.test_dataloader.dataset.pipeline[1:2] = []
    network = segmentor(cfg)
    about = describe_network(cfg, network)
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    windows = []

    @torch.no_grad()
    def run(outputs, inputs):
        windows.append(inputs['image'].shape[2:])
        return [LogitsNetwork(network).eval()(torch.from_numpy(inputs['image'])).numpy()]

    session = SimpleNamespace(run=run, get_inputs=lambda: [SimpleNamespace(name='image')])
    x, padded = runner.preprocess(pixels, about)
    with torch.no_grad():
        logits = network.slide_inference(torch.from_numpy(x), [dict(img_shape=x.shape[2:], ori_shape=size)])[0].numpy()
    expected = logits[:, : padded[0], : padded[1]].argmax(0)
    assert (runner.segment(session, about, pixels) == expected).mean() > 0.9999
    assert all(shape[0] <= 64 and shape[1] <= 96 for shape in windows)
    assert len(windows) > 1


@pytest.mark.parametrize(
    'resize',
    [
        dict(scale_factor=0.33, keep_ratio=True),
        dict(scale_factor=(0.5, 1.5), keep_ratio=True),
        dict(scale_factor=0.33),
        dict(scale=(80, 60), scale_factor=0.5, keep_ratio=True),
        dict(scale=(80, 60), scale_factor=0.5),
    ],
)
def test_sizes_are_those_of_mmcv(resize):
    transform = TRANSFORMS.build(dict(resize, type='mmcv.Resize'))
    pair = {key: [value] * 2 if isinstance(value, float) else value for key, value in resize.items()}
    settings = dict(scale=None, scale_factor=None, keep_ratio=False) | pair
    sizes = np.random.default_rng(0).integers(20, 400, (200, 2)).tolist()
    for height, width in [(61, 285), (285, 61), *sizes]:
        expected = transform(dict(img=np.zeros((height, width, 3), np.uint8)))['img'].shape[:2]
        assert runner.target_size(height, width, settings) == expected


def session(logits):
    return SimpleNamespace(run=lambda *_: [logits[None]], get_inputs=lambda: [SimpleNamespace(name='image')])


ABOUT = dict(resize=None, mean=[0] * 3, std=[1] * 3, size_divisor=1, pad_value=0, align_corners=False, threshold=None)
ABOUT |= dict(channel_order='RGB', mode='whole', classes=['low', 'red'], palette=[[0] * 3, [9] * 3])


def test_a_single_logit_has_a_threshold():
    logits = np.array([[[-200.0, -0.9, 9.0], [-0.8, 0.0, 9.0]]], np.float32)
    labels = runner.segment(session(logits), ABOUT | dict(threshold=0.3), np.zeros((2, 3, 3), np.uint8))
    assert labels.tolist() == [[0, 0, 1], [1, 1, 1]]
    assert labels.dtype == np.uint8


def test_labels_have_the_size_of_the_image_without_padding():
    """A divisor of 4 pads 2×3 to 4×4; what is predicted there does not count."""
    logits = np.zeros((2, 4, 4), np.float32)
    logits[1, 2:] = logits[1, :, 3:] = 9
    labels = runner.segment(session(logits), ABOUT | dict(size_divisor=4), np.zeros((2, 3, 3), np.uint8))
    assert labels.tolist() == [[0] * 3] * 2


@pytest.mark.parametrize('align_corners', [False, True])
def test_labels_are_of_logits_that_are_resized_as_by_the_network(align_corners):
    """The image is scaled to 3×3 and back to 2×7."""
    logits = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    about = ABOUT | dict(resize=dict(scale=[3, 3], keep_ratio=False), align_corners=align_corners)
    expected = F.interpolate(torch.from_numpy(logits)[None], (2, 7), mode='bilinear', align_corners=align_corners)
    labels = runner.segment(session(logits), about, np.zeros((2, 7, 3), np.uint8))
    np.testing.assert_array_equal(labels, expected[0].argmax(0))


def test_images_of_one_name_are_an_error_before_the_model_is_read(monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['run_onnx.py', 'absent.onnx', 'a/photo.png', 'b/photo.jpg', '--out-dir', 'out'])
    with pytest.raises(SystemExit):
        runner.main()
    assert 'absent.onnx' not in capsys.readouterr().err


DEEP = np.random.default_rng(0).integers(0, 2**16, (4, 5, 3), np.uint16)
WIDE = np.full((4, 720, 3), 200, np.uint8)  # a BMP's rows have 2160 bytes


@pytest.mark.parametrize(
    ('suffix', 'pixels', 'expected'),
    [
        *((suffix, DEEP, DEEP[..., ::-1] // 256) for suffix in ('png', 'tiff')),  # the upper 8 bits, as by OpenCV
        *((suffix, DEEP[..., 0], None) for suffix in ('png', 'tiff')),  # Pillow would clip them at 255
        *((suffix, WIDE, WIDE) for suffix in ('bmp', 'tiff', 'png', 'webp')),
        ('jpg', None, None),
    ],
)
def test_an_image_is_read_as_by_opencv_or_named(tmp_path, suffix, pixels, expected):
    path = tmp_path / f'image.{suffix}'
    path.write_bytes(b'text') if pixels is None else cv2.imwrite(str(path), pixels, [cv2.IMWRITE_WEBP_QUALITY, 101])
    if expected is None:
        with pytest.raises((OSError, ValueError), match=str(path)):
            runner.read(path)
    else:
        np.testing.assert_array_equal(runner.read(path), expected)


def test_an_index_map_is_marked_as_that_of_image_demo(monkeypatch, tmp_path):
    """It is not shifted by reduce_zero_label when it is read as the truth."""
    logits = np.arange(18).reshape(3, 2, 3).astype(np.float32)[[2, 0, 1]]
    about = ABOUT | dict(classes=['a', 'b', 'c'], palette=[[1, 2, 3], [40, 50, 60], [7, 8, 9]])
    monkeypatch.setattr(runner, 'load', lambda *_: (session(logits), about))
    Image.new('RGB', (3, 2)).save(tmp_path / 'photo.jpg')
    words = 'run_onnx.py', 'model.onnx', tmp_path / 'photo.jpg', '--out-dir', tmp_path / 'out'
    monkeypatch.setattr(sys, 'argv', [*map(str, words)])
    runner.main()
    with Image.open(tmp_path / 'out/pred/photo.png') as image:
        assert CLASS_INDICES.items() <= image.info.items()
        np.testing.assert_array_equal(image, np.zeros((2, 3)))
        assert image.convert('RGB').getpixel((1, 0)) == (1, 2, 3)
