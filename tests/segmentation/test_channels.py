"""Images with other channels and values: from files through converter, training, test and demo; first layer; faults."""

import re
import runpy
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner.checkpoint import load_state_dict
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample
from PIL import Image
from torch import nn

from mmattn.registry import TRANSFORMS
from mmattn.segmentation.channels import ChannelsPreprocessor, FirstLayerHook
from mmattn.segmentation.load_channels import LoadChannels
from mmattn.utils import config_path

from ..forked_tools import tool

SIZE = 40, 48
PALETTE = ['ground:0,0,0', 'core:127,127,127', 'roof:255,255,255']


def scene(seed):
    """Four channels of 16 bits, and a mask with 0, 127 and 255; only the fourth channel shows the classes."""
    rng = np.random.default_rng(seed)
    image = rng.integers(1000, 3000, (*SIZE, 4)).astype(np.uint16)
    mask = np.zeros(SIZE, np.uint8)
    top, left = rng.integers(0, 16), rng.integers(0, 20)
    mask[top : top + 24, left : left + 28] = 255
    mask[top + 8 : top + 16, left + 8 : left + 20] = 127
    image[..., 3] += mask.astype(np.uint16) * 40
    return image, mask


def save(path, image):
    if path.suffix == '.npy':
        np.save(path, image)
    else:
        cv2.imwrite(str(path), image[..., [2, 1, 0, *range(3, image.shape[2])]] if image.shape[2] > 2 else image)


def convert(run, folder, count, suffix):
    """Write scenes and their masks, and convert them to the folder ``out``."""
    for name in ('images', 'masks'):
        (folder / name).mkdir()
    for seed in range(count):
        image, mask = scene(seed)
        save(folder / f'images/{seed}.{suffix}', image)
        Image.fromarray(mask).save(folder / f'masks/{seed}.png')
    command = ['--images', folder / 'images', '--masks', folder / 'masks', '--out-dir', folder / 'out']
    run(*tool('dataset_converters/color_labels.py', *command, '--val-fraction', 0.25, '--palette', *PALETTE))


@pytest.mark.e2e
def test_four_channels_of_16_bits_from_files_to_iou_by_class(run, tmp_path):
    """The roof is learned, which the fourth channel alone shows. The demo also reads the channels of ``.npy``."""
    convert(run, tmp_path, 8, 'png')
    out, work = tmp_path / 'out', tmp_path / 'work'
    cfg = Config.fromfile(out / 'config.py')
    assert cfg.model.backbone.in_channels == 4
    trained = [path.stem for path in (out / 'img_dir/train').iterdir()]
    pixels = np.concatenate([scene(int(name))[0].reshape(-1, 4) for name in trained]).astype(float)
    assert cfg.model.data_preprocessor.mean == pytest.approx(pixels.mean(0), rel=1e-5)
    assert cfg.model.data_preprocessor.std == pytest.approx(pixels.std(0), rel=1e-5)
    small = {
        'train_cfg.max_iters': 12,
        'train_cfg.val_interval': 12,
        'param_scheduler.0.end': 12,
        'train_dataloader.dataset.pipeline.3.scale': '(48,40)',
        'train_dataloader.dataset.pipeline.4.crop_size': '(32,32)',
        'model.data_preprocessor.size': '(32,32)',
        'train_dataloader.batch_size': 2,
        **{f'{loader}_dataloader.num_workers': 0 for loader in ('train', 'val')},
    }
    options = ['--cfg-options', *(f'{key}={value}' for key, value in small.items())]
    run(*tool('train.py', out / 'config.py', '--work-dir', work, *options))
    checkpoint = work / 'iter_12.pth'
    assert 'mIoU' in run(*tool('test.py', out / 'config.py', checkpoint, '--work-dir', work, '--tta'))
    said = run(*tool('test.py', out / 'config.py', checkpoint, '--work-dir', work, '--show-dir', tmp_path / 'shown'))
    ious = {name: float(iou) for name, iou in re.findall(r'^\|\s+(\w+)\s+\|\s+([\d.]+)\s+\|', said, re.M)}
    assert {*ious} == {'ground', 'core', 'roof'}
    assert ious['roof'] > 50
    validated = [path.stem for path in (out / 'img_dir/val').iterdir()]
    assert {path.stem for path in (tmp_path / 'shown').iterdir()} == {*validated}
    demo = tmp_path / 'demo'
    for seed in (8, 9):
        save(tmp_path / f'images/{seed}.npy', scene(seed)[0])
    run(*tool('image_demo.py', tmp_path / 'images', out / 'config.py', checkpoint, '--out-dir', demo))
    for seed in range(10):
        labels = np.array(Image.open(demo / f'pred/{seed}.png'))
        assert labels.shape == SIZE
        truth = scene(seed)[1] == 255
        assert ((labels == 2) & truth).sum() / ((labels == 2) | truth).sum() > 0.5
        with Image.open(demo / f'vis/{seed}.png') as overlay:
            assert overlay.size == SIZE[::-1]


def test_tools_take_all_channels_of_a_config(run, tmp_path):
    convert(run, tmp_path, 4, 'npy')
    config = tmp_path / 'out/config.py'
    assert 'input 64×64' in run(*tool('analysis_tools/get_flops.py', config, '--shape', 64))
    for split in ('train', 'val'):
        options = '--split', split, '--output-dir', tmp_path / split, '--not-show', '--number', 1
        run(*tool('analysis_tools/browse_dataset.py', config, *options))
        (path,) = (tmp_path / split).iterdir()
        picture = np.array(Image.open(path))
        assert picture.shape == ((180, 180, 3) if split == 'train' else (*SIZE, 3))
        assert picture.std((0, 1)).min() > 20
    init_default_scope('mmseg')
    torch.save(dict(state_dict=MODELS.build(Config.fromfile(config).model).state_dict()), tmp_path / 'model.pth')
    words = config, tmp_path / 'model.pth', tmp_path / 'images/0.npy', '--out', tmp_path / 'page.html', '--grid', 2
    run(*tool('visualization/attention_explorer.py', *words, '--device', 'cpu'))
    page = (tmp_path / 'page.html').read_text(encoding='utf-8')
    assert any(f'"{name}"' in page for name in Config.fromfile(config).metainfo.classes), 'of the predicted classes'


def test_an_image_is_loaded_with_its_channels_and_values(tmp_path):
    pixels = np.arange(5 * 6 * 4, dtype=np.uint16).reshape(5, 6, 4) * 500
    np.save(tmp_path / 'a.npy', pixels)
    loader = TRANSFORMS.build(dict(type='mmattn.LoadChannels', channels=4))
    loaded = loader(dict(img_path=str(tmp_path / 'a.npy'), seg_fields=[]))
    assert loaded['img'].dtype == np.float32
    np.testing.assert_array_equal(loaded['img'], pixels)
    assert loaded['img_shape'] == loaded['ori_shape'] == (5, 6)
    assert loaded['seg_fields'] == []
    assert (loader.to_float32, loader.color_type) == (True, 'unchanged')  # as other tools read these
    assert 'channels=4' in repr(loader)
    with pytest.raises(ValueError, match=r'a\.npy: 4 channels.* 3'):
        LoadChannels(3)(dict(img_path=str(tmp_path / 'a.npy')))
    with pytest.raises(ValueError, match=r'channels .* 1; got 0'):
        LoadChannels(0)


class Segments(nn.Module):
    test_step = None


@pytest.mark.parametrize('mode', ['repeat', 'mean'])
def test_weights_of_rgb_start_a_first_layer_of_four_channels(mode, caplog):
    """For a grey image, the first layer's output is that of the stock network; weights that fit stay as they are."""
    init_default_scope('mmseg')
    stock, ours = (MODELS.build(dict(type='ResNet', depth=18, base_channels=8, in_channels=n)) for n in (3, 4))
    model = Segments()
    model.backbone = ours
    augmented = MODELS.build(dict(type='SegTTAModel', module=model))  # as of test.py --tta
    FirstLayerHook(mode).before_run(SimpleNamespace(model=augmented))
    weights = stock.state_dict()
    load_state_dict(ours, dict(weights))
    image = torch.randn(1, 1, 8, 8)
    if mode == 'mean':
        grey = (layer(image.expand(1, n, 8, 8)).mean(1) for n, layer in ((4, ours.conv1), (3, stock.conv1)))
        torch.testing.assert_close(*grey)
    else:
        torch.testing.assert_close(ours.conv1.weight[:, 3], stock.conv1.weight[:, 0] * 0.75)
    assert torch.equal(ours.layer1[0].conv1.weight, stock.layer1[0].conv1.weight)
    trained = {**ours.state_dict(), 'conv1.weight': torch.randn(ours.conv1.weight.shape)}
    load_state_dict(ours, dict(trained))
    assert torch.equal(ours.conv1.weight, trained['conv1.weight'])


def test_augmented_images_are_normalised_as_others():
    """A config that changes model.data_preprocessor need not change the one at its top level."""
    augment = runpy.run_path(str(tool('test.py')[1]))['augment']
    cfg = Config.fromfile(config_path('bi_cc/bi-cc_r18-d8-half_1xb8-160_camvid-180x180.py'))
    assert cfg.data_preprocessor.mean != [1, 2, 3]
    cfg.model.data_preprocessor.mean = [1, 2, 3]
    augment(cfg, None)
    cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)  # as mmengine.Runner
    init_default_scope('mmseg')
    assert MODELS.build(cfg.model).module.data_preprocessor.mean.flatten().tolist() == [1, 2, 3]
    cfg.model, cfg.data_preprocessor = cfg.model.module, None
    cfg.tta_model = dict(type='TTA without a data_preprocessor')
    augment(cfg, None)
    assert cfg.model.keys() == {'type', 'module'}  # as mmengine leaves it


def test_weights_that_do_not_fit_otherwise_are_left_to_the_loader():
    """Groups, another kernel, other outputs, or none. A backbone without a convolution is an error."""
    hook = FirstLayerHook()
    assert hook.fit(torch.tensor([[[3.0]], [[9.0]]]).view(1, 2, 1), 3).flatten().tolist() == [2.0, 6.0, 2.0]
    for layer, stored in (
        (nn.Conv2d(4, 8, 3, groups=4), (8, 3, 3, 3)),
        (nn.Conv2d(4, 8, 3), (8, 3, 5, 5)),
        (nn.Conv2d(4, 8, 3), (6, 3, 3, 3)),
    ):
        backbone = nn.Sequential(layer)
        hook.before_run(SimpleNamespace(model=SimpleNamespace(backbone=backbone)))
        state = {'0.weight': torch.ones(stored)}
        with pytest.raises(RuntimeError, match=r'0\.weight'):
            backbone.load_state_dict(state, strict=False)
        assert state['0.weight'].shape == stored
        assert backbone.load_state_dict({}, strict=False).missing_keys
    with pytest.raises(ValueError, match='Identity'):
        hook.before_run(SimpleNamespace(model=SimpleNamespace(backbone=nn.Identity())))
    with pytest.raises(ValueError, match=r"mode .*'sum'"):
        FirstLayerHook('sum')


def test_channels_are_normalised_each_by_its_own():
    data = ChannelsPreprocessor([1, 2, 3, 4], [1, 2, 4, 8], size_divisor=4, pad_val=7)
    image = torch.full((4, 3, 5), 12.0)
    found = data(dict(inputs=[image], data_samples=[SegDataSample(gt_sem_seg=PixelData(data=image[:1]))]), True)
    expected = torch.tensor([11.0, 5.0, 2.25, 1.0]).view(4, 1, 1)
    assert found['inputs'].shape == (1, 4, 4, 8)
    assert torch.equal(found['inputs'][0, :, :3, :5], expected.expand(4, 3, 5))
    assert (found['inputs'][0, :, 3:] == 7).all()
    assert data.state_dict() == {}
    for wrong in (dict(bgr_to_rgb=True), dict(rgb_to_bgr=True)):
        with pytest.raises(ValueError, match='bgr_to_rgb and rgb_to_bgr'):
            ChannelsPreprocessor([1], [1], **wrong)
    for mean, std in (([1, 2], [1]), ([1], [0]), ([1, 2], [1, -1])):
        with pytest.raises(ValueError, match='mean and std'):
            ChannelsPreprocessor(mean, std)
