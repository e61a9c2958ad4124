"""Label propagation against a literal search, and on a clip that does not move."""

import math
from itertools import product
from urllib.error import URLError

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from torch.nn import functional as F

from mmattn.registry import MODELS
from mmattn.utils.paths import config_path
from mmattn.video import (
    ClipSession,
    Frame,
    VideoFolderDataset,
    VOSInferencer,
    label_propagation,
    shrink_masks,
    write_mask,
)
from mmattn.video.frame_files import read_frame
from mmattn.video.inferencer import DEFAULT_CONFIG
from mmattn.video.masks import read_mask

from . import clips

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


@torch.no_grad()
def test_several_maps_count_alike():
    """Their similarity is the mean of their cosines, at the size of the largest map."""
    backbone = dict(BACKBONE, num_stages=2, out_indices=(0, 1), strides=(1, 2), dilations=(1, 1))
    torch.manual_seed(0)
    model = MODELS.build(dict(type='mmattn.LabelPropagation', backbone=backbone, num_maps=2)).eval()
    frames = torch.randn(2, 3, 32, 48)
    fine, coarse = model.backbone(frames)
    coarse = F.interpolate(coarse, fine.shape[2:], mode='bilinear', align_corners=False)
    cosines = [
        F.cosine_similarity(x[0].flatten(1)[:, :, None], x[1].flatten(1)[:, None], dim=0) for x in (fine, coarse)
    ]
    one, other = model.extract_feat(frames)[0].flatten(1, 2)
    torch.testing.assert_close(one @ other.T, (cosines[0] + cosines[1]) / 2)
    model.num_maps = 3
    with pytest.raises(ValueError, match='num_maps'):
        model.extract_feat(frames)


@torch.no_grad()
def test_only_the_neighbourhood_of_the_last_mask_is_compared():
    """Inside, shares are those of a search everywhere; an object without a last mask is looked for everywhere."""
    radius, (h, w) = 2, (9, 11)
    model, generator = build(top_k=3, radius=radius), torch.Generator().manual_seed(0)
    features = F.normalize(torch.randn(1, 2, h, w, 8, generator=generator), dim=-1)
    masks, previous = torch.rand(3, h, w, generator=generator), torch.zeros(3, h, w)
    previous[0, 1, 2] = previous[0, 2, 9] = previous[1, 0, 0] = 0.5
    previous[2, 4, 4] = 0.49  # of no cell the larger part
    arguments = features, torch.tensor([[0, 1]]), features[0, :1].expand(3, -1, -1, -1), masks, torch.zeros(3).long()
    everywhere, found = model.object_streams(*arguments), model.object_streams(*arguments, previous=previous)
    torch.testing.assert_close(found[:, 0, ..., 0], masks)
    for o in range(3):
        near = [(y, x) for y, x in (previous[o] >= 0.5).nonzero().tolist()]
        for y in range(h):
            for x in range(w):
                inside = not near or any(max(abs(y - v), abs(x - u)) <= radius for v, u in near)
                torch.testing.assert_close(found[o, 1, y, x], everywhere[o, 1, y, x] * inside)


def test_edges_are_those_of_least_squares():
    """In every window, the map is fitted as a linear function of the colours; fits are averaged."""
    radius, epsilon, generator = 1, 0.05, torch.Generator().manual_seed(0)
    x, guide = (torch.rand(1, n, 5, 6, generator=generator, dtype=torch.float64) for n in (1, 3))
    fitted = [[[] for _ in range(6)] for _ in range(5)]
    for i in range(5):
        for j in range(6):
            window = np.s_[0, :, max(i - radius, 0) : i + radius + 1, max(j - radius, 0) : j + radius + 1]
            colours, values = guide[window].flatten(1).T.numpy(), x[window].flatten().numpy()
            penalty = np.sqrt(epsilon * len(values)) * np.eye(3, 4)
            rows = np.vstack([np.c_[colours, np.ones(len(values))], penalty])
            *slope, offset = np.linalg.lstsq(rows, np.r_[values, 0, 0, 0], rcond=None)[0]
            fitted[i][j] = (slope, offset)
    found = label_propagation.guided_filter(x, guide, radius, epsilon)
    for i in range(5):
        for j in range(6):
            near = [fitted[v][u] for v in range(5) for u in range(6) if max(abs(v - i), abs(u - j)) <= radius]
            expected = np.mean([guide[0, :, i, j].numpy() @ slope + offset for slope, offset in near])
            assert float(found[0, 0, i, j]) == pytest.approx(expected)


@torch.no_grad()
def test_only_the_surroundings_of_an_object_are_filtered():
    """Without a difference: beyond them, the result is 0."""
    model, generator = build(edge_radius=0.2), torch.Generator().manual_seed(0)
    stream, fine = torch.zeros(2, 10, 15, 1), torch.rand(2, 3, 40, 60, generator=generator)
    stream[0, 3:6, 9:12] = torch.rand(3, 3, 1, generator=generator)  # the other object is lost
    share = label_propagation.resize(stream.permute(0, 3, 1, 2), (40, 60))
    radius = round(0.2 * float(share[0].sum()) ** 0.5)
    assert radius == 2
    expected = label_propagation.guided_filter(share, fine, radius).clamp(0, 1)
    found = model.head(stream, fine, (40, 60)).softmax(1)[:, 1:]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_coarse_mask_gets_the_edge_of_the_frame():
    """A disk of another colour, from a map at stride 8."""
    y, x = np.mgrid[:64, :96]
    disk = (y - 30) ** 2 + (x - 45) ** 2 < 20**2
    image = torch.from_numpy(np.where(disk, 1.0, -1.0)).float().expand(1, 3, -1, -1)
    stream = shrink_masks(torch.from_numpy(disk)[None], (8, 12)).unsqueeze(-1)
    errors = []
    for model in (build(), build(edge_radius=0.15)):
        fine = model.extract_feat(image)[1]
        predicted = model.head(stream, fine, (64, 96)).argmax(1)[0].numpy() == 1
        errors.append((predicted != disk).sum())
    assert errors[1] < errors[0] / 2


def jump(*columns):
    """Frames with a red square of 16 pixels at these columns, or none, and masks of the squares."""
    frames, masks = [], []
    for number, column in enumerate(columns):
        image, mask = np.full((32, 96, 3), 128, np.uint8), np.zeros((32, 96), np.uint8)
        if column is not None:
            image[8:24, column : column + 16], mask[8:24, column : column + 16] = (0, 0, 255), 1
        frames.append(Frame(number, image, mask if number == 0 else None))
        masks.append(mask)
    return frames, masks


def numbered(frames, numbers):
    return [frame._replace(number=number) for frame, number in zip(frames, numbers)]


@pytest.mark.parametrize(
    ('columns', 'numbers', 'options', 'found'),
    [
        ((0, 8, 56, 56, 64), range(5), dict(radius=None), '11111'),
        ((0, 8, 56, 56, 64), range(5), {}, '11011'),  # looked for everywhere after the frame without it
        ((0, 8, 56), (0, 1, 31), {}, '111'),  # after a gap, too
        ((0, 8, 56, 64), range(4), {}, '1101'),
        ((0, 8, 56, 64), range(0, 20, 5), {}, '1101'),  # no gap, whatever the step is
        ((0, 8, 56, 64), (3, 10, 17, 24), {}, '1101'),
        ((0, 8, 56, 64), (0, 5, 15, 20), {}, '1111'),  # a larger step is a gap
        ((0, 56, 64), (0, 10, 15), {}, '101'),  # 10 is the smallest so far
        ((0, 56, 64), (0, 10, 15), dict(step=5), '111'),
    ],
)
def test_an_object_is_found_within_reach_and_anywhere_after_it_was_lost_or_a_gap(columns, numbers, options, found):
    """It moves by 2 cells, or by 12, which is too far. Parts, and what an earlier run computed, change nothing."""
    frames, masks = jump(*columns)
    frames, step = numbered(frames, numbers), options.get('step')
    model = build(top_k=3, radius=options.get('radius', 4))
    whole = [ids for _, ids in ClipSession(model).segment(frames, step=step)]
    shares = [(ids & mask).sum() / (ids | mask).sum() for ids, mask in zip(whole, masks)]
    assert [share > 0.6 for share in shares] == [digit == '1' for digit in found]
    assert [share == 0 for share in shares] == [digit == '0' for digit in found]
    for seen in (0, 2):
        known = lambda asked: whole[:seen] if frames[0].number in asked and seen else None  # noqa: B023, E731
        continued = [ids for _, ids in ClipSession(model, max_frames=2).segment(frames, known, step)]
        np.testing.assert_array_equal(continued, whole)


def test_an_object_is_looked_for_everywhere_in_each_run_of_a_session():
    session = ClipSession(build(top_k=3, radius=4), references='nearest')
    frames, masks = jump(56, 64, 72, 8)
    frames[0], frames[3] = frames[0]._replace(mask=None), frames[3]._replace(mask=masks[3])
    session.add(frames[3])
    first, second = ([ids for _, ids in session.segment(frames)] for _ in range(2))
    assert first[0].any()
    np.testing.assert_array_equal(first, second)


def test_the_step_of_a_clip_is_known_from_its_files(tmp_path):
    (frames, masks), model = jump(0, 56, 64), build(top_k=3, radius=4)
    frames = numbered(frames, (0, 10, 15))
    found = [ids for _, ids in ClipSession(model).segment(frames, step=5)]
    for frame in frames:
        path = tmp_path / f'JPEGImages/{frame.number:05}.png'
        path.parent.mkdir(exist_ok=True)
        cv2.imwrite(str(path), frame.image)
    write_mask(tmp_path / 'Annotations/00000.png', masks[0])
    dataset = VideoFolderDataset(data_root=str(tmp_path), allow_gaps=True, pipeline=clips.TEST)
    np.testing.assert_array_equal(ClipSession(model).segment_clip(dataset[0]['data_samples']), found)
    torch.save(model.state_dict(), tmp_path / 'weights.pth')
    cfg = Config(dict(model=dict(type='mmattn.LabelPropagation', backbone=BACKBONE, top_k=3, radius=4)))
    follow = VOSInferencer(cfg, str(tmp_path / 'weights.pth'), device='cpu', show_progress=False)
    arguments = tmp_path / 'JPEGImages', tmp_path / 'Annotations/00000.png', tmp_path / 'out'
    with pytest.raises(ValueError, match=r'00010.*allow_gaps'):
        follow(*arguments, overlay=False)
    written = follow(*arguments, overlay=False, allow_gaps=True)
    assert [path.name for path in written] == ['00000.png', '00010.png', '00015.png']
    np.testing.assert_array_equal([read_mask(path) for path in written], found)


@pytest.mark.parametrize('radius', [None, 3])
def test_neither_parts_nor_an_interruption_change_the_masks(radius):
    """Two squares change places in between; where the search begins is read from the masks that are already written."""
    frames, _ = jump(0, 8, 16, 24, 32, 40, 48)
    for number, frame in enumerate(frames):
        frame.image[8:24, 72 - 8 * number : 88 - 8 * number] = (0, 0, 255)
    model = build(top_k=3, radius=radius)
    whole = [ids for _, ids in ClipSession(model).segment(frames)]
    for count, seen in product((2, 3), (3, 5)):  # the squares are apart after three frames, and one after five
        parts = [ids for _, ids in ClipSession(model, max_frames=count).segment(frames)]
        np.testing.assert_array_equal(parts, whole)

        def known(numbers, seen=seen):
            return [whole[number] for number in numbers] if max(numbers) < seen else None

        continued = [ids for _, ids in ClipSession(model, max_frames=count).segment(frames, known)]
        np.testing.assert_array_equal(continued, whole)


@pytest.mark.parametrize('seen', [0, 3])
def test_what_a_caller_does_with_the_masks_changes_no_later_ones(seen):
    """It drops the object, also from masks that an earlier run computed."""
    model, (frames, _) = build(top_k=3, radius=3), jump(0, 8, 16, 24, 32, 40)
    for frame in frames:
        frame.image[8:24, 72:88] = (0, 0, 255)
    whole = [ids for _, ids in ClipSession(model, max_frames=3).segment(frames)]
    kept = []

    def known(numbers):
        return [whole[number].copy() for number in numbers] if max(numbers) < seen else None

    for _, ids in ClipSession(model, max_frames=3).segment(frames, known):
        kept.append(ids.copy())
        ids[:] = 0
    np.testing.assert_array_equal(kept, whole)


@pytest.mark.parametrize('length', [6, 24])
def test_nothing_is_kept_of_earlier_frames(length, monkeypatch):
    """The model receives the reference and one frame, and a session holds as many bytes at the end as in the middle."""
    model, sizes, held = build(top_k=3, radius=3, edge_radius=0.1), set(), set()
    follow = model.object_streams

    def object_streams(features, *args, **kwargs):
        sizes.add(tuple(features.shape[:2]))
        return follow(features, *args, **kwargs)

    monkeypatch.setattr(model, 'object_streams', object_streams)
    session = ClipSession(model, max_frames=4)
    for _ in session.segment(jump(*[8] * length)[0]):
        kept = [session._previous[1], *(x for reference in session._references.values() for x in reference)]
        held.add(sum(x.nbytes for x in kept if hasattr(x, 'nbytes')))
    assert sizes == {(1, 2)}
    assert len(held) == 1


def test_stages_behind_the_last_output_do_not_run():
    backbone = dict(type='mmseg.MobileNetV2', widen_factor=0.25, out_indices=(1, 2))
    whole, model = MODELS.build(backbone), MODELS.build(dict(type='mmattn.LabelPropagation', backbone=backbone))
    whole.eval()  # returns None
    model.backbone.load_state_dict(whole.state_dict(), strict=True)
    model.backbone.layer4.register_forward_hook(lambda *args: pytest.fail('layer4 ran'))
    image = torch.randn(1, 3, 32, 64)
    model.eval()
    for actual, expected in zip(model.backbone(image), whole(image), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


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


def test_a_sample_is_segmented_as_by_a_session(tmp_path):
    clips.clip(tmp_path, 'a', [clips.squares(p, 1, 5) for p in range(4)], masked=(0,))
    sample = clips.packed(tmp_path)
    frames = [
        Frame(i, read_frame(path), None if i else clips.squares(0, 1, 5)) for i, path in enumerate(sample.frame_paths)
    ]
    model = build(top_k=3, test_cfg=dict(max_frames=3))
    expected = np.stack([ids for _, ids in ClipSession(model, max_frames=3).segment(frames)])
    (predicted,) = model.test_step(dict(inputs=None, data_samples=[sample]))
    np.testing.assert_array_equal(predicted.pred_masks.data, expected)
    assert expected[1:].any()
    with pytest.raises(ValueError, match=r'mode .*loss'):
        model(None, [sample], mode='loss')


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
    for source in (default.model.backbone.init_cfg.checkpoint, tmp_path / 'bare.pth', cached):
        default.model.backbone.init_cfg.checkpoint = str(source)
        model = VOSInferencer(default, device='cpu').model
        for actual, expected in zip(model.backbone(image), backbone(image), strict=True):
            torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    ('weights', 'kind'),
    [
        (None, FileNotFoundError),
        ({'fc.weight': torch.zeros(2)}, ValueError),
        ({'conv1.conv.weight': torch.zeros(2)}, ValueError),
    ],
)
def test_weights_that_do_not_fit_the_backbone_are_named(default, tmp_path, weights, kind):
    if weights is not None:
        torch.save(weights, tmp_path / 'w.pth')
    default.model.backbone.init_cfg.checkpoint = str(tmp_path / 'w.pth')
    with pytest.raises(kind, match=r'w\.pth'):
        VOSInferencer(default, device='cpu')


def test_without_a_connection_or_an_address_the_setting_of_the_weights_is_named(default, tmp_path, monkeypatch):
    def load_url(*args, **kwargs):
        raise URLError('no internet')

    monkeypatch.setattr(torch.hub, 'download_url_to_file', load_url)
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    with pytest.raises(ConnectionError, match=r'init_cfg\.checkpoint'):
        VOSInferencer(default, device='cpu')
    del default.model.backbone['init_cfg']
    with pytest.raises(ValueError, match='init_cfg'):
        VOSInferencer(default, device='cpu')
