"""DeepLabV3+-BA and U-Net-BA: Tables 4.2 and 4.5, and their forward passes written out."""

import pytest
import torch
from mmengine.config import Config
from mmengine.fileio import load
from mmengine.registry import MODELS, init_default_scope
from mmseg.models.backbones import ResNet
from torch import nn
from torch.nn import functional as F

from analysis_tools.get_flops import table_with_paper
from mmattn.layers import LocalBilateralAttention
from mmattn.segmentation import DeepLabV3PlusBAHead, ResNetStem, UNetBAHead
from mmattn.utils import config_path

from .test_heads import randomise

CONV = dict(type='ConvModule', kernel_size=3, padding=1)
BA = dict(type='mmattn.LocalBilateralAttention', num_heads=2)
HEAD = dict(num_classes=3, norm_cfg=dict(type='BN'), dropout_ratio=0, align_corners=False)
DEEPLAB = dict(in_channels=10, in_index=1, channels=8, dilations=(1, 2), c1_in_channels=6, c1_channels=4, **HEAD)
UNET = dict(in_channels=(4, 6, 8), up_channels=(10, 12), **HEAD)


@pytest.fixture(autouse=True, scope='module')
def scope():
    init_default_scope('mmseg')


def randn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def resize(x, like, align_corners):
    return F.interpolate(x, like.shape[2:], mode='bilinear', align_corners=align_corners)


# Rows of Table 4.2, thousands of parameters as printed; g is printed "1.3184", a misplaced point.
PARAMETERS = dict(
    a='265.22',
    b='217.56',
    c='267.55',
    d='274.54',
    e='283.86',
    f='302.51',
    g='131.84',
    h='150.27',
    i='150.27',
    j='590.08',
)


@pytest.mark.slow
def test_the_configs_are_the_rows_of_table_4_2():
    models = load(config_path('deeplabv3plus_ba/metafile.yml'))['Models']
    found = {}
    for config, entry in [(model['Config'], entry) for model in models for entry in model['Complexity']]:
        cfg = Config.fromfile(config_path(config.removeprefix('configs/')))
        cfg.merge_from_dict(entry.get('Options', {}))
        with torch.device('meta'):
            head = MODELS.build(cfg.model.decode_head)
        row, block = entry['Row'], head.sep_bottleneck[1]
        found[row] = f'{sum(p.numel() for p in (block.conv if row == "j" else block).parameters()) / 1e3:.2f}'
        assert found[row] == f'{entry["Parameters (K)"]:.2f}'
        assert sum(isinstance(m, LocalBilateralAttention) for m in head.modules()) == (row != 'j')
        assert cfg.model.backbone.depth == 101
    assert found == PARAMETERS


@pytest.mark.slow
@pytest.mark.parametrize(('options', 'row'), [(None, 'e'), ({'num_heads': 16}, 'f'), ({'num_heads': 2}, None)])
def test_figures_of_the_paper_for_a_config_with_options(options, row):
    name = 'deeplabv3plus-ba_r101-d8_4xb2-40k_cityscapes-769x769'
    options = options and {f'model.decode_head.block.{key}': value for key, value in options.items()}
    table = table_with_paper(config_path('deeplabv3plus_ba/metafile.yml'), name, options)
    assert (table and [line[:3] for line in table.rows]) == (row and [[row, PARAMETERS[row], float(PARAMETERS[row])]])


@pytest.mark.parametrize(('block', 'align_corners'), [(CONV, True), (BA, False)], ids=['convolution', 'attention'])
def test_deeplab_decoder(block, align_corners):
    """Low-level map and ASPP map to one 1×1, one block, the classes; the rest is stock."""
    head = DeepLabV3PlusBAHead(block=block, **DEEPLAB | dict(align_corners=align_corners)).double().eval()
    randomise(head)
    inputs = [randn(2, 6, 9, 7), randn(2, 10, 5, 4)]
    pooled = head.image_pool(inputs[1]).expand(-1, -1, 5, 4)
    aspp = head.bottleneck(torch.cat([pooled, *head.aspp_modules(inputs[1])], 1))
    low = head.c1_bottleneck(inputs[0])
    fuse, last = head.sep_bottleneck
    assert fuse.conv.kernel_size == (1, 1)
    expected = head.conv_seg(last(fuse(torch.cat([resize(aspp, low, align_corners), low], 1))))
    torch.testing.assert_close(head(inputs), expected, atol=1e-12, rtol=1e-12)
    assert [m.kernel_size for m in head.sep_bottleneck.modules() if isinstance(m, nn.Conv2d)].count((3, 3)) == (
        block is CONV
    )


@pytest.mark.parametrize(
    ('block', 'align_corners'),
    [(CONV, True), (BA, False), ([BA, CONV], True)],
    ids=['convolution', 'attention', 'both'],
)
def test_unet_decoder(block, align_corners):
    head = UNetBAHead(block=block, **UNET | dict(align_corners=align_corners)).double().eval()
    randomise(head)
    low, middle, high = inputs = [randn(2, 4, 9, 7), randn(2, 6, 5, 4), randn(2, 8, 5, 4)]
    x = head.up_blocks[0](torch.cat([middle, high], 1))  # they have one size
    x = head.up_blocks[1](torch.cat([low, resize(x, low, align_corners)], 1))
    torch.testing.assert_close(head(inputs), head.conv_seg(x), atol=1e-12, rtol=1e-12)
    head.train()
    head(inputs).square().sum().backward()
    still = {name for name, p in head.named_parameters() if not p.grad.abs().sum() > 0}
    assert all(name.endswith('conv.bias') for name in still)  # a norm follows


def test_the_default_is_table_4_5():
    """Channels in and out, heads, refinement of up-1 to up-4; each is followed by a norm and a ReLU."""
    cfg = Config.fromfile(config_path('unet_ba/unet-ba_r18-d8_1xb12-100e_helen-448x448.py'))
    with torch.device('meta'):
        head = MODELS.build(cfg.model.decode_head)
    table = [(m.in_channels, m.out_channels, m.num_heads, m.settings['iterations'], m.share) for m in head.up_blocks]
    assert table == [
        (256 + 512, 512, 8, 3, True),
        (128 + 512, 256, 8, 1, False),
        (64 + 256, 256, 4, 1, False),
        (64 + 256, 128, 4, 1, False),
    ]
    for block in head.up_blocks:
        assert block.settings['kernel_size'] == (3, 3)
        assert isinstance(block.output.norm, nn.modules.batchnorm._BatchNorm)
        assert isinstance(block.activate, nn.ReLU)
    assert head.conv_seg.kernel_size == (1, 1)
    plain = Config.fromfile(config_path('unet_ba/unet_r18-d8_1xb12-100e_helen-448x448.py'))
    with torch.device('meta'):
        plain = MODELS.build(plain.model.decode_head)
    assert type(plain) is type(head)
    assert [(m.in_channels, m.out_channels, m.kernel_size) for m in plain.up_blocks] == [
        (*row[:2], (3, 3)) for row in table
    ]


def test_printed_macs_are_of_the_projections_alone():
    """As the page says: of each row but i, to the printed digit, from the printed parameters."""
    models = load(config_path('deeplabv3plus_ba/metafile.yml'))['Models']
    rows = {row['Row']: row for model in models for row in model.get('Complexity', [])}
    assert sorted(rows) == [*'abcdefghij']
    for name, row in rows.items():
        counted = 96 * 96 * (1000 * row['Parameters (K)'] + 1024 * (name != 'j')) / 1e9
        assert (round(counted, 2) == row['MACs (G)']) == (name != 'i'), name


@pytest.mark.parametrize('data', ['helen', 'helen-aligned'])
def test_the_recommended_config_divides_content_logits_by_the_root_of_the_channels(data):
    """Nothing else differs from the thesis's network and its training; it loads its weights."""
    names = [f'unet_ba/unet-ba{kind}_r18-d8_1xb12-100e_{data}-448x448.py' for kind in ('', '-sqrt-dim')]
    configs = [Config.fromfile(config_path(name)) for name in names]
    thesis, scaled = (MODELS.build(cfg.model.decode_head).double().eval() for cfg in configs)
    randomise(thesis)
    scaled.load_state_dict(thesis.state_dict())
    inputs = [randn(2, c, 3, 4) for c in (64, 64, 128, 256, 512)]
    assert not torch.allclose(thesis(inputs), scaled(inputs), atol=1e-3)
    for block, channels in zip(thesis.up_blocks, (512 // 8, 256 // 8, 256 // 4, 128 // 4)):
        assert block.scale == 1
        block.scale = channels**-0.5
    torch.testing.assert_close(thesis(inputs), scaled(inputs))
    for cfg in configs:
        cfg.model.pop('decode_head')
    assert configs[0].to_dict() == {key: configs[1].to_dict()[key] for key in configs[0].to_dict()}


@pytest.mark.parametrize(
    ('head', 'options', 'name'),
    [
        (UNetBAHead, dict(UNET, up_channels=(10,)), 'up_channels'),
        (UNetBAHead, dict(UNET, block=[CONV]), 'block'),
        (UNetBAHead, dict(UNET, in_channels=(4, 8)), 'up_channels'),
        (DeepLabV3PlusBAHead, dict(DEEPLAB, c1_channels=0), 'c1_channels'),
    ],
)
def test_maps_and_blocks_must_fit(head, options, name):
    with pytest.raises(ValueError, match=f'{name} must'):
        head(**{'block': CONV, **options})


@pytest.mark.parametrize(
    'options',
    [
        dict(depth=18),
        dict(depth=18, deep_stem=True, out_indices=(1, 3)),
        dict(depth=50, base_channels=16, stem_channels=16, strides=(1, 2, 1, 1), dilations=(1, 1, 2, 4)),
    ],
    ids=['18', 'deep', '50'],
)
def test_resnet_with_stem_is_resnet(options):
    """The same weights, the same stages, and before them what goes into the pooling."""
    torch.manual_seed(0)
    stock, ours = ResNet(**options), ResNetStem(**options)
    for model in (stock, ours):
        model.eval()
    ours.load_state_dict(stock.state_dict())
    x, seen = torch.randn(2, 3, 37, 50), []
    stock.maxpool.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone()))
    stages = stock(x)
    stem, *ours_stages = ours(x)
    assert torch.equal(stem, seen[0])
    assert stem.shape == (2, options.get('stem_channels', 64), 19, 25)
    assert len(ours_stages) == len(stages)
    assert all(map(torch.equal, ours_stages, stages))


def test_conv_cfg_of_the_head_is_that_of_its_convolutions():
    attention = dict(type='mmattn.BAConv2d', num_heads=1)
    for block, kind in ((dict(CONV), LocalBilateralAttention), (dict(CONV, conv_cfg=None), nn.Conv2d)):
        head = UNetBAHead(**UNET, block=block, conv_cfg=attention)
        assert all(isinstance(block.conv, kind) for block in head.up_blocks)
