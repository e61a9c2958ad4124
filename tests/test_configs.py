"""Shipped configs of each kind take a training step and predict, through the stock Runner, on small images; all build.

Configs on text, captions and questions are run in tests/language. Those that add deformable convolutions to a config
that is run are compared with it.
"""

import math
import re
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.fileio import load
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from PIL import Image

from mmattn.utils import config_path

from .requirements import real_data, required_by, requires
from .support.tiny_config import shrink_images
from .tiny_data import SIZE
from .video import clips

CONFIGS = sorted(path.relative_to(config_path()).as_posix() for path in config_path().glob('[!_]*/*.py'))
TEXT = [name for name in CONFIGS if name.startswith(('bi_sa/', 'attention_terms_nmt/'))]
CAPTIONS = [name for name in CONFIGS if re.match(r'eta/|ng_san/(?!mcan)', name)]
GROUNDING = [name for name in CONFIGS if name.startswith('ban_grounding/')]
QUESTIONS = [name for name in CONFIGS if name.startswith(('ban/', 'fusion/', 'ng_san/mcan'))]
# With deformable convolutions and terms that others run with: compared with the config without, not run.
BUILT = [name for name in CONFIGS if re.search(r'attn(?!0010|1111)\d{4}-dcn_', name)]
UNTRAINED = [name for name in CONFIGS if name.startswith('label_propagation/')]  # run in tests/video
VISION = [name for name in CONFIGS if name not in (*BUILT, *TEXT, *CAPTIONS, *GROUNDING, *QUESTIONS, *UNTRAINED)]


@cache
def read(name):
    """Return a config, which must not be changed."""
    return Config.fromfile(config_path(name))


def kinds(name):
    """Return what a config is made of: model, data set, optimizer and schedule, by the types of their components."""
    cfg = read(name)
    model = cfg.model
    head = (model.get('decode_head') or model.get('roi_head') or model).type
    plugins = [plugin['cfg']['type'] for plugin in model.backbone.get('plugins') or []]
    schedule = [scheduler.type for scheduler in cfg.param_scheduler]
    return (
        str((head, model.backbone.type, model.get('attention', {}).get('type'), plugins)),
        cfg.data_root,
        str((cfg.optim_wrapper.type, cfg.optim_wrapper.optimizer.type, schedule, cfg.train_cfg.type)),
    )


# One of each network by default. Together they have every component of the configs, as a test says: to read all configs
# for the choice would take 10 s in each process.
TRAINED = [
    'bi_cc/bi-cc_r18-d8-half_1xb8-160_camvid-180x180.py',
    'bi_nl/bi-nl_r18-d8-half_1xb8-160_camvid-180x180.py',
    'deeplabv3plus_ba/deeplabv3plus-ba-shared-3passes_r101-d8_4xb2-40k_cityscapes-769x769.py',
    'unet_ba/unet-ba_r18-d8-half_1xb8-480_fasseg-192x160.py',
    'sst/sst-grid_r18-d8-half_1xb4-400_davis-240p-stills.py',
    'attended_residual/faster-rcnn_r50-w16-dynconv13_fpn_1xb8-150_bccd-320x240.py',
]
OTHERS = [
    'attended_residual/faster-rcnn_r50-w16-attn0010-dcn_fpn_1xb4-100_trees-400x400.py',
    'attended_residual/faster-rcnn_r50-w16_fpn_1xb4-100_trees-400x400.py',
    'attended_residual/fcn_r50-d8-attn0010-dcn_8xb1-60k_cityscapes-769x769.py',
    'attended_residual/fcn_r50-d8-dcn_8xb1-60k_cityscapes-769x769.py',
    'attended_residual/fcn_r50-d8-dynconv13_8xb1-60k_cityscapes-769x769.py',
    'bi_cc/bi-cc_mit-b0_4xb2-160k_ade20k-512x512.py',
    'bi_cc/bi-cc_r101-d8_4xb2-160k_ade20k-512x512.py',
    'bi_cc/cc_mit-b0_4xb2-160k_ade20k-512x512.py',
    'bi_cc/cc_r101-d8_4xb2-160k_ade20k-512x512.py',
    'bi_cc/cc_r18-d8-half_1xb8-160_camvid-180x180.py',
    'bi_nl/bi-nl_r101-d8_4xb2-160k_ade20k-512x512.py',
    'bi_nl/nl_r101-d8_4xb2-160k_ade20k-512x512.py',
    'bi_nl/nl_r18-d8-half_1xb8-160_camvid-180x180.py',
    'sst/sst-strided_r18-d8-half_1xb4-400_davis-240p.py',
    'unet_ba/mmseg-unet_s5-d16-w24_1xb8-480_fasseg-192x160.py',
    'attended_residual/faster-rcnn_r50-attn0010-dcn_fpn_8xb2-1x_coco.py',
    'bi_cc/cc_r18-d8-half_1xb8-50_buildings-256x256.py',
    'sst/sst-grid_r50-d8_4xb1-160e_davis-youtube-vos-240x432.py',
    'sst/sst-grid_r50-d8_4xb1-20k_davis-2017-480x864.py',
    'sst/sst-strided_r50-d8_4xb1-100k_youtube-vos-2018-240x432.py',
    'sst/sst-strided_r50-d8_4xb1-20k_davis-2016-480x864.py',
    'sst/sst-strided_r50-d8_4xb1-20k_youtube-vos-2019-480x864.py',
    'unet_ba/unet-ba-sqrt-dim_r18-d8_1xb12-100e_helen-448x448.py',
    'unet_ba/unet-ba_r18-d8_1xb12-100e_lfw-pl-224x224.py',
    'unet_ba/unet-ba_r18-d8_1xb12-100e_lfw-pl-aligned-224x224.py',
    'unet_ba/unet_r18-d8_1xb12-100e_helen-aligned-448x448.py',
]
BUILT_BY_DEFAULT = {
    name.partition('/')[0]: name for name in CONFIGS if name not in TRAINED + OTHERS
}.values()  # one of each method


@pytest.mark.slow
def test_the_configs_that_are_trained_have_every_component():
    assert {*VISION} >= {*TRAINED, *OTHERS}
    kept, every = (
        {(i, kind) for name in names for i, kind in enumerate(kinds(name))} for names in (TRAINED + OTHERS, VISION)
    )
    assert kept == every


@pytest.fixture
def config(request, tiny_data, tmp_path, monkeypatch):
    for name, value in tiny_data.items():
        monkeypatch.setenv(name, value)
    cfg = Config.fromfile(config_path(request.param))
    # mmcv's deformable convolution takes no map smaller than its kernel.
    shrink_images(cfg._cfg_dict, (3 * SIZE[0], 3 * SIZE[1]) if cfg.default_scope == 'mmdet' else SIZE)
    cfg.work_dir = str(tmp_path)
    for loader in filter(None, (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader)):
        loader.update(num_workers=0, persistent_workers=False, batch_size=min(loader.batch_size, 2))
    by_epoch = cfg.train_cfg.type == 'EpochBasedTrainLoop'
    cfg.train_cfg.update({'max_epochs' if by_epoch else 'max_iters': 1}, val_interval=1)
    cfg.iterations = None if by_epoch else 1
    cfg.best = cfg.default_hooks.checkpoint.save_best
    # Checkpoints and printed configs take most of the time, and are tested with other runs.
    cfg.default_hooks.checkpoint.update(interval=-1, save_last=False, save_best=None)
    monkeypatch.setattr(Config, 'pretty_text', '')
    cfg.log_level = 'ERROR'
    cfg.experiment_name = request.param
    return cfg


def case(name, by_default):
    return pytest.param(name, marks=[required_by(name), *([] if by_default else [pytest.mark.slow])])


@pytest.mark.parametrize(
    'name', [case(name, name in BUILT_BY_DEFAULT) for name in CONFIGS if name not in TRAINED + OTHERS]
)
def test_config_builds(name):
    """Without memory for the weights. Each parameter of this package has a dimension, as FSDP requires."""
    cfg = read(name)
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        model = MODELS.build(deepcopy(cfg.model))
    ours = [module for module in model.modules() if type(module).__module__.startswith('mmattn.')]
    assert all(p.ndim > 0 for module in ours for p in module.parameters())


@pytest.mark.parametrize('config', [case(name, name in TRAINED) for name in TRAINED + OTHERS], indirect=True)
def test_config_trains_and_predicts(config):
    runner = Runner.from_cfg(config)
    before = {name: p.detach().clone() for name, p in runner.model.named_parameters()}
    runner.train()
    assert runner.iter == (config.iterations or len(runner.train_dataloader))
    if config.val_cfg is not None:  # YouTube-VOS has no truth to validate with
        assert math.isfinite(runner.message_hub.get_scalar(f'val/{config.best}').current())
    moved = [name for name, p in runner.model.named_parameters() if not torch.equal(p, before[name])]
    assert any(name.startswith(('decode_head', 'roi_head', 'decoder')) for name in moved)
    assert all(torch.isfinite(p).all() for p in runner.model.parameters())
    ours = [module for module in runner.model.modules() if type(module).__module__.startswith('mmattn.')]
    # FSDP takes no others; mmseg's CCHead has one.
    assert all(p.ndim > 0 for module in ours for p in module.parameters())
    prediction = runner.model.test_step(next(iter(runner.test_dataloader)))[0]
    if 'pred_instances' in prediction:
        boxes = prediction.pred_instances
        assert len(boxes) > 0
        assert boxes.bboxes.min() >= 0
        assert (boxes.bboxes.amax(0) <= torch.tensor([*SIZE, *SIZE])).all()
        labels, classes = boxes.labels, config.model.roi_head.bbox_head.num_classes
    elif 'pred_masks' in prediction:
        labels, classes = prediction.pred_masks.data, max(prediction.first_frames) + 1
        assert labels.shape == (3, *clips.SIZE)
        for position, given in prediction.given.items():
            assert torch.equal(labels[position][given > 0], given[given > 0])
    else:
        labels, classes = prediction.pred_sem_seg.data, config.model.decode_head.num_classes
        with Image.open(prediction.img_path) as image:
            assert labels.shape == (1, image.height, image.width)
    assert labels.min() >= 0
    assert labels.max() < classes


@pytest.mark.slow
@pytest.mark.parametrize('name', BUILT)
def test_a_deformable_network_is_the_regular_one_but_for_its_convolutions(name):
    ours, regular = (Config.fromfile(config_path(n)) for n in (name, name.replace('-dcn_', '_')))
    init_default_scope(ours.default_scope)
    with torch.device('meta'):
        backbone = MODELS.build(ours.model.backbone)
    kinds = [[type(m).__name__ for m in getattr(backbone, f'layer{i}').modules()] for i in (1, 2, 3, 4)]
    assert [kind.count('DeformConv2dPack') for kind in kinds] == [0, 0, 6, 3]
    assert [kind.count('TransformerAttention2d') for kind in kinds] == [0, 0, 6, 3]
    for key in ('dcn', 'stage_with_dcn'):
        del ours.model.backbone[key]
    assert ours.to_dict() == regular.to_dict()


@pytest.mark.slow
@pytest.mark.parametrize('name', [name for name in CONFIGS if '/bi-nl_' in name or '/bi-cc_' in name])
def test_methods_differ_in_one_line(name):
    """Bi-NL and Bi-CC are the stock configs with another head type."""
    ours, stock = (read(n).to_dict() for n in (name, name.replace('/bi-', '/')))
    ours['model']['decode_head'].pop('type')
    stock['model']['decode_head'].pop('type')
    assert ours == stock


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'count'),
    [
        pytest.param(name, count, marks=requires(name))
        for name, count in dict(camvid=(367, 101), buildings=(8, 4), fasseg=(156, 26)).items()
    ],
)
def test_labels_of_real_data_are_the_classes(name, count, monkeypatch):
    root = real_data(name)
    from mmseg.registry import DATASETS

    monkeypatch.setenv(f'{name.upper()}_ROOT', str(root))
    cfg = Config.fromfile(config_path(f'_base_/datasets/{name}.py'))
    init_default_scope('mmseg')
    for loader, expected in zip((cfg.train_dataloader, cfg.val_dataloader), count):
        loader.dataset.pipeline = [ConfigDict(type='LoadImageFromFile'), ConfigDict(type='LoadAnnotations')]
        dataset = DATASETS.build(loader.dataset)
        assert len(dataset) == expected
        for i in range(0, len(dataset), 1 + len(dataset) // 8):
            sample = dataset[i]
            assert sample['img'].shape[:2] == sample['gt_seg_map'].shape
            assert set(sample['gt_seg_map'].ravel()) <= {*range(len(dataset.metainfo['classes'])), 255}


@pytest.mark.slow
@pytest.mark.parametrize('folder', sorted({Path(name).parent.as_posix() for name in CONFIGS}))
def test_metafile_names_the_configs(folder):
    """The metafile lists every config, with what the config says."""
    models = load(config_path(folder) / 'metafile.yml')['Models']
    own = [f'configs/{name}' for name in CONFIGS if name.startswith(f'{folder}/')]
    assert [model['Config'] for model in models] == own, f'{folder}/metafile.yml: one entry per config, in order'
    for model in models:
        name = model['Config'].removeprefix('configs/')
        cfg = read(name)
        assert 'checkpoint_keys' in cfg.default_hooks  # weights that do not fit are an error
        if name in UNTRAINED:
            continue
        said = model['Metadata']
        if cfg.train_cfg.type == 'EpochBasedTrainLoop':
            assert said['Epochs'] == cfg.train_cfg.max_epochs
        else:
            assert said['Iterations'] == cfg.train_cfg.max_iters
        if cfg.default_scope == 'mmseg':
            assert said['Crop Size'] == str(cfg.model.data_preprocessor.size)
        processes, size = map(int, re.search(r'_(\d+)xb(\d+)[-_]', model['Name']).groups())
        if name in TEXT:
            assert size == cfg.train_dataloader.batch_sampler.max_tokens
            assert said['Size'] == cfg.model.size
        else:
            size = cfg.train_dataloader.batch_size
        assert said['Batch Size'] == processes * size
        if 'depth' in cfg.model.get('backbone', {}):  # mmseg's U-Net has none
            assert re.search(rf'r{cfg.model.backbone.depth}[-_]', model['Name'])
            assert model['Metadata']['Backbone'].startswith(f'R-{cfg.model.backbone.depth}-')
