"""The choice of images for validation, labels of colours, and the config, its weights and the pieces of a data set."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from mmseg.models import MobileNetV2
from mmseg.structures import SegDataSample
from PIL import Image
from torch import nn

from common.segmentation import (
    PUBLIC,
    SAVED,
    Palette,
    Start,
    check_crop,
    choose_validation,
    config_text,
    cut_images,
    label_colours,
    save_labels,
    write_config,
)
from mmattn.utils.faults import FaultsError

SMALL = 'mmattn::bi_cc/bi-cc_r18-d8-half_1xb8-160_camvid-180x180.py'


def test_another_image_does_not_change_the_choice_of_many():
    names = {Path(f'{i}'): {0} for i in range(100)}
    chosen = choose_validation(names, 0.25, 0)
    assert len(chosen) == 25
    assert len(choose_validation({**names, Path('more'): {0}}, 0.25, 0) ^ chosen) <= 2


def test_training_keeps_every_class(capsys):
    classes = {Path(f'{i}'): {0, i % 4} for i in range(7)}  # the class 3 in one image
    for seed in range(20):
        chosen = choose_validation(classes, 0.5, seed)
        assert set().union(*(classes[name] for name in {*classes} - chosen)) == {0, 1, 2, 3}
        assert chosen
    capsys.readouterr()
    assert len(choose_validation({Path('a'): {0}, Path('b'): {0, 1}}, 0.9, 0)) == 1
    assert 'instead of' not in capsys.readouterr().out
    rare = {Path(f'{i}'): {i} for i in range(9)} | {Path('a'): {0}}
    assert len(choose_validation(rare, 0.5, 0)) == 1
    assert '1 instead of 5 images are for validation' in capsys.readouterr().out
    with pytest.raises(FaultsError, match='a class that no other image has'):
        choose_validation({Path('a'): {0}, Path('b'): {1}}, 0.5, 0)


@pytest.mark.parametrize('size', [(3, 4), (1025, 1024)])
def test_each_pixel_has_the_label_of_the_nearest_colour(size):
    """In a large mask, too, where colours are looked up. In a tie, the first colour of the palette wins."""
    colours = np.array([(0, 0, 0), (0, 0, 4), (200, 100, 50), (0, 60, 0)])
    palette = Palette(('ground', 'roof', 'tree'), colours, np.array([0, 1, 1, 2], np.uint8))
    shown = {(0, 0, 0): 0, (0, 0, 2): 0, (0, 0, 3): 1, (200, 100, 50): 1, (0, 65, 0): 2, (200, 106, 50): 255}
    shown |= {(2, 3, 60): 255, (0, 55, 0): 2}
    order = np.random.default_rng(0).integers(0, len(shown), size)
    order.flat[: len(shown)] = range(len(shown))
    mask = np.array([*shown], np.uint8)[order]
    labels, far = label_colours(mask, palette, 5)
    assert labels.dtype == np.uint8
    np.testing.assert_array_equal(labels, np.array([*shown.values()])[order])
    assert far == {'2,3,60': pytest.approx((4 + 9 + 56**2) ** 0.5), '200,106,50': 6}
    assert palette.of_classes() == [[0, 0, 0], [0, 0, 4], [0, 60, 0]]


def test_one_image_cannot_be_divided():
    for classes in ({}, {Path('a'): {0}}):
        with pytest.raises(FaultsError, match=f'--val-fraction: .*{len(classes)}$'):
            choose_validation(classes, 0.5, 0)
    assert len(choose_validation({Path(str(i)): {0} for i in range(10)}, 0.01, 0)) == 1
    assert len(choose_validation({Path(str(i)): {0} for i in range(10)}, 0.99, 0)) == 9
    seeds = {frozenset(choose_validation({Path(str(i)): {0} for i in range(10)}, 0.3, seed)) for seed in range(9)}
    assert len(seeds) > 3


@pytest.fixture
def images(tmp_path):
    """Two arrays of two channels, and a grey picture."""
    paths = [tmp_path / name for name in ('a.npy', 'b.npy', 'c.png')]
    np.save(paths[0], np.stack([np.arange(20).reshape(4, 5), np.full((4, 5), 3)], -1))
    np.save(paths[1], np.stack([np.arange(20).reshape(4, 5), np.full((4, 5), 5)], -1))
    Image.new('L', (5, 4)).save(paths[2])
    return paths


@pytest.mark.parametrize('test', [False, True])
@pytest.mark.parametrize(('plain', 'crop', 'stride'), [(True, None, None), (True, 32, 21), (False, 1, 1)])
def test_a_config_has_the_classes_the_channels_and_the_crops_of_its_data(
    tmp_path, images, plain, crop, stride, test, capsys
):
    names, palette = ['roof', "o'tree"], [[1, 2, 3], [4, 5, 6]]
    text = config_text('.tif', names, palette, images[2:] if plain else images[:2], crop, test, PUBLIC)
    (tmp_path / 'config.py').write_text(text)
    cfg = Config.fromfile(tmp_path / 'config.py')
    for loader in ('train', 'val', 'test'):
        data = cfg[f'{loader}_dataloader'].dataset
        assert data.metainfo == dict(classes=tuple(names), palette=palette)
        pieces = {True: '.png', False: '.npy'}[plain] if crop is not None and loader == 'train' else '.tif'
        assert data.img_suffix == pieces
        steps = [step.type for step in data.pipeline]
        if crop is not None:  # pixels stay as large as they are
            assert 'Resize' not in ''.join(steps)
            assert ('RandomCrop' in steps) == (loader == 'train')
        folder = 'val' if loader == 'test' and not test else loader
        assert data.data_prefix == dict(img_path=f'img_dir/{folder}', seg_map_path=f'ann_dir/{folder}')
        loading = [step.channels for step in data.pipeline if 'channels' in step]
        assert loading == ([] if plain else [2])
    assert cfg.model.decode_head.num_classes == 2
    said = capsys.readouterr().out
    if not plain:
        assert re.search(r'^2 .*\[9\.5, 4\.0\].*\[5\.76628, 1\.0\]$', said, re.MULTILINE)
        assert cfg.model.backbone.in_channels == 2
        assert cfg.model.data_preprocessor.mean == [9.5, 4.0]
        assert cfg.model.data_preprocessor.std == [5.76628, 1.0]
    if crop is not None:
        assert cfg.model.test_cfg.mode == 'slide'
        assert (cfg.model.test_cfg.crop_size, cfg.model.test_cfg.stride) == ((crop, crop), (stride, stride))
        assert cfg.model.data_preprocessor.size == (crop, crop)


def test_images_of_a_config_have_the_same_channels(images):
    np.save(images[1], np.zeros((4, 5, 3)))
    with pytest.raises(FaultsError, match=r'b\.npy: 3 channels.* 2'):
        config_text('.npy', ['a'], [[0, 0, 0]], images[:2])


def disturb(network):
    """Change all weights and statistics, so that none is what the network starts with."""
    with torch.no_grad():
        for value in network.state_dict().values():
            value.copy_(value + torch.rand(value.shape) / 9 if value.is_floating_point() else value + 5)
    return network


def save_classifier(path, network):
    """Save weights as mmpretrain does, with the layers that follow the backbone."""
    weights = {f'backbone.{name}': value for name, value in network.state_dict().items()}
    others = {'backbone.conv2.conv.weight': torch.zeros(1280, 320, 1, 1), 'head.fc.bias': torch.zeros(1000)}
    torch.save(dict(meta=dict(epoch=300), state_dict={**weights, **others}), path)


def save_backbone(path, network):
    torch.save(network.state_dict(), path)


def save_detector(path, network):
    """Save weights as mmdet does, whose blocks name their convolutions by purpose, and whose first one lacks one."""
    names = {'conv.0': 'expand_conv', 'conv.1': 'depthwise_conv', 'conv.2': 'linear_conv'}
    first = {'conv.0': 'depthwise_conv', 'conv.1': 'linear_conv'}

    def renamed(name):
        block = re.match(r'(layer\d\.\d)\.(conv\.\d)(.+)', name)
        return f'{block[1]}.{(first if block[1] == "layer1.0" else names)[block[2]]}{block[3]}' if block else name

    weights = {renamed(name): value for name, value in network.state_dict().items()}
    torch.save(dict(state_dict={**weights, 'conv2.bn.bias': torch.zeros(1280)}), path)


def train_a_step(cfg):
    """Build and initialise the model of a config, and return the states of its backbone before and after a step."""
    init_default_scope('mmseg')
    model = MODELS.build(cfg.model)
    model.init_weights()
    before = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    head = model.decode_head.conv_seg.weight.clone()
    model.train()
    labels = SegDataSample(gt_sem_seg=PixelData(data=torch.randint(0, 2, (1, 64, 64))))
    data = dict(inputs=[torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8)] * 2, data_samples=[labels] * 2)
    model.train_step(data, build_optim_wrapper(model, cfg.optim_wrapper))
    assert not torch.equal(head, model.decode_head.conv_seg.weight)
    return before, model.backbone.state_dict()


@pytest.mark.parametrize('save', [save_classifier, save_backbone, save_detector])
@pytest.mark.parametrize('count', [99, 100])
def test_a_backbone_has_the_weights_of_the_file_and_trains_on_enough_images(tmp_path, images, save, count):
    stored = disturb(MobileNetV2())
    save(tmp_path / 'file.pth', stored)
    start = Start(pretrained=tmp_path / 'file.pth')
    write_config(tmp_path, '.png', ['a', 'b'], [[0, 0, 0], [1, 1, 1]], [images[2]] * count, start)
    (tmp_path / 'file.pth').unlink()
    cfg = Config.fromfile(tmp_path / 'config.py')
    cfg.model.data_preprocessor = dict(cfg.model.data_preprocessor, size=(64, 64))
    before, after = train_a_step(cfg)
    assert before.keys() == stored.state_dict().keys()
    for name, value in stored.state_dict().items():
        assert torch.equal(before[name], value), name
        assert torch.equal(after[name], value) == (count == 99), name


@pytest.mark.parametrize('content', [nn.Conv2d(3, 32, 3).state_dict(), {'a': 1}, {'state_dict': {}}, None])
def test_other_files_are_no_weights(tmp_path, content):
    path = tmp_path / 'file.pth'
    path.write_text('words') if content is None else torch.save(content, path)
    with pytest.raises(FaultsError, match=r'file\.pth'):
        Start(pretrained=path).check()
    with pytest.raises(FaultsError, match='--from-scratch'):
        Start(pretrained=path, from_scratch=True).check()


@pytest.mark.parametrize('plain', [True, False])
def test_from_scratch_is_the_shipped_config_with_the_classes(tmp_path, images, plain):
    """As are images with other channels, whatever their number. Weights for them are a fault."""
    arguments = '.png', ['a', 'b'], [[0, 0, 0], [1, 1, 1]], images[2:] if plain else images[:2]
    write_config(tmp_path, *arguments, Start(from_scratch=plain))
    (tmp_path / 'shipped.py').write_text(f'_base_ = [{SMALL!r}]')
    cfg, shipped = Config.fromfile(tmp_path / 'config.py'), Config.fromfile(tmp_path / 'shipped.py')
    for head in ('decode_head', 'auxiliary_head'):
        shipped.model[head].num_classes = 2
    if not plain:
        shipped.model.backbone.in_channels = 2
        cfg.model.data_preprocessor = shipped.model.data_preprocessor
        with pytest.raises(FaultsError, match='--pretrained'):
            config_text(*arguments, checkpoint=SAVED)
    for key in ('model', 'optim_wrapper', 'param_scheduler', 'train_cfg', 'load_from'):
        assert cfg[key] == shipped[key]


@pytest.mark.parametrize('crop', [0, -3])
def test_a_crop_has_a_side(crop):
    check_crop(None)
    check_crop(1)
    with pytest.raises(FaultsError, match=f'--crop .* 1; got {crop}$'):
        check_crop(crop)


@pytest.mark.parametrize('suffix', ['.png', '.npy'])
def test_pieces_are_the_image_and_its_labels(tmp_path, suffix, capsys):
    """Of 9×9 pixels at crops of 2: pieces of 4×4 that end at the edges, below the folder of their image."""
    pixels, labels = np.arange(9 * 9 * 3).reshape(9, 9, 3).astype(np.uint8), np.arange(81, dtype=np.uint8).reshape(9, 9)
    for kind in ('img_dir', 'ann_dir'):
        (tmp_path / kind / 'train/sub').mkdir(parents=True)
    image = tmp_path / f'img_dir/train/sub/a{suffix}'
    Image.fromarray(pixels).save(image) if suffix == '.png' else np.save(image, pixels)
    save_labels(tmp_path / 'ann_dir/train/sub/a.png', labels, [[i, i, 0] for i in range(81)])
    shutil.copytree(tmp_path / 'img_dir/train', tmp_path / 'img_dir/val')
    cut_images(tmp_path, 2)
    assert [path.name for path in (tmp_path / 'img_dir/val/sub').iterdir()] == [f'a{suffix}']  # it is not for training
    shutil.rmtree(tmp_path / 'img_dir/val')
    assert '1 training images are cut into 9 pieces of at most 4×4' in capsys.readouterr().out
    corners = {f'sub/a_{y}_{x}': (y, x) for y in (0, 4, 5) for x in (0, 4, 5)}
    for kind in ('img_dir', 'ann_dir'):
        assert [path.name for path in (tmp_path / kind).iterdir()] == ['train']
        files = [path for path in (tmp_path / kind / 'train').rglob('*') if path.is_file()]
        assert {path.relative_to(tmp_path / kind / 'train').with_suffix('').as_posix() for path in files} == {*corners}
    for name, (y, x) in corners.items():
        with Image.open(tmp_path / f'ann_dir/train/{name}.png') as piece:
            np.testing.assert_array_equal(piece, labels[y : y + 4, x : x + 4])
            assert piece.getpalette()[21:24] == [7, 7, 0]
        path = tmp_path / f'img_dir/train/{name}{suffix}'
        found = np.load(path) if suffix == '.npy' else np.array(Image.open(path))
        np.testing.assert_array_equal(found, pixels[y : y + 4, x : x + 4])
