"""Another backbone for a table's rows, and its weights."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from mmattn.utils import config_path
from reproduction.backbone import check_weights, read_backbone, set_weights
from reproduction.plan import check_backbones, plan, words
from reproduction.protocol import Protocol, read_data, shipped
from reproduction.tables import read_tables
from reproduction.task import ProtocolError

from .conftest import NAME

pytestmark = pytest.mark.slow

TABLES = read_tables()


def adapted(table, data, dataset='camvid', names=None, **options):
    protocol = Protocol(dataset, 2, 0.1 if dataset == 'camvid' else 1.0, small=True, **options)
    source = read_data(dataset, data[dataset])
    methods = plan(TABLES[table], protocol, source, names)
    return methods, words(methods, protocol, source)


@pytest.mark.parametrize(
    ('table', 'dataset', 'name', 'in_channels', 'widths'),
    [
        ('3.2', 'camvid', NAME, 320, (64, 32)),
        ('3.2', 'camvid', f'{NAME}_heads-128', 320, (128, 64)),
        ('4.2', 'camvid', NAME, 320, (64, 32)),
        ('4.2', 'camvid', f'{NAME}_heads-128', 320, (128, 64)),
        ('4.3', 'fasseg', f'{NAME}_unet', (16, 24, 32, 96, 320), None),
    ],
)
def test_rows_keep_their_heads_and_read_the_other_backbone(table, dataset, name, in_channels, widths, data):
    """All rows have the same backbone and preprocessing; the networks run, and their heads differ as before."""
    before, _ = adapted(table, data, dataset)
    after, said = adapted(table, data, dataset, backbone=name)
    changed = {'in_channels', 'in_index', 'c1_in_channels', 'norm_cfg', 'channels', 'c1_channels'}
    assert [method.name for method in after] == [method.name for method in before]
    for old, new in zip(before, after):
        old, model = old.configs[0].model, new.configs[0].model
        assert model.backbone == read_backbone(name).model.backbone
        assert model.data_preprocessor == {**old.data_preprocessor, 'mean': [127.5] * 3, 'std': [127.5] * 3}
        heads = [(old[part], model[part]) for part in ('decode_head', 'auxiliary_head') if part in old]
        for head, now in heads:
            kept = [{key: value for key, value in each.items() if key not in changed} for each in (head, now)]
            assert kept[0] == kept[1]
            assert head.keys() - {'in_index'} == now.keys() - {'in_index'}
        assert model.decode_head.in_channels == in_channels
        assert widths is None or tuple(now.channels for _, now in heads) == widths
    parameters, macs = after[0].counts()  # with tensors without memory
    assert min(parameters, macs) > 1e6
    assert f'backbone: {name}, from scratch' in said
    heads = 'heads of 256, 128, 128, 64 channels' if widths is None else f'heads of {widths[0]} channels'
    assert f'{heads}, trained from scratch by AdamW 0.003' in said


def test_weights_become_those_of_the_backbone(data, weights, tmp_path):
    """Also of a file with a whole model."""
    state = torch.load(weights, weights_only=True)['state_dict']
    whole = {f'backbone.{key}': value for key, value in state.items()} | {'decode_head.bias': torch.zeros(1)}
    torch.save(whole, tmp_path / 'whole.pth')
    for path in (weights, tmp_path / 'whole.pth'):
        (method,), said = adapted('3.2', data, names=['NL'], backbone=NAME, pretrained=path)
        assert f'backbone: {NAME}, pretrained weights {path.name}' in said
        assert 'heads of 64 channels, trained by AdamW 0.003' in said
        model = MODELS.build(method.configs[0].model)
        model.init_weights()
        found = model.backbone.state_dict()
        assert found.keys() == state.keys()
        assert all(torch.equal(found[key], value) for key, value in state.items())
        check_backbones([method])


def test_weights_that_do_not_fit_are_an_error_with_their_names(weights, tmp_path):
    path = tmp_path / 'other.pth'

    def check(content):
        torch.save(content, path)
        cfg = Config(dict(default_scope='mmseg', model=read_backbone(NAME).model.to_dict()))
        set_weights(cfg, path)
        check_weights(cfg.model.backbone, cfg.default_scope)

    state = torch.load(weights, weights_only=True)['state_dict']
    check({**state, 'classifier.weight': torch.zeros(3)})
    fits = dict(state)
    state['stem.weight'] = state.pop('conv1.conv.weight')
    state['layer2.0.conv.0.bn.bias'] = torch.zeros(5)
    names = r'conv1\.conv\.weight;.* layer2\.0\.conv\.0\.bn\.bias \(5,\) in place of \(96,\);.* stem\.weight$'
    for content, said in (
        (state, names),
        ({f'backbone.{key}': value for key, value in state.items()}, names),
        (dict(state_dict=dict(epoch=3)), 'state dict'),
        (dict(state_dict=fits, config=Config()), r'mmengine\S*Config'),
    ):
        with pytest.raises(ValueError, match=rf'other\.pth .*{said}'):
            check(content)


NO_BACKBONE = str(config_path('_base_/schedules/adamw_160.py'))


@pytest.mark.parametrize(
    ('table', 'dataset', 'options', 'names'),
    [
        ('3.2', 'camvid', dict(backbone='vgg'), f"--backbone .*{NAME}, .*'vgg'"),
        ('3.2', 'camvid', dict(backbone=NO_BACKBONE), r'adamw_160\.py .*model\.backbone'),
        ('3.2', 'camvid', dict(backbone=f'{NAME}_unet'), r'decode_head .* 256 .*\(16, 24, 32'),
        ('4.3', 'fasseg', dict(backbone=NAME), r'decode_head .*\(32, 32, 64, 128, 256\) .* 320'),
        ('2', 'camvid', dict(backbone=NAME), 'plugins'),
        ('3.6', 'multi30k_en-de', dict(backbone=NAME), r'mmattn\.TranslationTransformer has no backbone'),
        ('5.1', 'davis_240p', dict(backbone=NAME), r'mobilenet-v2-d8 .*mmattn\.SST'),
        ('3.2', 'camvid', dict(backbone='mobilenet-v2-s8_video'), r's8_video .*decode_head .* 256 .* None'),
        ('5.1', 'davis_240p', dict(backbone='mobilenet-v2-s8_video', frozen=True), '--frozen requires --pretrained'),
        ('5.1', 'davis_240p', dict(pretrained=True, frozen=True, crops=4), '--cached-crops .*--frozen'),
        ('3.2', 'camvid', dict(crops=4), '--cached-crops requires --pretrained'),
        ('3.1', 'camvid', dict(backbone=NAME, pretrained=True, crops=4), '--cached-crops .*--tta'),
        ('3.2', None, dict(backbone=NAME, pretrained=True, crops=4), 'whole: .*--dataset'),
    ],
)
def test_a_backbone_that_does_not_fit_the_rows_is_an_error(data, weights, table, dataset, options, names):
    if options.get('pretrained'):
        options = {**options, 'pretrained': weights}
    with pytest.raises((ValueError, ProtocolError), match=names):
        plan(TABLES[table], Protocol(dataset, 2, small=True, **options), dataset and read_data(dataset, data[dataset]))


def test_every_pipeline_for_segmentation_seeds_its_augmentation():
    """So the crops whose features are stored depend only on their number."""
    names = [path.stem for path in config_path('_base_/datasets').glob('*.py')]
    for name in names:
        loader = shipped(f'_base_/datasets/{name}.py').get('train_dataloader')
        if loader and 'PackSegInputs' in str(loader):
            assert loader.dataset.pipeline[0].type == 'mmattn.SeedAugmentation'


def test_the_backbone_for_clips_is_the_first_part_of_the_whole(weights):
    """Maps and gradients, in float64."""
    from reproduction.mobilenet_v2_stride8 import MobileNetV2Stride8

    init_default_scope('mmengine')
    cfg = dict(act_cfg=dict(type='ReLU6'))
    part = MobileNetV2Stride8(**cfg).double()
    whole = MODELS.build(dict(type='mmseg.MobileNetV2', out_indices=(1, 2), **cfg)).double()
    state = torch.load(weights, weights_only=True)['state_dict']
    whole.load_state_dict(state)
    part.load_state_dict({key: state[key] for key in part.state_dict()})
    images = torch.randn(2, 3, 24, 40, dtype=torch.float64)
    gradients = []
    for model in (part, whole):
        maps = model(images)
        assert [tuple(x.shape) for x in maps] == [(2, 24, 6, 10), (2, 32, 3, 5)]
        sum((x**2).sum() for x in maps).backward()
        gradients.append((maps, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (maps, ours), (whole_maps, expected) = gradients
    assert all(torch.equal(*pair) for pair in zip(maps, whole_maps, strict=True))
    assert ours.keys() == expected.keys() == dict(part.named_parameters()).keys()
    assert all(torch.equal(ours[name], value) for name, value in expected.items())
    (last,) = MobileNetV2Stride8(out_indices=(2,), **cfg).double()(images)  # which a head selects by its number
    assert last.shape == maps[1].shape
