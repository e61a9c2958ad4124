"""Grid features: equal to the means of the backbone's own map in each cell; killed and resumed; errors before work."""

import re

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import MODELS, init_default_scope
from PIL import Image

from mmattn.language.regions.region_store import RegionStore
from mmattn.utils import config_path

from ..requirements import requires
from ..support.releases import photo, save
from ..tiny_detectors import BACKBONE, PIPELINE, detector
from .conftest import scripts

(converter,) = scripts('grid_features')

MEAN, STD = [120.0, 110.0, 100.0], [60.0, 58.0, 56.0]
SIZE, GRID = 64, 3  # the map of the second level has 8 × 8 positions
OPTIONS = ('--size', SIZE, '--grid', GRID, '--level', 1, '--device', 'cpu')


SEGMENTOR = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', mean=MEAN, std=STD, bgr_to_rgb=True),
    backbone=BACKBONE,
    decode_head=dict(type='FCNHead', in_channels=64, channels=8, num_classes=3, norm_cfg=dict(type='BN')),
    test_cfg=dict(mode='whole'),
)


def write_model(folder, kind):
    """Write config and checkpoint of a small model: 'mmseg', 'mmdet' or 'backbone'; return their paths."""
    models = dict(mmseg=SEGMENTOR, mmdet=detector('retina'), backbone=dict(BACKBONE, type='mmseg.ResNet'))
    cfg = Config(dict(default_scope='mmdet' if kind == 'mmdet' else 'mmseg', model=models[kind]))
    if kind == 'backbone':
        cfg.data_preprocessor = dict(type='mmengine.ImgDataPreprocessor', mean=MEAN, std=STD, bgr_to_rgb=True)
    cfg.dump(str(folder / f'{kind}.py'))
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    for name, buffer in model.named_buffers():  # as after training
        if 'running_mean' in name:
            buffer.normal_(std=0.05)
    torch.save(dict(state_dict=model.state_dict()), folder / f'{kind}.pth')
    return folder / f'{kind}.py', folder / f'{kind}.pth'


@pytest.fixture
def photos(tmp_path):
    for i in range(3):
        save(tmp_path / f'photos/{"abc"[i]}/{i}.png', photo(i, (40, 48 + 5 * i)))
    return tmp_path / 'photos'


@pytest.fixture
def run(tmp_path, command):
    """Run the converter into ``tmp_path/out``; return its exit code and what it printed on stderr."""
    return lambda *args, out='out': command(converter, *args, out=tmp_path / out)[::2]


def test_weights_that_cannot_be_downloaded_are_named_with_their_place(run, photos, tmp_path, monkeypatch):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    config, _ = write_model(tmp_path, 'mmseg')
    code, said = run(config, 'http://127.0.0.1:1/weights.pth', photos, *OPTIONS)
    assert code == 1
    assert said[-1].endswith(str(tmp_path / 'hub/checkpoints'))
    assert not (tmp_path / 'out').exists()


def mean_of_cells(x):
    """The mean of a map (C, h, w) in the positions that each cell touches, literally: (S², C)."""
    rows = []
    for r in range(GRID):
        for c in range(GRID):
            top, left = r * x.shape[1] // GRID, c * x.shape[2] // GRID
            bottom, right = -(-(r + 1) * x.shape[1] // GRID), -(-(c + 1) * x.shape[2] // GRID)
            rows.append(x[:, top:bottom, left:right].double().mean((1, 2)))
    return torch.stack(rows).float()


@pytest.mark.parametrize('kind', ['mmseg', pytest.param('mmdet', marks=requires('mmcv operators')), 'backbone'])
def test_features_are_those_of_the_backbone(run, photos, tmp_path, kind):
    """The model is built as a whole, and the image is read by the pipeline of mmcv."""
    config, checkpoint = write_model(tmp_path, kind)
    assert run(config, checkpoint, photos, *OPTIONS)[0] == 0
    store = RegionStore(tmp_path / 'out')
    store.check()
    assert store.image_ids == ['0', '1', '2']
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    model.eval()  # of a ResNet, it returns None
    model.load_state_dict(torch.load(checkpoint)['state_dict'])
    preprocessor = model.data_preprocessor if kind != 'backbone' else MODELS.build(cfg.data_preprocessor)
    init_default_scope('mmdet')
    pipeline = Compose([PIPELINE[0], dict(PIPELINE[1], scale=(SIZE, SIZE)), PIPELINE[2]])
    for i, image_id in enumerate(store.image_ids):
        data = pseudo_collate([pipeline(dict(img_path=str(photos / 'abc'[i] / f'{i}.png'), img_id=0))])
        inputs = preprocessor(dict(inputs=data['inputs']), False)['inputs']
        with torch.no_grad():
            maps = (model if kind == 'backbone' else model.backbone)(inputs)
        found = store[image_id]
        torch.testing.assert_close(found.features, mean_of_cells(maps[1][0]), rtol=1e-5, atol=1e-6)
        assert found.features.std(0).max() > 1e-3  # cells differ
        width = 48 + 5 * i
        assert found.size == (width, 40)
        x, y = np.linspace(0, width, GRID + 1), np.linspace(0, 40, GRID + 1)
        expected = [[x[c], y[r], x[c + 1], y[r + 1]] for r in range(GRID) for c in range(GRID)]
        np.testing.assert_allclose(found.boxes, np.float32(expected), rtol=1e-6)


def test_a_checkpoint_of_the_backbone_alone(run, photos, tmp_path):
    """Such as that of an image classifier: its last layer is not read."""
    config, checkpoint = write_model(tmp_path, 'mmseg')
    weights = torch.load(checkpoint)['state_dict']
    alone = {name.removeprefix('backbone.'): x for name, x in weights.items() if name.startswith('backbone.')}
    torch.save(dict(alone, **{'fc.weight': torch.zeros(10, 64)}), tmp_path / 'alone.pth')
    assert run(config, checkpoint, photos, *OPTIONS)[0] == 0
    assert run(config, tmp_path / 'alone.pth', photos, *OPTIONS, out='alone')[0] == 0
    stores = [RegionStore(tmp_path / name) for name in ('alone', 'out')]
    for name in stores[0].image_ids:
        assert torch.equal(*(store[name].features for store in stores))
    for changed, message in (('layer1.0.conv1.weight', 'missing keys'), ('layer1.9.conv1.weight', 'unexpected key')):
        wrong = {name: x for name, x in alone.items() if name != changed}
        if changed not in alone:
            wrong[changed] = torch.zeros(1)
        torch.save(wrong, tmp_path / 'wrong.pth')
        with pytest.raises(RuntimeError, match=message):
            run(config, tmp_path / 'wrong.pth', photos, *OPTIONS, out='wrong')


def test_a_pyramid_has_the_cells_of_all_grids(run, photos, tmp_path):
    """The first region is the whole image, and its feature the mean of the map."""
    config, checkpoint = write_model(tmp_path, 'mmseg')
    assert run(config, checkpoint, photos, *OPTIONS)[0] == 0
    assert run(config, checkpoint, photos, *OPTIONS, '--pyramid', out='pyramid')[0] == 0
    plain, found = RegionStore(tmp_path / 'out')['1'], RegionStore(tmp_path / 'pyramid')['1']
    assert len(found.boxes) == (1 + 2 + 3) ** 2
    assert found.boxes[0].tolist() == [0, 0, 53, 40]
    halves = [[0, 0, 26.5, 40], [26.5, 0, 53, 40]]  # one row, two columns
    assert found.boxes[1:3].tolist() == halves
    assert torch.equal(found.boxes[-9:], plain.boxes)
    assert torch.equal(found.features[-9:], plain.features)
    torch.testing.assert_close(found.features[1:3].mean(0), found.features[0])  # 8 columns of positions, 4 in a half
    quarters = found.features[8:12].reshape(2, 2, -1)  # of two rows, two columns
    torch.testing.assert_close(quarters.mean(0), found.features[1:3])
    torch.testing.assert_close(quarters.mean(1), found.features[6:8])  # two rows, one column


@pytest.mark.parametrize(
    ('image_id', 'names', 'expected'),
    [
        ('last-number', ['COCO_val2014_000000000042.jpg', 'image12.jpg'], ['42', '12']),
        ('first-number', ['1000268201_693b08cb0e.jpg', '000.jpg'], ['0', '1000268201']),
    ],
)
def test_ids_are_numbers_of_annotations(run, tmp_path, image_id, names, expected):
    config, checkpoint = write_model(tmp_path, 'mmseg')
    photos = tmp_path / 'named'
    photos.mkdir()
    for name in names:
        Image.new('RGB', (40, 30)).save(photos / name)
    options = (*OPTIONS, '--image-id', image_id)
    assert run(config, checkpoint, photos, *options)[0] == 0
    assert RegionStore(tmp_path / 'out').image_ids == expected


def test_the_shipped_backbone_reads_a_published_classifier(run, photos, tmp_path):
    """Of OpenMMLab's layout: a checkpoint with ``backbone.`` before the names, a further convolution and a head."""
    config = config_path('_base_/models/mobilenet-v2_imagenet.py')
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    weights = {f'backbone.{name}': x for name, x in MODELS.build(cfg.model).state_dict().items()}
    others = {'backbone.conv2.conv.weight': torch.zeros(1280, 320, 1, 1), 'head.fc.bias': torch.zeros(1000)}
    torch.save(dict(state_dict={**weights, **others}), tmp_path / 'classifier.pth')
    options = ('--size', 64, '--grid', 2, '--device', 'cpu')
    assert run(config, tmp_path / 'classifier.pth', photos, *options)[0] == 0
    assert RegionStore(tmp_path / 'out')['0'].features.shape == (4, 320)


@pytest.mark.slow
def test_vgg_pools_images_of_their_own_size(run, photos, tmp_path):
    """With the names of torchvision's classifier; the map is the last convolution's, 13 layers written out."""
    generator = torch.Generator().manual_seed(0)
    widths = [(64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)]
    weights, index, channels = {}, 0, 3
    for stage in widths:
        for width in stage:
            std = (2 / (9 * channels)) ** 0.5
            weights[f'features.{index}.weight'] = torch.randn(width, channels, 3, 3, generator=generator) * std
            weights[f'features.{index}.bias'] = torch.randn(width, generator=generator) * 0.1
            index, channels = index + 2, width  # a ReLU follows
        index += 1  # the pooling
    torch.save({**weights, 'classifier.0.weight': torch.zeros(2, 2)}, tmp_path / 'vgg16.pth')
    options = ('--keep-size', '--grid', 2, '--device', 'cpu')
    assert run(config_path('_base_/models/vgg16_imagenet.py'), tmp_path / 'vgg16.pth', photos, *options)[0] == 0
    mean, std = torch.tensor([123.675, 116.28, 103.53]), torch.tensor([58.395, 57.12, 57.375])
    for i in range(3):
        pixels = torch.from_numpy(np.array(Image.open(photos / 'abc'[i] / f'{i}.png'), np.float32))  # RGB
        x, layers = ((pixels - mean) / std).permute(2, 0, 1)[None], iter(weights.values())
        for number, stage in enumerate(widths):
            x = torch.max_pool2d(x, 2) if number else x
            for _ in stage:
                x = torch.relu(torch.conv2d(x, next(layers), next(layers), padding=1))
        assert x.shape == (1, 512, 2, 3)  # of 40 × 48 pixels and more: not square
        expected = torch.stack([x[0, :, r, c].mean(1) for r in (0, 1) for c in (slice(0, 2), slice(1, 3))])
        found = RegionStore(tmp_path / 'out')[str(i)]
        torch.testing.assert_close(found.features, expected, rtol=1e-4, atol=1e-5)
        assert expected.std() > 1e-2


@requires('mmcv operators')
def test_a_size_that_the_model_pads_is_a_fault(run, photos, tmp_path):
    config, checkpoint = write_model(tmp_path, 'mmdet')
    code, said = run(config, checkpoint, photos, *OPTIONS, '--size', 60)
    assert code == 1
    assert re.match(rf'error: {config}: .*pad.*\(60, 60\)', said[-1])


def published_resnet152(width):
    """Weights with the names of torchvision's ResNet-152, with ``width`` channels in place of 64."""
    shapes, channels = {'conv1': (width, 3, 7, 7), 'bn1': width, 'fc': (5, 32 * width)}, width
    for stage, blocks in enumerate((3, 8, 36, 3)):
        inner = width * 2**stage
        for block in range(blocks):
            name = f'layer{stage + 1}.{block}'
            sides = ((inner, channels, 1), (inner, inner, 3), (4 * inner, inner, 1))
            for i, (out, into, side) in enumerate(sides, 1):
                shapes |= {f'{name}.conv{i}': (out, into, side, side), f'{name}.bn{i}': out}
            if not block:
                shapes |= {f'{name}.downsample.0': (4 * inner, channels, 1, 1), f'{name}.downsample.1': 4 * inner}
            channels = 4 * inner
    state = {}
    for name, shape in shapes.items():
        if isinstance(shape, tuple):
            state[f'{name}.weight'] = torch.randn(shape) / 10
        else:
            state |= {f'{name}.{part}': torch.ones(shape) for part in ('weight', 'running_var')}
            state |= {f'{name}.{part}': torch.zeros(shape) for part in ('bias', 'running_mean')}
    return state


def test_grid_of_resnet152(run, photos, tmp_path):
    """The shipped config reads the published weights, and the store is the one that the fusion networks want."""
    torch.save(published_resnet152(2), tmp_path / 'resnet152.pth')
    narrow = ('--cfg-options', 'model.base_channels=2', 'model.stem_channels=2')
    config = config_path('_base_/models/resnet152_imagenet.py')
    assert run(config, tmp_path / 'resnet152.pth', photos, '--grid', 14, '--device', 'cpu', *narrow)[0] == 0
    store = RegionStore(tmp_path / 'out')
    assert store['0'].features.shape == (196, 64)
    for name in ('vqa1', 'vqa2_fusion'):
        wanted = Config.fromfile(config_path(f'_base_/datasets/{name}.py')).train_dataloader.dataset
        assert not store.source_faults(wanted.region_source)
    assert store.source_faults('bottom_up_features.py')
