"""Heads on stored features of a frozen backbone: equal to the whole network, computed once, resumed."""

from itertools import islice

import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS
from mmengine.runner import Runner

from mmattn.engine import InfiniteSampler
from reproduction import cached_features
from reproduction.cached_features import CachedFeaturesDataset, on_cached_features
from reproduction.frozen_backbone import FrozenBackbone

from .conftest import NAME
from .test_backbone import adapted

pytestmark = pytest.mark.slow

CROPS = 5


@pytest.fixture
def whole(request, data, weights):
    """The config of a row with the whole network, whose backbone is frozen."""
    table, name = getattr(request, 'param', ('3.2', 'Bi-CC'))
    dataset, backbone = ('fasseg', f'{NAME}_unet') if table == '4.3' else ('camvid', NAME)
    methods, said = adapted(table, data, dataset, [name], backbone=backbone, pretrained=weights, crops=CROPS)
    assert 'backbone frozen, heads trained on its features of 5 fixed crops, stored as float16' in said
    return next(method for method in methods if method.name == name).configs[0]


def build(cfg, weights=None):
    """Build a network; its heads are random, or those of another, and without dropout."""
    torch.manual_seed(1)
    model = MODELS.build(cfg.model)
    model.init_weights()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout2d):
            module.p = 0.0
    if weights is not None:
        heads = {key: value for key, value in weights.items() if not key.startswith('backbone.')}
        model.load_state_dict(heads)
    return model.train()


def step(cfg, model, indices):
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    batch = model.data_preprocessor(pseudo_collate([dataset[index] for index in indices]), True)
    losses = model(**batch, mode='loss')
    sum(value for key, value in losses.items() if 'loss' in key).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    model.zero_grad(set_to_none=True)
    return losses, gradients


@pytest.mark.parametrize(
    'whole', [('3.2', 'Bi-CC'), pytest.param(('4.2', 'e: both, 8 heads'), marks=pytest.mark.slow)], indirect=True
)
def test_a_step_equals_that_of_the_whole_network(whole, tmp_path, monkeypatch):
    """Losses, and gradients bit by bit, of the same crops; the heads of 4.2 also read the low-level map.

    The stored features are those of single images. Convolutions of several images round differently in float32, which
    the losses show, to 1e-5; for the gradients, the backbone of the whole network reads one image at a time, too.
    """
    cached = on_cached_features(whole, tmp_path, CROPS, dtype=torch.float32)
    network = build(whole)
    heads = build(cached, network.state_dict())
    images = DATASETS.build(whole.train_dataloader.dataset)
    crops = [*islice(InfiniteSampler(images, shuffle=True, seed=0), CROPS)]
    found, found_gradients = step(cached, heads, range(CROPS))
    expected, _ = step(whole, network, crops)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-6)

    forward = FrozenBackbone.forward

    def one_by_one(self, x):  # and channels last, as the heads read stored features
        maps = (torch.cat(maps) for maps in zip(*(forward(self, image) for image in x.split(1))))
        return [x.contiguous(memory_format=torch.channels_last) for x in maps]

    monkeypatch.setattr(FrozenBackbone, 'forward', one_by_one)
    expected, gradients = step(whole, network, crops)
    assert all(torch.equal(found[key], value) for key, value in expected.items())
    assert found_gradients.keys() == gradients.keys()
    assert all(torch.equal(found_gradients[name], value) for name, value in gradients.items())
    assert all(value.abs().max() > 0 for name, value in gradients.items() if 'conv_seg' in name)
    assert all(p.grad is None and not p.requires_grad for p in network.backbone.parameters())


def test_a_step_in_mixed_precision_is_near_the_one_in_float32(whole, tmp_path):
    """The preprocessor runs under autocast, too, in mmengine's ``train_step``; the features stored are in float16."""
    cached = on_cached_features(whole, tmp_path, CROPS)
    heads = build(cached)
    expected, gradients = step(cached, heads, range(CROPS))
    with torch.autocast('cpu', torch.bfloat16):
        losses, gradients_in_bfloat16 = step(cached, heads, range(CROPS))
    torch.testing.assert_close(losses['decode.loss_ce'], expected['decode.loss_ce'], rtol=0.02, atol=0)
    large = [name for name, gradient in gradients.items() if gradient.norm() > 1e-4]  # none before a batch norm
    assert len(large) > len(gradients) / 2
    for name in large:
        cosine = torch.cosine_similarity(gradients_in_bfloat16[name].flatten(), gradients[name].flatten(), 0)
        assert cosine > 0.9, name


@pytest.mark.parametrize(
    'whole', [('3.2', 'Bi-CC'), pytest.param(('4.3', 'U-Net-BA'), marks=pytest.mark.slow)], indirect=True
)
def test_the_test_equals_that_of_the_whole_network(whole, tmp_path):
    """Through the Runner: the metrics; in half precision, nearly. 4.3 pads images, and has its own metric."""
    scores = []
    for dtype in (None, torch.float32, torch.float16):
        cfg = whole if dtype is None else on_cached_features(whole, tmp_path, CROPS, dtype=dtype)
        cfg = cfg.copy()
        cfg.work_dir = str(tmp_path / f'{dtype}')
        cfg.experiment_name = f'{tmp_path.name} {dtype}'
        cfg.log_level = 'ERROR'
        for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
            loader.update(num_workers=0, persistent_workers=False)
        runner = Runner.from_cfg(cfg)
        if dtype is None:
            runner.model.init_weights()
            state = {key: value for key, value in runner.model.state_dict().items() if not key.startswith('backbone')}
        else:
            runner.model.load_state_dict(state)
        scores.append(runner.test())
    assert scores[1] == scores[0]
    assert scores[2] == pytest.approx(scores[0], abs=0.5, nan_ok=True)
    assert max(scores[0].values()) > 0


def test_rows_share_the_features_which_are_computed_once_and_extended(data, weights, tmp_path, monkeypatch):
    """Also by an interrupted call; other crops are added."""
    written = []
    write = cached_features.write_sample

    def interrupted(path, *arguments):
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(path.name)
        write(path, *arguments)

    methods, _ = adapted('3.2', data, names=['CC', 'Bi-CC'], backbone=NAME, pretrained=weights, crops=CROPS)
    first, second = (method.configs[0] for method in methods)
    monkeypatch.setattr(cached_features, 'write_sample', interrupted)
    with pytest.raises(KeyboardInterrupt):
        on_cached_features(first, tmp_path / 'features', CROPS)
    monkeypatch.setattr(cached_features, 'write_sample', write)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob('features/crops*/*.pt')}
    assert len(before) == 3
    one, two = (on_cached_features(cfg, tmp_path / 'features', CROPS) for cfg in (first, second))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert one.train_dataloader == two.train_dataloader
    assert one.test_dataloader == one.val_dataloader
    assert one.model.pop('decode_head') != two.model.pop('decode_head')
    assert one.to_dict() == two.to_dict()
    folders = sorted(path.name.split('-')[0] for path in tmp_path.glob('features/*-*'))
    assert folders == ['crops', 'images']

    fresh = on_cached_features(first, tmp_path / 'again', CROPS + 1).train_dataloader.dataset
    crops = [DATASETS.build(dataset) for dataset in (one.train_dataloader.dataset, fresh)]
    assert [len(part) for part in crops] == [CROPS, CROPS + 1]
    for index in range(CROPS):
        a, b = (part[index] for part in crops)
        assert all(x.dtype == torch.float16 for x in a['inputs'])
        assert all(torch.equal(x, y) for x, y in zip(a['inputs'], b['inputs'], strict=True))
        assert torch.equal(a['data_samples'].gt_sem_seg.data, b['data_samples'].gt_sem_seg.data)
    assert len({str(crops[1][index]['inputs'][0].float().sum()) for index in range(CROPS + 1)}) == CROPS + 1


@pytest.mark.slow
@pytest.mark.parametrize('change', ['weights', 'pipeline'])
def test_other_weights_or_another_pipeline_have_other_features(change, whole, weights, tmp_path):
    one = on_cached_features(whole, tmp_path, 2)
    if change == 'weights':
        state = torch.load(weights, weights_only=True)
        state['state_dict']['conv1.conv.weight'] *= 2
        torch.save(state, tmp_path / 'other.pth')
        whole.model.backbone.backbone.init_cfg.checkpoint = str(tmp_path / 'other.pth')
    else:
        whole.train_dataloader.dataset.pipeline[5].prob = 0.0
    two = on_cached_features(whole, tmp_path, 2)
    assert two.train_dataloader.dataset.data_root != one.train_dataloader.dataset.data_root
    assert (two.test_dataloader == one.test_dataloader) == (change == 'pipeline')


def test_a_cache_that_lacks_a_sample_is_an_error(whole, tmp_path):
    dataset = dict(on_cached_features(whole, tmp_path, 2).train_dataloader.dataset)
    dataset.pop('type')
    with pytest.raises(FileNotFoundError, match=r'00002\.pt.* 3 samples'):
        CachedFeaturesDataset(**{**dataset, 'num_samples': 3})
    (path,) = tmp_path.glob('crops-*/00001.pt')
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r'00001\.pt'):
        CachedFeaturesDataset(**dataset)[1]


@pytest.mark.parametrize('fault', ['features', 'masks'])
def test_nothing_is_stored_of_faulty_data(whole, tmp_path, fault):
    """Features that are not finite in half precision, and masks with other labels than the head's."""
    if fault == 'features':
        whole.model.data_preprocessor.std = [1e-9] * 3
        whole.model.backbone.backbone.act_cfg = dict(type='ReLU')
    else:
        whole.model.decode_head.num_classes = 7
    with pytest.raises(ValueError, match='data check' if fault == 'masks' else r'\.jpg.*float16'):
        on_cached_features(whole, tmp_path, 2)
    assert not list(tmp_path.glob('*/*.pt'))


def test_a_frozen_backbone_stays_so():
    """Norm statistics, dropout and weights; the maps are those of the backbone in evaluation mode."""
    cfg = dict(type='mmattn.ResNetStem', depth=18, base_channels=4, stem_channels=4, norm_cfg=dict(type='SyncBN'))
    torch.manual_seed(0)
    frozen = FrozenBackbone(cfg)
    before = {key: value.clone() for key, value in frozen.state_dict().items()}
    x = torch.randn(2, 3, 32, 40)
    maps = frozen.train()(x)
    assert all(not module.training for module in frozen.modules())
    assert all(torch.equal(value, before[key]) for key, value in frozen.state_dict().items())
    for found, expected in zip(maps, frozen.backbone(x), strict=True):
        assert torch.equal(found, expected)
        assert not found.requires_grad
