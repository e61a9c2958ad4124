"""Label propagation against a literal search, and on a clip that does not move."""

import math
from urllib.error import URLError

import numpy as np
import pytest
import torch
from mmengine.config import Config
from torch.nn import functional as F

from mmattn.registry import MODELS
from mmattn.utils.paths import config_path
from mmattn.video import ClipSession, Frame, VOSInferencer, label_propagation, shrink_masks
from mmattn.video.inferencer import DEFAULT_CONFIG

BACKBONE = dict(
    type='mmseg.ResNet', depth=18, base_channels=8, stem_channels=8, num_stages=1, out_indices=(0,), strides=(1,),
    dilations=(1,), norm_eval=True,
)  # fmt: skip


def build(**options):
    torch.manual_seed(0)
    return MODELS.build(dict(type='mmattn.LabelPropagation', backbone=BACKBONE, **options)).eval()


@pytest.mark.parametrize('k', [1, 3, 50])
@torch.no_grad()
def test_against_a_literal_search(k, monkeypatch):
    """k = 50 is more than the 12 positions of the reference: all of them."""
    monkeypatch.setattr(label_propagation, 'POSITIONS_AT_ONCE', 7)
    model = build(top_k=k, temperature=0.5)
    frames = torch.randn(2, 3, 3, 16, 12, generator=torch.Generator().manual_seed(1))
    features, fine = model.extract_feat(frames.flatten(0, 1))
    assert fine is None
    features = features.unflatten(0, (2, 3)).double()
    masks, clip = torch.rand(3, 4, 3, dtype=torch.float64), torch.tensor([0, 1, 1])
    reference = features[clip, 0]
    found = model.object_streams(features, torch.arange(3).expand(2, 3), reference, masks, clip)
    raw = model.backbone(frames.flatten(0, 1))[-1].unflatten(0, (2, 3)).double()
    for o, b in enumerate(clip.tolist()):
        for t in range(3):
            for y in range(4):
                for x in range(3):
                    one = raw[b, t, :, y, x]
                    pairs = []
                    for v in range(4):
                        for u in range(3):
                            other = raw[b, 0, :, v, u]
                            cosine = float(one @ other / one.norm() / other.norm())
                            pairs.append((cosine, float(masks[o, v, u])))
                    best = sorted(pairs, reverse=True)[:k]
                    total = sum(math.exp(cosine / 0.5) for cosine, _ in best)
                    share = sum(math.exp(cosine / 0.5) * m for cosine, m in best) / total
                    assert found[o, t, y, x, 0] == pytest.approx(share, abs=1e-6)  # features are normalised in float32


def test_objects_are_followed_in_parts():
    """Of two colours, which change places after the first frame."""
    model, grey = build(), np.full((64, 96, 3), 128, np.uint8)
    first, later, mask, expected = grey.copy(), grey.copy(), *np.zeros((2, 64, 96), np.uint8)
    first[16:48, 8:40], first[16:48, 56:88] = (255, 0, 0), (0, 255, 0)
    later[16:48, 8:40], later[16:48, 56:88] = (0, 255, 0), (255, 0, 0)
    mask[16:48, 8:40], mask[16:48, 56:88] = 3, 7
    expected[16:48, 8:40], expected[16:48, 56:88] = 7, 3
    frames = [Frame(0, first, mask), Frame(1, later), Frame(2, later)]
    found = [ids for _, ids in ClipSession(model, max_frames=2).segment(frames)]
    np.testing.assert_array_equal(found[0], mask)
    for ids in found[1:]:
        inside = np.zeros((64, 96), bool)
        inside[20:44, 12:36] = inside[20:44, 60:84] = True  # edges are rounded by the interpolation
        np.testing.assert_array_equal(ids[inside], expected[inside])
        assert (ids == expected).mean() > 0.95


def test_the_head_returns_the_shares():
    shares = shrink_masks(torch.rand(2, 32, 48) > 0.5, (8, 12))
    logits = build().head(shares.unsqueeze(-1), None, (32, 48))
    expected = F.interpolate(shares.unsqueeze(1), (32, 48), mode='bilinear', align_corners=False)
    torch.testing.assert_close(logits.softmax(1)[:, 1:], expected)


@pytest.mark.parametrize('name', ['top_k', 'temperature'])
def test_invalid_options(name):
    with pytest.raises(ValueError, match=name):
        build(**{name: 0})


@torch.no_grad()
def test_a_backbone_that_returns_one_map_without_a_tuple():
    backbone = dict(type='mmseg.MobileNetV2', widen_factor=0.25, out_indices=(0, 1))
    several = MODELS.build(dict(type='mmattn.LabelPropagation', backbone=backbone)).eval()
    one = MODELS.build(dict(type='mmattn.LabelPropagation', backbone=dict(backbone, out_indices=(1,)))).eval()
    one.load_state_dict(several.state_dict())
    images = torch.randn(2, 3, 32, 64)
    assert isinstance(one.backbone(images), torch.Tensor)
    torch.testing.assert_close(one.extract_feat(images)[0], several.extract_feat(images)[0], rtol=0, atol=0)


@pytest.fixture
def default():
    """The shipped config with a thin backbone."""
    cfg = Config.fromfile(config_path(DEFAULT_CONFIG))
    cfg.model.backbone.widen_factor = 0.25
    return cfg


def test_weights_of_the_default_from_the_cache_and_from_files(default, tmp_path, monkeypatch):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    backbone = MODELS.build(default.model.backbone)
    backbone.eval()
    weights, image = backbone.state_dict(), torch.randn(1, 3, 32, 40)
    prefixed = {f'backbone.{name}': x for name, x in weights.items()}
    cached = tmp_path / 'hub/checkpoints' / default.model.backbone.init_cfg.checkpoint.rpartition('/')[2]
    cached.parent.mkdir(parents=True)
    torch.save(dict(state_dict={**prefixed, 'head.fc.bias': torch.zeros(2)}), cached)
    torch.save(weights, tmp_path / 'bare.pth')
    for source in (None, tmp_path / 'bare.pth', cached):
        model = VOSInferencer(default, device='cpu', backbone_weights=source).model
        for actual, expected in zip(model.backbone(image), backbone(image), strict=True):  # norms are folded
            torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    ('content', 'kind'),
    [
        (None, FileNotFoundError),
        (b'no checkpoint', ValueError),
        (dict(state_dict=[1]), ValueError),
        ({'fc.weight': torch.zeros(2)}, ValueError),
        ({'conv1.conv.weight': torch.zeros(2)}, ValueError),
        ('offline', ConnectionError),
    ],
)
def test_weights_that_cannot_be_loaded(default, tmp_path, monkeypatch, content, kind):
    def load_url(*args, **kwargs):
        raise URLError('no internet')

    monkeypatch.setattr(torch.hub, 'download_url_to_file', load_url)
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    path = tmp_path / 'w.pth'
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        torch.save(content, path)
    offline = content == 'offline'
    with pytest.raises(kind, match='--backbone-weights' if offline else r'w\.pth'):
        VOSInferencer(default, device='cpu', backbone_weights=None if offline else path)


def test_weights_of_a_backbone_are_for_label_propagation_alone(small_sst, default, tmp_path):
    for config, weights in ((small_sst.config, None), (default, small_sst.checkpoint)):
        with pytest.raises(ValueError, match='backbone_weights'):
            VOSInferencer(config, weights, device='cpu', backbone_weights=tmp_path / 'w.pth')
    del default.model.backbone['init_cfg']
    with pytest.raises(ValueError, match='--backbone-weights'):
        VOSInferencer(default, device='cpu')
