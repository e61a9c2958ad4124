"""Small segmentors of each kind that can be exported, with weights and statistics that no operation leaves out."""

import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from mmseg.models import ResNet
from mmseg.models.backbones.resnet import Bottleneck
from mmseg.registry import MODELS

BN = dict(type='BN')
CLASSES = ('road', 'tree', 'car', 'sky', 'wall')
PALETTE = [[10, 20, 30], [40, 50, 60], [70, 80, 90], [200, 110, 120], [130, 240, 150]]
PLUGINS = {
    '0010': dict(type='mmattn.TransformerAttention2d', terms='0010', num_heads=4),
    '1111': dict(type='mmattn.TransformerAttention2d', terms='1111', num_heads=4),
    '0110, range': dict(type='mmattn.TransformerAttention2d', terms='0110', num_heads=4, spatial_range=5),
    'DynamicConv2d': dict(type='mmattn.DynamicConv2d', kernel_size=(5, 3), groups=4),
}
NAMES = ['BiCCHead', 'BiNLHead', 'BiNLHead relative', 'DeepLabV3PlusBAHead', 'UNetBAHead', *PLUGINS]


class ShortResNet(ResNet):
    """One bottleneck per stage: further ones repeat the same operations."""

    arch_settings = {50: (Bottleneck, (1, 1, 1, 1))}


def _resnet(**settings):
    """The first two stages of a narrow ResNet, whose maps are 1/4 and 1/8 of the image."""
    stages = dict(num_stages=2, strides=(1, 2), dilations=(1, 1), out_indices=(0, 1))
    return dict(dict(type='ResNet', depth=18, base_channels=8, stem_channels=8, norm_cfg=BN, **stages), **settings)


def settings(name, align_corners=False):
    """Return the config of a model."""
    common = dict(num_classes=len(CLASSES), norm_cfg=BN, dropout_ratio=0, align_corners=align_corners)
    head = dict(common, in_index=1, in_channels=16, channels=8)
    kind, *position = name.split()
    if kind in ('BiCCHead', 'BiNLHead'):
        backbone = _resnet()
        head.update(type=f'mmattn.{kind}', window_size=(7, 9), position=position[0] if position else 'bilateral')
        if kind == 'BiCCHead':
            head.update(recurrence=1)  # a second pass repeats the same operations
    elif kind == 'DeepLabV3PlusBAHead':
        backbone = _resnet()
        head.update(type=f'mmattn.{kind}', dilations=(1, 2), c1_in_channels=8, c1_channels=4)
    elif kind == 'UNetBAHead':
        backbone = _resnet(type='mmattn.ResNetStem')
        refined = dict(type='mmattn.LocalBilateralAttention', num_heads=2, iterations=2, share=True)
        blocks = [refined, dict(type='mmattn.LocalBilateralAttention', num_heads=2)]
        head = dict(common, type=f'mmattn.{kind}', in_channels=(8, 8, 16), up_channels=(8, 8), block=blocks)
    else:
        plugin = dict(cfg=PLUGINS[name], stages=(False, True), position='after_conv2')
        backbone = _resnet(type=ShortResNet, depth=50, base_channels=4, plugins=[plugin])
        head.update(type='FCNHead', num_convs=1, in_channels=32)
    preprocessor = dict(
        type='SegDataPreProcessor',
        mean=[120, 110, 100],
        std=[60, 50, 40],
        bgr_to_rgb=True,
        test_cfg=dict(size_divisor=8),
    )
    return dict(
        type='EncoderDecoder',
        data_preprocessor=preprocessor,
        backbone=backbone,
        decode_head=head,
        test_cfg=dict(mode='whole'),
    )


def config(name, align_corners=False):
    """Return the config of a model and of its test images."""
    pipeline = [
        dict(type='LoadImageFromFile'),
        dict(type='Resize', scale=(160, 120), keep_ratio=True),
        dict(type='LoadAnnotations'),
        dict(type='PackSegInputs'),
    ]
    dataset = dict(type='BaseSegDataset', metainfo=dict(classes=CLASSES, palette=PALETTE), pipeline=pipeline)
    return Config(
        dict(model=settings(name, align_corners), test_dataloader=dict(dataset=dataset), default_scope='mmseg')
    )


def segmentor(cfg):
    """Build a model in evaluation mode; at initialisation, residual scalars are 0 and norms are the identity."""
    init_default_scope('mmseg')
    with torch.random.fork_rng():
        torch.manual_seed(1)  # otherwise the weights depend on the tests that ran before
        model = MODELS.build(cfg.model).eval()
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict().items():
        if name.endswith(('mean', 'bias')):
            tensor.data.normal_(0, 0.2, generator=generator)
        elif tensor.dim() < 2 and tensor.is_floating_point():
            tensor.data.uniform_(0.5, 1.5, generator=generator)
    model.dataset_meta = dict(classes=CLASSES, palette=PALETTE)
    return model
