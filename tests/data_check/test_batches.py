"""Settings that would fail in the first batch or validation are named before. What works, and shipped configs, pass."""

import logging
import re
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS, TRANSFORMS, init_default_scope
from mmengine.utils import get_installed_path

from mmattn.data_check import batches
from mmattn.data_check.batches import Sizes, _sizes_of_batches, batch_faults, sizes_after
from mmattn.data_check.data_sets import LOADERS, Part, data_sets
from mmattn.segmentation import SegDataCheckHook

from .image_folders import FakeRunner, add, data_set, write

LOAD, MASK, PACK = (dict(type=name) for name in ('LoadImageFromFile', 'LoadAnnotations', 'PackSegInputs'))
FLAT = (20, 48)  # height and width of one image; the others have 40×48


def resize(width, height, keep_ratio=True):
    return dict(type='Resize', scale=(width, height), keep_ratio=keep_ratio)


def crop(height, width):
    return dict(type='RandomCrop', crop_size=(height, width))


CROP = (crop(16, 16),)


def random_resize(*ratios):
    return dict(type='RandomResize', scale=(48, 40), ratio_range=ratios, keep_ratio=True)


def reduced(value):
    return [LOAD, dict(MASK, reduce_zero_label=value), *CROP, PACK]


@pytest.fixture
def said(root, tmp_path, monkeypatch):
    """Places and reasons of faults and warnings, of four training images and two for validation, one of them flat."""
    init_default_scope('mmseg')
    for part in ('train', 'val'):
        add(root, 'flat', FLAT, part=part)
        write(root / f'ann_dir/{part}/flat.png', np.resize(np.uint8([0, 1]), FLAT))
    lines = []
    monkeypatch.setattr(batches, 'log', lambda text, level: lines.append(text) if level == logging.WARNING else None)

    def said(train=CROP, val=(), head=None, network=None, size=(16, 16), divisor=None, **options):
        train, val = ([LOAD, MASK, *steps, PACK] if isinstance(steps, tuple) else steps for steps in (train, val))
        data = {key: options.pop(f'{key}_data', {}) for key in ('train', 'val')}
        runner = FakeRunner(
            tmp_path,
            data_set(root, pipeline=train, **data['train']),
            data_set(root, 'val', pipeline=val, **data['val']),
            model=dict(
                data_preprocessor=dict(type='SegDataPreProcessor', size=size, size_divisor=divisor),
                decode_head=dict(dict(num_classes=2), **head or {}),
            ),
        )
        runner.cfg.train_dataloader.batch_size = 2
        runner.cfg.merge_from_dict(options)
        runner.model = None if network is None else MODELS.build(network)
        faults = SegDataCheckHook().faults_by_path(runner, LOADERS)
        return [f'{place}: {reason}' for place, reasons in faults.items() for reason in reasons] + lines

    return said


def aspp(norm='BN', **options):
    return dict(
        type='ASPPHead', in_channels=4, channels=4, dilations=(1,), num_classes=2, norm_cfg=dict(type=norm), **options
    )


PSP = dict(type='PSPHead', in_channels=4, channels=4, pool_scales=(2, 1), num_classes=2, norm_cfg=dict(type='SyncBN'))
SIGMOID, LOVASZ, DICE = dict(type='CrossEntropyLoss', use_sigmoid=True), dict(type='LovaszLoss'), dict(type='DiceLoss')
EPOCH = dict(type='DefaultSampler', shuffle=True)
ONE, TWO = {'train_dataloader.batch_size': 1}, {'val_dataloader.batch_size': 2}
THREE = {'train_dataloader.batch_size': 3, 'network': aspp()}


@pytest.mark.parametrize(
    ('options', 'names'),
    [
        # a crop beside data_preprocessor.size
        (dict(train=(crop(32, 32),)), r'data_preprocessor\.size: \(16, 16\).*32×20 to 32×32'),
        (dict(train=()), r'data_preprocessor\.size: .*48×20 to 48×40'),
        (dict(train=(random_resize(0.5, 2), crop(24, 24))), r'data_preprocessor\.size: .*(16|24)×.. to 24×24'),
        (dict(train=(resize(96, 96),)), r'data_preprocessor\.size: .*96×40 to 96×80'),
        (dict(divisor=8), r'data_preprocessor\.size: \(16, 16\), and size_divisor is 8'),
        (dict(size=None), r'data_preprocessor\.size: None, and size_divisor is None'),
        (dict(train=(crop(8, 8),)), r'data_preprocessor\.size: .*8×8 pixels: most .* padding'),
        # a batch norm of one value
        (dict(network=aspp(), **ONE), r'train_dataloader\.batch_size: 1.*model\.image_pool\.1\.bn'),
        (dict(network=PSP, **ONE), r'train_dataloader\.batch_size: 1.*model\.psp_modules\.1\.1\.bn'),
        (dict(THREE, **{'train_dataloader.sampler': EPOCH}), r'train_dataloader\.drop_last: .*last batch of 4'),
        # one logit
        (dict(head=dict(out_channels=1)), r'decode_head\.loss_decode: CrossEntropyLoss'),
        (dict(head=dict(out_channels=1, loss_decode=[SIGMOID, LOVASZ])), r'decode_head\.loss_decode: LovaszLoss'),
        (dict(head=dict(out_channels=1, loss_decode=dict(DICE, use_sigmoid=False))), 'loss_decode: DiceLoss'),
        (dict(head=dict(type='FCNHead', out_channels=1, loss_decode=SIGMOID)), 'decode_head .*FCNHead'),
        # reduce_zero_label in one place
        (dict(val=[LOAD, dict(MASK, reduce_zero_label=True), PACK]), r'val_.*\.reduce_zero_label: False'),
        (dict(train_data=dict(reduce_zero_label=True)), r'val_.*\.reduce_zero_label: False, but train_'),
        (dict(train=reduced(True)), 'reduce_zero_label'),
        (dict(val_data=dict(reduce_zero_label=True)), r'val_.*\.reduce_zero_label: True, but train_'),
        # masks that validation resizes
        (dict(val=(resize(96, 80),)), r'val_dataloader\.dataset\.pipeline: .*48×20 .*96×40'),
        (dict(val=(resize(24, 20, False),)), r'val_dataloader\.dataset\.pipeline: .*24×20'),
        (dict(val=(crop(16, 16),)), r'val_dataloader\.dataset\.pipeline: .*16×16'),
        # sizes of a validation batch
        (TWO, r'val_dataloader\.batch_size: 2.*48×20 and 48×40'),
        (dict(TWO, val=[LOAD, resize(96, 96), MASK, PACK]), r'val_dataloader\.batch_size: 2.*96×40 and 96×80'),
    ],
)
def test_what_would_fail_later(said, options, names):
    lines = said(**options)
    assert [line for line in lines if re.search(names, line)], lines
    assert len([line for line in lines if '.png' not in line and 'no mask has' not in line]) == 1, lines


@pytest.mark.parametrize(
    'options',
    [
        {},
        dict(train=(random_resize(1, 2), crop(20, 20)), **ONE),  # a batch of one has one size
        dict(train=(random_resize(1, 2), crop(20, 20))),  # each image is at least as large
        dict(train=(crop(12, 16),)),  # some padding
        dict(train=(crop(32, 32),), size=(32, 32)),
        dict(train=(crop(64, 64),), size=None, divisor=32),
        dict(train=(dict(type='ResizeToMultiple', size_divisor=32),)),  # not known
        dict(network=aspp()),
        dict(network=aspp('GN') | dict(norm_cfg=dict(type='GN', num_groups=2)), **ONE),
        THREE,  # mmattn's and mmseg's infinite samplers have no end
        dict(THREE, **{'train_dataloader.sampler': EPOCH, 'train_dataloader.drop_last': True}),
        dict(head=dict(out_channels=1, loss_decode=SIGMOID)),
        dict(head=dict(out_channels=1, loss_decode=dict(LOVASZ, loss_type='binary'))),
        dict(head=dict(out_channels=1, loss_decode=DICE)),
        dict(head=dict(loss_decode=dict(type='CrossEntropyLoss'))),
        dict(head=dict(type='FCNHead', loss_decode=SIGMOID)),
        dict(head=dict(type='FCNHead', out_channels=1, loss_decode=DICE)),
        dict(head=dict(type='mmattn.AttentionHead', out_channels=1, loss_decode=SIGMOID)),
        dict(train=reduced(False), val=[LOAD, dict(MASK, reduce_zero_label=None), PACK]),
        dict(val=(resize(48, 48),)),  # the sizes stay
        dict(val=[LOAD, resize(96, 80), MASK, PACK]),
        dict(TWO, val=[LOAD, resize(16, 16, False), MASK, PACK]),
    ],
)
def test_what_works_passes(said, options):
    assert said(**options) == []


class Pooled(torch.nn.Module):
    """A pooling and a batch norm, one after the other or beside each other."""

    def __init__(self, size, kind=torch.nn.Sequential):
        super().__init__()
        parts = torch.nn.AdaptiveMaxPool2d(size), torch.nn.BatchNorm2d(4)
        self.part = kind(*parts) if kind is torch.nn.Sequential else kind(parts)


@pytest.mark.parametrize(
    ('options', 'faulty'),
    [
        (dict(size=1), True),
        (dict(size=(1, 1)), True),
        *((dict(size=size), False) for size in (2, (1, 2), (2, 1))),
        (dict(size=1, kind=torch.nn.ModuleList), False),
    ],
)
def test_a_batch_norm_of_one_value_is_behind_a_global_pooling(said, options, faulty):
    lines = said(network=dict(type=Pooled, **options), **ONE)
    assert [line.startswith('train_dataloader.batch_size') and 'model.part.1' in line for line in lines] == [
        True
    ] * faulty


@pytest.mark.parametrize(
    ('options', 'faulty'),
    [
        (dict(network=PSP, **ONE), [1]),  # a batch norm that sees the batches of all processes
        (dict(network=aspp(), **ONE), [1, 2]),
        (dict(THREE, **{'train_dataloader.sampler': EPOCH}), [1]),  # half of 4 images are no batch of 3 and one more
    ],
)
def test_what_a_batch_norm_sees_depends_on_the_number_of_processes(said, monkeypatch, options, faulty):
    for processes in (1, 2):
        monkeypatch.setattr(batches, 'get_world_size', lambda processes=processes: processes)
        lines = said(**options)
        assert bool(lines) == (processes in faulty)
        assert all(line.startswith('train_dataloader.') for line in lines)


@pytest.mark.parametrize(
    'steps',
    [
        [resize(100, 30), crop(20, 40)],
        [resize(17, 33, False)],
        [dict(type='Resize', scale_factor=0.7, keep_ratio=True)],
        [dict(type='Resize', scale_factor=(0.7, 1.6))],
        [random_resize(0.3, 0.3), dict(type='RandomFlip', prob=0.5), dict(type='PhotoMetricDistortion')],
        [crop(64, 10), resize(90, 90)],
    ],
)
@pytest.mark.parametrize('size', [(48, 40), (13, 60)])
def test_predicted_sizes_are_those_of_the_transforms(steps, size):
    init_default_scope('mmseg')
    transforms = [TRANSFORMS.build(dict(step)) for step in steps]
    results = dict(img=np.zeros((*size[::-1], 3), np.uint8), gt_seg_map=np.zeros(size[::-1], np.uint8))
    results.update(img_shape=size[::-1], seg_fields=['gt_seg_map'])
    for transform in transforms:
        results = transform(results)
    assert sizes_after(transforms, size) == (results['img'].shape[1::-1],) * 2


def faults_without_data(cfg):
    """Faults of a config, as far as they do not depend on its files: with images of one size."""
    parts = []
    for where, dataset in data_sets(cfg, LOADERS, DATASETS.get('mmseg.BaseSegDataset')):
        with suppress(AssertionError):  # a list of images that is not here
            built = DATASETS.build({**dataset, 'lazy_init': True})
            parts.append(Part(where, built, [None] * 2975))
    model = None
    if parts and cfg.train_dataloader.get('batch_size') == 1:
        with torch.device('meta'), suppress(RuntimeError):  # BEiT reads values
            model = MODELS.build(cfg.model)
    return list(batch_faults(cfg, model, parts, {part.where: [(2048, 1024)] * 2 for part in parts}))


FAULTS_OF_MMSEG = {  # real ones: those without a size fail in their first batch
    'bisenetv2_fcn_4xb4-ohem-160k_cityscapes-1024x1024.py': 'None, and size_divisor is None',
    'upernet_r18_4xb4-160k_ade20k-512x512.py': 'None, and size_divisor is None',
    'upernet_r18_4xb4-80k_ade20k-512x512.py': 'None, and size_divisor is None',
    'deeplabv3plus_r50-d8_4xb2-300k_mapillay_v1_65-1280x1280.py': 'most of each image is padding',
}


@pytest.mark.slow
def test_configs_of_mmseg_pass(monkeypatch):
    lines = []
    monkeypatch.setattr(batches, 'log', lambda *line: lines.append(line))
    checked = 0
    for path in sorted(Path(get_installed_path('mmseg'), '.mim/configs').glob('[!_]*/*.py')):
        with suppress(ImportError):  # custom imports of packages that are not here
            cfg = Config.fromfile(path)
            if 'train_dataloader' in cfg and path.parent.name != 'dsdl':
                init_default_scope('mmseg')
                said = str([*faults_without_data(cfg), *lines])
                assert FAULTS_OF_MMSEG.get(path.name, '[]') in said, path
                lines.clear()
                checked += 1
    assert checked > 600


@pytest.mark.parametrize(
    ('dataset', 'known'),
    [
        (dict(pipeline=[]), True),
        (dict(dataset={}), True),
        (dict(datasets=[]), True),
        (None, True),
        (dict(pipeline=[], dataset={}), False),
        (dict(pipeline=[], datasets=[]), False),
    ],
)
def test_sizes_behind_a_wrapper_that_mixes_images_are_not_known(dataset, known):
    parts = [
        Part(f'train_dataloader.{name}', SimpleNamespace(pipeline=SimpleNamespace(transforms=transforms)), [])
        for name, transforms in (('a', []), ('b', [TRANSFORMS.build(dict(type='Resize', scale=(8, 6)))]))
    ]
    images = {'train_dataloader.a': [(48, 40), (20, 30)], 'train_dataloader.b': []}
    found = _sizes_of_batches(dict(train_dataloader=dict(dataset=dataset)), parts, images)
    assert found == ([Sizes(size, size) for size in ((48, 40), (20, 30))] + [None] if known else [None])
